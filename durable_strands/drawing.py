"""Draws a graph's plan as a Mermaid flowchart."""

from __future__ import annotations

from .wire import GraphPlan


def mermaid(plan: GraphPlan) -> str:
    """Return a Mermaid flowchart of a plan.

    Entry points are rounded, orchestrators that run whole are boxes with double sides, joins
    of kind `any` are hexagons; edges with a condition are dotted and carry its name.
    """
    numbers = {node.id: f"n{i}" for i, node in enumerate(plan.nodes)}
    lines = ["flowchart TD"]
    for node in plan.nodes:
        left, right = "[", "]"
        if node.kind == "multiagent":
            left, right = "[[", "]]"
        elif node.join == "any":
            left, right = "{{", "}}"
        elif node.id in plan.entry_points:
            left, right = "([", "])"
        lines.append(f'    {numbers[node.id]}{left}"{_text(node.id)}"{right}')
    for edge in plan.edges:
        arrow = "-->"
        if edge.condition is not None:
            name = edge.condition.rpartition(":")[2].rpartition(".")[2]
            arrow = f'-. "{_text(name)}" .->'
        lines.append(f"    {numbers[edge.source]} {arrow} {numbers[edge.target]}")
    return "\n".join(lines)


def _text(text: str) -> str:
    return text.replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
