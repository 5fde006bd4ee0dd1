"""Conversations over several runs: agents begin with what they remember of the last one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest
from strands import Agent
from strands.multiagent.base import Status
from strands.multiagent.graph import Graph
from temporalio.client import Client

from durable_strands import (
    DurableGraph,
    GraphNotRegisteredError,
    GraphRegistry,
    InvalidGraphInputError,
    NodeOptions,
    SessionBusyError,
    on_error,
)

from .support import Gate, ScriptedModel, asked_by, build, gated, replay_queue, worker_for


class Remembering(ScriptedModel):
    """Says what the user's messages of the whole conversation were, the last line of each."""

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        said = [
            message["content"][0]["text"].splitlines()[-1]
            for message in messages
            if message["role"] == "user"
        ]
        self.reply = " | ".join(said)
        if "FAIL" in said[-1]:
            raise ValueError("as told")
        async for event in super().stream(messages):
            yield event


def remembering() -> Agent:
    return Agent(model=Remembering(""), callback_handler=None)


def text(result: Any, node: str) -> str:
    return str(result.results[node].result).strip()


async def test_agents_go_on_where_the_last_run_left_them(client: Client) -> None:
    registry = GraphRegistry()

    @registry.graph("g", nodes={"fresh": NodeOptions(on_revisit="reset")})
    def factory() -> Graph:
        return build(
            {"a": remembering(), "fresh": remembering(), "team": build({"x": remembering()})}
        )

    async with worker_for(client, registry) as queue:
        alice = DurableGraph(client, "g", task_queue=queue, id=f"s1-{queue}", session="alice")
        bob = DurableGraph(client, "g", task_queue=queue, id=f"s1-{queue}", session="bob")
        await alice.invoke_async("one")
        second = await alice.invoke_async("two")
        other = await bob.invoke_async("ONE")
        # Whoever comes later, in whatever process, has the same session by its name.
        alice = DurableGraph(client, "g", task_queue=queue, id=f"s1-{queue}", session="alice")
        third = await alice.invoke_async("three")
        await replay_queue(client, queue)
    assert text(second, "a") == "one | two"
    assert text(other, "a") == "ONE"
    assert text(third, "a") == "one | two | three"
    assert text(third, "fresh") == "three"
    assert str(third.results["team"].get_agent_results()[0]).strip() == "one | two | three"


async def test_what_a_run_did_not_reach_is_remembered_from_before(client: Client) -> None:
    registry = GraphRegistry()

    def asked_for_b(state: Any) -> bool:
        return "b" in str(state.task)

    @registry.graph("g")
    def factory() -> Graph:
        return build({"a": remembering(), "b": remembering()}, [("a", "b", asked_for_b)])

    async with worker_for(client, registry) as queue:
        graph = DurableGraph(client, "g", task_queue=queue, id=f"s2-{queue}", session="s")
        for task in ("b1", "a2", "b3"):
            last = await graph.invoke_async(task)
    assert text(last, "a") == "b1 | a2 | b3"
    assert len(text(last, "b").split(" | ")) == 2


async def test_a_run_that_fails_leaves_what_it_had(client: Client) -> None:
    registry = GraphRegistry()
    registry.add("g", lambda: build({"a": remembering()}))
    async with worker_for(client, registry) as queue:
        graph = DurableGraph(client, "g", task_queue=queue, id=f"s3-{queue}", session="s")
        await graph.invoke_async("one")
        with pytest.raises(ValueError, match="as told"):
            await graph.invoke_async("FAIL")
        result = await graph.invoke_async("three")
        await replay_queue(client, queue)
    assert text(result, "a") == "one | three"


async def test_a_run_that_never_began_forgets_nothing(client: Client) -> None:
    registry = GraphRegistry()
    registry.add("g", lambda: build({"a": remembering()}))
    async with worker_for(client, registry) as queue:
        graph = DurableGraph(client, "g", task_queue=queue, id=f"s9-{queue}", session="s")
        await graph.invoke_async("one")
        other = DurableGraph(client, "nope", task_queue=queue, id=f"s9-{queue}", session="s")
        for _ in range(2):
            with pytest.raises(GraphNotRegisteredError):
                await other.invoke_async("two")
        result = await graph.invoke_async("three")
        await replay_queue(client, queue)
    assert text(result, "a") == "one | three"


async def test_a_retry_remembers_the_runs_before_its_own(client: Client) -> None:
    registry = GraphRegistry()
    failures = iter([False, True])

    def sometimes(_: str) -> str:
        if next(failures, False):
            raise ValueError("once")
        return "B"

    registry.add("g", lambda: build({"a": remembering(), "b": sometimes}, [("a", "b")]))
    async with worker_for(client, registry) as queue:
        graph = DurableGraph(client, "g", task_queue=queue, id=f"s10-{queue}", session="s")
        await graph.invoke_async("zero")
        run = await graph.start("one")
        with pytest.raises(ValueError, match="once"):
            await run.result()
        await (await run.retry()).result()
        result = await graph.invoke_async("two")
        await replay_queue(client, queue)
    assert text(result, "a") == "zero | one | two"


async def test_what_was_cut_off_is_not_remembered_even_if_it_went_on(client: Client) -> None:
    """An activity hears of its cancellation late, and its model may not listen at all."""

    class Deaf(Remembering):
        async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            until = time.monotonic() + (2 if "SLOW" in str(messages[-1]) else 0)
            while time.monotonic() < until:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.1)
            async for event in super().stream(messages):
                yield event

    async def waits(_: str) -> str:
        await asyncio.sleep(3)
        return "late"

    def factory() -> Graph:
        def limited(builder: Any) -> None:
            builder.set_execution_timeout(1)

        deaf = Agent(model=Deaf(""), callback_handler=None)
        nodes = {"team": build({"x": deaf}, configure=limited), "sorry": waits}
        return build(nodes, [("team", "sorry", on_error)], entries=["team", "sorry"])

    registry = GraphRegistry()
    registry.add("g", factory)
    async with worker_for(client, registry) as queue:
        graph = DurableGraph(client, "g", task_queue=queue, id=f"s11-{queue}", session="s")
        run = await graph.start("SLOW one")
        await run.result()
        stops = [event async for event in run.events() if event["type"].endswith("node_stream")]
        assert not any(event["event"]["type"].endswith("node_stop") for event in stops)
        result = await graph.invoke_async("two")
        await replay_queue(client, queue)
    assert str(result.results["team"].get_agent_results()[0]).strip() == "two"


async def test_one_run_at_a_time(client: Client) -> None:
    registry = GraphRegistry()
    registry.add("g", lambda: build({"a": remembering()}, configure=gated(Gate("a"))))
    async with worker_for(client, registry) as queue:
        graph = DurableGraph(client, "g", task_queue=queue, id=f"s4-{queue}", session="s")
        first = await graph.invoke_async("one")
        assert first.status is Status.INTERRUPTED
        with pytest.raises(SessionBusyError, match="hasn't ended"):
            await graph.invoke_async("two")
        # An answer needs no object that remembers the run: the session knows it.
        later = DurableGraph(client, "g", task_queue=queue, id=f"s4-{queue}", session="s")
        answer: Any = {
            "interruptResponse": {"interruptId": first.interrupts[0].id, "response": "yes"}
        }
        assert (await later.invoke_async([answer])).status is Status.COMPLETED
        with pytest.raises(InvalidGraphInputError, match="workflow id"):
            await graph.start("three", workflow_id="mine")


async def test_a_retry_belongs_to_its_session(client: Client) -> None:
    registry = GraphRegistry()
    failures = iter([True])

    def sometimes(_: str) -> str:
        if next(failures, False):
            raise ValueError("once")
        return "B"

    registry.add("g", lambda: build({"a": remembering(), "b": sometimes}, [("a", "b")]))
    async with worker_for(client, registry) as queue:
        graph = DurableGraph(client, "g", task_queue=queue, id=f"s5-{queue}", session="s")
        run = await graph.start("one")
        with pytest.raises(ValueError, match="once"):
            await run.result()
        again = await run.retry()
        assert again.id == run.id
        await again.result()
        result = await graph.invoke_async("two")
        await replay_queue(client, queue)
    assert text(result, "a") == "one | two"


async def test_a_question_inside_a_session_keeps_its_place(client: Client) -> None:
    registry = GraphRegistry()
    registry.add(
        "g",
        lambda: build(
            {"a": remembering(), "b": remembering()}, [("a", "b")], configure=gated(Gate("b"))
        ),
    )
    async with worker_for(client, registry) as queue:
        graph = DurableGraph(client, "g", task_queue=queue, id=f"s6-{queue}", session="s")
        run = await graph.start("one")
        ids = await asked_by(run, "b")
        await run.cancel()
        with pytest.raises(Exception, match="cancelled"):
            await run.result()
        run = await graph.start("two")
        ids = await asked_by(run, "b")
        await run.respond({ids["b"]: "yes"})
        result = await run.result()
    assert text(result, "a") == "one | two"
