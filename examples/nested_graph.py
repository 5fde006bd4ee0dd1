"""A graph inside a graph: its nodes have paths, and a human answers one of them.

    write -> review -> publish
             review: facts -+-> approve
                     style -+

All of it is one workflow. Each node inside is an activity of its own, so a crash costs one
agent's work, not the whole review.
"""

from __future__ import annotations

from strands.multiagent.graph import Graph, GraphBuilder, GraphResult
from strands.types.interrupt import InterruptResponse, InterruptResponseContent
from temporalio.client import Client

from durable_strands import DurableGraph, GraphRegistry, NodeOptions, function_node, human_gate
from durable_strands.demo.offline import Request

from .support import agent, run

registry = GraphRegistry()


def style(told: Request) -> str:
    return f"{len(told.inputs['write'].split())} words"


def review() -> Graph:
    builder = GraphBuilder()
    builder.add_node(agent("facts", lambda _: "nothing wrong"), "facts")
    builder.add_node(agent("style", style), "style")
    builder.add_node(human_gate("May it be published?"), "approve")
    builder.add_edge("facts", "approve")
    builder.add_edge("style", "approve")
    builder.set_execution_timeout(3600)  # The time that the human takes doesn't count.
    return builder.build()


@registry.graph("article", nodes={"review/facts": NodeOptions(summary="check the facts")})
def article() -> Graph:
    builder = GraphBuilder()
    builder.add_node(agent("writer", lambda _: "Temporal keeps what was done."), "write")
    builder.add_node(review(), "review")
    builder.add_node(function_node(lambda: "published"), "publish")
    builder.add_edge("write", "review")
    builder.add_edge("review", "publish")
    builder.set_max_node_executions(10)
    return builder.build()


async def main(client: Client) -> None:
    graph = DurableGraph(client, "article")
    (question,) = (await graph.invoke_async("Write about Temporal.")).interrupts
    print(f"{question.id} asks: {question.reason['question']}")
    for line in question.reason["prompt"].splitlines():
        if line.startswith("  - "):
            print(line)
    response = InterruptResponse(interruptId=question.id, response="yes")
    result = await graph.invoke_async([InterruptResponseContent(interruptResponse=response)])
    print(" -> ".join(node.node_id for node in result.execution_order))
    inside = result.results["review"].result
    assert isinstance(inside, GraphResult)
    print("review:", inside.status.value, sorted(inside.results))


if __name__ == "__main__":
    run(main, registry)
