"""Runs one graph or swarm: the loop between its scheduler and history.

The way of the data: scheduler -> one task per visit: hooks, the node's activity (or, of a
nested node, an orchestration of its own) -> event -> scheduler -> ... -> report. What it knows
lives in `RunState`; what happens next is the scheduler's word alone.

Nothing here may raise a plain exception for something that a user did: that would fail the
workflow task, again and again, instead of the workflow.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

from pydantic import ValidationError
from temporalio import workflow
from temporalio.exceptions import ActivityError, FailureError

from .. import wire
from .calls import error_info, retry_policy
from .clock import ActiveClock
from .commands import Ask, Command, Dispatch, Ending, Finish
from .place import Place, mapped_plan
from .report import Inside, RunState
from .run import Run
from .scheduler import Scheduler

Commands = list[Command[wire.NodeReport]]

Event = Callable[[], Awaitable[Commands]]
"""Something that happened: what the orchestration makes of it, when its turn comes."""

Over = wire.NodeOutcome | wire.HooksOutcome | wire.NodeReport | wire.ErrorInfo
"""How a visit's task came to its end: the node's outcome, hooks that ask or cancel, or that end a
swarm by raising, the report of what ran inside it, an error."""


class Orchestration:
    """One run of one plan.

    It is the outermost of its workflow, or runs inside a visit of another: then it *rests* when
    all that is left of it waits for humans, and what it rests in pauses that visit.

    Attributes:
        state: What it knows.
    """

    def __init__(self, run: Run, plan: wire.GraphPlan, place: Place) -> None:
        """Prepare to run `plan`; nothing happens before `drive`."""
        self._run = run
        self._plan = plan
        self._place = place
        self._inbox: deque[Event] = deque()
        self._scheduler: Scheduler[wire.NodeReport] = Scheduler(
            plan, run.slots, wake=lambda: self._post(self._slot_free)
        )
        self._clock = ActiveClock(
            plan.execution_timeout, lambda: self._post(self._expired), run.local
        )
        self.state = RunState(run, plan, self._scheduler, self._clock, place)
        self._visits: dict[str, asyncio.Task[Over | None]] = {}
        self._reminders: dict[str, asyncio.Task[None]] = {}
        self._asking: dict[str, wire.Visit] = {}
        self._has_begun = False
        self._rests = False
        self._is_over = False

    # -- the loop ------------------------------------------------------------------------------

    async def drive(self) -> Finish | None:
        """Carry out the scheduler's commands and feed it events, one at a time, to the end.

        Returns:
            How it ended; None if it rests. Then it goes on when called again.
        """
        try:
            finish = await self._loop()
        except asyncio.CancelledError:
            self.abandon("the workflow was cancelled")
            raise
        if finish is None:
            return None
        cut_off = self._under_way()
        self.state.finished(finish)
        self._close()
        with contextlib.suppress(asyncio.CancelledError):  # What it came to stands.
            await self._say_goodbye(cut_off)
        return finish

    def _under_way(self) -> list[tuple[str, int]]:
        """Return the nodes that run, past the hooks before them, and the numbers of the visits."""
        visits = [(node, self.state.open_visit(node)) for node in self._visits]
        hooked = "before_node" in self._plan.hooks
        return [(node, visit.number) for node, visit in visits if visit.hooks_done or not hooked]

    async def _say_goodbye(self, cut_off: list[tuple[str, int]]) -> None:
        """Run the last hooks; those after the visits that the end cuts off are among them."""
        last: list[tuple[wire.HookEvent, str | None, int]] = [
            *(("after_node", node, number) for node, number in cut_off),
            ("after_run", None, 0),
        ]
        for event, node, number in last:
            if event in self._plan.hooks:
                outcome = await self._hooks(event, node, number)
                if outcome.error is not None:
                    error = outcome.error
                    workflow.logger.warning("error=<%s> | a hook of %s raised", error, event)

    def abandon(self, why: str) -> None:
        """End it as cancelled, unless it has ended."""
        if not self._is_over:
            self._scheduler.abort(why)
            self.state.cancelled(why)
            self._close()

    def _close(self) -> None:
        """Put an end to whatever is open.

        Not in a `finally`: when a worker drops a run from its cache, the coroutine may be closed
        outside the workflow's own loop, and that is not the run's end.
        """
        self._is_over = True
        for node in self._visits:
            self._run.local.ended((self.state.path(node), self.state.open_visit(node).number))
        why = self.state.reason or "the run has ended"
        if self._place.wake is None:
            self._run.interrupts.cancel(why)
        for visit in self._asking.values():
            self._run.interrupts.cancel(why, visit)
        self.state.cut_off(why, list(self._visits))
        self._run.journal.forget(self)
        self._clock.stop()
        for task in (*self._visits.values(), *self._reminders.values()):
            task.cancel()
        self._run.show()

    async def _loop(self) -> Finish | None:
        commands: deque[Command[wire.NodeReport]] = deque()
        if not self._has_begun:
            self._has_begun = True
            if "before_run" in self._plan.hooks:
                outcome = await self._hooks("before_run")
                if outcome.error is not None:
                    reason = self.state.hook_raised("before_run", outcome.error)
                    return Finish(wire.RunStatus.FAILED, reason)
            commands.extend(self._scheduler.start())
        while True:
            while commands:
                command = commands.popleft()
                if isinstance(command, Dispatch):
                    self._dispatch(command)
                elif isinstance(command, Ask):
                    commands.extend(await self._ask(command))
                else:
                    return command
            if self._run.journal.may_have_an_earlier:
                await self._run.settled()
            done = self._run.journal.next(self)
            if done is not None:
                self._took(*done)
                commands.extend(self._scheduler.proceed())
                continue
            if self._scheduler.is_running:
                self._clock.start()
            else:
                self._clock.stop()
            if not self._inbox:
                if self._place.wake is not None and not self._scheduler.is_running:
                    self._rests = True
                    return None
                self._run.show()
                await self._news()
            if self._clock.ran_out():
                commands.extend(self._scheduler.expired())
                continue
            commands.extend(await self._inbox.popleft()())

    @property
    def has_news(self) -> bool:
        """Whether something has happened that it hasn't acted upon."""
        return bool(self._inbox)

    async def _news(self) -> None:
        """Wait for something to happen."""
        self._run.local.loops[self] = None
        try:
            await workflow.wait_condition(lambda: self.has_news)
        finally:
            del self._run.local.loops[self]

    def _post(self, event: Event) -> None:
        """Have an event processed; if all of this rests, what it rests in goes on first."""
        self._inbox.append(event)
        if self._rests:
            assert self._place.wake is not None, "only what runs inside another rests"
            self._rests = False
            self._place.wake()

    # -- events --------------------------------------------------------------------------------

    def show(self) -> None:
        """Show in the Temporal UI how it stands."""
        workflow.set_current_details(self.state.markdown())

    def look(self) -> None:
        """Look for visits of an earlier run that can be taken over."""
        self._post(self._slot_free)

    def answered(self, node: str, answers: list[wire.Answer], *, complete: bool) -> None:
        """Take answers to what a node asked; `complete` says that it has all of them."""
        self.state.open_visit(node).answers += answers
        if complete:
            self._run.local.from_outside(lambda: self._post(lambda: self._released(node)))

    async def _released(self, node: str) -> Commands:
        """Let a node go on that has all its answers."""
        self._forget_reminder(node)
        self._asking.pop(node, None)
        return self._scheduler.resume(node)

    async def _slot_free(self) -> Commands:
        """Let the scheduler see whether it can go on."""
        return self._scheduler.proceed()

    async def _expired(self) -> Commands:
        """Take the execution timeout to the scheduler, unless the loop has noticed it itself."""
        return self._scheduler.expired() if self._clock.expired() else []

    async def _unanswered(self, node: str) -> Commands:
        """Fail a node whose questions nobody answered in time."""
        visit = self._asking.get(node)
        if visit is None or not self._run.interrupts.of(visit):
            return []  # The answer came first, in the same workflow task.
        seconds = self.state.node_plan(node).interrupt_timeout
        self._run.interrupts.cancel("interrupt_timeout", visit)
        self._forget_reminder(node)
        del self._asking[node]
        text = f"interrupt_timeout: nobody answered within {seconds} s"
        return await self._end(node, wire.ErrorInfo.own("InterruptTimeoutError", text))

    async def _visit_over(self, node: str, number: int, over: Over) -> Commands:
        """Take the end of a visit's task to the scheduler: the visit's end, or a pause."""
        self._run.local.ended((self.state.path(node), number))
        if not self.state.is_open(node, number):
            return []  # Its time was up in the same workflow task.
        del self._visits[node]
        if isinstance(over, wire.HooksOutcome) and over.error is not None:
            return self._scheduler.abort(self.state.hook_raised("before_node", over.error))
        if isinstance(over, (wire.ErrorInfo, wire.NodeReport)) or not over.interrupts:
            return await self._end(node, over)
        if isinstance(over, wire.NodeOutcome):
            self.state.paused(node, over)
        visit = self._asking[node] = (self.state.counted_as(node), number)
        self._run.ask(visit, over.interrupts, self, node)
        timeout = self.state.node_plan(node).interrupt_timeout
        if timeout is not None:
            self._reminders[node] = asyncio.create_task(self._remind(node, timeout))
        return self._scheduler.pause(node)

    async def _end(self, node: str, over: Over) -> Commands:
        """End a visit, run the hooks that follow it, and go on."""
        number = self.state.open_visit(node).number
        if isinstance(over, wire.NodeOutcome):
            self._took(node, over)
        elif isinstance(over, wire.ErrorInfo):
            self._scheduler.record(node, Ending.RAISED, self.state.raised(node, over))
        elif isinstance(over, wire.NodeReport):
            report = self.state.inside_ended(node, over)
            self._scheduler.record(node, _ending(report), report)
        else:
            report = self.state.cancelled_by_hook(node, over.cancel or "")
            self._scheduler.record(node, Ending.CANCELLED, report)
        if "after_node" in self._plan.hooks:
            outcome = await self._hooks("after_node", node, number)
            if outcome.error is not None and not self._scheduler.is_failing:
                reason = self.state.hook_raised("after_node", outcome.error)
                return self._scheduler.abort(reason)
        return self._scheduler.proceed()

    def _took(self, node: str, outcome: wire.NodeOutcome) -> None:
        """Take a node's outcome, fresh or from an earlier run, to the scheduler."""
        report, handoff = self.state.ended(node, outcome)
        ending = _ending(report)
        target = None
        if handoff is not None and ending is Ending.COMPLETED:
            self.state.hand_over(node, handoff)
            target = handoff.target
        self._scheduler.record(node, ending, report, target)

    async def _remind(self, node: str, seconds: float) -> None:
        path = self.state.path(node)
        await workflow.sleep(seconds, summary=f"interrupt timeout of {path}")
        await self._run.local.turn()
        self._post(lambda: self._unanswered(node))

    def _forget_reminder(self, node: str) -> None:
        reminder = self._reminders.pop(node, None)
        if reminder is not None:
            reminder.cancel()

    # -- visits --------------------------------------------------------------------------------

    def _dispatch(self, command: Dispatch[wire.NodeReport]) -> None:
        """Start the task of a visit, or of the rest of one that paused.

        A visit that an earlier run has finished needs none, nor its hooks.
        """
        node = command.node
        self.state.begin(node)
        path, number = self.state.path(node), self.state.open_visit(node).number
        if not self.state.has_inside(node) and self._run.journal.has(
            path, number, lambda: self.state.node_input(command), self, node
        ):
            return

        def over(task: asyncio.Task[Over | None]) -> None:
            if task.cancelled():
                return
            # Nobody waits for the task: an exception would be lost, and the run wait for ever.
            error = task.exception()
            outcome = task.result() if error is None else _unexpected(error)
            if outcome is not None:
                self._post(lambda: self._visit_over(node, number, outcome))

        self._visits[node] = asyncio.create_task(self._visit(command))
        self._visits[node].add_done_callback(over)

    async def _visit(self, command: Dispatch[wire.NodeReport]) -> Over | None:
        """Run a visit up to its end or to a question: hooks first, then the node."""
        node = command.node
        visit = self.state.open_visit(node)
        if "before_node" in self._plan.hooks and not visit.hooks_done:
            sources = self.state.sources(command)
            outcome = await self._hooks("before_node", node, visit.number, sources, visit.answers)
            if outcome.error is not None:
                return outcome if self._plan.swarm is not None else outcome.error
            # As in Strands, a question comes first: after its answer the hooks run again.
            failing = outcome.cancel is not None and self._plan.semantics == "strands"
            if failing and not outcome.interrupts:
                return wire.ErrorInfo(
                    type="RuntimeError", module="builtins", message=outcome.cancel or ""
                )
            if outcome.interrupts or outcome.cancel is not None:
                return outcome
            visit.hooks_done, visit.answers = True, []
        if self.state.has_inside(node):
            return await self._inside(command)
        return await self._node(command)

    async def _node(self, command: Dispatch[wire.NodeReport]) -> wire.NodeOutcome | wire.ErrorInfo:
        """Run a node's activity."""
        node = command.node
        path, number = self.state.path(node), self.state.open_visit(node).number
        argument = self.state.node_input(command)
        size = len(json.dumps(argument))
        limit = self._run.payload_limit
        if limit is not None and size > limit:
            text = wire.too_large(f"the input of node {path!r}", size, limit)
            return wire.ErrorInfo.own("PayloadTooLargeError", text)
        await self._run.local.before()
        await self._run.gate.admit(size)
        plan = self.state.node_plan(node)
        kind = wire.activity_type(self._run.graph, path)
        try:
            self._run.local.began((path, number))
            data = await workflow.execute_activity(
                kind,
                argument,
                activity_id=wire.activity_id(path, number, command.resume),
                task_queue=plan.task_queue,
                start_to_close_timeout=timedelta(seconds=plan.timeout),
                heartbeat_timeout=timedelta(seconds=plan.heartbeat_timeout),
                retry_policy=retry_policy(plan.retry),
                summary=plan.summary or f"{path[:300]}, visit {number}",
            )
            await self._run.local.turn()
            outcome = wire.NodeOutcome.load(data)
        except ActivityError as failure:
            await self._run.local.turn()
            return error_info(failure)
        except ValidationError as invalid:
            return wire.ErrorInfo.own(
                "TopologyMismatchError",
                f"The activity of node {path!r} answered with something that is no outcome of a "
                f"node ({wire.explain(invalid)}). Does another activity have the type {kind!r}?",
            )
        if (outcome.node, outcome.visit) != (path, number):
            return wire.ErrorInfo.own(
                "TopologyMismatchError",
                f"Visit {number} of node {path!r} was answered by visit {outcome.visit} of node "
                f"{outcome.node!r}.",
            )
        if (
            outcome.handoff is not None
            and outcome.handoff.target not in self._scheduler.topology.index
        ):
            return wire.ErrorInfo.own(
                "TopologyMismatchError",
                f"Agent {path!r} handed over to {outcome.handoff.target!r}, which the swarm "
                "didn't have when the run began.",
            )
        return outcome

    # -- visits of a nested graph, a swarm, a mapped node ---------------------------------------

    async def _inside(
        self, command: Dispatch[wire.NodeReport]
    ) -> wire.NodeReport | wire.ErrorInfo | None:
        """Run what is inside a visit, up to its end, or to where it rests (then None)."""
        node = command.node
        visit = self.state.open_visit(node)
        if visit.inside is None:
            problem = await self._begin_inside(command)
            if problem is not None:
                return problem
        assert visit.inside is not None, "it has begun"
        if visit.clock is not None:
            visit.clock.start()
        finish = await visit.inside.drive()
        if visit.clock is not None:
            visit.clock.stop()
            if visit.clock.is_spent():
                return self._out_of_time(node, visit.inside)
        if finish is None:
            # At once, and not when this task has been seen to end: an answer may come first.
            self._post(lambda: self._paused(node, visit.number))
            return None
        return visit.inside.state.node_report(workflow.now())

    async def _begin_inside(self, command: Dispatch[wire.NodeReport]) -> wire.ErrorInfo | None:
        """Make the orchestration of what runs inside a visit; return why there can be none."""
        node = command.node
        plan = self.state.node_plan(node)
        visit = self.state.open_visit(node)
        prepared = wire.PrepareOutcome()
        if plan.maps or plan.builds_input:
            try:
                summary = f"{'items' if plan.maps else 'input'} of {self.state.path(node)}"
                data = await self._run.local.run(
                    wire.PREPARE_ACTIVITY, lambda: self.state.prepare_input(command), summary
                )
                prepared = wire.PrepareOutcome.load(data)
            except FailureError as failure:
                return error_info(failure)
            if prepared.error is not None:
                return prepared.error

        def wake() -> None:
            self._post(lambda: self._goes_on(node, visit.number))

        item = self._place.item(node)
        earlier = self._scheduler.results.get(node)
        enclosing = wire.Enclosing(
            visit=visit.number,
            earlier=None if earlier is None else earlier.ending(),
            sources=self.state.sources(command) if item is None else item.sources,
            index=None if item is None else item.index,
            mapped=0 if item is None else item.mapped,
        )
        if plan.maps:
            items = tuple(prepared.items or ())
            inner = mapped_plan(plan, self._run.graph, len(items))
            place = Place(
                task=self._place.task,
                within=self.state.path(node),
                result_type="MultiAgentResult",
                items=items,
                item_visit=self._place.item_visit,
                inputs=command.inputs,
                sources=tuple(self.state.sources(command)),
                mapped=visit.number,
                enclosing=self._place.enclosing,
                wake=wake,
            )
        else:
            assert plan.plan is not None, "a node that runs something inside has a plan of it"
            inner = plan.plan
            place = Place(
                task=self.state.task_of(command) if prepared.blocks is None else prepared.blocks,
                within=self.state.path(node),
                result_type="GraphResult" if inner.swarm is None else "SwarmResult",
                item_visit=(
                    self._place.item_visit
                    if self._place.items is None
                    else (self.state.path(node), visit.number)
                ),
                enclosing=(*self._place.enclosing, enclosing),
                wake=wake,
            )
        self.state.goes_inside(node, Orchestration(self._run, inner, place))
        if plan.node_timeout is not None and not plan.maps:
            visit.clock = ActiveClock(
                plan.node_timeout,
                lambda: self._post(lambda: self._timed_out(node, visit.number)),
                self._run.local,
            )
        return None

    async def _paused(self, node: str, number: int) -> Commands:
        """Take note that what runs inside a visit rests."""
        if not self.state.is_open(node, number):
            return []
        del self._visits[node]
        return self._scheduler.pause(node)

    async def _goes_on(self, node: str, number: int) -> Commands:
        """Let a visit go on, since there is news for what rests inside it."""
        return self._scheduler.resume(node) if self.state.is_open(node, number) else []

    async def _timed_out(self, node: str, number: int) -> Commands:
        """End a visit, since Strands' `set_node_timeout` grants what runs inside no more time."""
        if not self.state.is_open(node, number) or node not in self._visits:
            return []
        inside = self.state.open_visit(node).inside
        assert inside is not None, "only what runs inside a visit is timed here"
        self._visits.pop(node).cancel()
        return await self._end(node, self._out_of_time(node, inside))

    def _out_of_time(self, node: str, inside: Inside) -> wire.NodeReport:
        """Put an end to what runs inside a visit whose time is up, and return its report."""
        seconds = self.state.node_plan(node).node_timeout
        text = f"Node '{node}' execution timed out after {seconds}s"
        inside.abandon(text)
        error = wire.ErrorInfo.own("NodeTimeoutError", text)
        failed = {"status": wire.NodeStatus.FAILED, "error": error, "reason": None}
        return inside.state.node_report(workflow.now()).model_copy(update=failed)

    # -- local activities ----------------------------------------------------------------------

    async def _ask(self, ask: Ask) -> Commands:
        """Have the conditions evaluated by a local activity, so that history records them."""
        edges = ", ".join(
            dict.fromkeys(str(edge) for question in ask.questions for edge in question.edges)
        )
        try:
            data = await self._run.local.run(
                wire.EDGES_ACTIVITY, lambda: self.state.edges_input(ask), f"conditions of {edges}"
            )
            outcome = wire.EdgesOutcome.load(data)
        except FailureError as failure:
            outcome = wire.EdgesOutcome(error=error_info(failure), failed_edge=edges)
        self._run.merge(outcome.state_changes)
        if outcome.error is not None:
            reason = self.state.condition_raised(outcome.failed_edge or edges, outcome.error)
            return self._scheduler.abort(reason)
        return self._scheduler.answered(outcome.answers)

    async def _hooks(
        self,
        event: wire.HookEvent,
        node: str | None = None,
        visit: int = 0,
        sources: Sequence[wire.Dependency] = (),
        answers: Sequence[wire.Answer] = (),
    ) -> wire.HooksOutcome:
        """Run the hooks of the graph or swarm for an event by a local activity."""
        about = f" {self.state.path(node)}" if node else ""
        try:
            data = await self._run.local.run(
                wire.HOOKS_ACTIVITY,
                lambda: self.state.hooks_input(event, node, visit, [*sources], [*answers]),
                f"hooks {event}{about}",
            )
            outcome = wire.HooksOutcome.load(data)
        except FailureError as failure:
            return wire.HooksOutcome(error=error_info(failure))
        self._run.merge(outcome.state_changes)
        return outcome


def _unexpected(error: BaseException) -> wire.ErrorInfo:
    kind = type(error)
    return wire.ErrorInfo(type=kind.__name__, module=kind.__module__, message=str(error))


def _ending(report: wire.NodeReport) -> Ending:
    if report.error is not None:
        return Ending.RAISED
    failed = report.status is not wire.NodeStatus.COMPLETED
    return Ending.FAILED if failed else Ending.COMPLETED
