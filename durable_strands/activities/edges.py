"""Evaluates edge conditions: the local activity behind every verdict.

Conditions are the user's code and may do anything, so they run here and not in the workflow.
A condition that raises is data, not a failure of the activity: retrying it would change
nothing.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from typing import Any

from strands.multiagent.graph import GraphEdge, GraphState

from .. import wire
from ..codec import error_to_wire
from ..errors import PayloadTooLargeError
from .failures import check_size, is_being_cancelled
from .registry import RegisteredGraph
from .views import graph_state, state_changes


async def evaluate_edges(
    graph: RegisteredGraph, data: dict[str, Any], payload_limit: int | None
) -> dict[str, Any]:
    """Evaluate conditions in the order asked: the body of the edges activity.

    Args:
        graph: The graph whose conditions they are.
        data: A `wire.EdgesInput` as a JSON object.
        payload_limit: Bytes that the outcome may have; None for no limit.

    Returns:
        A `wire.EdgesOutcome` as a JSON object.
    """
    request = wire.EdgesInput.load(data)
    state = graph_state(graph.part(request.within).plan, request.state)
    invocation_state = copy.deepcopy(request.invocation_state)
    answers: list[list[bool]] = []
    completed = {node.node_id: node for node in state.completed_nodes}
    failed: dict[str, Any] = {}
    for question in request.questions:
        state.completed_nodes = {
            node for name, node in completed.items() if name not in question.hidden
        }
        verdicts: list[bool] = []
        for source, target, ordinal in question.edges:
            named = wire.EdgePlan(source=source, target=target, ordinal=ordinal)
            try:
                edge = graph.edge(request.within, named)
                verdict = await _verdict(edge, state, invocation_state)
            except (Exception, asyncio.CancelledError) as error:
                if is_being_cancelled(error):
                    raise
                failed = {"error": error_to_wire(error), "failed_edge": str(named)}
                break
            verdicts.append(verdict)
            if verdict and question.until_true:
                break
        if failed:
            break  # What conditions wrote before stays, as in Strands.
        answers.append(verdicts)
    changes = state_changes(request.invocation_state, invocation_state, "an edge condition")
    outcome = wire.EdgesOutcome(answers=answers, state_changes=changes, **failed).dump()
    try:
        check_size("what edge conditions wrote to the invocation state", outcome, payload_limit)
    except PayloadTooLargeError as error:
        asked = request.questions[0].edges[0]
        named = wire.EdgePlan(source=asked[0], target=asked[1], ordinal=asked[2])
        return wire.EdgesOutcome(error=error_to_wire(error), failed_edge=str(named)).dump()
    return outcome


async def _verdict(edge: GraphEdge, state: GraphState, invocation_state: dict[str, Any]) -> bool:
    verdict: Any = edge.should_traverse(state, invocation_state=invocation_state)
    if inspect.isawaitable(verdict):
        verdict = await verdict
    return bool(verdict)
