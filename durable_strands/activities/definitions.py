"""The registry's content as Temporal activities: one per node, and the workflow's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from .. import wire
from ..errors import GraphNotRegisteredError, PayloadTooLargeError
from .edges import evaluate_edges
from .failures import check_size, to_application_error
from .hooks import run_hooks
from .journal import read_journal
from .node import run_visit
from .pool import ExecutorPool
from .registry import GraphRegistry, RegisteredGraph

Activity = Callable[..., Any]


def activities_of(registry: GraphRegistry, payload_limit: int | None) -> list[Activity]:
    """Return the activities that serve a registry's graphs.

    Args:
        registry: The graphs.
        payload_limit: Bytes that one payload may have; None where external storage takes what
            is larger. It goes into every plan.
    """

    def find(graph: str) -> RegisteredGraph:
        try:
            return registry[graph]
        except GraphNotRegisteredError as error:
            raise ApplicationError(
                str(error), type=wire.ErrorType.NOT_REGISTERED, non_retryable=True
            ) from error

    @activity.defn(name=wire.PLAN_ACTIVITY)
    async def plan(data: dict[str, Any]) -> dict[str, Any]:
        found = find(wire.PlanRequest.load(data).graph)
        answer = found.plan.model_copy(update={"payload_limit": payload_limit}).dump()
        try:
            check_size(f"the plan of graph {found.name!r}", answer, payload_limit)
        except PayloadTooLargeError as error:
            raise to_application_error(error) from None
        return answer

    @activity.defn(name=wire.EDGES_ACTIVITY)
    async def edges(data: dict[str, Any]) -> dict[str, Any]:
        return await evaluate_edges(find(data["graph"]), data, payload_limit)

    @activity.defn(name=wire.HOOKS_ACTIVITY)
    async def hooks(data: dict[str, Any]) -> dict[str, Any]:
        found = find(data["graph"])
        return await run_hooks(found.template, found.plan, data, payload_limit)

    @activity.defn(name=wire.JOURNAL_ACTIVITY)
    async def journal(data: dict[str, Any]) -> dict[str, Any]:
        return await read_journal(data)

    nodes = [
        _node_activity(graph.name, node.id, graph.pool)
        for graph in registry
        for node in graph.plan.nodes
    ]
    return [plan, edges, hooks, journal, *nodes]


def _node_activity(graph: str, node: str, pool: ExecutorPool) -> Activity:
    @activity.defn(name=wire.activity_type(graph, node))
    async def visit(data: dict[str, Any]) -> dict[str, Any]:
        return await run_visit(node, pool, data)

    return visit
