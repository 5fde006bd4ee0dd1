"""The workflow `StrandsGraph`: feeds the scheduler with history, schedules activities.

The way of the data: input -> plan (a local activity, the first thing recorded) -> scheduler ->
one task per visit: hooks, the node's activity -> event -> scheduler -> ... -> report. What a
run knows lives in `RunState`; what happens next is the scheduler's word alone.

Nothing here may raise a plain exception for something that a user did: that would fail the
workflow task, again and again, instead of the workflow.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    FailureError,
    TimeoutType,
    is_cancelled_exception,
)
from temporalio.exceptions import TimeoutError as ActivityTimeoutError

with workflow.unsafe.imports_passed_through():
    from .. import wire
    from .clock import ActiveClock
    from .interrupts import Interrupts
    from .journal import Journal
    from .report import RunState
    from .scheduler import Ask, Command, Dispatch, Ending, Finish, Scheduler

Commands = list[Command[wire.NodeReport]]

_LOCAL_RETRY = RetryPolicy(maximum_attempts=3)
_LOCAL_TIMEOUT = timedelta(seconds=60)

_TASK_BYTES = 3 * 1024 * 1024
"""Bytes of activity arguments that one workflow task may schedule.

A workflow task's completion is one gRPC message of at most 4 MiB; the server terminates the
workflow that sends a larger one.
"""


Event = Callable[[], Awaitable[Commands]]
"""Something that happened: what the run makes of it, when its turn comes."""

Over = wire.NodeOutcome | wire.HooksOutcome | wire.ErrorInfo
"""How a visit's task came to its end: the node's outcome, hooks that ask or cancel, an error."""


@workflow.defn(name=wire.WORKFLOW_TYPE)
class StrandsGraph:
    """A run of a registered Strands graph.

    Input, result and messages are documented in `durable_strands.wire`. The methods take any
    number of arguments of any type: what is wrong with them is a clear failure of the run or
    the call, never a failing workflow task.
    """

    def __init__(self) -> None:
        """Start out with nothing known; `run` reads the input."""
        self._run: _Run | None = None
        self._refusal: str | None = None

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
        try:
            request = _read_input(args)
            plan = await _record_plan(request.graph)
            journal = await _read_journal(plan, request.retry_of)
        except ApplicationError as refusal:
            self._refusal = refusal.message
            raise
        self._run = _Run(plan, request, journal)
        await self._run.drive()
        state = self._run.state
        report = state.fitting_report(workflow.now(), plan.payload_limit)
        if state.status is wire.RunStatus.COMPLETED:
            return report
        raise ApplicationError(
            f"Graph {plan.graph!r} failed: {state.reason}",
            report,
            type=wire.ErrorType.GRAPH_FAILED,
            non_retryable=True,
        )

    @workflow.query(
        name=wire.STATUS_QUERY, description="The run's report so far, as JSON (RunReport)."
    )
    def status(self, *_args: Any) -> dict[str, Any]:
        """Answer with the report so far; any arguments are ignored."""
        if self._run is not None:
            # An answer to a query is one gRPC message, whatever storage there is.
            return self._run.state.fitting_report(workflow.now(), wire.DEFAULT_PAYLOAD_LIMIT)
        if self._refusal is None:
            return wire.RunReport(graph="", status=wire.RunStatus.EXECUTING).dump()
        return wire.RunReport(graph="", status=wire.RunStatus.FAILED, reason=self._refusal).dump()

    @workflow.update(
        name=wire.RESPOND,
        description='Answer interrupts: {"<interrupt id>": <response>, ...}. All or nothing.',
    )
    def respond(self, *args: Any) -> dict[str, Any]:
        """Answer interrupts.

        Returns:
            `{"released": [...]}`: the nodes that go on now, having all their answers.
        """
        assert self._run is not None, "before there is a run, no answer is accepted"
        return {"released": self._run.respond(args[0], args[1] if len(args) > 1 else {})}

    @respond.validator
    def check_response(self, *args: Any) -> None:
        """Refuse answers that are malformed, unknown or settled; history records nothing then.

        Raises:
            ApplicationError: Of type `InterruptNotPending`, saying which and why.
        """
        problem = self._problem(args)
        if problem is not None:
            raise ApplicationError(problem, type=wire.ErrorType.NOT_PENDING, non_retryable=True)

    @workflow.signal(
        name=wire.RESPOND,
        description="As the update, for tools that can't send one; a refused answer is logged.",
    )
    def respond_signal(self, *args: Any) -> None:
        """Answer interrupts, or log why not: a signal has nobody to tell."""
        problem = self._problem(args)
        if problem is None:
            self.respond(*args)
        else:
            workflow.logger.warning("problem=<%s> | answers ignored", problem)

    def _problem(self, args: tuple[Any, ...]) -> str | None:
        if len(args) not in (1, 2):
            return (
                f"{wire.RESPOND!r} takes the answers and perhaps a state, not {len(args)} things."
            )
        if len(args) == 2 and not isinstance(args[1], dict):
            return "The invocation state to merge, the second argument, must be a JSON object."
        interrupts = Interrupts() if self._run is None else self._run.interrupts
        return interrupts.problem(args[0])


class _Run:
    """One run of one plan: the loop between the scheduler and history.

    Attributes:
        state: What the run knows.
        interrupts: Its questions to humans.
    """

    def __init__(self, plan: wire.GraphPlan, request: wire.GraphInput, journal: Journal) -> None:
        self._plan = plan
        self._journal = journal
        self._inbox: deque[Event] = deque()
        self.interrupts = Interrupts()
        self._scheduler: Scheduler[wire.NodeReport] = Scheduler(plan)
        self._clock = ActiveClock(plan.execution_timeout, lambda: self._inbox.append(self._expired))
        self.state = RunState(plan, request, self._scheduler, self.interrupts, self._clock)
        self._visits: dict[str, asyncio.Task[Over]] = {}
        self._reminders: dict[str, asyncio.Task[None]] = {}
        self._gate = _TaskGate()

    # -- the loop ------------------------------------------------------------------------------

    async def drive(self) -> None:
        """Carry out the scheduler's commands and feed it events, one at a time, to the end."""
        try:
            finish = await self._loop()
        except asyncio.CancelledError:
            self._scheduler.abort("cancelled")
            self.state.cancelled()
            self._close()
            raise
        self.state.finished(finish)
        self._close()
        if "after_run" in self._plan.hooks:
            try:
                outcome = await self._hooks("after_run")
            except asyncio.CancelledError:
                return  # The run has ended; what it came to stands.
            if outcome.error is not None:
                workflow.logger.warning("error=<%s> | a hook of after_run raised", outcome.error)

    def _close(self) -> None:
        """Put an end to whatever is open.

        Not in a `finally`: when a worker drops a run from its cache, the coroutine may be closed
        outside the workflow's own loop, and that is not the run's end.
        """
        self.interrupts.cancel(self.state.reason or "the run has ended")
        self._clock.stop()
        for task in (*self._visits.values(), *self._reminders.values()):
            task.cancel()
        workflow.set_current_details(self.state.markdown())

    async def _loop(self) -> Finish:
        if "before_run" in self._plan.hooks:
            outcome = await self._hooks("before_run")
            if outcome.error is not None:
                return Finish(
                    wire.RunStatus.FAILED, self.state.hook_raised("before_run", outcome.error)
                )
        commands: deque[Command[wire.NodeReport]] = deque(self._scheduler.start())
        while True:
            while commands:
                command = commands.popleft()
                if isinstance(command, Dispatch):
                    self._dispatch(command)
                elif isinstance(command, Ask):
                    commands.extend(await self._ask(command))
                else:
                    return command
            done = self._journal.next()
            if done is not None:
                commands.extend(self._took(done))
                continue
            if self._scheduler.is_running:
                self._clock.start()
            else:
                self._clock.stop()
            if not self._inbox:
                workflow.set_current_details(self.state.markdown())
                await workflow.wait_condition(lambda: bool(self._inbox))
            commands.extend(await self._inbox.popleft()())

    # -- events --------------------------------------------------------------------------------

    def respond(self, answers: dict[str, Any], state: dict[str, Any]) -> list[str]:
        """Take answers in, and return the nodes that go on, having all of theirs."""
        given = self.interrupts.answer(answers)
        for node, of_node in given.items():
            self.state.open_visit(node).answers += of_node
        released = [node for node in given if not self.interrupts.of(node)]
        self._inbox.append(lambda: self._released(released, state))
        return released

    async def _released(self, nodes: list[str], state: dict[str, Any]) -> Commands:
        """Let nodes go on that have all their answers; `state` came with the answers."""
        self.state.merge(wire.StateChanges(changed=state))
        commands: Commands = []
        for node in nodes:
            self._forget_reminder(node)
            commands += self._scheduler.resume(node)
        return commands

    async def _expired(self) -> Commands:
        """Take the execution timeout to the scheduler."""
        return self._scheduler.expired()

    async def _unanswered(self, node: str) -> Commands:
        """Fail a node whose questions nobody answered in time."""
        if node not in self._scheduler.paused or not self.interrupts.of(node):
            return []  # The answer came first, in the same workflow task.
        seconds = self.state.node_plan(node).interrupt_timeout
        self.interrupts.cancel("interrupt_timeout", node)
        self._forget_reminder(node)
        text = f"interrupt_timeout: nobody answered within {seconds} s"
        return await self._end(node, wire.ErrorInfo.own("InterruptTimeoutError", text))

    async def _visit_over(self, node: str, visit: int, over: Over) -> Commands:
        """Take the end of a visit's task to the scheduler: the visit's end, or a pause."""
        del self._visits[node]
        if isinstance(over, wire.ErrorInfo) or not over.interrupts:
            return await self._end(node, over)
        if isinstance(over, wire.NodeOutcome):
            self.state.paused(over)
        self.interrupts.ask(node, visit, over.interrupts)
        timeout = self.state.node_plan(node).interrupt_timeout
        if timeout is not None:
            self._reminders[node] = asyncio.create_task(self._remind(node, timeout))
        return self._scheduler.pause(node)

    async def _end(self, node: str, over: Over) -> Commands:
        """End a visit, and run the hooks that follow it."""
        if isinstance(over, wire.NodeOutcome):
            commands = self._took(over)
        elif isinstance(over, wire.ErrorInfo):
            report = self.state.raised(node, over)
            commands = self._scheduler.ended(node, Ending.RAISED, report)
        else:
            report = self.state.cancelled_by_hook(node, over.cancel or "")
            commands = self._scheduler.ended(node, Ending.CANCELLED, report)
        if "after_node" in self._plan.hooks:
            outcome = await self._hooks("after_node", node)
            if outcome.error is not None and not any(isinstance(c, Finish) for c in commands):
                return self._scheduler.abort(self.state.hook_raised("after_node", outcome.error))
        return commands

    def _took(self, outcome: wire.NodeOutcome) -> Commands:
        """Take a node's outcome, fresh or from an earlier run, to the scheduler."""
        report = self.state.ended(outcome)
        failed = report.status is wire.NodeStatus.FAILED
        ending = Ending.FAILED if failed else Ending.COMPLETED
        return self._scheduler.ended(outcome.node, ending, report)

    async def _remind(self, node: str, seconds: float) -> None:
        await workflow.sleep(seconds, summary=f"interrupt timeout of {node}")
        self._inbox.append(lambda: self._unanswered(node))

    def _forget_reminder(self, node: str) -> None:
        reminder = self._reminders.pop(node, None)
        if reminder is not None:
            reminder.cancel()

    # -- visits --------------------------------------------------------------------------------

    def _dispatch(self, command: Dispatch[wire.NodeReport]) -> None:
        """Start the task of a visit, or of the rest of one that paused.

        A visit that an earlier run has finished needs none, nor its hooks.
        """
        node, visit = command.node, command.visit
        if self._journal.has(node, visit, lambda: self.state.node_input(command)):
            return

        def over(task: asyncio.Task[Over]) -> None:
            if not task.cancelled():
                self._inbox.append(lambda: self._visit_over(node, visit, task.result()))

        self._visits[node] = asyncio.create_task(self._visit(command))
        self._visits[node].add_done_callback(over)

    async def _visit(self, command: Dispatch[wire.NodeReport]) -> Over:
        """Run a visit up to its end or to a question: hooks first, then the node."""
        node = command.node
        visit = self.state.open_visit(node)
        if "before_node" in self._plan.hooks and not visit.hooks_done:
            outcome = await self._hooks("before_node", node, visit.answers)
            if outcome.error is not None:
                return outcome.error
            if outcome.cancel is not None and self._plan.semantics == "strands":
                return wire.ErrorInfo(
                    type="RuntimeError", module="builtins", message=outcome.cancel
                )
            if outcome.interrupts or outcome.cancel is not None:
                return outcome
            visit.hooks_done, visit.answers = True, []
        return await self._node(command)

    async def _node(self, command: Dispatch[wire.NodeReport]) -> wire.NodeOutcome | wire.ErrorInfo:
        """Run a node's activity."""
        node, visit = command.node, command.visit
        argument = self.state.node_input(command)
        size = len(json.dumps(argument))
        limit = self._plan.payload_limit
        if limit is not None and size > limit:
            text = wire.too_large(f"the input of node {node!r}", size, limit)
            return wire.ErrorInfo.own("PayloadTooLargeError", text)
        await self._gate.admit(size)
        plan = self.state.node_plan(node)
        kind = wire.activity_type(self._plan.graph, node)
        try:
            data = await workflow.execute_activity(
                kind,
                argument,
                activity_id=wire.activity_id(node, visit, command.resume),
                task_queue=plan.task_queue,
                start_to_close_timeout=timedelta(seconds=plan.timeout),
                heartbeat_timeout=timedelta(seconds=plan.heartbeat_timeout),
                retry_policy=_retry_policy(plan.retry),
                summary=plan.summary or f"{node[:300]}, visit {visit}",
            )
            outcome = wire.NodeOutcome.load(data)
        except ActivityError as failure:
            return _error_info(failure)
        except ValidationError as invalid:
            return wire.ErrorInfo.own(
                "TopologyMismatchError",
                f"The activity of node {node!r} answered with something that is no outcome of a "
                f"node ({wire.explain(invalid)}). Does another activity have the type {kind!r}?",
            )
        if (outcome.node, outcome.visit) != (node, visit):
            return wire.ErrorInfo.own(
                "TopologyMismatchError",
                f"Visit {visit} of node {node!r} was answered by visit {outcome.visit} of node "
                f"{outcome.node!r}.",
            )
        return outcome

    # -- local activities ----------------------------------------------------------------------

    async def _ask(self, ask: Ask) -> Commands:
        """Have the conditions evaluated by a local activity, so that history records them."""
        edges = ", ".join(
            dict.fromkeys(str(edge) for question in ask.questions for edge in question.edges)
        )
        try:
            data = await _local(
                wire.EDGES_ACTIVITY, self.state.edges_input(ask), f"conditions of {edges}"
            )
            outcome = wire.EdgesOutcome.load(data)
        except FailureError as failure:
            outcome = wire.EdgesOutcome(error=_error_info(failure), failed_edge=edges)
        self.state.merge(outcome.state_changes)
        if outcome.error is not None:
            reason = self.state.condition_raised(outcome.failed_edge or edges, outcome.error)
            return self._scheduler.abort(reason)
        return self._scheduler.answered(outcome.answers)

    async def _hooks(
        self,
        event: wire.HookEvent,
        node: str | None = None,
        answers: list[wire.Answer] | None = None,
    ) -> wire.HooksOutcome:
        """Run the graph's hooks for an event by a local activity."""
        about = f" {node}" if node else ""
        try:
            data = await _local(
                wire.HOOKS_ACTIVITY,
                self.state.hooks_input(event, node, answers or []),
                f"hooks {event}{about}",
            )
            outcome = wire.HooksOutcome.load(data)
        except FailureError as failure:
            return wire.HooksOutcome(error=_error_info(failure))
        self.state.merge(outcome.state_changes)
        return outcome


class _TaskGate:
    """Spreads large activity arguments over workflow tasks; see `_TASK_BYTES`."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._task = 0
        self._bytes = 0

    async def admit(self, size: int) -> None:
        """Return when `size` more bytes fit into the workflow task that is going on."""
        async with self._lock:
            self._turn()
            if self._bytes and self._bytes + size > _TASK_BYTES:
                await workflow.sleep(0.001, summary="next workflow task: this one is full")
                self._turn()
            self._bytes += size

    def _turn(self) -> None:
        task = workflow.info().get_current_history_length()
        if task != self._task:
            self._task, self._bytes = task, 0


async def _record_plan(graph: str) -> wire.GraphPlan:
    request = wire.PlanRequest(graph=graph)
    data = await _local(wire.PLAN_ACTIVITY, request.dump(), f"plan of {graph}")
    return wire.GraphPlan.load(data)


async def _read_journal(plan: wire.GraphPlan, retry_of: wire.RetryOf | None) -> Journal:
    """Read what an earlier run has done, page by page, each a marker in history."""
    if retry_of is None:
        return Journal()
    if retry_of.from_node is not None and retry_of.from_node not in [n.id for n in plan.nodes]:
        raise ApplicationError(
            f"Graph {plan.graph!r} has no node {retry_of.from_node!r} to run again.",
            type=wire.ErrorType.INVALID_INPUT,
            non_retryable=True,
        )
    entries: list[wire.JournalEntry] = []
    more = True
    while more:
        request = wire.JournalRequest(retry_of=retry_of, after=len(entries))
        summary = f"journal of {retry_of.workflow_id}"
        page = wire.JournalPage.load(await _local(wire.JOURNAL_ACTIVITY, request.dump(), summary))
        entries += page.entries
        more = page.more
        if more:  # A page may be half of what one workflow task can bring home.
            await workflow.sleep(0.001, summary="next workflow task: this one is full")
    return Journal(entries)


async def _local(activity: str, argument: dict[str, Any], summary: str) -> Any:
    """Run a local activity.

    Raises:
        FailureError: It failed. (The SDK raises the activity's own error for a local one.)
        asyncio.CancelledError: The run was cancelled meanwhile.
    """
    try:
        return await workflow.execute_local_activity(
            activity,
            argument,
            start_to_close_timeout=_LOCAL_TIMEOUT,
            retry_policy=_LOCAL_RETRY,
            summary=summary[:200],
        )
    except FailureError as failure:
        if is_cancelled_exception(failure):
            raise asyncio.CancelledError from failure
        raise


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
        if cause.type == wire.ErrorType.NOT_REGISTERED:
            return wire.ErrorInfo.own(
                "TopologyMismatchError", f"The worker has the run's graph no more: {cause.message}"
            )
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
