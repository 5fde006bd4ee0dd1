"""Where an orchestration stands in its run, and what it was given. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import JsonValue

from .. import wire


@dataclass(frozen=True)
class Place:
    """The outermost graph or swarm, one nested in a node, or the visits of a mapped node.

    Attributes:
        task: The task.
        within: Path of the node that it is in; empty for the outermost.
        result_type: Name of Strands' class for its result.
        items: What a mapped node is mapped over, each a visit of the node at `within`.
        item_visit: The visit of a mapped node that it takes place in, if it does: what its agents
            remember is that visit's own.
        inputs: `(source, result)` that a mapped node consumed.
        sources: The same as dependencies without texts.
        mapped: Number of the visit of the mapped node as a whole.
        enclosing: The visits that it takes place in, the outermost first.
        wake: Called when it came to rest, and may go on; None for the outermost, which doesn't.
    """

    task: wire.Task
    within: str = ""
    result_type: str = "GraphResult"
    items: tuple[JsonValue, ...] | None = None
    item_visit: wire.Visit | None = None
    inputs: tuple[tuple[str, wire.NodeReport], ...] = ()
    sources: tuple[wire.Dependency, ...] = ()
    mapped: int = 0
    enclosing: tuple[wire.Enclosing, ...] = ()
    wake: Callable[[], None] | None = None

    def path(self, node: str) -> str:
        """Return the path of a node. All visits of a mapped node have its own."""
        return wire.join(self.within, node) if self.items is None else self.within

    def item(self, node: str) -> wire.Item | None:
        """Return the item that a visit of a mapped node is about."""
        if self.items is None:
            return None
        index = int(node)
        sources = list(self.sources) if index == 0 else []
        return wire.Item(
            value=self.items[index],
            index=index,
            of=len(self.items),
            mapped=self.mapped,
            sources=sources,
        )


def mapped_plan(plan: wire.NodePlan, graph: str, count: int) -> wire.GraphPlan:
    """Return the plan of the visits of a mapped node: so many copies of it, side by side."""
    copies = [plan.model_copy(update={"id": str(index), "maps": False}) for index in range(count)]
    return wire.GraphPlan(graph=graph, nodes=copies, entry_points=[copy.id for copy in copies])
