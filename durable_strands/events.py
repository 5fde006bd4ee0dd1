"""What happened in a run, told as Strands' events.

History knows activities; Strands' consumers know nodes that start and stop, and for what is
nested in a node, events within that node's stream. The difference is made up here. Nothing here
knows Temporal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from strands.agent import AgentResult
from strands.interrupt import Interrupt
from strands.multiagent.base import MultiAgentResult, NodeResult
from strands.types._events import (
    MultiAgentHandoffEvent,
    MultiAgentNodeCancelEvent,
    MultiAgentNodeInterruptEvent,
    MultiAgentNodeStartEvent,
    MultiAgentNodeStopEvent,
    MultiAgentNodeStreamEvent,
    MultiAgentResultEvent,
)

from . import wire
from .codec import error_to_wire, node_result_from_wire

Events = Iterator[dict[str, Any]]

_NO_ITEMS = wire.NodeReport(
    status=wire.NodeStatus.COMPLETED,
    results={},
    result_type=MultiAgentResult.__name__,
    execution_count=0,
)
"""What a mapped node has given before any of its items has."""


@dataclass
class _Nested:
    """A visit of a nested graph or swarm that is going on.

    Attributes:
        within: The visit of another that it takes place in, if it does.
        order: Ids of what completed inside it.
        reports: Latest report of each node inside it.
        mapped: Number of the visit of each mapped node inside it, as a whole.
        used: What all that ended inside it has used.
        rests: Whether it waits for nothing but humans, and that was told.
    """

    within: wire.Visit | None
    order: list[str] = field(default_factory=list)
    reports: dict[str, wire.NodeReport] = field(default_factory=dict)
    mapped: dict[str, int] = field(default_factory=dict)
    used: wire.NodeReport = field(default_factory=lambda: _NO_ITEMS)
    rests: bool = False


class Narrator:
    """Tells a run's events in Strands' form and order.

    A nested graph or swarm has no events of its own in history. It starts with the first thing
    inside it, and has stopped when another node reads its result, when it starts anew, or when
    the run ends.

    Attributes:
        plan: The run's plan.
    """

    def __init__(self, plan: wire.GraphPlan) -> None:
        """Tell of a run of `plan`."""
        self.plan = plan
        self._nodes: dict[str, wire.NodePlan] = {}
        self._mapped: dict[str, None] = {}
        self._above: dict[str, tuple[str, ...]] = {}
        self._semantics: dict[str, wire.Semantics] = {}
        self._turns: set[str] = set()
        self._hooked_after: set[str] = set()
        self._note_above(plan, ())
        self._nested: dict[wire.Visit, _Nested] = {}
        self._within: dict[wire.Visit, wire.Visit | None] = {}
        self._index: dict[wire.Visit, int] = {}
        self._handed: dict[wire.Visit, None] = {}
        self._announced: dict[wire.Visit, None] = {}
        self._parts: dict[wire.Visit, wire.NodeOutcome] = {}
        self._running: dict[wire.Visit, None] = {}
        self._asking: dict[wire.Visit, list[Interrupt]] = {}
        self._handoffs: dict[wire.Visit, wire.Handoff] = {}

    def _note_above(self, plan: wire.GraphPlan, above: tuple[str, ...]) -> None:
        within = above[-1] if above else ""
        for node in plan.nodes:
            path = wire.join(within, node.id)
            self._mapped.update({wire.mapped(path): None} if node.maps else {})
            for name in (path, wire.mapped(path)) if node.maps else (path,):
                self._nodes[name] = node
                self._above[name] = above
                self._semantics[name] = plan.semantics
                if plan.swarm is not None:
                    self._turns.add(name)
                if "after_node" in plan.hooks:
                    self._hooked_after.add(name)
            if node.plan is not None:
                self._note_above(node.plan, (*above, path))

    # -- what happens --------------------------------------------------------------------------

    def scheduled(self, argument: wire.NodeInput) -> Events:
        """Tell that a visit begins, or goes on after a question."""
        visit = argument.node, argument.visit
        yield from self._enter(visit, argument.enclosing)
        sources = argument.dependencies
        if argument.item is not None:
            sources = argument.item.sources
            self._begin_item(visit, argument.item.index, argument.item.mapped)
        yield from self._hand_over(visit, sources)
        yield from self._start(visit)
        self._running[visit] = None

    def hooked(self, outcome: wire.HooksOutcome) -> Events:
        """Tell what hooks around a node have done."""
        visit = path, number = outcome.node or "", outcome.visit
        if outcome.event == "after_node" and visit in self._handoffs:
            handoff = self._handoffs.pop(visit)
            if outcome.error is None:
                yield self._handed_over(path, handoff)
        if outcome.event != "before_node":
            return
        if path not in self._turns:  # Hooks of a swarm come before the turn's start.
            yield from self._enter(visit, outcome.enclosing)
            yield from self._leave_earlier(visit)
            yield from self._hand_over(visit, outcome.sources)
            yield from self._start(visit)
            self._announced[visit] = None
        if outcome.interrupts:
            yield from self.interrupted(visit, outcome.interrupts)
        elif outcome.cancel is not None:
            self._nested.pop(visit, None)
            yield self._tell(path, MultiAgentNodeCancelEvent(self._id(path), outcome.cancel))
            if self._semantics.get(path) == "strands":  # There it is a failure of the node.
                error = RuntimeError(outcome.cancel)
                report = wire.NodeReport(
                    status=wire.NodeStatus.FAILED, error=error_to_wire(error), visit=number
                )
                yield from self.failed(visit, error, report)
        else:
            return
        self._announced.pop(visit, None)

    def whole(self, outcome: wire.NodeOutcome) -> wire.NodeOutcome:
        """Return a visit's outcome with what the visit has done before it asked, if it did."""
        visit = outcome.node, outcome.visit
        part = self._parts.pop(visit, None)
        if part is not None:
            outcome = outcome.after(part)
        if outcome.interrupts:
            self._parts[visit] = outcome
        return outcome

    def completed(self, outcome: wire.NodeOutcome) -> Events:
        """Tell that a visit has ended, or asks."""
        visit = path, number = outcome.node, outcome.visit
        self._running.pop(visit, None)
        if outcome.interrupts:
            if path in self._turns:  # In a swarm, a turn that asks has stopped, too.
                stopped = node_result_from_wire(outcome.report)
                stopped.interrupts = _interrupts(path, number, outcome.interrupts)
                if isinstance(stopped.result, AgentResult):
                    stopped.result.interrupts = stopped.interrupts
                yield self._tell(path, MultiAgentNodeStopEvent(self._id(path), stopped))
            yield from self.interrupted(visit, outcome.interrupts)
            return
        self._remember(visit, outcome.report)
        result = node_result_from_wire(outcome.report)
        yield self._tell(path, MultiAgentNodeStopEvent(self._id(path), result))
        if outcome.handoff is not None:
            if path in self._hooked_after:  # It stands if they let it.
                self._handoffs[visit] = outcome.handoff
            else:
                yield self._handed_over(path, outcome.handoff)

    def failed(self, visit: wire.Visit, error: Exception, report: wire.NodeReport) -> Events:
        """Tell that a visit has failed for good."""
        path, _ = visit
        self._running.pop(visit, None)
        self._remember(visit, report)
        result = NodeResult(result=error, status=node_result_from_wire(report).status)
        result.execution_count = 1
        yield self._tell(path, MultiAgentNodeStopEvent(self._id(path), result))

    def interrupted(self, visit: wire.Visit, asked: list[wire.Asked]) -> Events:
        """Tell that a visit asks."""
        path, number = visit
        self._asking[visit] = interrupts = _interrupts(path, number, asked)
        yield self._tell(path, MultiAgentNodeInterruptEvent(self._id(path), interrupts))

    @property
    def may_rest(self) -> bool:
        """Whether something nested waits for nothing but humans, if nothing more has begun."""
        return any(self._resting())

    def rested(self) -> Events:
        """Tell of what is nested that it asks, once it waits for nothing but humans."""
        for visit in sorted(self._resting(), key=lambda visit: -len(self._above[visit[0]])):
            path, _ = visit
            nested = self._nested[visit]
            nested.rests = True
            asked = [
                interrupt
                for asking, interrupts in self._asking.items()
                if visit in self._chain(asking)
                for interrupt in interrupts
            ]
            report = self._report_of(visit, nested)
            for turn in self._asking:
                if (
                    turn in self._parts
                    and self._within.get(turn) == visit
                    and turn[0] in self._turns
                ):
                    report = _with_turn(report, self._id(turn[0]), self._parts[turn].report)
            report = report.model_copy(update={"status": wire.NodeStatus.INTERRUPTED})
            inner = node_result_from_wire(report).result
            assert isinstance(inner, MultiAgentResult), "a report with results is that of several"
            inner.interrupts = asked
            told = MultiAgentResultEvent(result=inner).as_dict()
            yield self._tell(path, MultiAgentNodeStreamEvent(self._id(path), told))
            yield self._tell(path, MultiAgentNodeInterruptEvent(self._id(path), asked))

    def _resting(self) -> list[wire.Visit]:
        busy = {around for visit in self._running for around in self._chain(visit)}
        asking = dict.fromkeys(around for visit in self._asking for around in self._chain(visit))
        return [
            visit
            for visit in asking
            if visit not in busy and visit in self._nested and not self._nested[visit].rests
        ]

    def _chain(self, visit: wire.Visit) -> Iterator[wire.Visit]:
        """Yield the nested visits that a visit takes place in, the innermost first."""
        within = self._within.get(visit)
        while within is not None:
            yield within
            within = self._within.get(within)

    def ended(self, report: wire.RunReport) -> Events:
        """Tell what has stopped with the run, of what is nested: as the run reports it.

        What the end has cut off stops without an event, as in Strands.
        """
        reports = dict(self.plan.visits(report.results))
        for visit in sorted(self._nested, key=lambda visit: -len(self._above[visit[0]])):
            if visit in reports:
                yield from self._leave(visit, reports[visit])
            else:
                del self._nested[visit]

    def said(self, path: str, event: dict[str, Any]) -> dict[str, Any]:
        """Return something that a visit's executor said, as the run's own consumer gets it."""
        return self._tell(path, MultiAgentNodeStreamEvent(self._id(path), event))

    # -- nested graphs and swarms --------------------------------------------------------------

    def _enter(self, visit: wire.Visit, enclosing: list[wire.Enclosing]) -> Events:
        """Tell of the visits that a visit takes place in, as far as they are new, or rested."""
        self._asking.pop(visit, None)
        within: wire.Visit | None = None
        for path, around in zip(self._above.get(visit[0], ()), enclosing, strict=False):
            nested = path, around.visit
            if nested not in self._nested:
                self._within[nested] = within
                yield from self._leave_earlier(nested, around.earlier)
                if around.index is not None:
                    self._begin_item(nested, around.index, around.mapped)
                yield from self._hand_over(nested, around.sources)
                yield from self._start(nested)
            elif self._nested[nested].rests:
                self._nested[nested].rests = False
                yield from self._start(nested)
            self._announced.pop(nested, None)
            within = nested
        self._within[visit] = within

    def _leave_earlier(self, visit: wire.Visit, ending: wire.NodeReport | None = None) -> Events:
        """Tell that a nested graph has stopped that starts anew; items of one go side by side."""
        path, _ = visit
        node = self._nodes.get(path)
        if node is None or not node.maps:
            for earlier in self._inside(self._within.get(visit), path):
                if earlier != visit:
                    yield from self._leave(earlier, ending=ending)

    def _inside(self, within: wire.Visit | None, path: str | None = None) -> list[wire.Visit]:
        """Return what goes on directly inside a visit, perhaps only at one path."""
        return [
            visit
            for visit, nested in self._nested.items()
            if nested.within == within and path in (None, visit[0])
        ]

    def _leave(
        self,
        visit: wire.Visit,
        report: wire.NodeReport | None = None,
        ending: wire.NodeReport | None = None,
    ) -> Events:
        """Tell that a nested visit has stopped.

        Args:
            visit: The visit.
            report: Its report, if it is known.
            ending: What is known of its report, else.
        """
        for deeper in self._inside(visit):
            yield from self._leave(deeper)
        path, _ = visit
        nested = self._nested.pop(visit)
        if report is None:
            report = self._report_of(visit, nested)
            if ending is not None and ending.visit == visit[1]:
                report = report.ending_as(ending)
        result = node_result_from_wire(report)
        if isinstance(result.result, MultiAgentResult):
            inner = MultiAgentResultEvent(result=result.result).as_dict()
            yield self._tell(path, MultiAgentNodeStreamEvent(self._id(path), inner))
        self._remember(visit, report)
        yield self._tell(path, MultiAgentNodeStopEvent(self._id(path), result))

    def _leave_mapped(self, path: str, ending: wire.NodeReport) -> Events:
        """Tell that a mapped node has stopped that hooks announced, if it had no visits."""
        whole = wire.mapped(path), ending.visit
        if whole in self._announced:
            del self._announced[whole]
            result = node_result_from_wire(_NO_ITEMS.ending_as(ending))
            yield self._tell(path, MultiAgentNodeStopEvent(self._id(path), result))

    def _report_of(self, visit: wire.Visit, nested: _Nested) -> wire.NodeReport:
        """Make the report of a nested visit from what was seen inside it."""
        path, number = visit
        plan = self._nodes[path].plan
        assert plan is not None, "a nested graph or swarm has a plan"
        return wire.NodeReport(
            status=wire.NodeStatus.COMPLETED,
            results=nested.reports,
            order={"results": list(nested.reports)},
            result_type="GraphResult" if plan.swarm is None else "SwarmResult",
            structure=wire.Structure(
                nodes=[node.id for node in plan.nodes],
                total_nodes=len(plan.nodes),
                execution_order=nested.order,
                edges=[(edge.source, edge.target) for edge in plan.edges],
                entry_points=plan.entry_points,
                completed_nodes=len(nested.reports),
            ),
            usage=nested.used.usage,
            latency_ms=nested.used.latency_ms,
            execution_time=nested.used.execution_time,
            execution_count=nested.used.execution_count,
            visit=number,
        )

    def _remember(self, visit: wire.Visit, report: wire.NodeReport) -> None:
        """Keep the report of a visit for the nested one that it takes place in."""
        nested = self._around(visit)
        if nested is None:
            return
        node = self._id(visit[0])
        nested.used = _sum(nested.used, report)
        if visit in self._index:
            nested.reports[node] = _with_item(nested.reports[node], self._index[visit], report)
        else:
            nested.reports[node] = report
            nested.order.append(node)

    def _begin_item(self, visit: wire.Visit, index: int, mapped: int) -> None:
        """Take note of which item a visit is about; with the first seen, the mapped node begins."""
        self._index[visit] = index
        nested = self._around(visit)
        node = self._id(visit[0])
        if nested is not None and nested.mapped.get(node) != mapped:
            nested.mapped[node] = mapped
            nested.reports[node] = _NO_ITEMS
            nested.order.append(node)

    def _around(self, visit: wire.Visit) -> _Nested | None:
        within = self._within.get(visit)
        return None if within is None else self._nested.get(within)

    # -- single events -------------------------------------------------------------------------

    def _hand_over(self, visit: wire.Visit, sources: list[wire.Dependency]) -> Events:
        """Tell that a node reads others' results; so nested ones among them have stopped."""
        path, _ = visit
        if not sources or visit in self._handed or self._announcement(visit) is not None:
            return
        self._handed[visit] = None
        above = self._above.get(path, ())
        within = above[-1] if above else ""
        for read in sources:
            source = wire.join(within, read.source)
            for nested in self._inside(self._within.get(visit), source):
                yield from self._leave(nested, ending=read.nested)
            if read.nested is not None:
                yield from self._leave_mapped(source, read.nested)
        names = [read.source for read in sources]
        yield self._tell(path, MultiAgentHandoffEvent(names, [self._id(path)]))

    def _handed_over(self, path: str, handoff: wire.Handoff) -> dict[str, Any]:
        """Return the event of a handoff in a swarm, in Strands' words if it has none."""
        message = handoff.message or "Agent handoff occurred"
        event = MultiAgentHandoffEvent([self._id(path)], [handoff.target], message)
        return self._tell(path, event)

    def _start(self, visit: wire.Visit) -> Events:
        """Tell that a visit starts, unless hooks before it have announced it."""
        path, _ = visit
        node = self._nodes.get(path)
        if node is not None and node.plan is not None and path not in self._mapped:
            self._nested.setdefault(visit, _Nested(self._within.get(visit)))
        announcement = self._announcement(visit)
        if announcement is not None:
            del self._announced[announcement]
            return
        kind = node.kind if node is not None else "agent"
        yield self._tell(path, MultiAgentNodeStartEvent(self._id(path), kind))

    def _announcement(self, visit: wire.Visit) -> wire.Visit | None:
        """Return the visit by which hooks have announced this one: it, or all of a mapped node."""
        whole = wire.mapped(visit[0])
        return next(
            (known for known in self._announced if known == visit or known[0] == whole), None
        )

    def _id(self, path: str) -> str:
        node = self._nodes.get(path)
        return path if node is None else node.id

    def _tell(self, path: str, event: Any) -> dict[str, Any]:
        """Return an event about a node as the run's own consumer gets it."""
        told: dict[str, Any] = event.as_dict()
        for nested in reversed(self._above.get(path, ())):
            told = MultiAgentNodeStreamEvent(self._id(nested), told).as_dict()
        return told


def _interrupts(path: str, visit: int, asked: list[wire.Asked]) -> list[Interrupt]:
    return [
        Interrupt(wire.interrupt_id(path, visit, item.strands_id), item.name, item.reason)
        for item in asked
    ]


def _sum(one: wire.NodeReport, other: wire.NodeReport) -> wire.NodeReport:
    """Return the first report with what the second used added."""
    return one.model_copy(
        update={
            "usage": one.usage + other.usage,
            "latency_ms": one.latency_ms + other.latency_ms,
            "execution_time": one.execution_time + other.execution_time,
            "execution_count": one.execution_count + other.execution_count,
        }
    )


def _with_turn(report: wire.NodeReport, agent: str, turn: wire.NodeReport) -> wire.NodeReport:
    """Return the report of a swarm with a turn that asks: there, as in Strands, it is a result."""
    used = _sum(report, turn.model_copy(update={"execution_count": 0}))
    return used.model_copy(update={"results": {**(report.results or {}), agent: turn}})


def _with_item(report: wire.NodeReport, index: int, item: wire.NodeReport) -> wire.NodeReport:
    """Return the report of a mapped node with the report of one more item."""
    results = {int(key): result for key, result in (report.results or {}).items()} | {index: item}
    names = [str(key) for key in sorted(results)]
    in_order = {name: results[int(name)] for name in names}
    return _sum(report, item).model_copy(update={"results": in_order, "order": {"results": names}})
