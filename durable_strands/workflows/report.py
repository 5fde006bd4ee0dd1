"""What a run knows besides who runs when: results, usage, invocation state, how it stands.

`RunState` turns that into what others read: activity arguments, the report, the details in
the Temporal UI. It decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from .. import wire
from .scheduler import Ask, Dispatch, Ending, Finish, Scheduler

_TABLE_ROWS = 60
"""Largest graph whose every node is shown in the details; a larger one shows counts."""


class RunState:
    """The memory of one run.

    Attributes:
        plan: The run's plan.
        status: Where the run stands.
        reason: Why it failed or was cancelled.
    """

    def __init__(
        self,
        plan: wire.GraphPlan,
        request: wire.GraphInput,
        scheduler: Scheduler[wire.NodeReport],
        now: datetime,
    ) -> None:
        """Begin with the request's own invocation state and no results."""
        self.plan = plan
        self.status = wire.RunStatus.EXECUTING
        self.reason: str | None = None
        self._request = request
        self._scheduler = scheduler
        self._nodes = {node.id: node for node in plan.nodes}
        self._invocation_state = dict(request.invocation_state)
        self._snapshots: dict[str, dict[str, Any]] = {}
        self._usage = wire.Usage()
        self._latency_ms = 0
        self._execution_count = 0
        self._failed_node: str | None = None
        self._error: wire.ErrorInfo | None = None
        self._started = now
        self._ended: datetime | None = None

    # -- what goes out -------------------------------------------------------------------------

    def node_plan(self, node: str) -> wire.NodePlan:
        """Return the plan of a node."""
        return self._nodes[node]

    def node_input(self, dispatch: Dispatch[wire.NodeReport]) -> dict[str, Any]:
        """Return the argument of a visit's activity."""
        plan = self._nodes[dispatch.node]
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
            snapshot=self._snapshots.get(dispatch.node),
            carries_state=plan.carries_state,
            node_timeout=plan.node_timeout,
            payload_limit=self.plan.payload_limit,
        ).dump()

    def edges_input(self, ask: Ask) -> dict[str, Any]:
        """Return the argument of the edges activity: the state that conditions see."""
        return wire.EdgesInput(
            graph=self.plan.graph,
            state=wire.StateView(
                task=self._request.task,
                completed=list(self._scheduler.completed),
                failed=list(self._scheduler.failed),
                execution_order=self._scheduler.order,
                results=self._scheduler.results,
                usage=self._usage,
                latency_ms=self._latency_ms,
                execution_count=self._execution_count,
            ),
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

    # -- what comes in -------------------------------------------------------------------------

    def take(self, outcome: wire.NodeOutcome) -> Ending:
        """Take a visit's outcome in, and say how the visit ended."""
        report = outcome.report
        self.merge(outcome.state_changes)
        self._usage += report.usage
        self._latency_ms += report.latency_ms
        self._execution_count += report.execution_count
        if outcome.snapshot is not None:
            self._snapshots[outcome.node] = outcome.snapshot
        failed = report.status is wire.NodeStatus.FAILED
        return Ending.FAILED if failed else Ending.COMPLETED

    def condition_raised(self, edges: str, error: wire.ErrorInfo) -> str:
        """Take note that a condition raised, and return what that makes the run's reason."""
        self._error = error
        return f"the condition of edge {edges} raised {error.type}: {error.message}"

    def merge(self, changes: wire.StateChanges) -> None:
        """Merge changes into the invocation state; the later in history wins."""
        changes.apply(self._invocation_state)

    def finished(self, finish: Finish, now: datetime) -> None:
        """Take note of the run's end."""
        self._ended = now
        self.status = finish.status
        self.reason = finish.reason
        if finish.failed_node is not None:
            self._failed_node = finish.failed_node
            error = self._scheduler.results[finish.failed_node].error
            assert error is not None, "a visit that raised has its error in the report"
            self._error = error
            self.reason = f"node {finish.failed_node!r} raised {error.type}: {error.message}"
        elif finish.status is wire.RunStatus.FAILED and finish.reason is None:
            self.reason = "failed nodes: " + ", ".join(self._scheduler.failed)

    def cancelled(self, now: datetime) -> None:
        """Take note of the run's cancellation."""
        self._ended = now
        self.status = wire.RunStatus.CANCELLED
        self.reason = "the workflow was cancelled"
        self._scheduler.abort(self.reason)

    # -- how it stands -------------------------------------------------------------------------

    def report(self, now: datetime) -> wire.RunReport:
        """Return the report as of now."""
        scheduler = self._scheduler
        elapsed = (self._ended or now) - self._started
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
            completed_nodes=len(scheduler.completed),
            failed_nodes=len(scheduler.failed),
            edges=[(edge.source, edge.target) for edge in self.plan.edges],
            entry_points=self.plan.entry_points,
            results=dict(scheduler.results),
            usage=self._usage,
            latency_ms=self._latency_ms,
            execution_count=self._execution_count,
            execution_time=round(elapsed.total_seconds() * 1000),
            invocation_state=self._invocation_state,
            fingerprint=self.plan.fingerprint,
        )

    def final_report(self) -> dict[str, Any]:
        """Return the report as JSON, cut down if it wouldn't fit into one payload.

        A run that did all its work must not be lost for the size of its summary: every full
        result is in history, as the result of its activity.
        """
        assert self._ended is not None, "only a run that has ended has a final report"
        report = self.report(self._ended)
        limit = self.plan.payload_limit
        for shortened in (_as_is, _texts_only, _statuses_only):
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
            running = scheduler.in_flight
            lines.append("running: " + (_first(running, 20) or "none"))
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
