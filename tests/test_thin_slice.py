"""A graph of two agents, end to end on a real server."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from strands.multiagent.base import MultiAgentBase, Status
from strands.multiagent.graph import Graph
from temporalio.client import Client, WorkflowExecutionStatus

from durable_strands import NodeOptions, RunClosedError, current_node

from .support import agent, build, eventually, scheduled, serve


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


async def test_a_retry_of_the_node_that_it_is_takes_its_run_up_again(client: Client) -> None:
    called: list[str] = []

    def pay(prompt: str) -> str:
        called.append(prompt)
        return "done"

    def inner() -> Graph:
        return build({"paid": pay})

    async with serve(client, inner) as durable:

        class Flaky(MultiAgentBase):
            """Fails after the run that it waits for, the first time."""

            id = "flaky"

            async def invoke_async(self, task: Any, *args: Any, **kwargs: Any) -> Any:
                result = await durable.invoke_async(task)
                if current_node().attempt == 1:
                    raise RuntimeError("lost")
                return result

        async with serve(client, lambda: build({"node": Flaky()})) as outer:
            result = await outer.invoke_async("T")
        assert result.status is Status.COMPLETED
        assert called == ["T"]


async def test_a_cancelled_node_cancels_the_run_that_it_waits_for(client: Client) -> None:
    begun = asyncio.Event()

    async def slow(_: str) -> str:
        begun.set()
        await asyncio.sleep(60)
        return "late"

    quick = NodeOptions(heartbeat_timeout=timedelta(seconds=1))
    async with (
        serve(client, lambda: build({"slow": slow}), defaults=quick) as durable,
        serve(client, lambda: build({"inner": durable}), defaults=quick) as outer,
    ):
        run = await outer.start("T")
        await asyncio.wait_for(begun.wait(), 20)
        await run.cancel()
        with pytest.raises(RunClosedError, match="cancelled"):
            await run.result()

        async def inner_is_cancelled() -> bool:
            runs = [one async for one in client.list_workflows("WorkflowType='StrandsGraph'")]
            inner = [one for one in runs if one.id.startswith("graph-in-node-")]
            return bool(inner) and all(
                one.status is WorkflowExecutionStatus.CANCELED
                for one in inner
                if one.task_queue == durable._task_queue
            )

        await eventually(inner_is_cancelled)


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
