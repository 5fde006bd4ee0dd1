"""The vocabulary between the scheduler and whoever drives it: endings in, commands out.

Pure Python, like the scheduler itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from ..wire import EdgePlan, RunStatus

R = TypeVar("R")
"""Type of a visit's result. The machine passes results on and never looks inside."""


class Ending(StrEnum):
    """How a visit ends."""

    COMPLETED = "completed"
    """With a result."""

    FAILED = "failed"
    """With a result that says it failed; prunes the branch under every policy, as in Strands."""

    RAISED = "raised"
    """With an error, after all its retries; `on_failure` decides what that does to the run."""

    CANCELLED = "cancelled"
    """Not run after all, because a hook said so: the branch ends here, and nothing has failed."""


@dataclass(frozen=True, slots=True)
class Dispatch(Generic[R]):
    """Command: run a visit of a node.

    Attributes:
        node: Id of the node.
        visit: Number of the visit, from 1.
        inputs: `(source id, result)` that this visit consumes, in declaration order.
        resume: How often this visit has been resumed after a pause.
    """

    node: str
    visit: int
    inputs: tuple[tuple[str, R], ...]
    resume: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """Edges whose conditions to evaluate, in this order.

    Attributes:
        edges: The edges; each has a condition.
        until_true: Stop after the first that is true.
        hidden: Completed nodes that the conditions must not see as completed.
    """

    edges: tuple[EdgePlan, ...]
    until_true: bool = False
    hidden: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ask:
    """Command: evaluate conditions, then call `Scheduler.answered` before any other event."""

    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """Command: the run is over. Visits still in flight are to be cancelled.

    Attributes:
        status: COMPLETED or FAILED.
        reason: Why it failed, where a limit or `abort` did it.
        failed_node: Id of the node that raised, where that ended the run.
    """

    status: RunStatus
    reason: str | None = None
    failed_node: str | None = None


Command = Dispatch[R] | Ask | Finish
Answers = Sequence[Sequence[bool]]
"""One list of verdicts a question, shorter than the question where `until_true` cut it."""
