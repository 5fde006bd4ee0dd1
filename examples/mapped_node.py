"""A node mapped over a list that is known only at run time.

    plan -> search, once for each question -> report

The visits run side by side, `max_concurrency` at most; the report reads them once, in the
list's order, whichever came first.
"""

from __future__ import annotations

import asyncio

from strands.multiagent.base import MultiAgentResult, NodeResult
from strands.multiagent.graph import Graph, GraphBuilder
from temporalio.client import Client

from durable_strands import DurableGraph, GraphRegistry, NodeOptions, function_node

from .support import agent, run

QUESTIONS = "What is it?\nWho uses it?\nWhat does it cost?"

registry = GraphRegistry()


def questions(results: dict[str, NodeResult]) -> list[str]:
    """Return the items: a line of the plan each. Any JSON may be one."""
    return str(results["plan"].result).strip().splitlines()


def search_input(task: str, item: str) -> str:
    """Make the input of one visit; without this function Strands' own text and the item."""
    return f"{task}: {item}"


async def search(prompt: str) -> str:
    await asyncio.sleep(0.2 if "What is it?" in prompt else 0)  # The first one is the slowest.
    return f"found something about {prompt!r}"


@registry.graph(
    "research",
    max_concurrency=8,
    nodes={"search": NodeOptions(map_over=questions, input=search_input)},
)
def research() -> Graph:
    builder = GraphBuilder()
    builder.add_node(agent("planner", lambda _: QUESTIONS), "plan")
    builder.add_node(function_node(search), "search")
    reporter = agent("reporter", lambda told: f"{told.inputs['search'].count('found')} answers")
    builder.add_node(reporter, "report")
    builder.add_edge("plan", "search")
    builder.add_edge("search", "report")
    builder.set_max_node_executions(10)
    return builder.build()


async def main(client: Client) -> None:
    result = await DurableGraph(client, "research").invoke_async("Temporal")
    found = result.results["search"].result
    assert isinstance(found, MultiAgentResult)
    for index, visit in found.results.items():
        print(f"{index}: {str(visit.result).strip()}")
    print(str(result.results["report"].result).strip())


if __name__ == "__main__":
    run(main, registry)
