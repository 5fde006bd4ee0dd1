"""What conditions and hooks get to see of a run: Strands' own state, rebuilt from the wire.

And what they, or a node, changed in their copy of the invocation state.
"""

from __future__ import annotations

import copy
import json
import logging
import time
from typing import Any

from strands.multiagent.base import Status
from strands.multiagent.graph import Graph, GraphEdge, GraphState
from strands.multiagent.swarm import SharedContext, Swarm, SwarmState
from strands.types.event_loop import Metrics

from .. import wire
from ..codec import (
    is_json,
    loop_keys,
    node_result_from_wire,
    remote_nodes,
    task_from_wire,
    usage_from_wire,
)

logger = logging.getLogger(__name__)


def source_of(template: Graph | Swarm, plan: wire.GraphPlan, view: wire.StateView) -> Any:
    """Return the orchestrator that a hook gets to see: the template with the run's state.

    It is a copy; what a hook does to it changes nothing.
    """
    if isinstance(template, Graph):
        return graph_as_it_stands(template, plan, view)
    source: Any = copy.copy(template)
    source.state = swarm_state(template, view)
    source.shared_context = source.state.shared_context
    return source


def _status(view: wire.StateView) -> Status:
    cancelled = view.status is wire.RunStatus.CANCELLED
    return Status.FAILED if cancelled else Status(view.status.value)


def _start_time(view: wire.StateView) -> float:
    return time.time() if view.active_since is None else view.active_since


def swarm_state(template: Swarm, view: wire.StateView) -> SwarmState:
    """Return Strands' `SwarmState` of what the run knows."""
    known = template.nodes
    return SwarmState(
        current_node=known.get(view.current or ""),
        task=task_from_wire(view.task),
        completion_status=_status(view),
        shared_context=SharedContext({agent: json.loads(text) for agent, text in view.shared}),
        node_history=[known[name] for name in view.execution_order if name in known],
        results={name: node_result_from_wire(report) for name, report in view.results.items()},
        accumulated_usage=usage_from_wire(view.usage),
        accumulated_metrics=Metrics(latencyMs=view.latency_ms),
        start_time=_start_time(view),
        execution_time=view.active_before,
        handoff_node=known.get(view.handoff or ""),
        handoff_message=view.message,
    )


def graph_state(plan: wire.GraphPlan, view: wire.StateView) -> GraphState:
    """Return Strands' `GraphState` of what the run knows.

    It has nodes, too, that the run's plan has and the worker's no more.
    """
    mentioned = (*view.results, *view.completed, *view.failed, *view.interrupted)
    nodes = remote_nodes([*(node.id for node in plan.nodes), *mentioned])
    for name, report in view.results.items():
        nodes[name].result = result = node_result_from_wire(report)
        nodes[name].execution_status = result.status
        nodes[name].execution_time = result.execution_time
    return GraphState(
        task=task_from_wire(view.task),
        status=_status(view),
        start_time=_start_time(view),
        execution_time=view.active_before,
        completed_nodes={nodes[name] for name in view.completed},
        failed_nodes={nodes[name] for name in view.failed},
        interrupted_nodes={nodes[name] for name in view.interrupted},
        execution_order=[nodes[name] for name in view.execution_order],
        results={name: node.result for name, node in nodes.items() if node.result is not None},
        accumulated_usage=usage_from_wire(view.usage),
        accumulated_metrics=Metrics(latencyMs=view.latency_ms),
        execution_count=view.execution_count,
        total_nodes=len(plan.nodes),
        edges=[(nodes[edge.source], nodes[edge.target]) for edge in plan.edges],
        entry_points=[nodes[node] for node in plan.entry_points],
    )


def graph_as_it_stands(template: Graph, plan: wire.GraphPlan, view: wire.StateView) -> Graph:
    """Return a graph as hooks see it in a run: its state, and its nodes as they stand.

    The nodes in it, in its edges and in its state are the same objects, as in Strands' own.

    Args:
        template: The instance that stands for the graph; it is not changed.
        plan: Its plan.
        view: What the run knows.
    """
    graph, state = copy.copy(template), graph_state(plan, view)
    own = {name: copy.copy(node) for name, node in template.nodes.items()}
    # The plan, and so the state, may have nodes that this version of the graph has no more.
    mentioned = (*view.results, *view.completed, *view.failed, *view.interrupted, *view.executing)
    nodes = {**remote_nodes([*(node.id for node in plan.nodes), *mentioned]), **own}
    for name, result in state.results.items():
        nodes[name].result = result
        nodes[name].execution_time = result.execution_time
        nodes[name].execution_status = result.status
    for names, status in (
        (view.executing, Status.EXECUTING),
        (view.interrupted, Status.INTERRUPTED),
    ):
        for name in names:
            nodes[name].execution_status = status
    state.completed_nodes = {nodes[name] for name in view.completed}
    state.failed_nodes = {nodes[name] for name in view.failed}
    state.interrupted_nodes = {nodes[name] for name in view.interrupted}
    state.execution_order = [nodes[name] for name in view.execution_order]
    state.edges = [(nodes[edge.source], nodes[edge.target]) for edge in plan.edges]
    state.entry_points = [nodes[name] for name in plan.entry_points]
    graph.nodes, graph.state = own, state
    graph.edges = {
        GraphEdge(own[edge.from_node.node_id], own[edge.to_node.node_id], edge.condition)
        for edge in template.edges
    }
    graph.entry_points = {own[node.node_id] for node in template.entry_points}
    return graph


def state_changes(before: dict[str, Any], after: dict[str, Any], who: str) -> wire.StateChanges:
    """Return what someone changed in their copy of the invocation state.

    Keys of Strands' event loop stay behind. A value that isn't JSON stays behind too, with a
    warning: it may serve inside the node, but can't travel to the next.
    """
    changed: dict[str, Any] = {}
    own = loop_keys(after)
    for key, value in after.items():
        if key in own:
            continue
        if not isinstance(key, str) or not is_json(value):
            logger.warning(
                "who=<%s>, key=<%s> | invocation state value is not JSON and stays in the node",
                who,
                key,
            )
        elif key not in before or before[key] != value:
            changed[key] = value
    removed = [key for key in before if key not in after]
    return wire.StateChanges(changed=changed, removed=removed)
