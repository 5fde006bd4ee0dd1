"""The workflow `StrandsGraph`: feeds the scheduler with history, schedules activities.

The way of the data: input -> plan (a local activity, the first thing recorded) -> scheduler ->
one activity per visit -> outcome -> scheduler -> ... -> report. What a run knows lives in
`GraphRunState`; what happens next is the scheduler's word alone.

Nothing here may raise a plain exception for something that a user did: that would fail the
workflow task, again and again, instead of the workflow.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from datetime import timedelta
from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, TimeoutType
from temporalio.exceptions import TimeoutError as ActivityTimeoutError

with workflow.unsafe.imports_passed_through():
    from .. import wire
    from .report import RunState
    from .scheduler import Ask, Command, Dispatch, Ending, Finish, Scheduler

_LOCAL_RETRY = RetryPolicy(maximum_attempts=3)
_LOCAL_TIMEOUT = timedelta(seconds=60)

_TASK_BYTES = 3 * 1024 * 1024
"""Bytes of activity arguments that one workflow task may schedule.

A workflow task's completion is one gRPC message of at most 4 MiB; the server terminates the
workflow that sends a larger one.
"""


@workflow.defn(name=wire.WORKFLOW_TYPE)
class StrandsGraph:
    """A run of a registered Strands graph.

    Input, result and messages are documented in `durable_strands.wire`. The methods take any
    number of arguments of any type: what is wrong with them is a clear failure of the run or
    the call, never a failing workflow task.
    """

    def __init__(self) -> None:
        """Start out with nothing known; `run` reads the input."""
        self._state: RunState | None = None
        self._scheduler: Scheduler[wire.NodeReport] | None = None
        self._inbox: deque[tuple[str, int, Any] | None] = deque()
        self._handles: dict[str, workflow.ActivityHandle[Any]] = {}
        self._scheduled_bytes = 0

    @workflow.run
    async def run(self, *args: Any) -> dict[str, Any]:
        """Run the graph to its end.

        Args:
            *args: One `wire.GraphInput` as a JSON object.

        Returns:
            A `wire.RunReport` as a JSON object.

        Raises:
            ApplicationError: Of type `InvalidGraphInput`, `GraphNotRegistered`, or
                `GraphFailed` with the partial report in its details.
        """
        request = _read_input(args)
        plan = await self._record_plan(request.graph)
        self._scheduler = Scheduler(plan)
        self._state = RunState(plan, request, self._scheduler, workflow.now())
        try:
            finish = await self._drive(self._scheduler, self._state)
        except asyncio.CancelledError:
            self._state.cancelled(workflow.now())
            raise
        finally:
            self._cancel_in_flight()
            workflow.set_current_details(self._state.markdown())
        self._state.finished(finish, workflow.now())
        workflow.set_current_details(self._state.markdown())
        report = self._state.final_report()
        if finish.status is wire.RunStatus.COMPLETED:
            return report
        raise ApplicationError(
            f"Graph {plan.graph!r} failed: {self._state.reason}",
            report,
            type=wire.ErrorType.GRAPH_FAILED,
            non_retryable=True,
        )

    @workflow.query(
        name=wire.STATUS_QUERY, description="The run's report so far, as JSON (RunReport)."
    )
    def status(self, *_args: Any) -> dict[str, Any]:
        """Answer with the report so far; any arguments are ignored."""
        if self._state is None:
            return wire.RunReport(graph="", status=wire.RunStatus.EXECUTING).dump()
        return self._state.report(workflow.now()).dump()

    # -- the loop ------------------------------------------------------------------------------

    async def _record_plan(self, graph: str) -> wire.GraphPlan:
        try:
            data = await workflow.execute_local_activity(
                wire.PLAN_ACTIVITY,
                wire.PlanRequest(graph=graph).dump(),
                start_to_close_timeout=_LOCAL_TIMEOUT,
                retry_policy=_LOCAL_RETRY,
                summary=f"plan of {graph}",
            )
            return wire.GraphPlan.load(data)
        except ActivityError as error:
            if isinstance(error.cause, ApplicationError):
                raise error.cause from None
            raise

    async def _drive(self, scheduler: Scheduler[wire.NodeReport], state: RunState) -> Finish:
        """Carry out the scheduler's commands and feed it events, one at a time, to the end."""
        timeout = state.plan.execution_timeout
        deadline = asyncio.create_task(self._watch_deadline(timeout)) if timeout else None
        commands: deque[Command[wire.NodeReport]] = deque(scheduler.start())
        try:
            while True:
                while commands:
                    command = commands.popleft()
                    if isinstance(command, Dispatch):
                        commands.extend(await self._dispatch(command, state))
                    elif isinstance(command, Ask):
                        commands.extend(await self._ask(command, state))
                    else:
                        return command
                self._scheduled_bytes = 0
                workflow.set_current_details(state.markdown())
                await workflow.wait_condition(lambda: bool(self._inbox))
                event = self._inbox.popleft()
                if event is None:
                    commands.extend(scheduler.expired())
                else:
                    commands.extend(self._ended(*event, scheduler, state))
        finally:
            if deadline is not None:
                deadline.cancel()

    async def _watch_deadline(self, seconds: float) -> None:
        await workflow.sleep(seconds, summary="execution timeout")
        self._inbox.append(None)

    def _cancel_in_flight(self) -> None:
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()

    # -- visits --------------------------------------------------------------------------------

    async def _dispatch(
        self, command: Dispatch[wire.NodeReport], state: RunState
    ) -> list[Command[wire.NodeReport]]:
        """Schedule the activity of a visit."""
        argument = state.node_input(command)
        size = len(json.dumps(argument))
        limit = state.plan.payload_limit
        if limit is not None and size > limit:
            assert self._scheduler is not None
            error = wire.ErrorInfo.own(
                "PayloadTooLargeError",
                wire.too_large(f"the input of node {command.node!r}", size, limit),
            )
            report = wire.NodeReport(
                status=wire.NodeStatus.FAILED, error=error, visit=command.visit
            )
            return self._scheduler.ended(command.node, Ending.RAISED, report)
        if self._scheduled_bytes and self._scheduled_bytes + size > _TASK_BYTES:
            self._scheduled_bytes = 0
            await workflow.sleep(0.001, summary="next workflow task: this one is full")
        self._scheduled_bytes += size
        plan = state.node_plan(command.node)
        handle = workflow.start_activity(
            wire.activity_type(state.plan.graph, command.node),
            argument,
            activity_id=wire.activity_id(command.node, command.visit),
            task_queue=plan.task_queue,
            start_to_close_timeout=timedelta(seconds=plan.timeout),
            heartbeat_timeout=timedelta(seconds=plan.heartbeat_timeout),
            retry_policy=_retry_policy(plan.retry),
            summary=plan.summary or f"{command.node}, visit {command.visit}",
        )
        node, visit = command.node, command.visit
        self._handles[node] = handle
        handle.add_done_callback(lambda done: self._inbox.append((node, visit, done)))
        return []

    def _ended(
        self,
        node: str,
        visit: int,
        handle: workflow.ActivityHandle[Any],
        scheduler: Scheduler[wire.NodeReport],
        state: RunState,
    ) -> list[Command[wire.NodeReport]]:
        """Take the end of an activity to the scheduler."""
        del self._handles[node]
        try:
            outcome = wire.NodeOutcome.load(handle.result())
        except (ActivityError, asyncio.CancelledError) as failure:
            error = _error_info(failure)
        except ValidationError as invalid:
            error = wire.ErrorInfo.own(
                "TopologyMismatchError",
                f"The activity of node {node!r} answered with something that is no "
                f"outcome of a node ({wire.explain(invalid)}). Does another activity have "
                f"the type {wire.activity_type(state.plan.graph, node)!r}?",
            )
        else:
            if (outcome.node, outcome.visit) == (node, visit):
                return scheduler.ended(node, state.take(outcome), outcome.report)
            error = wire.ErrorInfo.own(
                "TopologyMismatchError",
                f"Visit {visit} of node {node!r} was answered by visit "
                f"{outcome.visit} of node {outcome.node!r}.",
            )
        report = wire.NodeReport(status=wire.NodeStatus.FAILED, error=error, visit=visit)
        return scheduler.ended(node, Ending.RAISED, report)

    # -- conditions ----------------------------------------------------------------------------

    async def _ask(self, ask: Ask, state: RunState) -> list[Command[wire.NodeReport]]:
        """Have the conditions evaluated by a local activity, so that history records them."""
        assert self._scheduler is not None
        edges = ", ".join(
            dict.fromkeys(str(edge) for question in ask.questions for edge in question.edges)
        )
        try:
            data = await workflow.execute_local_activity(
                wire.EDGES_ACTIVITY,
                state.edges_input(ask),
                start_to_close_timeout=_LOCAL_TIMEOUT,
                retry_policy=_LOCAL_RETRY,
                summary=f"conditions of {edges[:150]}",
            )
            outcome = wire.EdgesOutcome.load(data)
        except ActivityError as failure:
            outcome = wire.EdgesOutcome(error=_error_info(failure), failed_edge=edges)
        state.merge(outcome.state_changes)
        if outcome.error is not None:
            reason = state.condition_raised(outcome.failed_edge or edges, outcome.error)
            return self._scheduler.abort(reason)
        return self._scheduler.answered(outcome.answers)


def _read_input(args: tuple[Any, ...]) -> wire.GraphInput:
    """Check the workflow's arguments.

    Raises:
        ApplicationError: Of type `InvalidGraphInput`, naming what is wrong.
    """
    usage = 'The input is one JSON object: {"graph": "<name>", "task": "<text>"}.'
    problem = None
    if len(args) != 1:
        problem = f"{wire.WORKFLOW_TYPE} takes one argument, not {len(args)}."
    elif not isinstance(args[0], dict):
        problem = f"The argument is a {type(args[0]).__name__}."
    else:
        try:
            return wire.GraphInput.load(args[0])
        except ValidationError as error:
            problem = wire.explain(error) + "."
    raise ApplicationError(
        f"{problem} {usage}", type=wire.ErrorType.INVALID_INPUT, non_retryable=True
    )


def _retry_policy(plan: wire.RetryPlan) -> RetryPolicy:
    longest = plan.maximum_interval
    return RetryPolicy(
        initial_interval=timedelta(seconds=plan.initial_interval),
        backoff_coefficient=plan.backoff_coefficient,
        maximum_interval=None if longest is None else timedelta(seconds=longest),
        maximum_attempts=plan.maximum_attempts,
        non_retryable_error_types=plan.non_retryable_error_types or None,
    )


def _error_info(failure: BaseException) -> wire.ErrorInfo:
    """Say what made an activity fail, in terms of the node rather than of Temporal."""
    cause = failure.cause if isinstance(failure, ActivityError) else failure
    if isinstance(cause, ApplicationError):
        if cause.details and isinstance(cause.details[0], dict):
            try:
                return wire.ErrorInfo.load(cause.details[0])
            except ValidationError:
                pass
        if cause.type == "NotFoundError":  # The SDK's word for an unknown activity type.
            return wire.ErrorInfo.own(
                "TopologyMismatchError",
                f"No worker has the node's activity any more: {cause.message}",
            )
        return wire.ErrorInfo(type=cause.type or "ApplicationError", message=cause.message)
    if isinstance(cause, ActivityTimeoutError):
        what = {
            TimeoutType.HEARTBEAT: "stopped heartbeating: its worker was lost or its event loop "
            "is blocked",
            TimeoutType.START_TO_CLOSE: "took longer than its timeout",
        }.get(cause.type or TimeoutType.SCHEDULE_TO_CLOSE, "timed out")
        return wire.ErrorInfo.own("NodeTimeoutError", f"The node {what} ({cause.message})")
    if isinstance(cause, (CancelledError, asyncio.CancelledError)):
        return wire.ErrorInfo(type="CancelledError", message="The node's activity was cancelled")
    return wire.ErrorInfo(type=type(cause).__name__, message=str(cause))
