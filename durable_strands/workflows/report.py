"""What an orchestration knows besides who runs when: results, usage, how it stands.

`RunState` turns that into what others read: activity arguments, the report, the details in
the Temporal UI. It decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from .. import wire
from ..prompts import prompt_of
from .clock import ActiveClock
from .commands import Ask, Dispatch, Finish
from .place import Place
from .run import Run
from .scheduler import Scheduler

_TABLE_ROWS = 60
"""Largest graph whose every node is shown in the details; a larger one shows counts."""


@dataclass
class OpenVisit:
    """What must be known of a visit from its dispatch to its end, and no longer.

    Attributes:
        number: Its number among the visits of its node in the whole run.
        answers: Answers to what its hooks, or then its node, have asked.
        hooks_done: Whether its hooks have let it through.
        snapshot: The agent's snapshot from when it last asked.
        so_far: What its parts have used, if it has asked.
        handoff: What it has handed over, if it has asked since.
        inside: What runs inside it, if its node is a graph, a swarm, or mapped.
        clock: The time that Strands' `set_node_timeout` leaves what runs inside it.
    """

    number: int
    answers: list[wire.Answer] = field(default_factory=list)
    hooks_done: bool = False
    snapshot: dict[str, Any] | None = None
    so_far: wire.NodeReport | None = None
    handoff: wire.Handoff | None = None
    inside: Inside | None = None
    clock: ActiveClock | None = None

    def whole(self, last: wire.NodeReport) -> wire.NodeReport:
        """Return the report of the visit so far, of which `last` is the latest part's."""
        return last if self.so_far is None else last.after(self.so_far)


class Inside(Protocol):
    """What runs inside a visit: an orchestration of its own.

    Attributes:
        state: What it knows.
    """

    state: RunState

    async def drive(self) -> Any:
        """Run on; see `Orchestration.drive`."""

    def abandon(self, why: str) -> None:
        """Put an end to it, unless it has come to one."""


class RunState:
    """The memory of one orchestration: a whole run, or what runs inside one of its visits.

    Attributes:
        plan: Its plan.
        reason: Why it failed or was cancelled.
        error: The exception that ended it, if one did.
    """

    def __init__(
        self,
        run: Run,
        plan: wire.GraphPlan,
        scheduler: Scheduler[wire.NodeReport],
        clock: ActiveClock,
        place: Place,
    ) -> None:
        """Begin without results."""
        self.plan = plan
        self.reason: str | None = None
        self.error: wire.ErrorInfo | None = None
        self._run = run
        self._place = place
        self._end: wire.RunStatus | None = None
        self._scheduler = scheduler
        self._clock = clock
        self._nodes = {node.id: node for node in plan.nodes}
        self._size = sum(1 for _ in plan.paths())
        self._open: dict[str, OpenVisit] = {}
        self._inside: dict[str, Inside] = {}
        self._usage = wire.Usage()
        self._latency_ms = 0
        self._execution_count = 0
        self._failed_node: str | None = None
        self._shared: dict[str, dict[str, Any]] = {}
        self._message: str | None = None
        self._last_turn: str | None = None
        self._cut_off: list[str] = []

    @property
    def status(self) -> wire.RunStatus:
        """Where it stands."""
        if self._end is not None:
            return self._end
        waiting = self._scheduler.paused and not self._scheduler.is_running
        return wire.RunStatus.INTERRUPTED if waiting else wire.RunStatus.EXECUTING

    # -- visits --------------------------------------------------------------------------------

    def path(self, node: str) -> str:
        """Return the path of a node."""
        return self._place.path(node)

    def node_plan(self, node: str) -> wire.NodePlan:
        """Return the plan of a node."""
        return self._nodes[node]

    def has_inside(self, node: str) -> bool:
        """Say whether a node has no activity of its own: it is a graph, a swarm, or mapped."""
        return self._nodes[node].plan is not None or self._nodes[node].maps

    def begin(self, node: str) -> None:
        """Open a visit of a node, if none is open: it may be the rest of one that paused."""
        if node not in self._open:
            self._open[node] = OpenVisit(self._run.next_visit(self.counted_as(node)))
            self._last_turn = node

    def counted_as(self, node: str) -> str:
        """Return the name under which a node's visits are numbered, and ask.

        That is its path; but of a mapped node the visits at its path are those of its items.
        """
        path = self.path(node)
        return wire.mapped(path) if self._nodes[node].maps else path

    def open_visit(self, node: str) -> OpenVisit:
        """Return the visit of a node that is going on."""
        return self._open[node]

    def is_open(self, node: str, number: int) -> bool:
        """Say whether a visit is still going on."""
        return node in self._open and self._open[node].number == number

    def goes_inside(self, node: str, inside: Inside) -> None:
        """Take note of what runs inside the open visit of a node."""
        self._open[node].inside = self._inside[node] = inside

    # -- what goes out -------------------------------------------------------------------------

    def task_of(self, dispatch: Dispatch[wire.NodeReport]) -> wire.Task:
        """Return the task of what runs inside a visit: the prompt that an agent would get."""
        return prompt_of(self._input(dispatch))

    def node_input(self, dispatch: Dispatch[wire.NodeReport]) -> dict[str, Any]:
        """Return the argument of a visit's activity."""
        return self._input(dispatch).dump()

    def _input(self, dispatch: Dispatch[wire.NodeReport]) -> wire.NodeInput:
        plan = self._nodes[dispatch.node]
        visit = self._open[dispatch.node]
        path = self.path(dispatch.node)
        return wire.NodeInput(
            graph=self._run.graph,
            node=path,
            visit=visit.number,
            task=self._place.task,
            dependencies=self._dependencies(dispatch, whole=plan.builds_input),
            turn=self._turn(dispatch.node),
            handoff=visit.handoff,
            item=self._place.item(dispatch.node),
            enclosing=list(self._place.enclosing),
            invocation_state=self._run.invocation_state,
            answers=visit.answers,
            snapshot=visit.snapshot or self._run.snapshots.get((path, self._place.item_visit)),
            carries_state=plan.carries_state or (plan.remembers and self._run.in_session),
            node_timeout=plan.node_timeout,
            payload_limit=self._run.payload_limit,
        )

    def _dependencies(
        self, dispatch: Dispatch[wire.NodeReport], *, whole: bool
    ) -> list[wire.Dependency]:
        return [
            wire.Dependency(
                source=source,
                texts=report.said(),
                report=report if whole else None,
                nested=self._ending(source, report),
            )
            for source, report in (*(self._place.inputs if whole else ()), *dispatch.inputs)
        ]

    def sources(self, dispatch: Dispatch[wire.NodeReport]) -> list[wire.Dependency]:
        """Return whose results a visit consumes."""
        return [
            wire.Dependency(source=source, nested=self._ending(source, report))
            for source, report in dispatch.inputs
        ]

    def _ending(self, source: str, report: wire.NodeReport) -> wire.NodeReport | None:
        inside = source in self._nodes and self.has_inside(source)
        return report.ending() if inside else None

    def prepare_input(self, dispatch: Dispatch[wire.NodeReport]) -> dict[str, Any]:
        """Return the argument of the prepare activity for a visit."""
        return wire.PrepareInput(
            graph=self._run.graph,
            node=self.path(dispatch.node),
            task=self._place.task,
            dependencies=self._dependencies(dispatch, whole=True),
            item=self._place.item(dispatch.node),
            invocation_state=self._run.invocation_state,
            payload_limit=self._run.payload_limit,
        ).dump()

    def edges_input(self, ask: Ask) -> dict[str, Any]:
        """Return the argument of the edges activity."""
        return wire.EdgesInput(
            graph=self._run.graph,
            within=self._place.within,
            state=self._view(),
            invocation_state=self._run.invocation_state,
            questions=[
                wire.EdgeQuestion(
                    edges=[(edge.source, edge.target, edge.ordinal) for edge in question.edges],
                    until_true=question.until_true,
                    hidden=list(question.hidden),
                )
                for question in ask.questions
            ],
        ).dump()

    def hooks_input(
        self,
        event: wire.HookEvent,
        node: str | None,
        visit: int,
        sources: list[wire.Dependency],
        answers: list[wire.Answer],
    ) -> dict[str, Any]:
        """Return the argument of the hooks activity."""
        return wire.HooksInput(
            graph=self._run.graph,
            within=self._place.within,
            event=event,
            node=node,
            path=None if node is None else self.counted_as(node),
            visit=visit,
            sources=sources,
            enclosing=list(self._place.enclosing),
            state=self._view(node, event=event),
            invocation_state=self._run.invocation_state,
            answers=answers,
        ).dump()

    # -- swarms --------------------------------------------------------------------------------

    def _turn(self, node: str) -> wire.Turn | None:
        if self.plan.swarm is None:
            return None
        return wire.Turn(
            agent=node,
            agents=[
                wire.AgentCard(name=agent.id, description=agent.description)
                for agent in self.plan.nodes
            ],
            history=list(self._scheduler.order),
            message=self._message,
            shared=self._shared_texts(),
        )

    def _shared_texts(self) -> list[tuple[str, str]]:
        return [(agent, json.dumps(values)) for agent, values in self._shared.items()]

    def hand_over(self, node: str, handoff: wire.Handoff) -> None:
        """Take in what an agent of a swarm hands over."""
        self._message = handoff.message
        context = json.loads(handoff.context)
        if context:
            self._shared.setdefault(node, {}).update(context)

    def _seen_status(self, event: wire.HookEvent | None) -> wire.RunStatus:
        """Return the status that conditions and hooks see.

        As in Strands, a node that ends is heard of before the end that follows from it; but a
        swarm has failed with its turn.
        """
        if self.plan.swarm is not None and (self._scheduler.failed or self._scheduler.cancelled):
            return wire.RunStatus.FAILED
        if event == "after_node" or self._end is None:
            return wire.RunStatus.EXECUTING
        return self._end

    def _view(
        self, node: str | None = None, *, event: wire.HookEvent | None = None
    ) -> wire.StateView:
        """Return the state that conditions and hooks see.

        Args:
            node: The node that a hook is about.
            event: The event that hooks are about; None for conditions.
        """
        handoff = self._scheduler.handoff
        return wire.StateView(
            task=self._place.task,
            status=self._seen_status(event),
            current=(node or self._last_turn) if self.plan.swarm is not None else None,
            handoff=handoff,
            shared=self._shared_texts(),
            message=self._message if event == "before_node" or handoff is not None else None,
            completed=list(self._scheduler.completed),
            failed=list(self._scheduler.failed),
            interrupted=self._scheduler.paused,
            # What follows a node that has just ended is in flight, but not begun yet.
            executing=[node for node in self._scheduler.in_flight if node in self._open]
            + self._cut_off,
            execution_order=self._scheduler.order,
            results=self._scheduler.results,
            order={"results": list(self._scheduler.results)},
            usage=self._usage,
            latency_ms=self._latency_ms,
            execution_count=self._execution_count,
            active_since=None if self._clock.last is None else self._clock.last.timestamp(),
            active_before=round(self._clock.spent.total_seconds() * 1000),
        )

    # -- what comes in -------------------------------------------------------------------------

    def paused(self, node: str, outcome: wire.NodeOutcome) -> None:
        """Take in what a visit gave up to a question.

        It is run in parts, each by an agent that counts from zero: what they used is added up.
        """
        self._run.merge(outcome.state_changes)
        visit = self._open[node]
        visit.snapshot = outcome.snapshot
        visit.so_far = visit.whole(outcome.report)
        visit.handoff = visit.handoff or outcome.handoff
        visit.answers = [answer.model_copy(update={"given": True}) for answer in visit.answers]

    def ended(
        self, node: str, outcome: wire.NodeOutcome
    ) -> tuple[wire.NodeReport, wire.Handoff | None]:
        """Take in what a visit gave at its end.

        Returns:
            The report of the whole visit, and what it handed over.
        """
        self._run.merge(outcome.state_changes)
        if outcome.snapshot is not None:
            self._run.snapshots[self.path(node), self._place.item_visit] = outcome.snapshot
        handoff = self._open[node].handoff or outcome.handoff
        report = self.close(node, outcome.report)
        self._execution_count += report.execution_count
        return report, handoff

    def inside_ended(self, node: str, report: wire.NodeReport) -> wire.NodeReport:
        """Take in what ran inside a visit."""
        self._execution_count += report.execution_count
        return self.close(node, report)

    def raised(self, node: str, error: wire.ErrorInfo) -> wire.NodeReport:
        """Return the report of a visit that raised, with what its parts had used."""
        return self.close(node, wire.NodeReport(status=wire.NodeStatus.FAILED, error=error))

    def cancelled_by_hook(self, node: str, message: str) -> wire.NodeReport:
        """Return the report of a visit that a hook cancelled."""
        return self.close(node, wire.NodeReport(status=wire.NodeStatus.CANCELLED, text=message))

    def close(self, node: str, last: wire.NodeReport) -> wire.NodeReport:
        """End a visit: count what it used, and forget what only mattered while it was open."""
        visit = self._open.pop(node)
        if self._place.items is not None:
            self._run.forget((self.path(node), visit.number))
        report = visit.whole(last)
        if report.visit != visit.number:
            report = report.model_copy(update={"visit": visit.number})
        self._usage += report.usage
        self._latency_ms += report.latency_ms
        return report

    # -- the run's end -------------------------------------------------------------------------

    def condition_raised(self, edges: str, error: wire.ErrorInfo) -> str:
        """Take note that a condition raised, and return what that makes the run's reason."""
        self.error = error
        return f"the condition of edge {edges} raised {error.type}: {error.message}"

    def hook_raised(self, event: str, error: wire.ErrorInfo) -> str:
        """Take note that a hook raised, and return what that makes the run's reason.

        Of a swarm, as in Strands, it makes the result FAILED, once the swarm has begun; of a
        graph it is the exception that the caller gets.
        """
        if self.plan.swarm is None or event == "before_run":
            self.error = error
        return f"a hook of {event} raised {error.type}: {error.message}"

    def finished(self, finish: Finish) -> None:
        """Take note of how it ended."""
        self._end = finish.status
        self.reason = finish.reason
        if finish.failed_node is not None:
            error = self._scheduler.results[finish.failed_node].error
            assert error is not None, "a visit that raised has its error in the report"
            self.error = error
            path = self._failed_node = self.path(finish.failed_node)
            inside = self._inside.get(finish.failed_node)
            if inside is not None and inside.state.error is error:
                self._failed_node = inside.state.failed_node or path
                self.reason = inside.state.reason
                if inside.state.failed_node is None:  # Its reason says what, but not where.
                    self.reason = f"{path}: {self.reason}"
            else:
                self.reason = f"node {path!r} raised {error.type}: {error.message}"
        elif finish.status is wire.RunStatus.FAILED and finish.reason is None:
            self.reason = "failed nodes: " + ", ".join(map(self.path, self._scheduler.failed))

    def cancelled(self, why: str) -> None:
        """Take note that it was cancelled."""
        self._end = wire.RunStatus.CANCELLED
        self.reason = why

    @property
    def failed_node(self) -> str | None:
        """Path of the node whose exception ended it, if one did."""
        return self._failed_node

    def cut_off(self, why: str, running: list[str]) -> None:
        """End the visits that are open still, with what is inside them; count what they used.

        Args:
            why: Why they end.
            running: The nodes among them that don't wait for an answer.
        """
        self._cut_off = running
        for node, visit in list(self._open.items()):
            used = wire.NodeReport(status=wire.NodeStatus.CANCELLED)
            if visit.clock is not None:
                visit.clock.stop()
            if visit.inside is not None:
                visit.inside.abandon(why)
                inside = visit.inside.state
                used = used.model_copy(
                    update={"usage": inside._usage, "latency_ms": inside._latency_ms}
                )
            self.close(node, used)

    # -- how it stands -------------------------------------------------------------------------

    def report(self, now: datetime) -> wire.RunReport:
        """Return the report as of now."""
        scheduler = self._scheduler
        nodes = dict(self.node_states())
        results = {**scheduler.results, **self._asking_turns()}
        return wire.RunReport(
            graph=self._run.graph,
            result_type=self._place.result_type,
            status=self.status,
            reason=self.reason,
            failed_node=self._failed_node,
            error=self.error,
            execution_order=list(scheduler.order),
            nodes=nodes,
            interrupts=list(self._run.interrupts.pending.values()),
            cancelled_interrupts=self._run.interrupts.cancelled,
            completed_nodes=len(scheduler.completed),
            failed_nodes=len(scheduler.failed),
            edges=[(edge.source, edge.target) for edge in self.plan.edges],
            entry_points=self.plan.entry_points,
            results=results,
            order={"nodes": list(nodes), "results": list(results)},
            usage=sum((visit.usage for visit in self._asking_turns().values()), self._usage),
            latency_ms=self._latency_ms,
            execution_count=self._execution_count,
            execution_time=self._elapsed(now),
            invocation_state=self._run.invocation_state,
            fingerprint=self.plan.fingerprint,
        )

    def node_report(self, now: datetime) -> wire.NodeReport:
        """Return what runs inside a visit as that visit's report."""
        scheduler = self._scheduler
        status = wire.NodeStatus(self.status.value)
        results = dict(scheduler.results)
        if self._place.items is not None:  # In the list's order, whichever came first.
            results = {n.id: results[n.id] for n in self.plan.nodes if n.id in results}
        said = [text.text for result in results.values() for text in result.agent_texts()]
        failed = status is wire.NodeStatus.FAILED
        return wire.NodeReport(
            status=status,
            text="\n".join(said),
            reason=self.reason if failed and self.error is None else None,
            results=results,
            order={"results": list(results)},
            result_type=self._place.result_type,
            structure=wire.Structure(
                nodes=[node.id for node in self.plan.nodes],
                total_nodes=len(self.plan.nodes),
                execution_order=list(scheduler.order),
                edges=[(edge.source, edge.target) for edge in self.plan.edges],
                entry_points=self.plan.entry_points,
                completed_nodes=len(scheduler.completed),
                failed_nodes=len(scheduler.failed),
            ),
            error=self.error,
            usage=self._usage,
            latency_ms=self._latency_ms,
            execution_count=self._execution_count,
            execution_time=self._elapsed(now),
        )

    def _asking_turns(self) -> dict[str, wire.NodeReport]:
        """Return the turns of a swarm that wait for answers: there, as in Strands, results."""
        if self.plan.swarm is None:
            return {}
        so_far = {node: visit.so_far for node, visit in self._open.items()}
        return {node: report for node, report in so_far.items() if report is not None}

    def _elapsed(self, now: datetime) -> int:
        return round(self._clock.elapsed(now).total_seconds() * 1000)

    def node_states(self, depth: int = 0) -> Iterator[tuple[str, wire.NodeState]]:
        """Yield where each node stands, by path, those inside a node after it.

        Of a node that is mapped, what is inside its visits is left out: there are many at once.
        """
        for node in self.plan.nodes:
            path = self.path(node.id)
            status = self._scheduler.status(node.id)
            yield path, wire.NodeState(status=status, visits=self._run.visits(path), depth=depth)
            if node.plan is None or node.maps:
                continue
            if node.id in self._inside:
                yield from self._inside[node.id].state.node_states(depth + 1)
            else:
                yield from _pending(node.plan, path, depth + 1)

    def markdown(self) -> str:
        """Return the run's standing as markdown, for the current details in the UI."""
        scheduler = self._scheduler
        lines = [
            f"**{self.plan.graph}**: {self.status.value}"
            + (f" ({self.reason})" if self.reason else ""),
            "",
            f"{len(scheduler.completed)} of {len(self.plan.nodes)} nodes completed, "
            f"{len(scheduler.order)} visits, {self._usage.totalTokens} tokens",
            "",
        ]
        if self._size <= _TABLE_ROWS:
            lines += ["| node | status | visits |", "|---|---|---|"]
            for path, node in self.node_states():
                name = path.replace("|", "\\|")
                lines.append(f"| {name} | {node.status.value} | {node.visits} |")
        else:
            lines.append("running: " + (_first(scheduler.in_flight, 20) or "none"))
        if self._run.interrupts.pending:
            lines += ["", "| waiting for a human | node | asks | reason |", "|---|---|---|---|"]
            for info in self._run.interrupts.pending.values():
                cells = (f"`{info.id}`", info.node, info.name, json.dumps(info.reason)[:200])
                lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        return "\n".join(lines)


def fitting_report(state: RunState, now: datetime, limit: int | None) -> dict[str, Any]:
    """Return a run's report as JSON, cut down if it has more than `limit` bytes.

    A run that did all its work must not be lost for the size of its summary: every full result
    is in history, as the result of its activity.
    """
    report = state.report(now)
    data: dict[str, Any] = {}
    for shortened in (_as_is, _texts_only, _statuses_only, _sums_only):
        try:
            data = shortened(report).dump()
            if limit is None or len(json.dumps(data)) <= limit:
                break
        except (ValueError, RecursionError):  # Nested deeper than JSON can say.
            continue
    return data


def _pending(plan: wire.GraphPlan, within: str, depth: int) -> Iterator[tuple[str, wire.NodeState]]:
    """Yield the nodes of a plan that nothing of has run yet."""
    for node in plan.nodes:
        path = wire.join(within, node.id)
        yield path, wire.NodeState(status=wire.NodeStatus.PENDING, visits=0, depth=depth)
        if node.plan is not None and not node.maps:
            yield from _pending(node.plan, path, depth + 1)


def _first(names: Iterable[str], most: int) -> str:
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def _as_is(report: wire.RunReport) -> wire.RunReport:
    return report


def _texts_only(report: wire.RunReport) -> wire.RunReport:
    def shorter(result: wire.NodeReport) -> wire.NodeReport:
        return result.model_copy(update={"message": None, "agent_metrics": None})

    return report.model_copy(
        update={"results": _each_with(shorter, report.results), "truncated": True}
    )


def _statuses_only(report: wire.RunReport) -> wire.RunReport:
    def bare(result: wire.NodeReport) -> wire.NodeReport:
        kept = ("status", "usage", "visit", "results", "order", "result_type", "structure")
        return wire.NodeReport(**{name: getattr(result, name) for name in kept})

    less: dict[str, Any] = {"edges": [], "invocation_state": {}, "truncated": True}
    return report.model_copy(update={"results": _each_with(bare, report.results), **less})


def _each_with(
    cut: Callable[[wire.NodeReport], wire.NodeReport], results: dict[str, wire.NodeReport]
) -> dict[str, wire.NodeReport]:
    """Return results cut down, and so what they hold of nested graphs and of mapped nodes."""
    return {
        name: cut(result)
        if result.results is None
        else cut(result.model_copy(update={"results": _each_with(cut, result.results)}))
        for name, result in results.items()
    }


def _sums_only(report: wire.RunReport) -> wire.RunReport:
    nothing: dict[str, Any] = {
        "results": {},
        "nodes": {},
        "edges": [],
        "entry_points": [],
        "execution_order": [],
        "invocation_state": {},
        "interrupts": [],
        "cancelled_interrupts": [],
        "order": {},
    }
    return report.model_copy(update={**nothing, "truncated": True})
