"""A human approves what an agent wrote, before it is sent.

    writer -> approve --yes--> send
                 |
                 +------no---> shred

The question waits in the run's history: for a minute or a month, whatever becomes of the worker.
"""

from __future__ import annotations

from strands.multiagent.graph import Graph, GraphBuilder, GraphState
from strands.types.interrupt import InterruptResponse, InterruptResponseContent
from temporalio.client import Client

from durable_strands import DurableGraph, GraphRegistry, function_node, human_gate

from .support import agent, run

registry = GraphRegistry()


def yes_or_no(answer: object) -> str | None:
    return None if answer in ("yes", "no") else "Please answer yes or no."


def approved(state: GraphState) -> bool:
    return str(state.results["approve"].result).strip() == "yes"


@registry.graph("approval")
def approval() -> Graph:
    builder = GraphBuilder()
    builder.add_node(agent("writer", lambda _: "Dear customer, you get 40 % off."), "writer")
    builder.add_node(human_gate("May this be sent?", check=yes_or_no), "approve")
    builder.add_node(function_node(lambda: "sent"), "send")
    builder.add_node(function_node(lambda: "shredded"), "shred")
    builder.add_edge("writer", "approve")
    builder.add_edge("approve", "send", condition=approved)
    builder.add_edge("approve", "shred", condition=lambda state: not approved(state))
    builder.set_max_node_executions(10)
    return builder.build()


async def main(client: Client) -> None:
    graph = DurableGraph(client, "approval")
    result = await graph.invoke_async("Write to our customer.")
    for answer in ("maybe", "yes"):
        (question,) = result.interrupts
        print(f"{question.reason['question']} {question.reason.get('problem', '')}".strip())
        print(f"> {answer}")
        response = InterruptResponse(interruptId=question.id, response=answer)
        result = await graph.invoke_async([InterruptResponseContent(interruptResponse=response)])
    print(" -> ".join(node.node_id for node in result.execution_order))


if __name__ == "__main__":
    run(main, registry)
