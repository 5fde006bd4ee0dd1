"""A writer and a critic, until the critic is content.

    writer -> critic --accept--> publish
      ^         |
      +-revise--+

From visit to visit the agents keep their conversation.
"""

from __future__ import annotations

import re

from strands.multiagent.graph import Graph, GraphBuilder, GraphState
from temporalio.client import Client

from durable_strands import DurableGraph, GraphRegistry, function_node
from durable_strands.demo.offline import Request

from .support import agent, run

DRAFT = "Temporal is a really very durable execution system"
FILLERS = ("really", "very", "a", "system")
MOST_WORDS = 5

registry = GraphRegistry()


def write(told: Request) -> str:
    """Write a draft; told to cut some words, leave the fillers out."""
    demand = re.search(r"cut (\d+)", told.inputs.get("critic", ""))
    fillers = FILLERS[: int(demand[1])] if demand else ()
    return " ".join(word for word in DRAFT.split() if word not in fillers)


def criticise(told: Request) -> str:
    length = len(told.inputs["writer"].split())
    return "ACCEPT" if length <= MOST_WORDS else f"REVISE: cut {length - MOST_WORDS} words"


def says(verdict: str, state: GraphState) -> bool:
    return str(state.results["critic"].result).startswith(verdict)


@registry.graph("writing")
def writing() -> Graph:
    builder = GraphBuilder()
    builder.add_node(agent("writer", write), "writer")
    builder.add_node(agent("critic", criticise), "critic")
    builder.add_node(function_node(lambda: "published"), "publish")
    builder.add_edge("writer", "critic")
    builder.add_edge("critic", "writer", condition=lambda state: says("REVISE", state))
    builder.add_edge("critic", "publish", condition=lambda state: says("ACCEPT", state))
    builder.set_entry_point("writer")
    builder.set_max_node_executions(20)
    return builder.build()


async def main(client: Client) -> None:
    async for event in DurableGraph(client, "writing").stream_async("Say what Temporal is."):
        if event["type"] == "multiagent_node_stop":
            print(f"{event['node_id']}: {str(event['node_result'].result).strip()}")


if __name__ == "__main__":
    run(main, registry)
