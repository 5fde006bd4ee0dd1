"""What follows from a plan's shape alone: indices, cycles, and who can reach which edge.

Pure Python; computed once per plan and shared by every run of it. Nothing here changes while
a run goes on, and nothing here knows about runs.

Node sets are integers used as bitsets, bit `i` for the `i`-th node in declaration order: an
intersection costs a few machine words per thousand nodes, and the lowest set bit is the first
node in declaration order, so no hash order can creep in.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ..wire import GraphPlan


def topology_of(plan: GraphPlan) -> Topology:
    """Return the topology of a plan, computed once per shape and process.

    Without edges it is nothing to keep: a mapped node has such a plan for each number of items.
    """
    if not plan.edges:
        return Topology([node.id for node in plan.nodes], [])
    return _shared(
        tuple(node.id for node in plan.nodes),
        tuple(
            (edge.source, edge.target, edge.condition is not None, edge.on_error)
            for edge in plan.edges
        ),
    )


@lru_cache(maxsize=64)
def _shared(nodes: tuple[str, ...], edges: tuple[tuple[str, str, bool, bool], ...]) -> Topology:
    return Topology(nodes, edges)


def lowest(bits: int) -> int:
    """Return the index of the lowest set bit: the set's first node in declaration order."""
    return (bits & -bits).bit_length() - 1


class Topology:
    """The shape of a plan, by node and edge index.

    Attributes:
        index: Node index by id.
        source: Source index of each edge, in plan order.
        target: Target index of each edge.
        incoming: Edges into each node, in plan order, that is by source.
        outgoing: Edges out of each node, in plan order.
        conditional: Whether each edge has a condition to evaluate.
        on_error: Whether each edge is taken when its source fails, and only then.
        error_edges: Those edges out of each node.
        cyclic: Whether each edge lies within a cycle (its ends reach each other).
        back: Whether each edge leads back in a cycle: from a node that isn't declared before
            its target. All others are forward edges; without the back edges the graph has no
            cycle.
        joins_cycle: Whether each node has an edge into it that lies within a cycle.
        cycle: Number of the cycle (strongly connected component) of each node.
    """

    def __init__(self, nodes: Sequence[str], edges: Sequence[tuple[str, str, bool, bool]]) -> None:
        """Index a shape and compute its reachability.

        Args:
            nodes: Ids in declaration order.
            edges: `(source, target, has a condition, is an error edge)` of each edge, in plan
                order.
        """
        size = len(nodes)
        self.index = {node: i for i, node in enumerate(nodes)}
        self.source = [self.index[source] for source, *_ in edges]
        self.target = [self.index[target] for _, target, *_ in edges]
        self.on_error = [on_error for *_, on_error in edges]
        self.conditional = [conditional and not on_error for *_, conditional, on_error in edges]
        self.incoming: list[list[int]] = [[] for _ in range(size)]
        self.outgoing: list[list[int]] = [[] for _ in range(size)]
        for edge, (source, target) in enumerate(zip(self.source, self.target, strict=True)):
            self.outgoing[source].append(edge)
            self.incoming[target].append(edge)
        self.error_edges = [[e for e in out if self.on_error[e]] for out in self.outgoing]
        self.cycle, components = self._strong_components()
        self._ancestors = self._reach(components)
        ends = list(zip(self.source, self.target, strict=True))
        self.cyclic = [self.cycle[source] == self.cycle[target] for source, target in ends]
        self.back = [
            cyclic and source >= target
            for cyclic, (source, target) in zip(self.cyclic, ends, strict=True)
        ]
        self.joins_cycle = [
            any(self.cyclic[edge] for edge in edges_in) for edges_in in self.incoming
        ]
        self._forward = self._reach_forward()
        self._takers: list[int | None] = [None] * len(edges)

    def takers(self, edge: int) -> int:
        """Return the nodes from which `edge` can be taken, as a bitset.

        A node can take the edge if it reaches the edge's source (its source reaches itself)
        on a path that does not pass through the edge's target: what has to pass through the
        target first belongs to a later wave. The target itself is never among them.

        Passing through the target matters only for an edge inside a cycle: a path that goes
        through the target and on to the source closes one. Those are worked out when first
        asked for, since few joins inside a cycle ever wait.
        """
        takers = self._takers[edge]
        if takers is None:
            source, target = self.source[edge], self.target[edge]
            if self.cyclic[edge]:
                takers = self._ancestors_avoiding(source, target)
            else:
                takers = self._ancestors[self.cycle[source]]
            self._takers[edge] = takers
        return takers

    def forward_takers(self, edge: int) -> int:
        """Return the nodes from which `edge` can be taken without going round its cycle.

        For a back edge that is none. For another edge inside a cycle, the nodes that reach
        its source along forward edges, once they are in the cycle.
        """
        if not self.cyclic[edge]:
            return self.takers(edge)
        return 0 if self.back[edge] else self._forward[self.source[edge]]

    def _ancestors_avoiding(self, source: int, target: int) -> int:
        """Return the nodes that reach `source` without passing through `target`.

        Only their common cycle is searched, backwards; what leads into it from outside can't
        contain the target, so it is taken whole.
        """
        if source == target:
            return 0
        home = self.cycle[source]
        found = 1 << source
        outside = 0
        todo = [source]
        while todo:
            node = todo.pop()
            for edge in self.incoming[node]:
                before = self.source[edge]
                if self.cycle[before] != home:
                    outside |= self._ancestors[self.cycle[before]]
                elif before != target and not found >> before & 1:
                    found |= 1 << before
                    todo.append(before)
        return found | outside

    def _reach(self, components: list[list[int]]) -> list[int]:
        """Return for each component the nodes that reach it, its own members included."""
        ancestors = [0] * len(components)
        for number in range(len(components) - 1, -1, -1):  # Sources come last in Tarjan's order.
            bits = 0
            for node in components[number]:
                bits |= 1 << node
                for edge in self.incoming[node]:
                    before = self.cycle[self.source[edge]]
                    if before != number:
                        bits |= ancestors[before]
            ancestors[number] = bits
        return ancestors

    def _reach_forward(self) -> list[int]:
        """Return for each node those that reach it without a back edge of its own cycle."""
        forward = [0] * len(self.incoming)
        for node, edges in enumerate(self.incoming):  # A forward source is declared before.
            bits = 1 << node
            for edge in edges:
                if not self.cyclic[edge]:
                    bits |= self._ancestors[self.cycle[self.source[edge]]]
                elif not self.back[edge]:
                    bits |= forward[self.source[edge]]
            forward[node] = bits
        return forward

    def _strong_components(self) -> tuple[list[int], list[list[int]]]:
        """Find the strongly connected components (Tarjan 1972, without recursion).

        Returns:
            The component number of each node, and the members of each component. Numbers are
            in reverse topological order: an edge between two components goes from the higher
            number to the lower.
        """
        size = len(self.outgoing)
        component = [-1] * size
        components: list[list[int]] = []
        order = [-1] * size
        low = [0] * size
        stack: list[int] = []
        clock = 0
        for root in range(size):
            if order[root] >= 0:
                continue
            work = [(root, 0)]
            while work:
                node, position = work.pop()
                if position == 0:
                    order[node] = low[node] = clock
                    clock += 1
                    stack.append(node)
                edges = self.outgoing[node]
                while position < len(edges):
                    after = self.target[edges[position]]
                    position += 1
                    if order[after] < 0:
                        work.append((node, position))
                        work.append((after, 0))
                        break
                    if component[after] < 0:
                        low[node] = min(low[node], order[after])
                else:
                    if low[node] == order[node]:
                        members: list[int] = []
                        while True:
                            member = stack.pop()
                            component[member] = len(components)
                            members.append(member)
                            if member == node:
                                break
                        components.append(members)
                    if work:
                        parent = work[-1][0]
                        low[parent] = min(low[parent], low[node])
        return component, components
