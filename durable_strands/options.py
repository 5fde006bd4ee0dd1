"""What a user can say about a node beyond what Strands' builder takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any

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
        input: A function that makes the node's input: it returns text or content blocks. It is
            called with what it asks for by parameter name: `task` (text or blocks), `results`
            (a Strands `NodeResult` by upstream node), `invocation_state` (a copy), and, where
            the node is mapped, `item`. Async is allowed. It must be pure, since a retry calls it
            again. Default: Strands' own text.
        map_over: A function, called as `input` is, that returns a list: the node has one visit
            for each item, side by side, each with its item as input. They are joined once, with
            their results in the list's order. Items are JSON values.

    Of a node that is a graph or swarm itself, `task_queue`, `timeout`, `heartbeat_timeout`,
    `retry`, `interrupt_timeout` and `on_revisit` are what the nodes inside it begin with; the
    rest is about the node as a whole.
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
    input: Callable[..., Any] | None = None
    map_over: Callable[..., Any] | None = None

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

    def for_all_within(self) -> NodeOptions:
        """Return what these options of a nested graph say about the nodes inside it."""
        return replace(self, join=None, on_failure=None, summary=None, input=None, map_over=None)

    def problems(self) -> list[str]:
        """Return what is wrong with these options, each problem naming its option."""
        found = []
        for name in ("timeout", "heartbeat_timeout", "interrupt_timeout"):
            value = getattr(self, name)
            if value is not None and not _is_duration(value):
                found.append(
                    f"{name} must be a timedelta above 0 and below ten years, not {value!r}"
                )
        for name, longest in (("task_queue", 1000), ("summary", 400)):
            text = getattr(self, name)
            if text is not None and not (isinstance(text, str) and 0 < _size(text) <= longest):
                found.append(f"{name} must be a text of 1 to {longest} bytes, not {text!r:.80}")
        for name, allowed in (
            ("join", ("all", "any")),
            ("on_failure", ("fail_fast", "prune")),
            ("on_revisit", ("keep", "reset")),
        ):
            value = getattr(self, name)
            if value is not None and value not in allowed:
                found.append(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
        for name in ("input", "map_over"):
            function = getattr(self, name)
            if function is not None:
                found += [f"{name} {problem}" for problem in _function_problems(function)]
        if self.retry is not None:
            found += _retry_problems(self.retry)
        return found


FUNCTION_PARAMETERS = ("task", "results", "invocation_state", "item")
"""What a function of a node may ask for, by parameter name."""


def _function_problems(function: object) -> list[str]:
    if not callable(function):
        return [f"must be a function, not {function!r:.80}"]
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return ["must be a function whose parameters can be read"]
    wrong = [
        parameter.name
        for parameter in parameters
        if parameter.kind is not parameter.VAR_KEYWORD
        and parameter.name not in FUNCTION_PARAMETERS
        and parameter.default is parameter.empty
    ]
    if wrong:
        allowed = ", ".join(FUNCTION_PARAMETERS)
        return [f"asks for {', '.join(wrong)}; its parameters may be {allowed}"]
    return []


def _is_duration(value: object) -> bool:
    """Say whether a value is a time that a Temporal server takes."""
    return isinstance(value, timedelta) and timedelta(0) < value < timedelta(days=3650)


def _size(text: str) -> int:
    """Return the bytes of a text, 0 if it can't be encoded."""
    try:
        return len(text.encode())
    except UnicodeError:
        return 0


def _retry_problems(retry: object) -> list[str]:
    """Return what a Temporal server would not take of a retry policy.

    It would refuse the activity, in every workflow task anew.
    """
    if not isinstance(retry, RetryPolicy):
        return [f"retry must be a temporalio RetryPolicy, not {retry!r}"]
    found = []
    if not _is_duration(retry.initial_interval):
        found.append(f"retry: initial_interval must be above 0, not {retry.initial_interval!r}")
    if not retry.backoff_coefficient >= 1:
        found.append(
            f"retry: backoff_coefficient must be 1 or more, not {retry.backoff_coefficient}"
        )
    longest = retry.maximum_interval
    if longest is not None and not (_is_duration(longest) and longest >= retry.initial_interval):
        found.append(
            f"retry: maximum_interval must not be below initial_interval, as {longest!r} is"
        )
    if retry.maximum_attempts < 0:
        found.append(
            f"retry: maximum_attempts must not be negative, as {retry.maximum_attempts} is"
        )
    if not all(isinstance(name, str) for name in retry.non_retryable_error_types or ()):
        found.append("retry: non_retryable_error_types must be names")
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
