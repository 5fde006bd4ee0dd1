"""The registry's content as Temporal activities: one per node, and the workflow's own."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
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
    async def edges(data: dict[str, Any], tells: bool = False) -> dict[str, Any]:
        work = evaluate_edges(find(data["graph"]), data, payload_limit)
        return await _telling(tells, work)

    @activity.defn(name=wire.HOOKS_ACTIVITY)
    async def hooks(data: dict[str, Any], tells: bool = False) -> dict[str, Any]:
        return await _telling(tells, run_hooks(find(data["graph"]), data, payload_limit))

    @activity.defn(name=wire.PREPARE_ACTIVITY)
    async def prepared(data: dict[str, Any], tells: bool = False) -> dict[str, Any]:
        return await _telling(tells, prepare(find(data["graph"]), data))

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


async def _telling(tells: bool, work: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    """Do the work of a local activity, and signal its run that it is done, if it waits for that.

    See `workflows.local` for why it may. The signal is sent before the result is there, so that
    both are known at the latest with the next workflow task.
    """
    outcome = await work
    if not tells:
        return outcome
    token = uuid.uuid4().hex
    info = activity.info()
    assert info.workflow_id is not None, "a local activity belongs to a workflow"
    run = activity.client().get_workflow_handle(info.workflow_id, run_id=info.workflow_run_id)
    await run.signal(wire.DONE, token)
    return {**outcome, "token": token}


def _node_activity(graph: RegisteredGraph, path: str, sink: StreamSink | None) -> Activity:
    @activity.defn(name=wire.activity_type(graph.name, path))
    async def visit(data: dict[str, Any]) -> dict[str, Any]:
        async with publishing(sink, path, data.get("visit", 0)):
            return await run_visit(graph, path, data)

    return visit
