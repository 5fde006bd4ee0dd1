"""What tools and executors may ask about the node they run in."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(frozen=True)
class CurrentNode:
    """The visit that is running.

    Attributes:
        workflow_id: Id of the run's workflow.
        run_id: Temporal's id of this execution of the workflow.
        graph: The registered name.
        path: The node's path in the graph.
        visit: Number of the visit, from 1.
        attempt: Number of the attempt at this visit, from 1.
    """

    workflow_id: str
    run_id: str
    graph: str
    path: str
    visit: int
    attempt: int

    _runs: Iterator[int] = field(default_factory=itertools.count, repr=False, compare=False)

    def next_run_key(self) -> str:
        """Return a key of the next run that this visit starts, the same in every attempt."""
        return f"{self.idempotency_key}/{next(self._runs)}"

    @property
    def idempotency_key(self) -> str:
        """A key for side effects: the same for every attempt of this visit, and only for them.

        Pass it to whatever must not happen twice: a payment, a mail, an insert.
        """
        return f"{self.workflow_id}/{self.run_id}/{self.path}#{self.visit}"


current: ContextVar[CurrentNode] = ContextVar("durable_strands_current_node")


def current_node() -> CurrentNode:
    """Return the visit that the calling tool, hook or executor runs in.

    Raises:
        RuntimeError: The caller doesn't run inside a node of a durable graph.
    """
    try:
        return current.get()
    except LookupError:
        raise RuntimeError(
            "current_node() works only inside a node of a graph that durable-strands runs: in "
            "a tool, a hook of an agent, or an executor."
        ) from None
