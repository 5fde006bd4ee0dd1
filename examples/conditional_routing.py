"""A request goes where it belongs: by what an agent says of it, and by who sent it.

    triage --billing----> billing
       +----technical---> support
       +----(any, if the customer is a VIP)--> manager

Conditions are Strands' own: functions of the graph's state and, if they ask for it, the run's.
"""

from __future__ import annotations

from typing import Any

from strands.multiagent.graph import Graph, GraphBuilder, GraphState
from temporalio.client import Client

from durable_strands import DurableGraph, GraphRegistry, function_node
from durable_strands.demo.offline import Request

from .support import agent, run

registry = GraphRegistry()


def triage(told: Request) -> str:
    return "billing" if "invoice" in told.inputs[""] else "technical"


def about_billing(state: GraphState) -> bool:
    return "billing" in str(state.results["triage"].result)


def about_technology(state: GraphState) -> bool:
    return not about_billing(state)


def is_vip(state: GraphState, *, invocation_state: dict[str, Any], **kwargs: Any) -> bool:
    del state, kwargs
    return bool(invocation_state.get("vip"))


@registry.graph("help desk")
def help_desk() -> Graph:
    builder = GraphBuilder()
    builder.add_node(agent("triage", triage), "triage")
    for desk in ("billing", "support", "manager"):
        builder.add_node(function_node(lambda: "done", name=desk), desk)
    builder.add_edge("triage", "billing", condition=about_billing)
    builder.add_edge("triage", "support", condition=about_technology)
    builder.add_edge("triage", "manager", condition=is_vip)
    builder.set_max_node_executions(10)
    return builder.build()


async def main(client: Client) -> None:
    graph = DurableGraph(client, "help desk")
    for text, state in (
        ("My invoice is wrong.", {}),
        ("It doesn't start.", {}),
        ("It doesn't start.", {"vip": True}),
    ):
        result = await graph.invoke_async(text, state)
        desks = sorted(node.node_id for node in result.execution_order[1:])
        print(f"{text} {state or ''} -> {', '.join(desks)}")


if __name__ == "__main__":
    run(main, registry)
