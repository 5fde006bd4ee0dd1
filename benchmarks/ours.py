"""Our side: the shapes as Strands graphs of executors that cost next to nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Any

from strands.agent import AgentResult
from strands.multiagent.graph import Graph, GraphBuilder, GraphState
from strands.telemetry.metrics import EventLoopMetrics

from durable_strands import GraphRegistry

from .shapes import ANSWER, Shape


class Stub:
    """The smallest executor: it always says the same."""

    async def invoke_async(self, prompt: Any = None, **kwargs: Any) -> AgentResult:
        """Answer."""
        del prompt, kwargs
        await asyncio.sleep(0)  # As the floor's activity.
        return AgentResult(
            stop_reason="end_turn",
            message={"role": "assistant", "content": [{"text": ANSWER}]},
            metrics=EventLoopMetrics(),
            state={},
        )

    def __call__(self, prompt: Any = None, **kwargs: Any) -> AgentResult:
        """Strands asks for it, but a graph never calls it."""
        raise NotImplementedError

    async def stream_async(self, prompt: Any = None, **kwargs: Any) -> AsyncIterator[Any]:
        """Yield the answer."""
        yield {"result": await self.invoke_async(prompt, **kwargs)}


def always(state: GraphState) -> bool:
    """Say yes: the condition of a conditional shape."""
    del state
    return True


def build(shape: Shape) -> Graph:
    """Build a shape as a Strands graph."""
    builder = GraphBuilder()
    for node in shape.nodes:
        builder.add_node(Stub(), node)
    for source, target in shape.edges:
        builder.add_edge(source, target, always if shape.conditional else None)
    return builder.build()


def registry_of(shapes: Iterable[Shape]) -> GraphRegistry:
    """Register shapes."""
    registry = GraphRegistry()
    for shape in shapes:
        registry.add(shape.graph, partial(build, shape))
    return registry
