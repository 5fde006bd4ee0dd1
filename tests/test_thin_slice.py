"""A graph of two agents, end to end on a real server."""

from __future__ import annotations

import asyncio

from strands.multiagent.base import Status
from strands.multiagent.graph import Graph
from temporalio.client import Client

from .support import agent, build, scheduled, serve


def two_agents() -> Graph:
    return build(
        {
            "a": agent(lambda prompt: f"A({prompt})"),
            "b": agent(lambda prompt: f"B({prompt})"),
        },
        [("a", "b")],
    )


async def test_two_agents_run_one_after_the_other(client: Client) -> None:
    async with serve(client, two_agents) as graph:
        run = await graph.start("hello")
        result = await run.result()

        assert result.status is Status.COMPLETED
        assert [node.node_id for node in result.execution_order] == ["a", "b"]
        assert str(result.results["b"]) == (
            "B(Original Task: hello\nInputs from previous nodes:\nFrom a:  - Agent: A(hello)\n)\n"
        )
        assert result.accumulated_usage == {
            "inputTokens": 20,
            "outputTokens": 10,
            "totalTokens": 30,
        }
        assert await scheduled(client, run.id) == ["graph.a", "graph.b"]


async def test_the_stream_has_strands_own_events(client: Client) -> None:
    async with serve(client, two_agents) as graph:
        events = [event async for event in graph.stream_async("hello")]

        assert [(event["type"], event.get("node_id")) for event in events] == [
            ("multiagent_node_start", "a"),
            ("multiagent_node_stop", "a"),
            ("multiagent_handoff", None),
            ("multiagent_node_start", "b"),
            ("multiagent_node_stop", "b"),
            ("multiagent_result", None),
        ]
        assert events[2]["from_node_ids"] == ["a"]
        assert events[2]["to_node_ids"] == ["b"]
        assert str(events[1]["node_result"]) == "A(hello)\n"
        assert events[-1]["result"].status is Status.COMPLETED


async def test_a_result_too_large_for_one_payload_is_whole_for_its_caller(client: Client) -> None:
    def large() -> Graph:
        return build({f"n{i}": (lambda _, i=i: f"{i}" * 700_000) for i in range(4)})

    async with serve(client, large) as graph:
        run = await graph.start("t")
        result = await run.result()
        assert {name: len(str(node)) for name, node in result.results.items()} == {
            f"n{i}": 700_001 for i in range(4)
        }
        assert (await run.status()).truncated
        async for event in run.events():
            last = event
        assert len(str(last["result"].results["n3"])) == 700_001


async def test_a_run_that_ended_tells_its_status_without_a_worker(client: Client) -> None:
    async with serve(client, two_agents) as graph:
        run = await graph.start("hello")
        await run.result()
    assert (await run.status()).execution_order == ["a", "b"]


async def test_it_stands_wherever_a_strands_graph_could(client: Client) -> None:
    """Called from synchronous code, and as a node of an ordinary Strands graph."""
    async with serve(client, two_agents) as durable:
        assert (await asyncio.to_thread(durable, "hello")).status is Status.COMPLETED
        outer = build(
            {"first": "F", "inner": durable, "last": lambda prompt: prompt},
            [("first", "inner"), ("inner", "last")],
        )
        result = await outer.invoke_async("hello", {"mine": 1})
        assert result.status is Status.COMPLETED
        assert "  - Agent: B(" in str(result.results["last"])
