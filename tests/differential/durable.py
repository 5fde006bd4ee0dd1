"""Plays a scenario by `DurableGraph` on a real worker, to the order in which Strands played it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, cast

from strands.interrupt import Interrupt
from strands.multiagent.base import Status
from strands.multiagent.graph import GraphResult
from temporalio import activity
from temporalio.client import Client

from durable_strands import DurableGraph, GraphFailedError, GraphRun, current_node

from .rules import Early
from .scenario import Scenario
from .stage import STAGES, Call, Gatekeeper, Stage, Trace, error_of, result_of, spent_of

LONGEST = 30.0
"""Seconds that a call may take before it counts as stuck."""


class OnWorker(Stage):
    """A run on the worker: whoever ended next in Strands may end next."""

    def __init__(self, strands: Trace) -> None:
        super().__init__()
        script = _script_of(strands)
        # Who raises lets the others of the batch come as far as they came in Strands.
        self._waits_for: dict[str, int] = {}
        if strands.calls[-1].outcome["error"] is not None and Early.of(strands) is None:
            self._waits_for = {
                visit: len(inputs)
                for visit, inputs in strands.inputs.items()
                if not visit.startswith(f"{script[-1]}#")
            }
        self.handoffs: list[tuple[Any, ...]] = []
        self._script = script
        self._leaving = False
        self._keeper = Gatekeeper()
        self._parts: dict[str, asyncio.Future[None]] = {}
        self._nodes: dict[str, str] = {}

    def visit(self, node: str) -> int:
        current = current_node()
        assert current.path == node, f"{node} runs as {current.path}"
        return current.visit

    async def gate(self, node: str) -> None:
        part = activity.info().activity_id
        assert part is not None
        if part not in self._parts:
            self._parts[part] = self._keeper.ticket(part)
            self._nodes[part] = node
            self._proceed()
        await asyncio.shield(self._parts[part])

    def interrupts(self, node: str, names: list[str]) -> list[Interrupt]:
        # Every stub asks with the same ids.
        return [
            Interrupt(name.removeprefix(f"{node} "), name, reason={"from": node}) for name in names
        ]

    def ended(self, node: str, how: str) -> None:
        if node in self._script:
            self._leaving = self._leaving and self._script[0] != node
            self._script.remove(node)
        self._proceed()

    def close(self) -> None:
        """Turn away who still waits: the run is over."""
        self._keeper.close()

    def _proceed(self) -> None:
        # A node's next visit may come before the end of its last was heard.
        if self._leaving or not self._script:
            return
        if len(self._script) == 1 and any(
            len(self.trace.inputs.get(visit, ())) < count
            for visit, count in self._waits_for.items()
        ):
            return
        for part in self._keeper.waiting:
            if self._nodes[part] == self._script[0]:
                self._leaving = True
                self._keeper.let_go(part)
                return


class Graph(DurableGraph):
    """A durable graph that remembers its last run."""

    run: GraphRun | None = None

    async def start(self, *args: Any, **kwargs: Any) -> GraphRun:
        self.run = await super().start(*args, **kwargs)
        return self.run


def _script_of(trace: Trace) -> list[str]:
    """Return the nodes in the order in which their parts ended."""
    return [
        event[1]
        for call in trace.calls
        for event in call.events
        if event[0] in ("stop", "interrupt")
    ]


async def play(
    client: Client, queue: str, scenario: Scenario, strands: Trace
) -> tuple[OnWorker, GraphRun | None]:
    """Play a scenario to its end, giving the same answers as were given to Strands."""
    stage = STAGES[scenario.name] = OnWorker(strands)
    graph = Graph(client, scenario.name, task_queue=queue)
    task: Any = scenario.task
    try:
        for number in range(1, len(strands.calls) + 1):
            stage.trace.calls.append(Call())
            async with asyncio.timeout(LONGEST):
                await _call(stage, graph, task, scenario.brings(number - 1))
            if stage.call.outcome["status"] != Status.INTERRUPTED.value:
                break
            answers = scenario.answers(number, sorted(stage.pending))
            task = []
            for (node, name), answer in answers.items():
                asked = stage.pending.pop((node, name))
                visit = int(asked.id.partition(":")[0].rpartition("#")[2])
                stage.answers[node, visit][name] = answer
                task.append({"interruptResponse": {"interruptId": asked.id, "response": answer}})
        assert graph.run is not None
        if stage.call.outcome["status"] != Status.INTERRUPTED.value:
            report = await graph.run.status()
            stage.trace.state = report.invocation_state
            stage.call.outcome["cancelled"] = sorted(
                (info.node, info.name) for info in report.cancelled_interrupts
            )
    except TimeoutError:
        stage.call.outcome["stuck"] = True
        if graph.run is not None and not await graph.run.is_closed():
            await client.get_workflow_handle(graph.run.id).terminate("stuck")
    finally:
        stage.close()
    return stage, graph.run


async def _call(stage: OnWorker, graph: Graph, task: Any, state: dict[str, Any]) -> None:
    call = stage.call
    error: Exception | None = None
    result: Any = None
    try:
        async with aclosing(cast(Any, graph.stream_async(task, state))) as events:
            async for event in events:
                stage.hear(event)
                result = event.get("result", result)
    except Exception as raised:
        error = raised
        failed = raised if isinstance(raised, GraphFailedError) else raised.__cause__
        if not isinstance(failed, GraphFailedError):
            raise
        result = failed.result
    assert isinstance(result, GraphResult)
    call.outcome = {
        "error": None if error is None else error_of(error),
        "status": result.status.value,
        "order": [str(node.node_id) for node in result.execution_order],
        "total": result.total_nodes,
        "completed": result.completed_nodes,
        "failed": result.failed_nodes,
        "interrupted": result.interrupted_nodes,
        "count": result.execution_count,
        "results": {
            node: (*result_of(item), spent_of(item.accumulated_usage, item.accumulated_metrics))
            for node, item in sorted(result.results.items())
        },
        "spent": spent_of(result.accumulated_usage, result.accumulated_metrics),
        "edges": [(a.node_id, b.node_id) for a, b in result.edges],
        "entries": [node.node_id for node in result.entry_points],
    }
    if result.status is Status.INTERRUPTED:
        ids = {item.id: key for key, item in stage.pending.items()}
        call.asked = sorted(((*ids[item.id], item.reason) for item in result.interrupts), key=repr)
    stage.handoffs += [event[1:] for event in call.events if event[0] == "handoff"]
    call.events = [event for event in call.events if event[0] != "handoff"]
