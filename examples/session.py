"""A conversation over several runs: each one's agents begin with what they remember of the last.

The memory is the last run's history; there is no other store. Any process that knows the
session's name goes on with it.
"""

from __future__ import annotations

from strands.multiagent.graph import Graph, GraphBuilder
from strands.types.content import Messages
from temporalio.client import Client

from durable_strands import DurableGraph, GraphRegistry

from .scripted import scripted
from .support import run

registry = GraphRegistry()


def recall(messages: Messages) -> str:
    """Answer with all that the user ever said in this conversation."""
    said = [m["content"][0]["text"] for m in messages if m["role"] == "user"]
    return " ".join(said)


@registry.graph("chat")
def chat() -> Graph:
    builder = GraphBuilder()
    builder.add_node(scripted("assistant", recall), "assistant")
    builder.set_max_node_executions(10)
    return builder.build()


async def main(client: Client) -> None:
    for who, text in (
        ("ann", "I am Ann."),
        ("bob", "I am Bob."),
        ("ann", "I like tea."),
        ("ann", "Who am I?"),
    ):
        graph = DurableGraph(client, "chat", session=who)
        result = await graph.invoke_async(text)
        print(f"{who}: {str(result.results['assistant'].result).strip()}")


if __name__ == "__main__":
    run(main, registry)
