"""What a user can say about a node beyond what Strands' builder takes."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import timedelta

from temporalio.common import RetryPolicy

from .wire import Join, OnFailure, OnRevisit, Semantics

DEFAULT_RETRY = RetryPolicy(maximum_attempts=3)
"""Bounded, since each attempt of an agent node pays for its model calls again."""


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """How Temporal runs a node. None means the default, or the graph's `defaults`.

    Attributes:
        task_queue: Task queue of the node's activity. Default: the run's own.
        timeout: Longest one attempt may take. Default: one hour.
        heartbeat_timeout: Time without a heartbeat after which an attempt counts as lost and
            is retried; heartbeats are sent by themselves. Default: 30 seconds.
        retry: Retry policy. Default: 3 attempts, from 1 second up, doubling.
        join: How incoming edges come together: `"all"` waits for whatever can still come,
            `"any"` takes the first. Default: the graph's.
        on_failure: What a failure of this node does: `"fail_fast"` ends the run, `"prune"`
            only ends its branch. Default: the graph's.
        on_revisit: Whether an agent keeps its conversation from visit to visit (`"keep"`) or
            starts afresh (`"reset"`). Default: as the builder's `reset_on_revisit` says.
        interrupt_timeout: How long a human has to answer what the node asks; then it fails.
            Default: for ever.
        summary: Text shown for its activity in the Temporal UI. Default: id and visit.
    """

    task_queue: str | None = None
    timeout: timedelta | None = None
    heartbeat_timeout: timedelta | None = None
    retry: RetryPolicy | None = None
    join: Join | None = None
    on_failure: OnFailure | None = None
    on_revisit: OnRevisit | None = None
    interrupt_timeout: timedelta | None = None
    summary: str | None = None

    def over(self, defaults: NodeOptions) -> NodeOptions:
        """Return these options, with `defaults` where they say nothing."""
        return NodeOptions(
            **{
                option.name: getattr(self, option.name)
                if getattr(self, option.name) is not None
                else getattr(defaults, option.name)
                for option in fields(NodeOptions)
            }
        )

    def problems(self) -> list[str]:
        """Return what is wrong with these options, each problem naming its option."""
        found = []
        for name in ("timeout", "heartbeat_timeout", "interrupt_timeout"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, timedelta) and value > timedelta(0)):
                found.append(f"{name} must be a positive timedelta, not {value!r}")
        for name, allowed in (
            ("join", ("all", "any")),
            ("on_failure", ("fail_fast", "prune")),
            ("on_revisit", ("keep", "reset")),
        ):
            value = getattr(self, name)
            if value is not None and value not in allowed:
                found.append(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
        if self.retry is not None and not isinstance(self.retry, RetryPolicy):
            found.append(f"retry must be a temporalio RetryPolicy, not {self.retry!r}")
        if self.task_queue == "":
            found.append("task_queue must not be empty")
        return found


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """How a registered graph runs; see `GraphRegistry.graph` for each option."""

    semantics: Semantics = "dataflow"
    join: Join = "all"
    on_failure: OnFailure = "fail_fast"
    max_concurrency: int | None = None
    defaults: NodeOptions = field(default_factory=NodeOptions)
    nodes: dict[str, NodeOptions] = field(default_factory=dict)
