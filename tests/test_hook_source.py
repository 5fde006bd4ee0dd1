"""What a graph's hooks find when they look at `event.source`."""

from __future__ import annotations

import asyncio
from typing import Any

from strands.hooks import AfterNodeCallEvent, BeforeNodeCallEvent
from strands.multiagent.graph import Graph, GraphBuilder
from temporalio.client import Client

from .support import build, serve


class Watcher:
    """A hook provider that notes how the nodes of the source stand at each call."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.results: dict[str, str] = {}
        self.sources: list[Any] = []

    def register_hooks(self, registry: Any, **kwargs: Any) -> None:
        registry.add_callback(BeforeNodeCallEvent, self.before)
        registry.add_callback(AfterNodeCallEvent, self.after)

    def before(self, event: BeforeNodeCallEvent) -> None:
        self._note("before", event)

    def after(self, event: AfterNodeCallEvent) -> None:
        self._note("after", event)
        source: Any = event.source
        self.results[event.node_id] = str(source.nodes[event.node_id].result.result).strip()

    def _note(self, what: str, event: Any) -> None:
        nodes = event.source.nodes
        standing = {name: node.execution_status.value for name, node in nodes.items()}
        self.seen.append((what, event.node_id, standing))
        self.sources.append(event.source)


async def test_a_hook_sees_its_source_nodes_as_they_stand(client: Client) -> None:
    left_over = asyncio.Event()

    async def waits(prompt: str) -> str:
        await asyncio.wait_for(left_over.wait(), 10)
        return "R"

    class Releasing(Watcher):
        def after(self, event: AfterNodeCallEvent) -> None:
            super().after(event)
            if event.node_id == "left":
                left_over.set()

    watcher = Releasing()

    def hooked(builder: GraphBuilder) -> None:
        builder.set_hook_providers([watcher])

    def factory() -> Graph:
        nodes = {"left": "L", "right": waits, "join": "J"}
        return build(nodes, [("left", "join"), ("right", "join")], configure=hooked)

    async with serve(client, factory) as graph:
        await graph.invoke_async("T")

    after = {node: standing for what, node, standing in watcher.seen if what == "after"}
    assert after["left"] == {"left": "completed", "right": "executing", "join": "pending"}
    assert after["right"] == {"left": "completed", "right": "completed", "join": "pending"}
    assert watcher.seen[-2] == (
        "before",
        "join",
        {"left": "completed", "right": "completed", "join": "executing"},
    )
    assert watcher.results == {"left": "L", "right": "R", "join": "J"}


async def test_a_sources_nodes_are_the_same_objects_everywhere(client: Client) -> None:
    watcher = Watcher()

    def hooked(builder: GraphBuilder) -> None:
        builder.set_hook_providers([watcher])

    async with serve(
        client, lambda: build({"a": "A", "b": "B"}, [("a", "b")], configure=hooked)
    ) as graph:
        await graph.invoke_async("T")

    source = watcher.sources[-1]
    (edge,) = source.edges
    assert edge.from_node is source.nodes["a"]
    assert source.entry_points == {source.nodes["a"]}
    assert {id(node) for node in source.state.completed_nodes} == {
        id(node) for node in source.nodes.values()
    }
    assert source.state.edges == [(source.nodes["a"], source.nodes["b"])]
    assert [node.node_id for node in source.state.execution_order] == ["a", "b"]
