"""Executors, ready for visits: built by the user's factory, reused only when truly fresh.

Nothing mutable may be shared between runs, nodes or visits. The plain way is to build the
graph anew for each visit, but building can be dear, and one build yields an executor for every
node. So executors are kept per node and handed out one visit at a time. After the visit an
executor comes back only if it can be reset completely; all others are dropped.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from types import FunctionType
from typing import Any, TypeGuard

from strands import Agent
from strands.agent.conversation_manager import (
    ConversationManager,
    NullConversationManager,
    SlidingWindowConversationManager,
    SummarizingConversationManager,
)
from strands.multiagent.graph import Graph
from strands.multiagent.swarm import Swarm
from strands.telemetry.metrics import EventLoopMetrics
from strands.types._snapshot import Snapshot

from .. import wire
from ..errors import TopologyMismatchError
from .handoff import replace_handoff_tools

_SPARE = 32
"""Most idle executors kept per node. A node that is never visited must not pile them up."""


def can_snapshot(executor: object) -> bool:
    """Say whether an executor's state can be taken and given back, as Strands' Agent can."""
    return hasattr(executor, "take_snapshot") and hasattr(executor, "load_snapshot")


def is_nested(executor: object) -> TypeGuard[Graph | Swarm]:
    """Say whether an executor is run node by node, in the workflow that it is nested in.

    A subclass may do anything in its own methods, so it runs whole in one activity.
    """
    return type(executor) in (Graph, Swarm)


def executors_of(template: Graph | Swarm, within: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the executors that visits run, by path: those of nested graphs, not the graphs."""
    for node_id, node in template.nodes.items():
        path = wire.join(within, node_id)
        if is_nested(node.executor):
            yield from executors_of(node.executor, path)
        else:
            yield path, node.executor


def _swarms(template: Graph | Swarm) -> Iterator[Swarm]:
    if isinstance(template, Swarm):
        yield template
    for node in template.nodes.values():
        if is_nested(node.executor):
            yield from _swarms(node.executor)


class Lease:
    """An executor handed out for one visit.

    Attributes:
        executor: The executor, as the factory made it.
        reusable: Set by the borrower when the visit ended well.
    """

    def __init__(self, executor: Any, initial: Snapshot | None) -> None:
        """Remember what the executor is reset to; None for one that can't be."""
        self.executor = executor
        self.reusable = False
        self._initial = initial
        self._tools = list(getattr(executor, "tool_names", ()))

    def reset(self) -> bool:
        """Bring the executor back to how the factory made it; False if that can't be done."""
        if self._initial is None or not self.reusable or self.executor.tool_names != self._tools:
            return False
        self.executor.load_snapshot(self._initial)
        self.executor.event_loop_metrics = EventLoopMetrics()
        return True


class ExecutorPool:
    """The executors of one registered graph on this worker."""

    def __init__(self, build: Callable[[], Graph | Swarm], template: Graph | Swarm) -> None:
        """Begin empty.

        Args:
            build: Builds the graph anew.
            template: The instance that the plan was made from; it is never executed.
        """
        self._build = build
        self._stocking = asyncio.Lock()
        self._free: dict[str, deque[Lease]] = {path: deque() for path, _ in executors_of(template)}

    @asynccontextmanager
    async def lease(self, graph: str, node: str) -> AsyncIterator[Lease]:
        """Hand out a fresh executor of the node at a path, and take it back after the visit.

        Raises:
            TopologyMismatchError: The graph has no such node (any more).
        """
        if node not in self._free:
            raise TopologyMismatchError(
                f"Graph {graph!r} on this worker has no node {node!r}, but the run's plan does: "
                "it was started with another version of the graph. Deploy a worker that still "
                "has the node, or start a new run."
            )
        lease = await self._take(graph, node)
        yield lease
        if lease.reset() and len(self._free[node]) < _SPARE:
            lease.reusable = False
            self._free[node].append(lease)

    async def _take(self, graph: str, node: str) -> Lease:
        if self._free[node]:
            return self._free[node].popleft()
        async with self._stocking:
            if not self._free[node]:
                # A factory may take its time: others' nodes, and their heartbeats, go on.
                for path, spare in await asyncio.to_thread(self._stock):
                    idle = self._free.setdefault(path, deque())
                    if len(idle) < _SPARE:
                        idle.append(spare)
            if not self._free[node]:
                raise TopologyMismatchError(
                    f"The factory of graph {graph!r} has built a graph without node {node!r}, "
                    "which it had at first. It must build the same graph each time."
                )
            return self._free[node].popleft()

    def _stock(self) -> list[tuple[str, Lease]]:
        """Build the graph once more, for an executor of every node."""
        built = self._build()
        for swarm in _swarms(built):
            replace_handoff_tools(swarm)
        return [
            (path, Lease(executor, _initial_state(executor)))
            for path, executor in executors_of(built)
        ]


def _initial_state(executor: object) -> Snapshot | None:
    """Return what an executor must be reset to, or None if it can't be reset for certain.

    Strands' snapshot covers all that an `Agent` itself keeps. It can't cover what a subclass, a
    hook, a plugin, a session manager, or a tool that is more than a function of a module keeps,
    so an agent with one of these is used once.
    """
    if type(executor) is not Agent or executor._session_manager is not None:
        return None
    if not _is_resettable_manager(executor.conversation_manager):
        return None
    callbacks = executor.hooks._registered_callbacks.values()
    if not all(_is_resettable_hook(entry.callback) for entries in callbacks for entry in entries):
        return None
    if not all(_is_stateless_tool(tool) for tool in executor.tool_registry.registry.values()):
        return None
    snapshot = executor.take_snapshot(preset="session", include=["system_prompt"])
    return Snapshot.from_dict(copy.deepcopy(snapshot.to_dict()))


_RESETTABLE = (
    "strands.agent._agent_delegation",
    "strands.agent.conversation_manager.",
    "strands.event_loop._retry",
    "strands.models.model",
)
"""Modules of what every agent of Strands' hooks in: a snapshot has its state, or it has none."""


def _is_resettable_manager(manager: ConversationManager) -> bool:
    """Say whether a snapshot has all that a conversation manager keeps.

    What it pinned isn't in it, nor what an agent of its own keeps.
    """
    if type(manager) is NullConversationManager:
        return True
    if type(manager) is SummarizingConversationManager:
        return not manager.pin_first and manager.summarization_agent is None
    return type(manager) is SlidingWindowConversationManager and not manager.pin_first


def _is_resettable_hook(callback: Any) -> bool:
    owner = getattr(callback, "__self__", None)
    module = type(owner).__module__ if owner is not None else getattr(callback, "__module__", "")
    return str(module).startswith(_RESETTABLE)


def _is_stateless_tool(tool: Any) -> bool:
    """Say whether a tool keeps nothing of its own: a plain function of a module, or MCP's."""
    if type(tool).__module__.startswith("strands.tools.mcp."):
        return True
    function = getattr(tool, "_tool_func", None)
    return (
        isinstance(function, FunctionType)
        and function.__closure__ is None
        and "<locals>" not in function.__qualname__
    )
