"""What follows a failure: an edge that is taken when its source fails, and only then.

    lookup --> answer
       |
       +-on_error-> apologise

The failure is handled: the run completes. Retries come first; the error that is left over is
what the next node reads.
"""

from __future__ import annotations

from datetime import timedelta

from strands.multiagent.graph import Graph, GraphBuilder
from temporalio.client import Client
from temporalio.common import RetryPolicy

from durable_strands import DurableGraph, GraphRegistry, NodeOptions, function_node, on_error

from .support import agent, run

STOCK = {"book": 3, "lamp": 0}
QUICK = RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=2)

registry = GraphRegistry()


@function_node
def lookup(prompt: str) -> str:
    if prompt not in STOCK:
        raise LookupError(f"there is no {prompt}")
    return f"{STOCK[prompt]} in stock"


@registry.graph("shop", nodes={"lookup": NodeOptions(retry=QUICK)})
def shop() -> Graph:
    builder = GraphBuilder()
    builder.add_node(lookup, "lookup")
    builder.add_node(agent("clerk", lambda told: f"We have {told.inputs['lookup']}."), "answer")
    excuse = agent("excuse", lambda told: f"Sorry, we can't say. ({told.inputs['lookup']})")
    builder.add_node(excuse, "apologise")
    builder.add_edge("lookup", "answer")
    builder.add_edge("lookup", "apologise", condition=on_error)
    builder.set_max_node_executions(10)
    return builder.build()


async def main(client: Client) -> None:
    graph = DurableGraph(client, "shop")
    for task in ("book", "sofa"):
        result = await graph.invoke_async(task)
        last = result.execution_order[-1].node_id
        print(f"{task}: {str(result.results[last].result).strip()}")
        nodes = ", ".join(f"{name} {node.status.value}" for name, node in result.results.items())
        print(f"  {result.status.value}: {nodes}")


if __name__ == "__main__":
    run(main, registry)
