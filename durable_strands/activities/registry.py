"""The registry: names -> factories of Strands graphs, and from a built graph to its plan.

A graph is built once when it is registered: what is wrong with it or with its options is found
then, not in the middle of a run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from strands.multiagent.graph import Graph, GraphEdge
from strands.multiagent.swarm import Swarm

from .. import wire
from ..errors import GraphNotRegisteredError, InvalidGraphError, TopologyMismatchError
from ..options import GraphOptions, NodeOptions
from .plans import Part, check_text, parts_of
from .pool import ExecutorPool

GraphFactory = Callable[[], Graph]
SwarmFactory = Callable[[], Swarm]
F = TypeVar("F", bound=GraphFactory)
S = TypeVar("S", bound=SwarmFactory)


class RegisteredGraph:
    """A graph, or a swarm, as a worker knows it.

    Attributes:
        name: The registered name.
        plan: Its plan, as recorded by each run.
        pool: Its executors, ready for visits.
    """

    def __init__(
        self,
        name: str,
        kind: type[Graph | Swarm],
        factory: Callable[[], Graph | Swarm],
        options: GraphOptions,
    ) -> None:
        """Build it once and derive everything from that instance.

        Raises:
            InvalidGraphError: The factory or an option is wrong.
        """
        self.name = name
        template = _build(name, kind, factory)
        self._parts = parts_of(name, template, options)
        self._options = options.nodes
        self.plan = self._parts[""].plan
        self._ids = {path: node.id for path, node in self.plan.paths()}
        self.pool = ExecutorPool(lambda: _build(name, kind, factory), template)

    def node_id(self, path: str) -> str:
        """Return the id of the node at a path; an id may have a slash."""
        return self._ids.get(path, path)

    def part(self, within: str) -> Part:
        """Return the graph or swarm at a path; the outermost is at `""`.

        Raises:
            TopologyMismatchError: There is none (any more).
        """
        found = self._parts.get(within)
        if found is None:
            raise self.gone(f"graph or swarm at {within!r}")
        return found

    def edge(self, within: str, edge: wire.EdgePlan) -> GraphEdge:
        """Return an edge of the graph at a path.

        Raises:
            TopologyMismatchError: The graph has no such edge (any more).
        """
        found = self.part(within).edges.get((edge.source, edge.target, edge.ordinal))
        if found is None:
            raise self.gone(f"edge {edge}" + (f" in {within!r}" if within else ""))
        return found

    def options(self, path: str) -> NodeOptions:
        """Return what was said about the node at a path alone."""
        return self._options.get(path, NodeOptions())

    def gone(self, what: str) -> TopologyMismatchError:
        """Return the error of a run whose plan has something that this worker hasn't."""
        return TopologyMismatchError(
            f"Graph {self.name!r} on this worker has no {what}, but the run's plan does: it was "
            "started with another version of the graph. Deploy a worker that still has it, or "
            "start a new run."
        )


class GraphRegistry:
    """The graphs and swarms that a worker serves, by name.

    Example:
        ```python
        registry = GraphRegistry()


        @registry.graph("brief", max_concurrency=8)
        def brief() -> Graph:
            builder = GraphBuilder()
            ...
            return builder.build()
        ```
    """

    def __init__(self) -> None:
        """Begin without any graph."""
        self._graphs: dict[str, RegisteredGraph] = {}

    def graph(
        self,
        name: str,
        *,
        semantics: wire.Semantics = "dataflow",
        join: wire.Join = "all",
        on_failure: wire.OnFailure = "fail_fast",
        max_concurrency: int | None = None,
        defaults: NodeOptions | None = None,
        nodes: Mapping[str, NodeOptions] | None = None,
    ) -> Callable[[F], F]:
        """Register the decorated factory; see `add` for the arguments."""

        def register(factory: F) -> F:
            self.add(
                name,
                factory,
                semantics=semantics,
                join=join,
                on_failure=on_failure,
                max_concurrency=max_concurrency,
                defaults=defaults,
                nodes=nodes,
            )
            return factory

        return register

    def add(
        self,
        name: str,
        factory: GraphFactory,
        *,
        semantics: wire.Semantics = "dataflow",
        join: wire.Join = "all",
        on_failure: wire.OnFailure = "fail_fast",
        max_concurrency: int | None = None,
        defaults: NodeOptions | None = None,
        nodes: Mapping[str, NodeOptions] | None = None,
    ) -> None:
        """Register a factory of a graph under a name.

        Everything that a `GraphBuilder` sets (entry points, limits, timeouts,
        `reset_on_revisit`) is taken from the built graph.

        Args:
            name: What runs are started by. It becomes part of activity types.
            factory: Called without arguments, returns a newly built Strands `Graph` with new
                agents at each call. It must give the same topology each time.
            semantics: `"dataflow"` for single-shot joins without barriers, `"strands"` for
                the rule of Strands' own `Graph`.
            join: Default join of the nodes: `"all"` or `"any"`.
            on_failure: Default of the nodes: `"fail_fast"` or `"prune"`.
            max_concurrency: Most nodes of a run in flight at once; None for no limit.
            defaults: Options of every node.
            nodes: Options of single nodes, by path: a node's id, and for a node of a nested
                graph or swarm the ids on the way to it, as in `"team/writer"`.

        Raises:
            InvalidGraphError: Something of this is wrong; the message says what.
        """
        options = GraphOptions(
            semantics=semantics,
            join=join,
            on_failure=on_failure,
            max_concurrency=max_concurrency,
            defaults=defaults or NodeOptions(),
            nodes=dict(nodes or {}),
        )
        self._add(name, Graph, factory, options)

    def swarm(
        self,
        name: str,
        *,
        defaults: NodeOptions | None = None,
        nodes: Mapping[str, NodeOptions] | None = None,
    ) -> Callable[[S], S]:
        """Register the decorated factory of a swarm; see `add_swarm` for the arguments."""

        def register(factory: S) -> S:
            self.add_swarm(name, factory, defaults=defaults, nodes=nodes)
            return factory

        return register

    def add_swarm(
        self,
        name: str,
        factory: SwarmFactory,
        *,
        defaults: NodeOptions | None = None,
        nodes: Mapping[str, NodeOptions] | None = None,
    ) -> None:
        """Register a factory of a swarm under a name; each turn becomes an activity.

        Everything that `Swarm` takes (entry point, limits, timeouts) is taken from the built
        swarm.

        Args:
            name: What runs are started by.
            factory: Called without arguments, returns a newly built Strands `Swarm` with new
                agents at each call.
            defaults: Options of every agent.
            nodes: Options of single agents, by name.

        Raises:
            InvalidGraphError: Something of this is wrong; the message says what.
        """
        options = GraphOptions(defaults=defaults or NodeOptions(), nodes=dict(nodes or {}))
        self._add(name, Swarm, factory, options)

    def _add(
        self,
        name: str,
        kind: type[Graph | Swarm],
        factory: Callable[[], Graph | Swarm],
        options: GraphOptions,
    ) -> None:
        _check_name(name)
        if name in self._graphs:
            raise InvalidGraphError(f"A graph named {name!r} is registered already.")
        self._graphs[name] = RegisteredGraph(name, kind, factory, options)

    @property
    def names(self) -> list[str]:
        """Names of the registered graphs, in order of registration."""
        return list(self._graphs)

    def __iter__(self) -> Iterator[RegisteredGraph]:
        """Iterate over the registered graphs, in order of registration."""
        return iter(self._graphs.values())

    def __getitem__(self, name: str) -> RegisteredGraph:
        """Return a registered graph.

        Raises:
            GraphNotRegisteredError: There is none of that name.
        """
        found = self._graphs.get(name)
        if found is None:
            known = ", ".join(map(repr, self._graphs)) or "none"
            raise GraphNotRegisteredError(
                f"No graph named {name!r} is registered on this worker; it has: {known}. "
                "Register it there, or start the run on the task queue of a worker that has it."
            )
        return found


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name.strip():
        raise InvalidGraphError(f"A graph's name must be a text that isn't empty, not {name!r}.")
    check_text(f"the name {name!r:.80}", name)
    if name.startswith(wire.RESERVED_PREFIX):
        raise InvalidGraphError(
            f"The name {name!r} starts with {wire.RESERVED_PREFIX!r}, which is kept for this "
            "library's own activities."
        )


def _build(
    name: str, kind: type[Graph | Swarm], factory: Callable[[], Graph | Swarm]
) -> Graph | Swarm:
    what = kind.__name__.lower()
    if isinstance(factory, (Graph, Swarm)) or not callable(factory):
        raise InvalidGraphError(
            f"{kind.__name__} {name!r}: give a factory, a function without arguments that builds "
            f"and returns the {what}, not a {type(factory).__name__}. Runs must not share agents."
        )
    with warnings.catch_warnings():
        # A run is bounded by what the operator sets on it as much as by the builder's limits.
        warnings.filterwarnings("ignore", message="graph has no max_node_executions")
        built = factory()
    if not isinstance(built, kind):
        hint = {
            "graph": "a built strands.multiagent.Graph (end it with `return builder.build()`)",
            "swarm": "a strands.multiagent.Swarm",
        }[what]
        raise InvalidGraphError(
            f"The factory of {what} {name!r} returned a {type(built).__name__}; it must return "
            f"{hint}."
        )
    own = [name for name in _overridden(type(built), kind) if name != "__init__"]
    if own:
        raise InvalidGraphError(
            f"The factory of {what} {name!r} returned a {type(built).__name__}, whose own "
            f"{', '.join(own)} would not be called: it is run node by node. Register a plain "
            f"{kind.__name__}; such a subclass may be a node of one, and runs whole there."
        )
    return built


def _overridden(made: type, kind: type) -> list[str]:
    """Return the methods that a subclass has in the place of those of its base."""
    classes = made.__mro__[: made.__mro__.index(kind)]
    return [
        name
        for subclass in classes
        for name, value in vars(subclass).items()
        if callable(value) and callable(getattr(kind, name, None))
    ]
