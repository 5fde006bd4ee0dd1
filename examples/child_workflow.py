"""A graph as one step of a workflow of yours, here `Order` in examples/order_workflow.py.

The run is a child workflow: its questions, its history and its page in the UI are those of any
graph, under the id `<the workflow's id>/<the graph's name>`.
"""

from __future__ import annotations

from strands.multiagent.graph import Graph, GraphBuilder
from temporalio.client import Client

from durable_strands import DurableGraph, GraphRegistry, function_node
from durable_strands.demo.offline import Request
from durable_strands.wire import DEFAULT_TASK_QUEUE

from .order_workflow import Order
from .support import agent, run

registry = GraphRegistry()


def analyse(told: Request) -> str:
    return "suspicious" if "voucher" in told.inputs[""] else "harmless"


def score(prompt: str) -> int:
    if "suspicious" in prompt:
        raise ValueError("no score for vouchers")
    return 7


@registry.graph("risk")
def risk() -> Graph:
    builder = GraphBuilder()
    builder.add_node(agent("analyst", analyse), "analyst")
    builder.add_node(function_node(score), "score")
    builder.add_edge("analyst", "score")
    builder.set_max_node_executions(10)
    return builder.build()


async def main(client: Client) -> None:
    for number, text in enumerate(("3 books", "100 vouchers")):
        order = await client.start_workflow(
            Order.run, text, id=f"order-{number}", task_queue=DEFAULT_TASK_QUEUE
        )
        print(f"{text}: {await order.result()}")
        graph_run = DurableGraph(client, "risk").attach(f"{order.id}/risk")
        print(f"  {graph_run.id}: {(await graph_run.status()).status.value}")


if __name__ == "__main__":
    run(main, registry, [Order])
