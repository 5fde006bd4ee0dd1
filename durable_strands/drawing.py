"""Draws a graph's plan as a Mermaid flowchart."""

from __future__ import annotations

from collections.abc import Iterator

from .wire import EdgePlan, GraphPlan, NodePlan, join


def mermaid(plan: GraphPlan) -> str:
    """Return a Mermaid flowchart of a plan.

    Entry points are rounded, orchestrators that run whole are boxes with double sides, joins
    of kind `any` are hexagons, mapped nodes are slanted; nested graphs and swarms are boxes
    around their nodes. Edges with a condition are dotted and carry its name, edges that are
    taken on a failure are thick.
    """
    numbers = {path: f"n{i}" for i, (path, _) in enumerate(plan.paths())}
    return "\n".join(["flowchart TD", *_lines(plan, numbers, "", "    ")])


def _lines(plan: GraphPlan, numbers: dict[str, str], within: str, indent: str) -> Iterator[str]:
    for node in plan.nodes:
        path = join(within, node.id)
        if node.plan is None:
            left, right = _shape(node, plan)
            yield f'{indent}{numbers[path]}{left}"{_text(node.id)}"{right}'
            continue
        kind = "" if node.plan.swarm is None else ", a swarm"
        each = ", for each item" if node.maps else ""
        yield f'{indent}subgraph {numbers[path]}["{_text(node.id)}{kind}{each}"]'
        yield from _lines(node.plan, numbers, path, indent + "    ")
        yield f"{indent}end"
    for edge in plan.edges:
        source, target = join(within, edge.source), join(within, edge.target)
        yield f"{indent}{numbers[source]} {_arrow(edge)} {numbers[target]}"


def _shape(node: NodePlan, plan: GraphPlan) -> tuple[str, str]:
    if node.maps:
        return "[/", "/]"
    if node.kind == "multiagent":
        return "[[", "]]"
    if node.join == "any":
        return "{{", "}}"
    return ("([", "])") if node.id in plan.entry_points else ("[", "]")


def _arrow(edge: EdgePlan) -> str:
    if edge.on_error:
        return '== "on error" ==>'
    if edge.condition is None:
        return "-->"
    name = edge.condition.rpartition(":")[2].rpartition(".")[2]
    return f'-. "{_text(name)}" .->'


def _text(text: str) -> str:
    return text.replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
