"""The shapes that both sides run: names of nodes, and who waits for whom.

Imported by the floor's worker too, so it knows nothing of this library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["chain", "fan_out", "layered"]

TASK = "Say something about the benchmark."

ANSWER = "A short answer, about as long as the ones that a classifier or a router gives. " * 2

LAYERS = 10
"""Layers of a layered shape."""

_NEIGHBOURS = (0, 1, 7)
"""Which columns of the layer before a layered node waits for, relative to its own."""


def name(number: int) -> str:
    """Return the name of a node."""
    return f"n{number:05d}"


def layer_sources(number: int, size: int) -> list[int]:
    """Return the nodes that a node of a layered shape of `size` nodes waits for."""
    width = size // LAYERS
    layer, column = divmod(number, width)
    if layer == 0:
        return []
    return sorted((layer - 1) * width + (column + step) % width for step in _NEIGHBOURS)


@dataclass(frozen=True, slots=True)
class Shape:
    """A graph to run on both sides.

    Attributes:
        kind: Which of the floor's workflows it is.
        size: Nodes of a chain or of a layered shape; branches of a fan-out.
        conditional: Whether each edge has a condition (that says yes).
    """

    kind: Kind
    size: int
    conditional: bool = False

    @property
    def title(self) -> str:
        """Name for the tables."""
        text = {
            "chain": f"chain of {self.size:,}",
            "fan_out": f"fan-out of {self.size:,}, join",
            "layered": f"{LAYERS} layers of {self.size // LAYERS:,}",
        }[self.kind]
        return text + (", a condition on every edge" if self.conditional else "")

    @property
    def graph(self) -> str:
        """Name that our side registers it under."""
        return f"{self.kind}-{self.size}" + ("-conditional" if self.conditional else "")

    @property
    def nodes(self) -> list[str]:
        """Names of all nodes, in declaration order."""
        extra = 2 if self.kind == "fan_out" else 0  # Where it begins, and the join.
        return [name(number) for number in range(self.size + extra)]

    @property
    def edges(self) -> list[tuple[str, str]]:
        """All edges, by source and target."""
        if self.kind == "chain":
            pairs = [(number, number + 1) for number in range(self.size - 1)]
        elif self.kind == "fan_out":
            branches = range(1, self.size + 1)
            join = self.size + 1
            pairs = [(0, branch) for branch in branches]
            pairs += [(branch, join) for branch in branches]
        else:
            pairs = [
                (source, number)
                for number in range(self.size)
                for source in layer_sources(number, self.size)
            ]
        return [(name(source), name(target)) for source, target in sorted(pairs)]

    @property
    def conditional_nodes(self) -> int:
        """How many nodes have edges with conditions going out."""
        return len({source for source, _ in self.edges}) if self.conditional else 0
