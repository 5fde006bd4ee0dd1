"""What a run knows besides who runs when: results, usage, invocation state, how it stands.

`RunState` turns that into what others read: activity arguments, the report, the details in
the Temporal UI. It decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from .. import wire
from .clock import ActiveClock
from .interrupts import Interrupts
from .scheduler import Ask, Dispatch, Finish, Scheduler

_TABLE_ROWS = 60
"""Largest graph whose every node is shown in the details; a larger one shows counts."""


@dataclass
class OpenVisit:
    """What must be known of a visit from its dispatch to its end, and no longer.

    Attributes:
        answers: Answers to what its hooks, or then its node, have asked.
        hooks_done: Whether its hooks have let it through.
        snapshot: The agent's snapshot from when it last asked.
        so_far: What its parts have used, if it has asked.
    """

    answers: list[wire.Answer] = field(default_factory=list)
    hooks_done: bool = False
    snapshot: dict[str, Any] | None = None
    so_far: wire.NodeReport | None = None

    def whole(self, last: wire.NodeReport) -> wire.NodeReport:
        """Return the report of the visit so far, of which `last` is the latest part's."""
        return last if self.so_far is None else last.after(self.so_far)


class RunState:
    """The memory of one run.

    Attributes:
        plan: The run's plan.
        reason: Why it failed or was cancelled.
    """

    def __init__(
        self,
        plan: wire.GraphPlan,
        request: wire.GraphInput,
        scheduler: Scheduler[wire.NodeReport],
        interrupts: Interrupts,
        clock: ActiveClock,
    ) -> None:
        """Begin with the request's own invocation state and no results."""
        self.plan = plan
        self.reason: str | None = None
        self._end: wire.RunStatus | None = None
        self._request = request
        self._scheduler = scheduler
        self._interrupts = interrupts
        self._clock = clock
        self._nodes = {node.id: node for node in plan.nodes}
        self._invocation_state = dict(request.invocation_state)
        self._open: dict[str, OpenVisit] = {}
        self._snapshots: dict[str, dict[str, Any]] = {}
        self._usage = wire.Usage()
        self._latency_ms = 0
        self._execution_count = 0
        self._failed_node: str | None = None
        self._error: wire.ErrorInfo | None = None

    @property
    def status(self) -> wire.RunStatus:
        """Where the run stands."""
        if self._end is not None:
            return self._end
        waiting = self._scheduler.paused and not self._scheduler.is_running
        return wire.RunStatus.INTERRUPTED if waiting else wire.RunStatus.EXECUTING

    # -- what goes out -------------------------------------------------------------------------

    def node_plan(self, node: str) -> wire.NodePlan:
        """Return the plan of a node."""
        return self._nodes[node]

    def open_visit(self, node: str) -> OpenVisit:
        """Return the visit of a node that is going on, or begin one."""
        return self._open.setdefault(node, OpenVisit())

    def node_input(self, dispatch: Dispatch[wire.NodeReport]) -> dict[str, Any]:
        """Return the argument of a visit's activity."""
        plan = self._nodes[dispatch.node]
        visit = self.open_visit(dispatch.node)
        return wire.NodeInput(
            graph=self.plan.graph,
            node=dispatch.node,
            visit=dispatch.visit,
            task=self._request.task,
            dependencies=[
                wire.Dependency(source=source, texts=report.agent_texts())
                for source, report in dispatch.inputs
            ],
            invocation_state=self._invocation_state,
            answers=visit.answers,
            snapshot=visit.snapshot or self._snapshots.get(dispatch.node),
            carries_state=plan.carries_state,
            node_timeout=plan.node_timeout,
            payload_limit=self.plan.payload_limit,
        ).dump()

    def edges_input(self, ask: Ask) -> dict[str, Any]:
        """Return the argument of the edges activity."""
        return wire.EdgesInput(
            graph=self.plan.graph,
            state=self._view(),
            invocation_state=self._invocation_state,
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
        self, event: wire.HookEvent, node: str | None, answers: list[wire.Answer]
    ) -> dict[str, Any]:
        """Return the argument of the hooks activity."""
        return wire.HooksInput(
            graph=self.plan.graph,
            event=event,
            node=node,
            visit=0 if node is None else self._scheduler.visits(node),
            state=self._view(),
            invocation_state=self._invocation_state,
            answers=answers,
        ).dump()

    def _view(self) -> wire.StateView:
        """Return the state that conditions and hooks see."""
        return wire.StateView(
            task=self._request.task,
            completed=list(self._scheduler.completed),
            failed=list(self._scheduler.failed),
            interrupted=self._scheduler.paused,
            execution_order=self._scheduler.order,
            results=self._scheduler.results,
            order={"results": list(self._scheduler.results)},
            usage=self._usage,
            latency_ms=self._latency_ms,
            execution_count=self._execution_count,
        )

    # -- what comes in -------------------------------------------------------------------------

    def paused(self, outcome: wire.NodeOutcome) -> None:
        """Take in what a visit gave up to a question.

        It is run in parts, each by an agent that counts from zero: what they used is added up.
        """
        self.merge(outcome.state_changes)
        visit = self.open_visit(outcome.node)
        visit.snapshot = outcome.snapshot
        visit.so_far = visit.whole(outcome.report)
        visit.answers = [answer.model_copy(update={"given": True}) for answer in visit.answers]

    def ended(self, outcome: wire.NodeOutcome) -> wire.NodeReport:
        """Take in what a visit gave at its end, and return the report of the whole visit."""
        self.merge(outcome.state_changes)
        if outcome.snapshot is not None:
            self._snapshots[outcome.node] = outcome.snapshot
        report = self._close(outcome.node, outcome.report)
        self._execution_count += report.execution_count
        return report

    def raised(self, node: str, error: wire.ErrorInfo) -> wire.NodeReport:
        """Return the report of a visit that raised, with what its parts had used."""
        visit = self._scheduler.visits(node)
        return self._close(
            node, wire.NodeReport(status=wire.NodeStatus.FAILED, error=error, visit=visit)
        )

    def cancelled_by_hook(self, node: str, message: str) -> wire.NodeReport:
        """Return the report of a visit that a hook cancelled."""
        return self._close(node, wire.NodeReport(status=wire.NodeStatus.CANCELLED, text=message))

    def _close(self, node: str, last: wire.NodeReport) -> wire.NodeReport:
        """End a visit: count what it used, and forget what only mattered while it was open."""
        report = self._open.pop(node, OpenVisit()).whole(last)
        self._usage += report.usage
        self._latency_ms += report.latency_ms
        return report

    def merge(self, changes: wire.StateChanges) -> None:
        """Merge changes into the invocation state; the later in history wins."""
        changes.apply(self._invocation_state)

    # -- the run's end -------------------------------------------------------------------------

    def condition_raised(self, edges: str, error: wire.ErrorInfo) -> str:
        """Take note that a condition raised, and return what that makes the run's reason."""
        self._error = error
        return f"the condition of edge {edges} raised {error.type}: {error.message}"

    def hook_raised(self, event: str, error: wire.ErrorInfo) -> str:
        """Take note that a hook raised, and return what that makes the run's reason."""
        self._error = error
        return f"a hook of {event} raised {error.type}: {error.message}"

    def finished(self, finish: Finish) -> None:
        """Take note of the run's end."""
        self._finish_open()
        self._end = finish.status
        self.reason = finish.reason
        if finish.failed_node is not None:
            self._failed_node = finish.failed_node
            error = self._scheduler.results[finish.failed_node].error
            assert error is not None, "a visit that raised has its error in the report"
            self._error = error
            self.reason = f"node {finish.failed_node!r} raised {error.type}: {error.message}"
        elif finish.status is wire.RunStatus.FAILED and finish.reason is None:
            self.reason = "failed nodes: " + ", ".join(self._scheduler.failed)

    def cancelled(self) -> None:
        """Take note of the run's cancellation."""
        self._finish_open()
        self._end = wire.RunStatus.CANCELLED
        self.reason = "the workflow was cancelled"

    def _finish_open(self) -> None:
        """Count what visits have used that the run's end cuts off."""
        for node, visit in list(self._open.items()):
            if visit.so_far is not None:
                self._close(node, wire.NodeReport(status=wire.NodeStatus.CANCELLED))

    # -- how it stands -------------------------------------------------------------------------

    def report(self, now: datetime) -> wire.RunReport:
        """Return the report as of now."""
        scheduler = self._scheduler
        return wire.RunReport(
            graph=self.plan.graph,
            status=self.status,
            reason=self.reason,
            failed_node=self._failed_node,
            error=self._error,
            execution_order=list(scheduler.order),
            nodes={
                node.id: wire.NodeState(
                    status=scheduler.status(node.id), visits=scheduler.visits(node.id)
                )
                for node in self.plan.nodes
            },
            interrupts=list(self._interrupts.pending.values()),
            cancelled_interrupts=self._interrupts.cancelled,
            completed_nodes=len(scheduler.completed),
            failed_nodes=len(scheduler.failed),
            edges=[(edge.source, edge.target) for edge in self.plan.edges],
            entry_points=self.plan.entry_points,
            results=dict(scheduler.results),
            order={
                "nodes": [node.id for node in self.plan.nodes],
                "results": list(scheduler.results),
            },
            usage=self._usage,
            latency_ms=self._latency_ms,
            execution_count=self._execution_count,
            execution_time=round(self._clock.elapsed(now).total_seconds() * 1000),
            invocation_state=self._invocation_state,
            fingerprint=self.plan.fingerprint,
        )

    def fitting_report(self, now: datetime, limit: int | None) -> dict[str, Any]:
        """Return the report as JSON, cut down if it has more than `limit` bytes.

        A run that did all its work must not be lost for the size of its summary: every full
        result is in history, as the result of its activity.
        """
        report = self.report(now)
        for shortened in (_as_is, _texts_only, _statuses_only, _sums_only):
            data = shortened(report).dump()
            if limit is None or len(json.dumps(data)) <= limit:
                break
        return data

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
        if len(self.plan.nodes) <= _TABLE_ROWS:
            lines += ["| node | status | visits |", "|---|---|---|"]
            for node in self.plan.nodes:
                name = node.id.replace("|", "\\|")
                status = scheduler.status(node.id).value
                lines.append(f"| {name} | {status} | {scheduler.visits(node.id)} |")
        else:
            lines.append("running: " + (_first(scheduler.in_flight, 20) or "none"))
        if self._interrupts.pending:
            lines += ["", "| waiting for a human | node | asks | reason |", "|---|---|---|---|"]
            for info in self._interrupts.pending.values():
                cells = (f"`{info.id}`", info.node, info.name, json.dumps(info.reason)[:200])
                lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        return "\n".join(lines)


def _first(names: Iterable[str], most: int) -> str:
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def _as_is(report: wire.RunReport) -> wire.RunReport:
    return report


def _texts_only(report: wire.RunReport) -> wire.RunReport:
    results = {
        node: result.model_copy(update={"message": None, "agent_metrics": None, "results": None})
        for node, result in report.results.items()
    }
    return report.model_copy(update={"results": results, "truncated": True})


def _statuses_only(report: wire.RunReport) -> wire.RunReport:
    results = {
        node: wire.NodeReport(status=result.status, usage=result.usage, visit=result.visit)
        for node, result in report.results.items()
    }
    return report.model_copy(
        update={"results": results, "edges": [], "invocation_state": {}, "truncated": True}
    )


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
