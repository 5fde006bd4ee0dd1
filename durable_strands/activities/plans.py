"""From a built Strands graph or swarm, and what is said about it, to its plan."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, get_args

from pydantic import ValidationError
from strands.multiagent.base import MultiAgentBase
from strands.multiagent.graph import Graph, GraphEdge
from strands.multiagent.swarm import Swarm

from .. import wire
from ..codec import is_json
from ..conditions import on_error
from ..errors import InvalidGraphError
from ..options import DEFAULT_RETRY, GraphOptions, NodeOptions
from ..workflows.topology import topology_of
from .hooks import hook_events
from .pool import can_snapshot, is_nested

_DEFAULTS = NodeOptions(
    timeout=timedelta(hours=1), heartbeat_timeout=timedelta(seconds=30), retry=DEFAULT_RETRY
)

Edges = dict[tuple[str, str, int], GraphEdge]
"""A graph's edges by (source, target, ordinal), in that order."""


@dataclass(frozen=True)
class Part:
    """One graph or swarm of a registered one: the outermost, or one that is nested.

    Attributes:
        template: A built instance, for its conditions, hooks and structure; never executed.
        plan: Its plan.
        edges: Its edges.
    """

    template: Graph | Swarm
    plan: wire.GraphPlan
    edges: Edges


def parts_of(name: str, template: Graph | Swarm, options: GraphOptions) -> dict[str, Part]:
    """Make the plan of a graph or swarm, and of whatever is nested in it.

    Returns:
        The parts by path; the outermost, whose plan contains all the others, is at `""`.

    Raises:
        InvalidGraphError: Something is wrong; the message says what.
    """
    _check_options(name, template, options)
    try:
        plan = _plan(name, template, options, "", NodeOptions())
    except ValidationError as error:
        raise InvalidGraphError(f"Graph {name!r}: {wire.explain(error)}.") from error
    plan = _with_carried_state(plan, template, comes_again=False)
    plan = plan.model_copy(update={"rules": wire.RULES}).with_fingerprint()
    return dict(_parts(name, template, plan, ""))


def _parts(
    name: str, template: Graph | Swarm, plan: wire.GraphPlan, within: str
) -> Iterator[tuple[str, Part]]:
    edges = _ordered_edges(name, template) if isinstance(template, Graph) else {}
    yield within, Part(template, plan, edges)
    for node in plan.nodes:
        executor = template.nodes[node.id].executor
        if node.plan is not None and is_nested(executor):
            yield from _parts(name, executor, node.plan, wire.join(within, node.id))


# ---------------------------------------------------------------------------------------------
# Edges
# ---------------------------------------------------------------------------------------------


def _ordered_edges(name: str, graph: Graph) -> Edges:
    """Return a graph's edges by (source, target, ordinal), in that order.

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
    ordered: Edges = {}
    before: GraphEdge | None = None
    ordinal = 0
    for edge in edges:
        ends = (edge.from_node.node_id, edge.to_node.node_id)
        if before is not None and ends == (before.from_node.node_id, before.to_node.node_id):
            ordinal += 1
            if _condition_place(before) == _condition_place(edge):
                raise InvalidGraphError(
                    f"Graph {name!r} has two edges {ends[0]} -> {ends[1]} whose conditions "
                    f"({condition_name(edge)}) can't be told apart across processes. Give "
                    "each its own function, or join them into one condition."
                )
        else:
            ordinal = 0
        ordered[*ends, ordinal] = before = edge
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


# ---------------------------------------------------------------------------------------------
# Plans
# ---------------------------------------------------------------------------------------------


def _plan(
    name: str, template: Graph | Swarm, options: GraphOptions, within: str, said: NodeOptions
) -> wire.GraphPlan:
    """Return the plan of a graph or swarm, nested ones included.

    Args:
        name: The registered name.
        template: The graph or swarm.
        options: What is said about the whole.
        within: Path of the node that it is nested in.
        said: What is said about that node, and so about all in it.
    """
    _check_template(name, template, within)
    nodes = [_node_plan(name, node, template, options, within, said) for node in template.nodes]
    if isinstance(template, Swarm):
        first = template.entry_point.name if template.entry_point else next(iter(template.nodes))
        return wire.GraphPlan(
            version=wire.WIRE_VERSION,
            graph=name,
            swarm=wire.SwarmRules(
                max_handoffs=template.max_handoffs,
                max_iterations=template.max_iterations,
                repetition_window=template.repetitive_handoff_detection_window,
                repetition_minimum=template.repetitive_handoff_min_unique_agents,
            ),
            nodes=nodes,
            entry_points=[str(first)],
            execution_timeout=template.execution_timeout,
            hooks=hook_events(template),
        )
    entries = {node.node_id for node in template.entry_points}
    return wire.GraphPlan(
        version=wire.WIRE_VERSION,
        graph=name,
        nodes=nodes,
        edges=[
            wire.EdgePlan(
                source=source,
                target=target,
                ordinal=ordinal,
                condition=condition_name(edge),
                on_error=edge.condition is on_error,
            )
            for (source, target, ordinal), edge in _ordered_edges(name, template).items()
        ],
        entry_points=[node for node in template.nodes if node in entries],
        semantics=options.semantics,
        max_concurrency=None if within else options.max_concurrency,
        max_node_executions=template.max_node_executions,
        execution_timeout=template.execution_timeout,
        hooks=hook_events(template),
    )


def _node_plan(
    name: str,
    node: str,
    template: Graph | Swarm,
    options: GraphOptions,
    within: str,
    said: NodeOptions,
) -> wire.NodePlan:
    path = wire.join(within, node)
    said = options.nodes.get(path, NodeOptions()).over(said)
    resets = isinstance(template, Graph) and template.reset_on_revisit
    chosen = said.over(options.defaults).over(
        replace(
            _DEFAULTS,
            join=options.join,
            on_failure=options.on_failure,
            on_revisit="reset" if resets else "keep",
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
    if template.node_timeout is not None and chosen.timeout == _DEFAULTS.timeout:
        timeout = max(timeout, template.node_timeout + 60)  # Strands' limit is to bite first.
    executor = template.nodes[node].executor
    nested = None
    if is_nested(executor):
        nested = _plan(name, executor, options, path, said.for_all_within())
    in_swarm = isinstance(template, Swarm)
    return wire.NodePlan(
        id=node,
        kind="multiagent" if isinstance(executor, MultiAgentBase) else "agent",
        plan=nested,
        maps=chosen.map_over is not None,
        builds_input=chosen.input is not None,
        description=getattr(executor, "description", None) if in_swarm else None,
        join=chosen.join,
        # A turn that fails ends its swarm, but the swarm raises nothing, as in Strands.
        on_failure="prune" if in_swarm else chosen.on_failure,
        on_revisit="reset" if in_swarm else chosen.on_revisit,
        interrupt_timeout=(
            None if chosen.interrupt_timeout is None else chosen.interrupt_timeout.total_seconds()
        ),
        task_queue=chosen.task_queue,
        timeout=timeout,
        node_timeout=template.node_timeout,
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


def _with_carried_state(
    plan: wire.GraphPlan,
    template: Graph | Swarm,
    *,
    comes_again: bool = False,
    remembers: bool = True,
) -> wire.GraphPlan:
    """Mark the nodes whose agents' state travels: those that keep it and can come again.

    What can come again is a node in a cycle, an entry point that other nodes lead to, under
    Strands' rule a node that several lead to, whatever lies downstream of one of these, and all
    that is nested in what can come again. An agent of a swarm starts each turn afresh, as in
    Strands, and so do the visits of a mapped node, which run side by side; within such a visit,
    if it is a graph's, agents keep their state as in any graph.

    Args:
        plan: The plan of a graph or swarm.
        template: What it is the plan of.
        comes_again: Whether it lies in what can come again.
        remembers: Whether its agents' state goes into the next run of a session.
    """
    shape = topology_of(plan)
    again = [
        comes_again
        or shape.joins_cycle[shape.index[node.id]]
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

    def marked(node: wire.NodePlan, repeats: bool) -> wire.NodePlan:
        executor = template.nodes[node.id].executor
        if node.plan is not None and is_nested(executor):
            nested = _with_carried_state(
                node.plan,
                executor,
                comes_again=repeats and not node.maps,
                remembers=remembers and not node.maps,
            )
            return node.model_copy(update={"plan": nested})
        if node.maps or plan.swarm is not None:
            return node
        keeps = node.on_revisit == "keep" and can_snapshot(executor)
        return node.model_copy(
            update={"carries_state": keeps and repeats, "remembers": keeps and remembers}
        )

    nodes = [marked(node, repeats) for node, repeats in zip(plan.nodes, again, strict=True)]
    return plan.model_copy(update={"nodes": nodes})


# ---------------------------------------------------------------------------------------------
# Checks
# ---------------------------------------------------------------------------------------------

_LONGEST_TYPE = 950
"""Bytes of an activity type, and of an activity id, that a Temporal server takes, less a margin
for the visit's number (the limit is 1000)."""


def check_text(what: str, text: str) -> None:
    """Refuse a text that can't be part of an activity's type: every task would fail with it."""
    try:
        size = len(text.encode())
    except UnicodeError as error:
        raise InvalidGraphError(f"{what} is no valid Unicode text: {error}.") from error
    if size > _LONGEST_TYPE:
        raise InvalidGraphError(
            f"{what} is too long: it has {size} bytes. The graph's name and a node's path together "
            f"may have {_LONGEST_TYPE}."
        )


def _check_template(name: str, template: Graph | Swarm, within: str) -> None:
    where = f"Graph {name!r}" + (f", nested in {within!r}," if within else "")
    if template.session_manager is not None:
        raise InvalidGraphError(
            f"{where} has a session manager. Temporal's history does its job: it keeps every "
            "result and resumes after a crash. Take it away."
        )
    if not template.nodes:
        raise InvalidGraphError(f"{where} has no nodes.")
    for node in template.nodes:
        if not node:
            raise InvalidGraphError(f"{where} has a node whose id is empty.")
        path = wire.join(within, node)
        check_text(f"{where}: the node id {node!r:.80}", wire.activity_type(name, path))


def _paths(template: Graph | Swarm, within: str = "") -> Iterator[str]:
    for node_id, node in template.nodes.items():
        path = wire.join(within, node_id)
        yield path
        if is_nested(node.executor):
            yield from _paths(node.executor, path)


def _check_options(name: str, template: Graph | Swarm, options: GraphOptions) -> None:
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
    if options.defaults.map_over is not None or options.defaults.input is not None:
        refuse("defaults: map_over and input belong to single nodes, since what they make does")
    _check_paths(refuse, template, options)
    if options.semantics == "strands":
        joins = [options.join, options.defaults.join, *(o.join for o in options.nodes.values())]
        if "any" in joins:
            refuse('join "any" has no meaning with semantics "strands", which has OR-joins only')
        if any(_has_error_edge(graph) for graph in _graphs(template)):
            refuse('on_error has no meaning with semantics "strands": a failure ends its branch')


def _check_paths(refuse: Any, template: Graph | Swarm, options: GraphOptions) -> None:
    known: dict[str, None] = {}
    for path in _paths(template):
        if path in known:
            refuse(f"two of its nodes have the path {path!r}; give one another id")
        known[path] = None
    for path, chosen in options.nodes.items():
        if path not in known:
            listed = ", ".join(known)
            refuse(f"options are given for {path!r}, which is no node of it; it has: {listed}")
        if _is_in_swarm(template, path) and (chosen.map_over or chosen.input):
            refuse(f"{path}: an agent of a swarm can't have map_over or input")


def _is_in_swarm(template: Any, path: str, within: str = "") -> bool:
    for node_id, node in template.nodes.items():
        here = wire.join(within, node_id)
        if here == path:
            return isinstance(template, Swarm)
        if is_nested(node.executor) and path.startswith(here + "/"):
            return _is_in_swarm(node.executor, path, here)
    return False


def _graphs(template: Graph | Swarm) -> Iterator[Graph]:
    if isinstance(template, Graph):
        yield template
    for node in template.nodes.values():
        if is_nested(node.executor):
            yield from _graphs(node.executor)


def _has_error_edge(graph: Graph) -> bool:
    return any(edge.condition is on_error for edge in graph.edges)
