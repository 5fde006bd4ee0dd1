"""What a run did and what it cost, from two witnesses: Temporal's history and the journal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHandle
from temporalio.converter import DataConverter

from .. import wire
from ..errors import DurableStrandsError
from .journal import Entry


class PriceError(DurableStrandsError):
    """A price can't be read."""


@dataclass(frozen=True)
class Price:
    """What a million tokens cost, in whatever currency.

    Attributes:
        read: A million input tokens.
        written: A million output tokens.
    """

    read: float
    written: float

    @classmethod
    def parse(cls, text: str) -> Price:
        """Read `IN` or `IN,OUT`; one number is the price of both.

        Raises:
            PriceError: It is something else.
        """
        read, _, written = text.partition(",")
        try:
            price = cls(float(read), float(written or read))
        except ValueError as error:
            raise PriceError(
                f"{text!r} is no price. Write one number per million tokens, or two: 3,15."
            ) from error
        if not 0 <= price.read < float("inf") or not 0 <= price.written < float("inf"):
            raise PriceError(f"{text!r} is no price: it must be 0 or more.")
        return price

    def of(self, usage: wire.Usage) -> float:
        """Return what tokens cost."""
        return (usage.inputTokens * self.read + usage.outputTokens * self.written) / 1_000_000


@dataclass
class Visit:
    """One visit of a node, as history has it.

    Attributes:
        node: The node's id.
        number: Number of the visit, from 1.
        attempts: Attempts that it took.
        pid: Process of the worker that took the last attempt.
        completions: How often history says that it completed.
        usage: Tokens of the attempt that completed.
    """

    node: str
    number: int
    attempts: int = 0
    pid: int = 0
    completions: int = 0
    usage: wire.Usage = field(default_factory=wire.Usage)

    def __str__(self) -> str:
        return self.node if self.number == 1 else f"{self.node} (visit {self.number})"


async def visits_of(handle: WorkflowHandle[Any, Any], converter: DataConverter) -> list[Visit]:
    """Return a run's visits in order of dispatch, read from its history."""
    visits: dict[int, Visit] = {}
    async for event in handle.fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled = event.activity_task_scheduled_event_attributes
            node, _, number = scheduled.activity_id.rpartition("#")
            visits[event.event_id] = Visit(node, int(number))
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            # The server writes this event when the activity ends: it is the last attempt's.
            started = event.activity_task_started_event_attributes
            visit = visits[started.scheduled_event_id]
            visit.attempts = started.attempt
            visit.pid = int(started.identity.partition("@")[0])
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            completed = event.activity_task_completed_event_attributes
            visit = visits[completed.scheduled_event_id]
            visit.completions += 1
            [outcome] = await converter.decode(completed.result.payloads)
            visit.usage = wire.NodeOutcome.load(outcome).report.usage
    return list(visits.values())


@dataclass(frozen=True)
class Accounts:
    """A run's accounts.

    Attributes:
        visits: Its visits, in order of dispatch.
        entries: The journal of the worker processes.
        killed: Process id of the worker that was killed.
    """

    visits: list[Visit]
    entries: list[Entry]
    killed: int

    @property
    def kept(self) -> list[Visit]:
        """Visits that the killed worker had completed: those that durability kept.

        A dead process completes nothing, so whatever it completed was before the kill.
        """
        return [visit for visit in self.visits if visit.pid == self.killed]

    @property
    def resumed(self) -> list[Visit]:
        """Visits that the killed worker had begun and another one completed."""
        return [
            visit
            for visit in self.visits
            if visit.pid != self.killed and self.executions(visit, pid=self.killed)
        ]

    def executions(self, visit: Visit, *, ended: bool = False, pid: int | None = None) -> int:
        """Return how often a visit was executed: begun, or run to its end; by a process, or any."""
        return sum(
            (entry.node, entry.visit) == (visit.node, visit.number)
            and entry.moment == ("ended" if ended else "began")
            and pid in (None, entry.pid)
            for entry in self.entries
        )

    def problems(self) -> list[str]:
        """Return what went otherwise than a durable run must go; nothing if all is well."""
        found = [
            f"history has {visit.completions} completions of {visit}, not one"
            for visit in self.visits
            if visit.completions != 1
        ]
        for visit in self.kept:
            again = self.executions(visit) - self.executions(visit, pid=self.killed)
            if again:
                found.append(f"{visit} was completed before the kill and run {again} times again")
        found += [
            f"{visit} completed without having been executed to its end"
            for visit in self.visits
            if not self.executions(visit, ended=True)
        ]
        if not self.resumed:
            found.append("no visit had to be resumed: the kill hit nothing")
        return found


def total(visits: Iterable[Visit]) -> wire.Usage:
    """Return the tokens of some visits."""
    return sum((visit.usage for visit in visits), wire.Usage())
