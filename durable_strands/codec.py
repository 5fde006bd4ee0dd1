"""Strands' result objects to the wire and back.

Strands' own `to_dict` and `from_dict` lose structured output, metrics, usage, interrupts and
exception classes on the way (see docs/decisions.md); this module keeps them. It imports wire
and strands, and serves both ends: activities write, clients and edge conditions read.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

from pydantic import BaseModel, ValidationError
from strands.agent import AgentResult
from strands.interrupt import Interrupt
from strands.multiagent.base import MultiAgentBase, MultiAgentResult, NodeResult, Status
from strands.multiagent.graph import GraphNode, GraphResult
from strands.multiagent.swarm import SwarmNode, SwarmResult
from strands.telemetry.metrics import (
    AgentInvocation,
    EventLoopCycleMetric,
    EventLoopMetrics,
    ToolMetrics,
)
from strands.types.content import ContentBlock
from strands.types.event_loop import Metrics
from strands.types.event_loop import Usage as StrandsUsage
from strands.types.session import decode_bytes_values, encode_bytes_values

from . import wire

INTERNAL_KEYS = frozenset(
    {
        "agent",
        "event_loop_cycle_id",
        "event_loop_cycle_span",
        "event_loop_cycle_trace",
        "event_loop_parent_cycle_id",
        "event_loop_parent_span",
        "request_state",
    }
)
"""Keys that Strands' event loop keeps in an invocation state for itself.

What it keeps there never crosses a node's border: it holds live objects, and `request_state` of one
node would stop the agents of later ones (docs/decisions.md). See `loop_keys`.
"""


TOOL_KEYS = frozenset({"messages", "model", "system_prompt", "tool_config"})
"""What Strands' tool executor leaves in an agent's invocation state: its whole conversation.

It is the node's own affair, so it stays there, whatever it overwrites.
"""


def loop_keys(state: Mapping[Any, Any]) -> frozenset[str]:
    """Return the keys that Strands' event loop keeps in an invocation state.

    They are so only in a state that an agent has had: before, `model` or `messages` is a key of the
    user's like any other.
    """
    had_by_agent = any(str(key).startswith("event_loop_") for key in state)
    if had_by_agent or not is_json(state.get("agent")):
        return INTERNAL_KEYS | TOOL_KEYS
    return frozenset()


_LONGEST_MESSAGE = 2000
_FRAMES = 4
"""A failure larger than 4 KiB is not shown while its activity waits for another attempt."""


def is_json(value: Any) -> bool:
    """Say whether `value` can travel as JSON."""
    try:
        json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return True


# ---------------------------------------------------------------------------------------------
# Tasks
# ---------------------------------------------------------------------------------------------


def task_to_wire(task: Any) -> wire.Task:
    """Return a task as it travels: text, or content blocks with their bytes encoded.

    Raises:
        TypeError: `task` is neither text nor a list of content blocks.
        ValueError: A block holds something that is neither JSON nor bytes.
    """
    if isinstance(task, str):
        return task
    if not isinstance(task, list) or not all(isinstance(block, dict) for block in task):
        raise TypeError(f"A task is text or a list of content blocks, not {type(task).__name__}.")
    if wire.is_too_deep(task):
        raise ValueError(wire.too_deep("The task"))
    blocks = encode_bytes_values(task)
    for position, block in enumerate(blocks):
        if not is_json(block):
            raise ValueError(f"Block {position} of the task can't travel: it is not JSON or bytes.")
    return cast(wire.Task, blocks)


def task_from_wire(task: wire.Task) -> str | list[ContentBlock]:
    """Return a task as Strands takes it."""
    return task if isinstance(task, str) else cast(list[ContentBlock], decode_bytes_values(task))


# ---------------------------------------------------------------------------------------------
# Usage and metrics
# ---------------------------------------------------------------------------------------------


def usage_to_wire(usage: Any) -> wire.Usage:
    """Return token counts on the wire; anything that is no mapping counts as nothing."""
    if not isinstance(usage, Mapping):
        return wire.Usage()
    known = {key: usage[key] for key in wire.Usage.model_fields if isinstance(usage.get(key), int)}
    return wire.Usage(**known)


def usage_from_wire(usage: wire.Usage) -> StrandsUsage:
    """Return Strands' token counts; cache counters are absent where they were."""
    return cast(StrandsUsage, usage.model_dump(exclude_none=True))


def _latency(metrics: Any) -> int:
    latency = metrics.get("latencyMs", 0) if isinstance(metrics, Mapping) else 0
    return int(latency) if isinstance(latency, (int, float)) else 0


def _metrics_to_wire(metrics: EventLoopMetrics) -> dict[str, Any]:
    """Return all of an agent's metrics but the traces, which are OpenTelemetry's to carry."""
    return {
        "cycle_count": metrics.cycle_count,
        "cycle_durations": metrics.cycle_durations,
        "tool_metrics": {name: asdict(tool) for name, tool in metrics.tool_metrics.items()},
        "agent_invocations": [asdict(invocation) for invocation in metrics.agent_invocations],
        "accumulated_usage": dict(metrics.accumulated_usage),
        "accumulated_metrics": dict(metrics.accumulated_metrics),
    }


def _metrics_from_wire(data: dict[str, Any]) -> EventLoopMetrics:
    return EventLoopMetrics(
        cycle_count=data.get("cycle_count", 0),
        cycle_durations=data.get("cycle_durations", []),
        tool_metrics={
            name: ToolMetrics(**tool) for name, tool in data.get("tool_metrics", {}).items()
        },
        agent_invocations=[
            AgentInvocation(
                cycles=[EventLoopCycleMetric(**cycle) for cycle in invocation["cycles"]],
                usage=invocation["usage"],
            )
            for invocation in data.get("agent_invocations", [])
        ],
        accumulated_usage=data["accumulated_usage"],
        accumulated_metrics=data["accumulated_metrics"],
    )


# ---------------------------------------------------------------------------------------------
# Results to the wire
# ---------------------------------------------------------------------------------------------


def error_to_wire(error: BaseException) -> wire.ErrorInfo:
    """Return an exception's name, module and message, and where it was raised."""
    name = type(error).__qualname__
    return wire.ErrorInfo(
        type=type(error).__name__,
        qualname=None if name == type(error).__name__ else name,
        module=type(error).__module__,
        message=_short(_message(error), _LONGEST_MESSAGE),
        trace=_short(
            "".join(traceback.format_tb(error.__traceback__)[-_FRAMES:]), _LONGEST_MESSAGE
        ),
    )


def _message(error: BaseException) -> str:
    """Return what an exception says; of a KeyError that is `str` of it without the quotes."""
    if isinstance(error, KeyError) and len(error.args) == 1 and isinstance(error.args[0], str):
        return error.args[0]
    return str(error)


def _short(text: str, longest: int) -> str:
    """Cut a text, and replace what can't be encoded: an exception may say anything."""
    sound = text.encode(errors="replace").decode()
    return sound if len(sound) <= longest else sound[:longest] + " ..."


def node_result_to_wire(result: NodeResult, visit: int = 1) -> wire.NodeReport:
    """Return a Strands `NodeResult` on the wire."""
    inner = result.result
    # Strands, too, takes an orchestrator's result that says neither for a completion.
    status = {
        Status.FAILED: wire.NodeStatus.FAILED,
        Status.INTERRUPTED: wire.NodeStatus.INTERRUPTED,
    }.get(result.status, wire.NodeStatus.COMPLETED)
    common: dict[str, Any] = {
        "status": status,
        "usage": usage_to_wire(result.accumulated_usage),
        "latency_ms": _latency(result.accumulated_metrics),
        "execution_time": int(result.execution_time),
        "execution_count": int(result.execution_count),
        "visit": visit,
    }
    if isinstance(inner, Exception):
        return wire.NodeReport(error=error_to_wire(inner), **common)
    if isinstance(inner, MultiAgentResult):
        said = [str(result).strip() for result in result.get_agent_results()]
        return wire.NodeReport(
            text="\n".join(said),
            results={name: node_result_to_wire(child) for name, child in inner.results.items()},
            order={"results": list(inner.results)},
            result_type=_result_type(inner),
            structure=_structure(inner),
            **common,
        )
    return wire.NodeReport(text=str(inner), **_agent_fields(inner), **common)


def _result_type(result: MultiAgentResult) -> str:
    for known in (GraphResult, SwarmResult):
        if isinstance(result, known):
            return known.__name__
    return MultiAgentResult.__name__


def _structure(result: MultiAgentResult) -> wire.Structure | None:
    if isinstance(result, GraphResult):
        ends = [node for edge in result.edges for node in edge]
        nodes = [*result.execution_order, *ends, *result.entry_points]
        return wire.Structure(
            nodes=list(dict.fromkeys(node.node_id for node in nodes)),
            total_nodes=result.total_nodes,
            execution_order=[node.node_id for node in result.execution_order],
            edges=[(source.node_id, target.node_id) for source, target in result.edges],
            entry_points=[node.node_id for node in result.entry_points],
            completed_nodes=result.completed_nodes,
            failed_nodes=result.failed_nodes,
        )
    if isinstance(result, SwarmResult):
        return wire.Structure(execution_order=[node.node_id for node in result.node_history])
    return None


def _agent_fields(result: Any) -> dict[str, Any]:
    """Return what an agent's result is made of. Custom agents may lack any part of it."""
    fields: dict[str, Any] = {}
    message = getattr(result, "message", None)
    if isinstance(message, Mapping):
        encoded = encode_bytes_values(dict(message))
        fields["message"] = encoded if is_json(encoded) else None
    stop_reason = getattr(result, "stop_reason", None)
    if isinstance(stop_reason, str):
        fields["stop_reason"] = stop_reason
    state = getattr(result, "state", None)
    if isinstance(state, Mapping):
        fields["state"] = {str(k): v for k, v in state.items() if is_json(v)}
    agent_name = getattr(result, "agent_name", None)
    if isinstance(agent_name, str):
        fields["agent_name"] = agent_name
    metrics = getattr(result, "metrics", None)
    if isinstance(metrics, EventLoopMetrics):
        fields["agent_metrics"] = _metrics_to_wire(metrics)
    output = getattr(result, "structured_output", None)
    if isinstance(output, BaseModel):
        fields["structured_output"] = output.model_dump(mode="json", by_alias=True, round_trip=True)
        fields["structured_output_class"] = f"{type(output).__module__}:{type(output).__qualname__}"
    return fields


# ---------------------------------------------------------------------------------------------
# Results from the wire
# ---------------------------------------------------------------------------------------------


@dataclass
class RestoredAgentResult(AgentResult):
    """An `AgentResult` whose text can't be had from its parts on this side.

    So for a custom agent's result, and where the model class of a structured output isn't
    imported here.

    Attributes:
        text: The original's text.
        agent_name: The name that heads its text in a downstream prompt.
    """

    text: str = ""
    agent_name: str = "Agent"

    def __str__(self) -> str:
        """Return the original result's text."""
        return self.text


def error_from_wire(error: wire.ErrorInfo) -> Exception:
    """Return an exception of the original's class where that is at hand, else a RuntimeError.

    At hand are builtins and what this process has imported already. Nothing is imported for
    the purpose: a name on the wire must not make this side run code.
    """
    found: Any = builtins if error.module == "builtins" else sys.modules.get(error.module)
    for part in (error.qualname or error.type).split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and issubclass(found, Exception):
        with contextlib.suppress(Exception):
            if _message(raised := found(error.message)) == error.message:
                return raised
        with contextlib.suppress(Exception):
            return _saying(found, error.message)
    return RuntimeError(f"{error.type}: {error.message}")


def _saying(kind: type[Exception], message: str) -> Exception:
    """Return an exception of a class whose constructor takes more, or other, than a message.

    It has the class's type and text, but none of its attributes: those didn't travel.
    """
    namespace = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__str__": lambda _: message,
    }
    restored: type[Exception] = type(kind.__name__, (kind,), namespace)
    error = restored.__new__(restored)
    error.args = (message,)
    return error


def structured_output_from_wire(report: wire.NodeReport) -> BaseModel | None:
    """Return the structured output as an instance of its class, if that is imported here.

    None, too, if the class on this side doesn't take it: it may be another version.
    """
    module, _, name = (report.structured_output_class or "").partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and issubclass(found, BaseModel):
        with contextlib.suppress(ValidationError):
            return found.model_validate(report.structured_output)
    return None


def node_result_from_wire(report: wire.NodeReport) -> NodeResult:
    """Return the Strands `NodeResult` of a report."""
    return NodeResult(
        result=_inner_from_wire(report),
        status=Status(report.status.value),
        accumulated_usage=usage_from_wire(report.usage),
        accumulated_metrics=Metrics(latencyMs=report.latency_ms),
        execution_time=report.execution_time,
        execution_count=report.execution_count,
    )


def _inner_from_wire(report: wire.NodeReport) -> AgentResult | MultiAgentResult | Exception:
    if report.error is not None:
        return error_from_wire(report.error)
    if report.results is not None:
        return _multi_agent_result(
            report.result_type or MultiAgentResult.__name__,
            report.structure or wire.Structure(),
            status=Status(report.status.value),
            results={name: node_result_from_wire(child) for name, child in report.results.items()},
            accumulated_usage=usage_from_wire(report.usage),
            accumulated_metrics=Metrics(latencyMs=report.latency_ms),
            execution_count=report.execution_count,
            execution_time=report.execution_time,
        )
    fields: dict[str, Any] = {
        "stop_reason": report.stop_reason or "end_turn",
        "message": decode_bytes_values(report.message or {}),
        "metrics": (
            _metrics_from_wire(report.agent_metrics)
            if report.agent_metrics is not None
            else EventLoopMetrics(
                accumulated_usage=usage_from_wire(report.usage),
                accumulated_metrics=Metrics(latencyMs=report.latency_ms),
            )
        ),
        "state": report.state,
        "structured_output": structured_output_from_wire(report),
    }
    plain = AgentResult(**fields)
    if report.agent_name is None and str(plain) == report.text:
        return plain
    return RestoredAgentResult(**fields, text=report.text, agent_name=report.agent_name or "Agent")


def _multi_agent_result(kind: str, structure: wire.Structure, **common: Any) -> MultiAgentResult:
    """Return a Strands result of a kind, with what it has beyond a `MultiAgentResult`."""
    if kind == SwarmResult.__name__:
        history: list[Any] = [RemoteSwarmNode(name) for name in structure.execution_order]
        return SwarmResult(node_history=history, **common)
    if kind != GraphResult.__name__:
        return MultiAgentResult(**common)
    nodes = remote_nodes(structure.nodes)
    for name, result in common["results"].items():
        if name in nodes:
            nodes[name].result = result
            nodes[name].execution_status = result.status
            nodes[name].execution_time = result.execution_time
    return GraphResult(
        total_nodes=structure.total_nodes,
        completed_nodes=structure.completed_nodes,
        failed_nodes=structure.failed_nodes,
        execution_order=[nodes[name] for name in structure.execution_order],
        edges=[(nodes[source], nodes[target]) for source, target in structure.edges],
        entry_points=[nodes[name] for name in structure.entry_points],
        **common,
    )


class _RemoteExecutor(MultiAgentBase):
    """Stands in a result's `GraphNode` for the executor, which lives on the worker."""

    def __init__(self, node_id: str) -> None:
        super().__init__()
        self.id = node_id

    async def invoke_async(
        self, task: Any, invocation_state: dict[str, Any] | None = None, **kwargs: Any
    ) -> MultiAgentResult:
        del task, invocation_state, kwargs
        raise RuntimeError(f"The executor of node {self.id!r} lives on the worker.")


class RemoteNode(GraphNode):
    """A `GraphNode` of a result: no dependencies, and a short repr.

    The dataclass repr of a `GraphNode` follows its dependencies and grows exponentially with
    the depth of the graph; `asyncio.run` calls it on Python 3.11 and 3.12.
    """

    def __init__(self, node_id: str) -> None:
        """Stand for the node of that id."""
        super().__init__(node_id, _RemoteExecutor(node_id))

    def __repr__(self) -> str:
        """Return the id alone."""
        return f"GraphNode({self.node_id!r})"


class RemoteSwarmNode(SwarmNode):
    """A `SwarmNode` of a result; its agent lives on the worker."""

    def __init__(self, node_id: str) -> None:
        """Stand for the agent of that name; it has no state to take note of."""
        self.node_id = node_id
        self.executor = cast(Any, _RemoteExecutor(node_id))
        self.swarm = None


def remote_nodes(node_ids: list[str]) -> dict[str, RemoteNode]:
    """Return the nodes of a result, by id."""
    return {node: RemoteNode(node) for node in node_ids}


def result_from_wire(report: wire.RunReport) -> GraphResult | SwarmResult:
    """Return the Strands result of a run's report: a `SwarmResult` if a swarm was run."""
    outermost = {name: state for name, state in report.nodes.items() if state.depth == 0}
    status = Status.FAILED
    if report.status is not wire.RunStatus.CANCELLED:
        status = Status(report.status.value)
    result = _multi_agent_result(
        report.result_type,
        wire.Structure(
            nodes=list(outermost),
            total_nodes=len(outermost),
            execution_order=report.execution_order,
            edges=report.edges,
            entry_points=report.entry_points,
            completed_nodes=report.completed_nodes,
            failed_nodes=report.failed_nodes,
        ),
        status=status,
        results={node: node_result_from_wire(result) for node, result in report.results.items()},
        accumulated_usage=usage_from_wire(report.usage),
        accumulated_metrics=Metrics(latencyMs=report.latency_ms),
        execution_count=report.execution_count,
        execution_time=report.execution_time,
        interrupts=[
            Interrupt(id=info.id, name=info.name, reason=info.reason) for info in report.interrupts
        ],
    )
    if isinstance(result, GraphResult):
        waiting = [state.status is wire.NodeStatus.INTERRUPTED for state in outermost.values()]
        result.interrupted_nodes = sum(waiting)
        ends = [node for edge in result.edges for node in edge]
        for node in dict.fromkeys((*result.execution_order, *ends, *result.entry_points)):
            stands = outermost[node.node_id].status
            if stands is not wire.NodeStatus.CANCELLED:  # Strands has no word for it.
                node.execution_status = Status(stands.value)
    return cast(GraphResult | SwarmResult, result)
