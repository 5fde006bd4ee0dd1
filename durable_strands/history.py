"""From a run's Temporal history to Strands' events.

History is the event stream: following it costs the run nothing, any number of watchers may do
it, and a run that closed long ago tells its events as well as one that goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

from strands.types._events import MultiAgentResultEvent
from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHandle, WorkflowQueryFailedError
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.service import RPCError, RPCStatusCode

from . import wire
from .codec import error_from_wire, error_to_wire, result_from_wire
from .errors import (
    DurableStrandsError,
    GraphNotRegisteredError,
    InvalidGraphInputError,
    RunClosedError,
)
from .events import Narrator
from .sinks import Live


@dataclass(frozen=True)
class Closing:
    """How a run ended, or came to wait for a human.

    Attributes:
        report: Its last report, if it got as far as having one.
        error: Why there is no report.
    """

    report: wire.RunReport | None = None
    error: DurableStrandsError | None = None


class HistoryReader:
    """Reads one run's history, event by event, in order.

    Attributes:
        closing: How the run ended, or what it waits for, once `events` has come to an end.
        live: Is told when activities begin and end, if there is one.
        live_after: The last event of history that `live` came too late for.
    """

    def __init__(self, handle: WorkflowHandle[Any, Any], converter: DataConverter) -> None:
        """Read by `handle`; payloads are decoded by `converter`, the client's own."""
        self.closing: Closing | None = None
        self.live: Live | None = None
        self.live_after = 0
        self._handle = handle
        self._converter = converter
        self._position = 0
        self._narrator: Narrator | None = None
        self._open: dict[int, wire.Visit] = {}
        self._activities: dict[int, str] = {}
        self._attempts: dict[int, int] = {}
        self._cut_off: dict[int, None] = {}
        self._reports: dict[wire.Visit, wire.NodeReport] = {}
        self._asked = False
        self._deciding = True

    async def events(self, *, until_interrupted: bool = False) -> AsyncIterator[dict[str, Any]]:
        """Yield Strands' event dictionaries up to the run's end, waiting for those to come.

        The last one has the result, whether the run completed or failed. A run that was
        cancelled, terminated or never really began ends without one; see `closing`.

        Args:
            until_interrupted: Come to an end, too, with a result that says INTERRUPTED, when
                all that is left of the run waits for a human. Called again, it goes on there.
        """
        self.closing = None
        async for event in self._history():
            self._position = event.event_id
            if event.event_type in _WAKING and self._may_rest:
                for told in self._tell.rested():
                    yield told
            translate = _TRANSLATORS.get(event.event_type)
            if translate is not None:
                async for item in translate(self, event):
                    yield item
            if event.event_type in _WAKING:
                self._deciding = True
            elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                self._deciding = False
            if self._may_rest and await self._is_read():
                for told in self._tell.rested():
                    yield told
            if until_interrupted and self._asked and await self._is_interrupted():
                break
        if self.closing is not None and self.closing.report is not None:
            report = self.closing.report
            if report.truncated and self._narrator is not None:
                whole = _restored(self._narrator.plan, report.results, self._reports)
                report = report.model_copy(update={"results": whole})
                self.closing = Closing(report=report)
            if self._narrator is not None and report.status is not wire.RunStatus.INTERRUPTED:
                for told in self._narrator.ended(report):
                    yield told
            yield MultiAgentResultEvent(result=result_from_wire(report)).as_dict()

    async def _history(self) -> AsyncIterator[HistoryEvent]:
        """Yield the events that weren't read yet, and those to come."""
        while True:
            try:
                async for event in self._handle.fetch_history_events(wait_new_event=True):
                    if event.event_id > self._position:
                        yield event
                return
            except RPCError as error:
                if not has_moved_on(error):
                    raise

    @property
    def _may_rest(self) -> bool:
        return not self._deciding and self._narrator is not None and self._narrator.may_rest

    async def _is_interrupted(self) -> bool:
        """Say whether the run waits for nothing but humans, and history is read to its end.

        The run itself is asked only when it seems to rest: a query that meets the run's end is
        lost, and its caller waits for long.
        """
        if self._open or self._deciding or not await self._is_read():
            return False
        report = await self._ask_status()
        if report.status is not wire.RunStatus.INTERRUPTED or not await self._is_read():
            return False
        self.closing = Closing(report=report)
        return True

    async def _is_read(self) -> bool:
        """Say whether history has nothing that wasn't read."""
        return (await self._handle.describe()).history_length <= self._position

    async def _ask_status(self) -> wire.RunReport:
        """Ask the run, however long it takes until a worker is there to answer."""
        while True:
            try:
                return await ask_status(self._handle)
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    raise
                await asyncio.sleep(1)

    # -- nodes ---------------------------------------------------------------------------------

    async def _marker(self, event: HistoryEvent) -> AsyncIterator[dict[str, Any]]:
        """Read the result of a local activity: the plan, which comes first, hooks, a journal."""
        details = event.marker_recorded_event_attributes.details
        if "result" not in details:
            return
        result = await self._decode(details["result"])
        if self._narrator is None:
            self._narrator = Narrator(wire.GraphPlan.load(result))
            return
        for entry in wire.JournalPage.load(result).entries:  # What a retry may take over.
            taken = entry.outcome
            self._reports[taken.node, taken.visit] = taken.report
        outcome = wire.HooksOutcome.load(result)
        self._asked |= bool(outcome.interrupts)
        for item in self._narrator.hooked(outcome):
            yield item

    async def _scheduled(self, event: HistoryEvent) -> AsyncIterator[dict[str, Any]]:
        attributes = event.activity_task_scheduled_event_attributes
        argument = wire.NodeInput.load(await self._decode(attributes.input))
        path = argument.node
        self._open[event.event_id] = path, argument.visit
        self._activities[event.event_id] = attributes.activity_id
        for item in self._tell.scheduled(argument):
            yield item
        if self.live is not None:
            tell = self._tell.said
            self.live.started(attributes.activity_id, lambda event: tell(path, event))

    async def _started(self, event: HistoryEvent) -> AsyncIterator[dict[str, Any]]:
        attributes = event.activity_task_started_event_attributes
        self._attempts[attributes.scheduled_event_id] = attributes.attempt
        return
        yield

    async def _all_said(self, scheduled: int) -> None:
        """Wait for what an activity that ended has said."""
        activity_id = self._activities.pop(scheduled)
        attempt = self._attempts.pop(scheduled, 1)
        if self.live is not None and self._position > self.live_after:
            await self.live.ended(activity_id, attempt)

    async def _completed(self, event: HistoryEvent) -> AsyncIterator[dict[str, Any]]:
        attributes = event.activity_task_completed_event_attributes
        await self._all_said(attributes.scheduled_event_id)
        visit = self._open.pop(attributes.scheduled_event_id)
        if attributes.scheduled_event_id in self._cut_off:
            return  # The run has gone on without it.
        outcome = self._tell.whole(wire.NodeOutcome.load(await self._decode(attributes.result)))
        if outcome.interrupts:
            self._asked = True
        else:
            self._reports[visit] = outcome.report
        for item in self._tell.completed(outcome):
            yield item

    async def _failed(self, event: HistoryEvent) -> AsyncIterator[dict[str, Any]]:
        attributes = event.activity_task_failed_event_attributes
        async for item in self._stopped(attributes.scheduled_event_id, attributes.failure):
            yield item

    async def _timed_out(self, event: HistoryEvent) -> AsyncIterator[dict[str, Any]]:
        attributes = event.activity_task_timed_out_event_attributes
        async for item in self._stopped(attributes.scheduled_event_id, attributes.failure):
            yield item

    async def _cancel_requested(self, event: HistoryEvent) -> AsyncIterator[dict[str, Any]]:
        attributes = event.activity_task_cancel_requested_event_attributes
        self._cut_off[attributes.scheduled_event_id] = None
        return
        yield

    async def _canceled(self, event: HistoryEvent) -> AsyncIterator[dict[str, Any]]:
        self._open.pop(event.activity_task_canceled_event_attributes.scheduled_event_id)
        return
        yield

    async def _stopped(self, scheduled: int, failure: Failure) -> AsyncIterator[dict[str, Any]]:
        await self._all_said(scheduled)
        error = await self._converter.decode_failure(failure)
        result: Exception = error if isinstance(error, Exception) else RuntimeError(str(error))
        info = error_to_wire(result)
        if isinstance(error, ApplicationError) and error.details:
            # Details that aren't ours leave it at the failure itself.
            with contextlib.suppress(ValueError):
                info = wire.ErrorInfo.load(error.details[0])
                result = error_from_wire(info)
        visit = self._open.pop(scheduled)
        if scheduled in self._cut_off:
            return
        report = wire.NodeReport(status=wire.NodeStatus.FAILED, error=info, visit=visit[1])
        for item in self._tell.failed(visit, result, report):
            yield item

    @property
    def _tell(self) -> Narrator:
        assert self._narrator is not None, "a run records its plan before anything else"
        return self._narrator

    # -- the run's end -------------------------------------------------------------------------

    async def _run_completed(self, event: HistoryEvent) -> AsyncIterator[dict[str, Any]]:
        result = await self._decode(event.workflow_execution_completed_event_attributes.result)
        self.closing = Closing(report=wire.RunReport.load(result))
        return
        yield

    async def _run_failed(self, event: HistoryEvent) -> AsyncIterator[dict[str, Any]]:
        failure = event.workflow_execution_failed_event_attributes.failure
        self.closing = closing_of(await self._converter.decode_failure(failure))
        return
        yield

    async def _run_closed(self, event: HistoryEvent) -> AsyncIterator[dict[str, Any]]:
        how = EventType.Name(event.event_type).removeprefix("EVENT_TYPE_WORKFLOW_EXECUTION_")
        self.closing = Closing(error=closed_error(self._handle.id, how.replace("_", " ").lower()))
        return
        yield

    async def _decode(self, payloads: Payloads) -> Any:
        return await decode(payloads, self._converter)


_WAKING = frozenset(
    {
        EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED,
        EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED,
        EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED,
        EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT,
        EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED,
        EventType.EVENT_TYPE_TIMER_FIRED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
    }
)
"""Events upon which a run is about to decide something."""

_TRANSLATORS = {
    EventType.EVENT_TYPE_MARKER_RECORDED: HistoryReader._marker,
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: HistoryReader._scheduled,
    EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED: HistoryReader._started,
    EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: HistoryReader._completed,
    EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: HistoryReader._failed,
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: HistoryReader._timed_out,
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED: HistoryReader._cancel_requested,
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: HistoryReader._canceled,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: HistoryReader._run_completed,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: HistoryReader._run_failed,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: HistoryReader._run_closed,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED: HistoryReader._run_closed,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT: HistoryReader._run_closed,
}


def has_moved_on(error: RPCError) -> bool:
    """Say whether a server refused to go on with a history that it was being read from.

    It may, when the workflow has come on between two pages: the reader begins again.
    """
    return "branch tokens" in error.message


_TRIES = 5
"""How often a status is asked for before it is given up."""


async def ask_status(handle: WorkflowHandle[Any, Any]) -> wire.RunReport:
    """Ask a run for its report.

    The run's own answer never fails. A worker that doesn't know the run yet may fail to build it
    up from a history that is being written; so it is asked again.

    Raises:
        temporalio.client.WorkflowQueryFailedError: It failed again and again.
        temporalio.service.RPCError: There is no such run, or no worker to answer.
    """
    for left in reversed(range(_TRIES)):
        try:
            return wire.RunReport.load(await handle.query(wire.STATUS_QUERY))
        except WorkflowQueryFailedError:
            if not left:
                raise
            await asyncio.sleep(0.5)
    raise AssertionError("the last try returns or raises")


def _restored(
    plan: wire.GraphPlan,
    results: dict[str, wire.NodeReport],
    seen: dict[wire.Visit, wire.NodeReport],
    within: str = "",
) -> dict[str, wire.NodeReport]:
    """Return a truncated report's results with all that history has seen of them.

    Where the report has none at all, those of nodes that nothing is nested in.
    """

    def whole(path: str, node: wire.NodePlan, report: wire.NodeReport) -> wire.NodeReport:
        full = seen.get((path, report.visit))
        if full is not None or node.plan is None or report.results is None:
            return full or report
        inside = _restored(node.plan, report.results, seen, path)
        return report.model_copy(update={"results": inside})

    if not results:
        plain = {node.id for node in plan.nodes if not node.maps}
        return {path: full for (path, _), full in seen.items() if path in plain}
    restored = {}
    for node in plan.nodes:
        if node.id not in results:
            continue
        path, report = wire.join(within, node.id), results[node.id]
        if not node.maps:
            restored[node.id] = whole(path, node, report)
        elif report.results is not None:
            items = {index: whole(path, node, item) for index, item in report.results.items()}
            restored[node.id] = report.model_copy(update={"results": items})
    return {name: restored.get(name, report) for name, report in results.items()}


async def decode(payloads: Payloads, converter: DataConverter) -> Any:
    """Return the first value of some payloads, None if there is none."""
    values = await converter.decode(payloads.payloads)
    return values[0] if values else None


async def started_with(event: HistoryEvent, converter: DataConverter) -> wire.GraphInput:
    """Return the input of the run that a first event belongs to."""
    payloads = event.workflow_execution_started_event_attributes.input
    return wire.GraphInput.load(await decode(payloads, converter))


async def finished_visits(
    events: Iterable[HistoryEvent], converter: DataConverter
) -> list[wire.JournalEntry]:
    """Return the visits that a run has completed, in order of completion.

    What a visit used and wrote before it asked a human is added to its last part, and what the
    hooks around it wrote. A visit that failed is not among them, nor one that waits.
    """
    visits: dict[int, str] = {}
    asked: dict[str, str] = {}
    arguments: dict[str, dict[str, Any]] = {}
    before: dict[str, wire.StateChanges] = {}
    parts: dict[str, wire.NodeOutcome] = {}
    finished: dict[str, wire.JournalEntry] = {}
    for event in events:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled = event.activity_task_scheduled_event_attributes
            data = await decode(scheduled.input, converter)
            visit = wire.activity_id(data["node"], data["visit"])
            visits[event.event_id] = visit
            arguments.setdefault(visit, data)
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            completed = event.activity_task_completed_event_attributes
            visit = visits[completed.scheduled_event_id]
            outcome = wire.NodeOutcome.load(await decode(completed.result, converter))
            if visit in parts:
                outcome = outcome.after(parts.pop(visit))
            if outcome.interrupts:
                parts[visit] = outcome
                asked |= _asked_by(outcome.node, outcome.visit, outcome.interrupts)
            elif outcome.report.status is wire.NodeStatus.COMPLETED:
                hooks = before.get(visit, wire.StateChanges())
                hooked = [*hooks.changed, *hooks.removed]
                finished[visit] = wire.JournalEntry(
                    argument=wire.NodeInput.seen(arguments[visit], hooked),
                    hooked=hooked,
                    outcome=outcome.changing(hooks.then(outcome.state_changes)),
                )
        elif event.event_type in (
            EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED,
            EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
        ):
            answers, state = await _answers(event, converter)
            if not answers or not all(answer in asked for answer in answers):
                continue  # A signal that was refused: nothing of it counts.
            for visit in dict.fromkeys(asked.pop(answer) for answer in answers):
                changes = wire.StateChanges(changed=state)
                before[visit] = before.get(visit, wire.StateChanges()).then(changes)
        elif event.event_type == EventType.EVENT_TYPE_MARKER_RECORDED:
            details = event.marker_recorded_event_attributes.details
            result = await decode(details["result"], converter) if "result" in details else {}
            hooked_by = wire.HooksOutcome.load(result)
            visit = wire.activity_id(hooked_by.node or "", hooked_by.visit)
            if hooked_by.event == "before_node":
                asked |= _asked_by(hooked_by.node or "", hooked_by.visit, hooked_by.interrupts)
                earlier = before.get(visit, wire.StateChanges())
                before[visit] = earlier.then(hooked_by.state_changes)
            elif hooked_by.event == "after_node" and visit in finished:
                entry = finished[visit]
                changes = entry.outcome.state_changes.then(hooked_by.state_changes)
                finished[visit] = entry.model_copy(
                    update={"outcome": entry.outcome.changing(changes)}
                )
    return list(finished.values())


async def last_snapshots(
    events: Iterable[HistoryEvent], converter: DataConverter
) -> tuple[dict[str, dict[str, Any]], bool]:
    """Return the snapshots with which a run's agents ended, by path.

    Where it has none of an agent, the one with which the run began, or which a retry took over.

    Returns:
        The snapshots, and whether the run was told in full with which its agents begin.
    """
    told: dict[str, dict[str, Any]] = {}
    taken_over: dict[str, dict[str, Any]] = {}
    own: dict[str, dict[str, Any]] = {}
    cut_off: set[int] = set()
    remembering: set[str] | None = None
    was_told = False

    def remember(outcome: wire.NodeOutcome, snapshots: dict[str, dict[str, Any]]) -> None:
        if outcome.snapshot is not None and outcome.node in (remembering or ()):
            snapshots[outcome.node] = outcome.snapshot

    for event in events:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            completed = event.activity_task_completed_event_attributes
            outcome = wire.NodeOutcome.load(await decode(completed.result, converter))
            if not outcome.interrupts and completed.scheduled_event_id not in cut_off:
                remember(outcome, own)
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED:
            requested = event.activity_task_cancel_requested_event_attributes
            cut_off.add(requested.scheduled_event_id)
        elif event.event_type == EventType.EVENT_TYPE_MARKER_RECORDED:
            details = event.marker_recorded_event_attributes.details
            if "result" not in details:
                continue
            result = await decode(details["result"], converter)
            if remembering is None:  # The plan comes first.
                nodes = wire.GraphPlan.load(result).paths()
                remembering = {path for path, node in nodes if node.remembers}
                continue
            page = wire.SessionPage.load(result)
            told |= page.snapshots
            was_told |= page.run_id is not None and not page.more
            for entry in wire.JournalPage.load(result).entries:
                remember(entry.outcome, taken_over)
    return told | taken_over | own, was_told


def _asked_by(path: str, visit: int, asked: list[wire.Asked]) -> dict[str, str]:
    """Return the ids of what a visit asks, each with the visit's own."""
    return {
        wire.interrupt_id(path, visit, item.strands_id): wire.activity_id(path, visit)
        for item in asked
    }


async def _answers(
    event: HistoryEvent, converter: DataConverter
) -> tuple[list[str], dict[str, Any]]:
    """Return the ids that an update or a signal answers, and the state that it brings."""
    update = event.workflow_execution_update_accepted_event_attributes.accepted_request.input
    signal = event.workflow_execution_signaled_event_attributes
    by_update = bool(update.name)
    name = update.name if by_update else signal.signal_name
    payloads = update.args if by_update else signal.input
    values = await converter.decode(payloads.payloads) if name == wire.RESPOND else []
    if len(values) not in (1, 2) or not all(isinstance(value, dict) for value in values):
        return [], {}
    answers, state = values[0], values[1] if len(values) == 2 else {}
    return list(answers), state


def closed_error(workflow_id: str, how: str) -> RunClosedError:
    """Return the error of a run that was closed from outside."""
    return RunClosedError(
        f"Run {workflow_id!r} was {how} before it ended by itself. Its history has what it did "
        "until then; start a new run to do it again."
    )


def closing_of(failure: BaseException | None) -> Closing:
    """Return what a failed run says of its end."""
    if isinstance(failure, ApplicationError):
        if failure.type == wire.ErrorType.GRAPH_FAILED and failure.details:
            return Closing(report=wire.RunReport.load(failure.details[0]))
        if failure.type == wire.ErrorType.INVALID_INPUT:
            return Closing(error=InvalidGraphInputError(failure.message))
        if failure.type == wire.ErrorType.NOT_REGISTERED:
            return Closing(error=GraphNotRegisteredError(failure.message))
    message = failure.message if isinstance(failure, FailureError) else str(failure)
    return Closing(error=RunClosedError(f"The run failed outside its graph: {message}"))
