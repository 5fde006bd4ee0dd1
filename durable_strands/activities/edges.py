"""Evaluates edge conditions: the local activity behind every verdict.

Conditions are the user's code and may do anything, so they run here and not in the workflow.
A condition that raises is data, not a failure of the activity: retrying it would change
nothing.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

from strands.multiagent.base import Status
from strands.multiagent.graph import GraphEdge, GraphState
from strands.types.event_loop import Metrics

from .. import wire
from ..codec import (
    error_to_wire,
    node_result_from_wire,
    remote_nodes,
    task_from_wire,
    usage_from_wire,
)
from .node import state_changes
from .registry import RegisteredGraph


async def evaluate_edges(graph: RegisteredGraph, data: dict[str, Any]) -> dict[str, Any]:
    """Evaluate conditions in the order asked: the body of the edges activity.

    Args:
        graph: The graph whose conditions they are.
        data: A `wire.EdgesInput` as a JSON object.

    Returns:
        A `wire.EdgesOutcome` as a JSON object.
    """
    request = wire.EdgesInput.load(data)
    state = graph_state(graph.plan, request.state)
    invocation_state = copy.deepcopy(request.invocation_state)
    answers: list[list[bool]] = []
    completed = {node.node_id: node for node in state.completed_nodes}
    for question in request.questions:
        state.completed_nodes = {
            node for name, node in completed.items() if name not in question.hidden
        }
        verdicts: list[bool] = []
        for source, target, ordinal in question.edges:
            try:
                edge = graph.edge(source, target, ordinal)
                verdict = await _verdict(edge, state, invocation_state)
            except Exception as error:
                named = wire.EdgePlan(source=source, target=target, ordinal=ordinal)
                return wire.EdgesOutcome(error=error_to_wire(error), failed_edge=str(named)).dump()
            verdicts.append(verdict)
            if verdict and question.until_true:
                break
        answers.append(verdicts)
    changes = state_changes(request.invocation_state, invocation_state, "an edge condition")
    return wire.EdgesOutcome(answers=answers, state_changes=changes).dump()


async def _verdict(edge: GraphEdge, state: GraphState, invocation_state: dict[str, Any]) -> bool:
    verdict: Any = edge.should_traverse(state, invocation_state=invocation_state)
    if inspect.isawaitable(verdict):
        verdict = await verdict
    return bool(verdict)


def graph_state(plan: wire.GraphPlan, view: wire.StateView) -> GraphState:
    """Return Strands' `GraphState` of what the run knows."""
    nodes = remote_nodes([*(node.id for node in plan.nodes), *view.results])
    for name, report in view.results.items():
        nodes[name].result = result = node_result_from_wire(report)
        nodes[name].execution_status = result.status
    return GraphState(
        task=task_from_wire(view.task),
        status=Status.EXECUTING,
        completed_nodes={nodes[name] for name in view.completed},
        failed_nodes={nodes[name] for name in view.failed},
        execution_order=[nodes[name] for name in view.execution_order],
        results={name: node.result for name, node in nodes.items() if node.result is not None},
        accumulated_usage=usage_from_wire(view.usage),
        accumulated_metrics=Metrics(latencyMs=view.latency_ms),
        execution_count=view.execution_count,
        total_nodes=len(plan.nodes),
        edges=[(nodes[edge.source], nodes[edge.target]) for edge in plan.edges],
        entry_points=[nodes[node] for node in plan.entry_points],
    )
