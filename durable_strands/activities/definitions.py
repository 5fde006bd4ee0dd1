"""The registry's content as Temporal activities: one per node, and the workflow's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from .. import wire
from ..errors import GraphNotRegisteredError, PayloadTooLargeError
from ..sinks import StreamSink, publishing
from .edges import evaluate_edges
from .failures import check_size, to_application_error
from .hooks import run_hooks
from .journal import read_journal
from .node import run_visit
from .prepare import prepare
from .registry import GraphRegistry, RegisteredGraph
from .session import read_session

Activity = Callable[..., Any]


def activities_of(
    registry: GraphRegistry, payload_limit: int | None, sink: StreamSink | None = None
) -> list[Activity]:
    """Return the activities that serve a registry's graphs.

    Args:
        registry: The graphs.
        payload_limit: Bytes that one payload may have; None where external storage takes what
            is larger. It goes into every plan.
        sink: Gets what the nodes' executors say on their way to their result.
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
        return await run_hooks(find(data["graph"]), data, payload_limit)

    @activity.defn(name=wire.PREPARE_ACTIVITY)
    async def prepared(data: dict[str, Any]) -> dict[str, Any]:
        return await prepare(find(data["graph"]), data)

    @activity.defn(name=wire.JOURNAL_ACTIVITY)
    async def journal(data: dict[str, Any]) -> dict[str, Any]:
        return await read_journal(data)

    @activity.defn(name=wire.SESSION_ACTIVITY)
    async def session(data: dict[str, Any]) -> dict[str, Any]:
        return await read_session(data)

    nodes = [
        _node_activity(graph, path, sink)
        for graph in registry
        for path, node in graph.plan.paths()
        if node.plan is None
    ]
    return [plan, edges, hooks, prepared, journal, session, *nodes]


def _node_activity(graph: RegisteredGraph, path: str, sink: StreamSink | None) -> Activity:
    @activity.defn(name=wire.activity_type(graph.name, path))
    async def visit(data: dict[str, Any]) -> dict[str, Any]:
        async with publishing(sink, path, data.get("visit", 0)):
            return await run_visit(graph, path, data)

    return visit
