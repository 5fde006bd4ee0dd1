"""The registry: names -> factories of Strands graphs, and from a built graph to its plan.

A graph is built once when it is registered: what is wrong with it or with its options is found
then, not in the middle of a run.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar, get_args

from pydantic import ValidationError
from strands.multiagent.base import MultiAgentBase
from strands.multiagent.graph import Graph, GraphEdge

from .. import wire
from ..codec import is_json
from ..errors import GraphNotRegisteredError, InvalidGraphError, TopologyMismatchError
from ..options import DEFAULT_RETRY, GraphOptions, NodeOptions
from ..workflows.topology import topology_of
from .hooks import hook_events
from .pool import ExecutorPool, can_snapshot

GraphFactory = Callable[[], Graph]
F = TypeVar("F", bound=GraphFactory)

_DEFAULTS = NodeOptions(
    timeout=timedelta(hours=1), heartbeat_timeout=timedelta(seconds=30), retry=DEFAULT_RETRY
)


class RegisteredGraph:
    """A graph as a worker knows it.

    Attributes:
        name: The registered name.
        plan: Its topology, as recorded by each run.
        pool: Its executors, ready for visits.
        template: One built instance, for its conditions and its structure; never executed.
    """

    def __init__(self, name: str, factory: GraphFactory, options: GraphOptions) -> None:
        """Build the graph once and derive everything from that instance.

        Raises:
            InvalidGraphError: The factory or an option is wrong.
        """
        self.name = name
        self.template = _build(name, factory)
        self._conditions = {
            (edge.from_node.node_id, edge.to_node.node_id, ordinal): edge
            for edge, ordinal in _ordered_edges(name, self.template)
        }
        self.plan = _plan(name, self.template, self._conditions, options)
        self.pool = ExecutorPool(lambda: _build(name, factory), self.template)

    def edge(self, source: str, target: str, ordinal: int) -> GraphEdge:
        """Return an edge of the template.

        Raises:
            TopologyMismatchError: The graph has no such edge (any more).
        """
        found = self._conditions.get((source, target, ordinal))
        if found is None:
            edge = wire.EdgePlan(source=source, target=target, ordinal=ordinal)
            raise TopologyMismatchError(
                f"Graph {self.name!r} on this worker has no edge {edge}, but the run's plan "
                "does: it was started with another version of the graph. Deploy a worker that "
                "still has the edge, or start a new run."
            )
        return found


class GraphRegistry:
    """The graphs that a worker serves, by name.

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
            nodes: Options of single nodes, by node id.

        Raises:
            InvalidGraphError: Something of this is wrong; the message says what.
        """
        _check_name(name)
        if name in self._graphs:
            raise InvalidGraphError(f"A graph named {name!r} is registered already.")
        self._graphs[name] = RegisteredGraph(
            name,
            factory,
            GraphOptions(
                semantics=semantics,
                join=join,
                on_failure=on_failure,
                max_concurrency=max_concurrency,
                defaults=defaults or NodeOptions(),
                nodes=dict(nodes or {}),
            ),
        )

    @property
    def names(self) -> list[str]:
        """Names of the registered graphs, in order of registration."""
        return list(self._graphs)

    def __iter__(self) -> Any:
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
    _check_text(f"the name {name!r:.80}", name)
    if name.startswith(wire.RESERVED_PREFIX):
        raise InvalidGraphError(
            f"The name {name!r} starts with {wire.RESERVED_PREFIX!r}, which is kept for this "
            "library's own activities."
        )


_LONGEST_TYPE = 950
"""Bytes of an activity type, and of an activity id, that a Temporal server takes, less a margin
for the visit's number (the limit is 1000)."""


def _check_text(what: str, text: str) -> None:
    """Refuse a text that can't be part of an activity's type: every task would fail with it."""
    try:
        size = len(text.encode())
    except UnicodeError as error:
        raise InvalidGraphError(f"{what} is no valid Unicode text: {error}.") from error
    if size > _LONGEST_TYPE:
        raise InvalidGraphError(
            f"{what} is too long: it has {size} bytes. The graph's name and a node's id together "
            f"may have {_LONGEST_TYPE}."
        )


def _build(name: str, factory: GraphFactory) -> Graph:
    if isinstance(factory, Graph) or not callable(factory):
        raise InvalidGraphError(
            f"Graph {name!r}: give a factory, a function without arguments that builds and returns "
            f"the graph, not a {type(factory).__name__}. Runs must not share agents."
        )
    with warnings.catch_warnings():
        # A run is bounded by what the operator sets on it as much as by the builder's limits.
        warnings.filterwarnings("ignore", message="graph has no max_node_executions")
        graph = factory()
    if not isinstance(graph, Graph):
        raise InvalidGraphError(
            f"The factory of graph {name!r} returned a {type(graph).__name__}; it must return a "
            "built strands.multiagent.Graph (end it with `return builder.build()`)."
        )
    return graph


def _ordered_edges(name: str, graph: Graph) -> list[tuple[GraphEdge, int]]:
    """Return a graph's edges by (source, target, ordinal), each with its ordinal.

    Strands keeps edges in a set, so the order among parallel edges is lost. It is restored
    from the place of each condition in its source, which is the same in every process.
    """
    index = {node: i for i, node in enumerate(graph.nodes)}
    edges = sorted(
        graph.edges,
        key=lambda edge: (
            index[edge.from_node.node_id],
            index[edge.to_node.node_id],
            _condition_place(edge),
        ),
    )
    ordered: list[tuple[GraphEdge, int]] = []
    for edge in edges:
        ends = (edge.from_node.node_id, edge.to_node.node_id)
        ordinal = 0
        if ordered:
            before, number = ordered[-1]
            if (before.from_node.node_id, before.to_node.node_id) == ends:
                ordinal = number + 1
                if _condition_place(before) == _condition_place(edge):
                    raise InvalidGraphError(
                        f"Graph {name!r} has two edges {ends[0]} -> {ends[1]} whose conditions "
                        f"({condition_name(edge)}) can't be told apart across processes. Give "
                        "each its own function, or join them into one condition."
                    )
        ordered.append((edge, ordinal))
    return ordered


def _condition_place(edge: GraphEdge) -> tuple[Any, ...]:
    condition = edge.condition
    if condition is None:
        return ("",)
    code = getattr(inspect.unwrap(condition), "__code__", None)
    if code is None:
        return (condition_name(edge),)
    # Two conditions in one line differ in where their instructions come from.
    places = [tuple(-1 if at is None else at for at in place) for place in code.co_positions()]
    bound = [cell.cell_contents for cell in getattr(condition, "__closure__", None) or ()]
    bound.append(list(getattr(condition, "__defaults__", None) or ()))
    return (
        condition_name(edge),
        code.co_firstlineno,
        places,
        *(repr(value) for value in bound if is_json(value)),
    )


def condition_name(edge: GraphEdge) -> str | None:
    """Return a readable name of an edge's condition, None if it has none."""
    condition = edge.condition
    if condition is None:
        return None
    module = getattr(condition, "__module__", type(condition).__module__)
    name = getattr(condition, "__qualname__", type(condition).__qualname__)
    return f"{module}:{name}"


def _plan(
    name: str,
    graph: Graph,
    edges: Mapping[tuple[str, str, int], GraphEdge],
    options: GraphOptions,
) -> wire.GraphPlan:
    _check_graph(name, graph)
    _check_options(name, graph, options)
    entries = {node.node_id for node in graph.entry_points}
    try:
        plan = _checked_plan(name, graph, edges, options, entries)
    except ValidationError as error:
        raise InvalidGraphError(f"Graph {name!r}: {wire.explain(error)}.") from error
    return _with_carried_state(plan, graph).with_fingerprint()


def _checked_plan(
    name: str,
    graph: Graph,
    edges: Mapping[tuple[str, str, int], GraphEdge],
    options: GraphOptions,
    entries: set[str],
) -> wire.GraphPlan:
    return wire.GraphPlan(
        version=wire.WIRE_VERSION,
        graph=name,
        nodes=[_node_plan(node, graph, options) for node in graph.nodes],
        edges=[
            wire.EdgePlan(
                source=source, target=target, ordinal=ordinal, condition=condition_name(edge)
            )
            for (source, target, ordinal), edge in edges.items()
        ],
        entry_points=[node for node in graph.nodes if node in entries],
        semantics=options.semantics,
        max_concurrency=options.max_concurrency,
        max_node_executions=graph.max_node_executions,
        execution_timeout=graph.execution_timeout,
        hooks=hook_events(graph),
    )


def _check_graph(name: str, graph: Graph) -> None:
    if graph.session_manager is not None:
        raise InvalidGraphError(
            f"Graph {name!r} has a session manager. Temporal's history does its job: it keeps "
            "every result and resumes after a crash. Take `set_session_manager` away."
        )
    for node in graph.nodes:
        if not node:
            raise InvalidGraphError(f"Graph {name!r} has a node whose id is empty.")
        _check_text(f"Graph {name!r}: the node id {node!r:.80}", wire.activity_type(name, node))


def _check_options(name: str, graph: Graph, options: GraphOptions) -> None:
    def refuse(problem: str) -> None:
        raise InvalidGraphError(f"Graph {name!r}: {problem}.")

    for option, allowed in (
        ("semantics", get_args(wire.Semantics)),
        ("join", get_args(wire.Join)),
        ("on_failure", get_args(wire.OnFailure)),
    ):
        value = getattr(options, option)
        if value not in allowed:
            refuse(f"{option} must be one of {', '.join(allowed)}, not {value!r}")
    most = options.max_concurrency
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        refuse(f"max_concurrency must be a number from 1, or None, not {most!r}")
    for path, node in {"defaults": options.defaults, **options.nodes}.items():
        if not isinstance(node, NodeOptions):
            refuse(f"the options of {path!r} must be a NodeOptions, not {type(node).__name__}")
        for problem in node.problems():
            refuse(f"{path}: {problem}")
    unknown = [path for path in options.nodes if path not in graph.nodes]
    if unknown:
        known = ", ".join(graph.nodes)
        refuse(f"options are given for {unknown[0]!r}, which is no node of it; it has: {known}")
    if options.semantics == "strands":
        joins = [options.join, options.defaults.join, *(o.join for o in options.nodes.values())]
        if "any" in joins:
            refuse('join "any" has no meaning with semantics "strands", which has OR-joins only')


def _node_plan(node: str, graph: Graph, options: GraphOptions) -> wire.NodePlan:
    chosen = (
        options.nodes.get(node, NodeOptions())
        .over(options.defaults)
        .over(
            replace(
                _DEFAULTS,
                join=options.join,
                on_failure=options.on_failure,
                on_revisit="reset" if graph.reset_on_revisit else "keep",
            )
        )
    )
    retry = chosen.retry
    assert retry is not None, "the library's defaults say something for each option"
    assert chosen.timeout is not None
    assert chosen.heartbeat_timeout is not None
    assert chosen.join is not None
    assert chosen.on_failure is not None
    assert chosen.on_revisit is not None
    timeout = chosen.timeout.total_seconds()
    if graph.node_timeout is not None and chosen.timeout == _DEFAULTS.timeout:
        timeout = max(timeout, graph.node_timeout + 60)  # Strands' limit is to bite first.
    multiagent = isinstance(graph.nodes[node].executor, MultiAgentBase)
    return wire.NodePlan(
        id=node,
        kind="multiagent" if multiagent else "agent",
        join=chosen.join,
        on_failure=chosen.on_failure,
        on_revisit=chosen.on_revisit,
        interrupt_timeout=(
            None if chosen.interrupt_timeout is None else chosen.interrupt_timeout.total_seconds()
        ),
        task_queue=chosen.task_queue,
        timeout=timeout,
        node_timeout=graph.node_timeout,
        heartbeat_timeout=chosen.heartbeat_timeout.total_seconds(),
        retry=wire.RetryPlan(
            initial_interval=retry.initial_interval.total_seconds(),
            backoff_coefficient=retry.backoff_coefficient,
            maximum_interval=(
                None if retry.maximum_interval is None else retry.maximum_interval.total_seconds()
            ),
            maximum_attempts=retry.maximum_attempts,
            non_retryable_error_types=list(retry.non_retryable_error_types or ()),
        ),
        summary=chosen.summary,
    )


def _with_carried_state(plan: wire.GraphPlan, graph: Graph) -> wire.GraphPlan:
    """Mark the nodes whose agents' state travels: those that keep it and can come again.

    What can come again is a node in a cycle, an entry point that other nodes lead to, under
    Strands' rule a node that several lead to, and whatever lies downstream of one of these.
    """
    shape = topology_of(plan)
    again = [
        shape.joins_cycle[shape.index[node.id]]
        or (bool(incoming) and node.id in plan.entry_points)
        or (len(incoming) > 1 and plan.semantics == "strands")
        for node, incoming in zip(plan.nodes, shape.incoming, strict=True)
    ]
    todo = [node for node, repeats in enumerate(again) if repeats]
    while todo:
        for edge in shape.outgoing[todo.pop()]:
            target = shape.target[edge]
            if not again[target]:
                again[target] = True
                todo.append(target)
    nodes = [
        node.model_copy(update={"carries_state": True})
        if repeats and node.on_revisit == "keep" and can_snapshot(graph.nodes[node.id].executor)
        else node
        for node, repeats in zip(plan.nodes, again, strict=True)
    ]
    return plan.model_copy(update={"nodes": nodes})
