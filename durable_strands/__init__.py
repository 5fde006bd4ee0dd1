"""Strands multi-agent graphs that survive anything: each run a Temporal workflow.

Names are resolved when they are first used, so that importing `durable_strands.workflows` in
Temporal's workflow sandbox never imports strands.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .activities.registry import GraphRegistry
    from .client import DurableGraph, DurableSwarm, GraphRun
    from .conditions import on_error
    from .context import CurrentNode, current_node
    from .errors import (
        DurableStrandsError,
        GraphFailedError,
        GraphNotRegisteredError,
        InterruptNotPendingError,
        InterruptTimeoutError,
        InvalidGraphError,
        InvalidGraphInputError,
        NodeTimeoutError,
        PayloadTooLargeError,
        RunClosedError,
        SessionBusyError,
        TopologyMismatchError,
    )
    from .nodes import FunctionNode, HumanGate, Prompt, function_node, human_gate
    from .options import NodeOptions
    from .sinks import LocalSink, NodeStream, RedisSink, StreamSink, StreamSource
    from .worker.plugin import GraphPlugin

_HOMES = {
    "CurrentNode": "context",
    "current_node": "context",
    "GraphRegistry": "activities.registry",
    "DurableGraph": "client",
    "DurableSwarm": "client",
    "GraphRun": "client",
    "on_error": "conditions",
    "DurableStrandsError": "errors",
    "GraphFailedError": "errors",
    "GraphNotRegisteredError": "errors",
    "InterruptNotPendingError": "errors",
    "InterruptTimeoutError": "errors",
    "InvalidGraphError": "errors",
    "InvalidGraphInputError": "errors",
    "NodeTimeoutError": "errors",
    "PayloadTooLargeError": "errors",
    "RunClosedError": "errors",
    "SessionBusyError": "errors",
    "TopologyMismatchError": "errors",
    "FunctionNode": "nodes",
    "HumanGate": "nodes",
    "Prompt": "nodes",
    "function_node": "nodes",
    "human_gate": "nodes",
    "NodeOptions": "options",
    "LocalSink": "sinks",
    "NodeStream": "sinks",
    "RedisSink": "sinks",
    "StreamSink": "sinks",
    "StreamSource": "sinks",
    "GraphPlugin": "worker.plugin",
}

__all__ = [
    "CurrentNode",
    "DurableGraph",
    "DurableStrandsError",
    "DurableSwarm",
    "FunctionNode",
    "GraphFailedError",
    "GraphNotRegisteredError",
    "GraphPlugin",
    "GraphRegistry",
    "GraphRun",
    "HumanGate",
    "InterruptNotPendingError",
    "InterruptTimeoutError",
    "InvalidGraphError",
    "InvalidGraphInputError",
    "LocalSink",
    "NodeOptions",
    "NodeStream",
    "NodeTimeoutError",
    "PayloadTooLargeError",
    "Prompt",
    "RedisSink",
    "RunClosedError",
    "SessionBusyError",
    "StreamSink",
    "StreamSource",
    "TopologyMismatchError",
    "current_node",
    "function_node",
    "human_gate",
    "on_error",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
