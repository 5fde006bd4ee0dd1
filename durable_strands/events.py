"""What happened in a run, told as Strands' events.

History knows activities; Strands' consumers know nodes that start and stop, and for what is
nested in a node, events within that node's stream. The difference is made up here. Nothing here
knows Temporal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

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


@dataclass
class _Nested:
    """A visit of a nested graph or swarm that is going on.

    Attributes:
        visit: Its number; 0 as long as only its hooks have been seen.
        order: Ids of what completed inside it.
        reports: Latest report of each node inside it.
    """

    visit: int
    order: list[str] = field(default_factory=list)
    reports: dict[str, wire.NodeReport] = field(default_factory=dict)


class Narrator:
    """Tells a run's events in Strands' form and order.

    A nested graph or swarm has no events of its own in history. It starts with the first thing
    inside it, and has stopped when another node reads its result, when it starts anew, or when
    the run ends.
    """

    def __init__(self, plan: wire.GraphPlan) -> None:
        """Tell of a run of `plan`."""
        self._plan = plan
        self._nodes = dict(plan.paths())
        self._above: dict[str, tuple[str, ...]] = {}
        self._semantics: dict[str, wire.Semantics] = {}
        self._turns: set[str] = set()
        self._note_above(plan, ())
        self._nested: dict[str, _Nested] = {}
        self._announced: dict[str, None] = {}
        self._parts: dict[str, wire.NodeOutcome] = {}

    def _note_above(self, plan: wire.GraphPlan, above: tuple[str, ...]) -> None:
        within = above[-1] if above else ""
        for node in plan.nodes:
            path = wire.join(within, node.id)
            self._above[path] = above
            self._semantics[path] = plan.semantics
            if plan.swarm is not None:
                self._turns.add(path)
            if node.plan is not None:
                self._note_above(node.plan, (*above, path))

    def is_nested(self, path: str) -> bool:
        """Say whether a node lies inside another."""
        return bool(self._above.get(path))

    # -- what happens --------------------------------------------------------------------------

    def scheduled(self, argument: wire.NodeInput) -> Events:
        """Tell that a visit begins, or goes on after a question."""
        path = argument.node
        for nested, enclosing in zip(self._above.get(path, ()), argument.enclosing, strict=False):
            yield from self._enter(nested, enclosing)
        sources = [dependency.source for dependency in argument.dependencies]
        if sources and not argument.answers:
            yield from self._hand_over(path, sources)
        yield from self._start(path)
        self._announced.pop(path, None)

    def hooked(self, outcome: wire.HooksOutcome) -> Events:
        """Tell what hooks before a node have done."""
        if outcome.event != "before_node" or outcome.node is None:
            return
        path = outcome.node
        if path not in self._turns:  # Hooks of a swarm come before the turn's start.
            yield from self._start(path)
            self._announced[path] = None
        if outcome.interrupts:
            yield from self.interrupted(path, outcome.visit, outcome.interrupts)
        elif outcome.cancel is not None:
            yield self._tell(path, MultiAgentNodeCancelEvent(self._id(path), outcome.cancel))
            if self._semantics.get(path) == "strands":  # There it is a failure of the node.
                error = RuntimeError(outcome.cancel)
                report = wire.NodeReport(
                    status=wire.NodeStatus.FAILED, error=error_to_wire(error), visit=outcome.visit
                )
                yield from self.failed(path, error, report)
        else:
            return
        self._announced.pop(path, None)

    def whole(self, path: str, outcome: wire.NodeOutcome) -> wire.NodeOutcome:
        """Return a visit's outcome with what the visit has done before it asked, if it did."""
        part = self._parts.pop(path, None)
        if part is not None and part.visit == outcome.visit:
            outcome = outcome.after(part)
        if outcome.interrupts:
            self._parts[path] = outcome
        return outcome

    def completed(self, path: str, outcome: wire.NodeOutcome) -> Events:
        """Tell that a visit has ended, or asks."""
        if outcome.interrupts:
            if path in self._turns:  # In a swarm, a turn that asks has stopped, too.
                stopped = node_result_from_wire(outcome.report)
                yield self._tell(path, MultiAgentNodeStopEvent(self._id(path), stopped))
            yield from self.interrupted(path, outcome.visit, outcome.interrupts)
            return
        yield from self._stop(path, outcome.report)
        if outcome.handoff is not None:
            handoff = outcome.handoff
            yield self._tell(
                path,
                MultiAgentHandoffEvent([self._id(path)], [handoff.target], handoff.message),
            )

    def failed(self, path: str, error: Exception, report: wire.NodeReport) -> Events:
        """Tell that a visit has failed for good."""
        self._remember(path, report)
        result = NodeResult(result=error, status=node_result_from_wire(report).status)
        result.execution_count = 1
        yield self._tell(path, MultiAgentNodeStopEvent(self._id(path), result))

    def interrupted(self, path: str, visit: int, asked: list[wire.Asked]) -> Events:
        """Tell that a visit asks, and so whatever it is nested in."""
        interrupts = [
            Interrupt(wire.interrupt_id(path, visit, item.strands_id), item.name, item.reason)
            for item in asked
        ]
        for asking in (path, *reversed(self._above.get(path, ()))):
            yield self._tell(asking, MultiAgentNodeInterruptEvent(self._id(asking), interrupts))

    def ended(self, report: wire.RunReport) -> Events:
        """Tell what has stopped with the run, of what is nested: as the run reports it."""
        for path in sorted(self._nested, key=lambda path: -len(self._above[path])):
            yield from self._leave(path, _find(report.results, path, self._above[path]))

    def said(self, path: str, event: dict[str, Any]) -> dict[str, Any]:
        """Return something that a visit's executor said, as the run's own consumer gets it."""
        return self._tell(path, MultiAgentNodeStreamEvent(self._id(path), event))

    # -- nested graphs and swarms --------------------------------------------------------------

    def _enter(self, path: str, enclosing: wire.Enclosing) -> Events:
        nested = self._nested.get(path)
        if nested is not None and nested.visit == 0:
            nested.visit = enclosing.visit  # Its hooks have announced it.
            self._announced.pop(path, None)
        elif nested is not None and nested.visit != enclosing.visit:
            yield from self._leave(path)
            nested = None
        if nested is None:
            if enclosing.sources:
                yield from self._hand_over(path, enclosing.sources)
            yield from self._start(path)
            self._announced.pop(path, None)
            self._nested[path] = _Nested(enclosing.visit)

    def _leave(self, path: str, report: wire.NodeReport | None = None) -> Events:
        nested = self._nested.pop(path)
        deeper = [below for below in self._nested if path in self._above[below]]
        for below in sorted(deeper, key=lambda below: -len(self._above[below])):
            yield from self._leave(below)
        if report is None:
            report = self._report_of(path, nested)
        result = node_result_from_wire(report)
        if isinstance(result.result, MultiAgentResult):
            inner = MultiAgentResultEvent(result=result.result).as_dict()
            yield self._tell(path, MultiAgentNodeStreamEvent(self._id(path), inner))
        self._remember(path, report)
        yield self._tell(path, MultiAgentNodeStopEvent(self._id(path), result))

    def _report_of(self, path: str, nested: _Nested) -> wire.NodeReport:
        """Make the report of a nested visit from what was seen inside it."""
        plan = self._nodes[path].plan
        assert plan is not None, "a nested graph or swarm has a plan"
        usage = wire.Usage()
        for inner in nested.reports.values():
            usage += inner.usage
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
            usage=usage,
            latency_ms=sum(inner.latency_ms for inner in nested.reports.values()),
            execution_time=sum(inner.execution_time for inner in nested.reports.values()),
            execution_count=len(nested.order),
            visit=nested.visit or 1,
        )

    # -- single events -------------------------------------------------------------------------

    def _hand_over(self, path: str, sources: list[str]) -> Events:
        """Tell that a node reads others' results; so nested ones among them have stopped."""
        above = self._above.get(path, ())
        within = above[-1] if above else ""
        for source in sources:
            if wire.join(within, source) in self._nested:
                yield from self._leave(wire.join(within, source))
        yield self._tell(path, MultiAgentHandoffEvent(sources, [self._id(path)]))

    def _start(self, path: str) -> Events:
        if path in self._announced:
            return
        node = self._nodes.get(path)
        kind = node.kind if node is not None else "agent"
        if node is not None and node.plan is not None:
            self._nested.setdefault(path, _Nested(0))
        yield self._tell(path, MultiAgentNodeStartEvent(self._id(path), kind))

    def _stop(self, path: str, report: wire.NodeReport) -> Events:
        self._remember(path, report)
        stop = MultiAgentNodeStopEvent(self._id(path), node_result_from_wire(report))
        yield self._tell(path, stop)

    def _remember(self, path: str, report: wire.NodeReport) -> None:
        above = self._above.get(path, ())
        nested = self._nested.get(above[-1]) if above else None
        if nested is not None:
            nested.reports[self._id(path)] = report
            nested.order.append(self._id(path))

    def _id(self, path: str) -> str:
        node = self._nodes.get(path)
        return path if node is None else node.id

    def _tell(self, path: str, event: Any) -> dict[str, Any]:
        """Return an event about a node as the run's own consumer gets it."""
        told: dict[str, Any] = event.as_dict()
        for nested in reversed(self._above.get(path, ())):
            told = MultiAgentNodeStreamEvent(self._id(nested), told).as_dict()
        return told


def _find(
    results: dict[str, wire.NodeReport], path: str, above: tuple[str, ...]
) -> wire.NodeReport | None:
    """Return the report of the node at a path from a run's results, None if it isn't there."""
    within = ""
    for step in (*above, path):
        found = results.get(step[len(within) + 1 :] if within else step)
        if found is None:
            return None
        results, within = found.results or {}, step
    return found
