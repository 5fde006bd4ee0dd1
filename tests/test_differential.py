"""A seeded part of `make differential`, and one test for each thing that it has found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from strands.hooks import AfterNodeCallEvent, BeforeNodeCallEvent
from strands.multiagent.base import Status
from strands.multiagent.graph import Graph, GraphBuilder
from strands.types.interrupt import InterruptResponse, InterruptResponseContent
from temporalio.client import Client

from durable_strands import NodeOptions

from .case_graphs import ONCE
from .differential.compare import Figures, compare
from .differential.dataflow import compare_dataflow
from .support import Edge, Executors, build, serve

SEEDS = range(9_000_000, 9_000_012)
FRAGILE = NodeOptions(retry=ONCE)


async def test_a_worker_runs_graphs_as_strands_does(client: Client) -> None:
    figures = Figures()
    await compare(client, SEEDS, figures, replays=True)
    assert not figures.differences, "\n".join(figures.differences)
    assert figures.runs["that completed"]
    assert figures.runs["with interrupts"]
    assert figures.runs["that raised"]


async def test_a_worker_runs_graphs_as_the_model_does(client: Client) -> None:
    figures = Figures()
    await compare_dataflow(client, SEEDS[:6], figures, replays=True)
    assert not figures.differences, "\n".join(figures.differences)
    assert figures.runs["that ended: completed"]


class Before:
    """A BeforeNodeCall hook."""

    def __init__(self, call: Callable[[BeforeNodeCallEvent], Any]) -> None:
        self._call = call

    def register_hooks(self, registry: Any, **kwargs: Any) -> None:
        registry.add_callback(BeforeNodeCallEvent, self._call)


class After:
    """An AfterNodeCall hook."""

    def __init__(self, call: Callable[[AfterNodeCallEvent], Any]) -> None:
        self._call = call

    def register_hooks(self, registry: Any, **kwargs: Any) -> None:
        registry.add_callback(AfterNodeCallEvent, self._call)


def hooked(nodes: Executors, *hooks: Any, edges: tuple[Edge, ...] = ()) -> Callable[[], Graph]:
    def configure(builder: GraphBuilder) -> None:
        builder.set_hook_providers(list(hooks))
        builder.set_max_node_executions(10)

    return lambda: build(nodes, edges, configure=configure)


def asks(event: BeforeNodeCallEvent) -> None:
    event.interrupt("approve")


def cancels(event: BeforeNodeCallEvent) -> None:
    event.cancel_node = "no"


def breaks(event: Any) -> None:
    event.invocation_state["seen"] = event.node_id
    raise LookupError("broken hook")


def fails(text: str) -> str:
    raise KeyError("missing")


async def test_a_question_of_one_hook_comes_before_the_cancel_of_another(client: Client) -> None:
    graph = hooked({"a": "A"}, Before(asks), Before(cancels))
    async with serve(client, graph, semantics="strands") as durable:
        first = await durable.invoke_async("t")
        assert first.status is Status.INTERRUPTED
        answer = InterruptResponse(interruptId=first.interrupts[0].id, response="yes")
        with pytest.raises(RuntimeError, match="no"):
            await durable.invoke_async([InterruptResponseContent(interruptResponse=answer)])


async def test_a_node_that_a_hook_cancels_stops(client: Client) -> None:
    async with serve(client, hooked({"a": "A"}, Before(cancels)), semantics="strands") as durable:
        run = await durable.start("t")
        assert [event["type"] async for event in run.events()] == [
            "multiagent_node_start",
            "multiagent_node_cancel",
            "multiagent_node_stop",
            "multiagent_result",
        ]


async def test_hooks_hear_of_the_end_of_a_node_that_is_cut_off(client: Client) -> None:
    begun, ended = asyncio.Event(), []

    async def begins(text: str) -> str:
        begun.set()
        await asyncio.sleep(3600)
        return "never"

    async def raises(text: str) -> str:
        await begun.wait()
        raise ValueError("b broke")

    graph = hooked({"a": begins, "b": raises}, After(lambda event: ended.append(event.node_id)))
    async with serve(client, graph, defaults=FRAGILE) as durable:
        with pytest.raises(ValueError, match="b broke"):
            await durable.invoke_async("t")
    assert ended == ["b", "a"]


async def test_a_key_error_comes_back_as_it_was(client: Client) -> None:
    async with serve(client, lambda: build({"a": fails}), defaults=FRAGILE) as durable:
        with pytest.raises(KeyError) as raised:
            await durable.invoke_async("t")
        assert raised.value.args == ("missing",)


@pytest.mark.parametrize("kind", [Before, After])
async def test_what_a_hook_wrote_before_it_raised_stays(client: Client, kind: Any) -> None:
    async with serve(client, hooked({"a": "A"}, kind(breaks))) as durable:
        run = await durable.start("t")
        with pytest.raises(LookupError, match="broken hook"):
            await run.result()
        assert (await run.status()).invocation_state == {"seen": "a"}


async def test_what_a_condition_wrote_before_it_raised_stays(client: Client) -> None:
    def condition(state: Any, *, invocation_state: dict[str, Any]) -> bool:
        invocation_state["seen"] = True
        raise LookupError("broken condition")

    graph = hooked({"a": "A", "b": "B"}, edges=(("a", "b", condition),))
    async with serve(client, graph) as durable:
        run = await durable.start("t")
        with pytest.raises(LookupError, match="broken condition"):
            await run.result()
        assert (await run.status()).invocation_state == {"seen": True}
