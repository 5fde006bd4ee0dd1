"""Plain functions as nodes: what needs no model doesn't call one.

    orders -> total -> report (an agent)
        |                ^
        +--> late -------+

They may pass data on by the run's `invocation_state`, and agents read what they return.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from strands.agent import AgentResult
from strands.multiagent.graph import Graph, GraphBuilder
from temporalio.client import Client

from durable_strands import DurableGraph, GraphRegistry, current_node, function_node

from .support import agent, run

registry = GraphRegistry()


class Total(BaseModel):
    orders: int
    amount: int


async def orders(invocation_state: dict[str, Any]) -> str:
    """Read the orders; a real one would ask a database, by a key that all its attempts share."""
    found = [("A", 30, "late"), ("B", 12, "in time"), ("C", 8, "late")]
    invocation_state["orders"] = found[: invocation_state["limit"]]
    return f"{len(found)} orders, read by {current_node().path!r}"


def total(invocation_state: dict[str, Any]) -> Total:
    amounts = [amount for _, amount, _ in invocation_state["orders"]]
    return Total(orders=len(amounts), amount=sum(amounts))


@function_node
def late(invocation_state: dict[str, Any]) -> list[str]:
    return [name for name, _, when in invocation_state["orders"] if when == "late"]


@registry.graph("orders")
def order_report() -> Graph:
    builder = GraphBuilder()
    builder.add_node(function_node(orders), "orders")
    builder.add_node(function_node(total), "total")
    builder.add_node(late, "late")
    reporter = agent("reporter", lambda told: f"{told.inputs['total']}: {told.inputs['late']}")
    builder.add_node(reporter, "report")
    for source, target in (
        ("orders", "total"),
        ("orders", "late"),
        ("total", "report"),
        ("late", "report"),
    ):
        builder.add_edge(source, target)
    builder.set_max_node_executions(10)
    return builder.build()


async def main(client: Client) -> None:
    graph = DurableGraph(client, "orders")
    result = await graph.invoke_async("Report on the orders.", {"limit": 3})
    for name in ("orders", "total", "late", "report"):
        node = result.results[name].result
        assert isinstance(node, AgentResult)
        print(f"{name}: {node.structured_output or str(node).strip()!r}")


if __name__ == "__main__":
    run(main, registry)
