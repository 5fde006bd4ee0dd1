"""Nine faults that Strands' own tests don't notice in an executor of graphs.

They were found by putting faults into a stand-in for `Graph` and running Strands' tests. Each
has a test here that fails with it, in both semantics.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from strands import Agent, tool
from strands.hooks import MessageAddedEvent
from strands.multiagent.base import Status
from strands.multiagent.graph import Graph, GraphState
from strands.types.tools import ToolContext
from temporalio.client import Client
from temporalio.common import RetryPolicy

from durable_strands import GraphRun, NodeOptions
from durable_strands.wire import Semantics

from .noting import DOCUMENT, IMAGE, PNG, CallingModel, Notes, SeeingModel, blocks_of
from .support import Gate, ToolModel, asked_by, build, eventually, gated, serve

ONCE = NodeOptions(
    retry=RetryPolicy(maximum_attempts=1), heartbeat_timeout=timedelta(milliseconds=900)
)

pytestmark = pytest.mark.filterwarnings("ignore:graph has no max_node_executions")

both_semantics = pytest.mark.parametrize("semantics", ["dataflow", "strands"])


def order(result: Any) -> list[str]:
    return [node.node_id for node in result.execution_order]


async def has_completed(run: GraphRun, node: str) -> bool:
    return (await run.status()).nodes[node].status.value == "completed"


@both_semantics
async def test_conditions_see_the_results(client: Client, semantics: Semantics) -> None:
    notes = Notes()

    def says(word: str) -> Any:
        return lambda state: word in str(state.results["judge"].result)

    def graph() -> Graph:
        judge = notes.node("judge", lambda _: "this is good")
        return build(
            {"judge": judge, **notes.nodes("good bad")},
            [("judge", "good", says("good")), ("judge", "bad", says("bad"))],
        )

    async with serve(client, graph, semantics=semantics) as durable:
        result = await durable.invoke_async("T")
    assert result.status is Status.COMPLETED
    assert notes.order == ["judge", "good"]


@both_semantics
async def test_the_invocation_state_reaches_nodes_and_tools(
    client: Client, semantics: Semantics
) -> None:
    notes, told = Notes(), []

    @tool(context=True)
    def listen(tool_context: ToolContext) -> str:
        """Note the tenant."""
        told.append(tool_context.invocation_state["tenant"])
        return "heard"

    def graph() -> Graph:
        asker = Agent(model=ToolModel("listen"), tools=[listen], callback_handler=None)
        return build({"a": notes.node("a"), "agent": asker}, [("a", "agent")])

    async with serve(client, graph, semantics=semantics) as durable:
        await durable.invoke_async("T", {"tenant": {"name": "acme"}})
    assert notes["a"].state == {"tenant": {"name": "acme"}}
    assert told == [{"name": "acme"}]


@both_semantics
async def test_what_a_node_writes_reaches_conditions_and_later_nodes(
    client: Client, semantics: Semantics
) -> None:
    notes = Notes()

    def write(state: dict[str, Any]) -> str:
        state["score"] = 9
        state["given"]["deep"] = True
        return "written"

    def high(state: GraphState, *, invocation_state: dict[str, Any]) -> bool:
        return bool(invocation_state.get("score", 0) > 5)

    def graph() -> Graph:
        return build({"a": notes.node("a", write), "b": notes.node("b")}, [("a", "b", high)])

    async with serve(client, graph, semantics=semantics) as durable:
        run = await durable.start("T", {"given": {}})
        assert order(await run.result()) == ["a", "b"]
        assert notes["b"].state == {"given": {"deep": True}, "score": 9}
        assert (await run.status()).invocation_state == {"given": {"deep": True}, "score": 9}


@both_semantics
async def test_a_failure_cancels_the_siblings(client: Client, semantics: Semantics) -> None:
    cancelled = asyncio.Event()
    started = asyncio.Event()

    async def slow(_: str) -> str:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return "never"

    async def bad(_: str) -> str:
        await started.wait()
        raise RuntimeError("bad broke")

    def graph() -> Graph:
        return build({"slow": slow, "bad": bad, "after": "A"}, [("slow", "after")])

    async with serve(client, graph, semantics=semantics, defaults=ONCE) as durable:
        run = await durable.start("T")
        with pytest.raises(RuntimeError, match="bad broke"):
            await run.result()
        await asyncio.wait_for(cancelled.wait(), 5)
        assert (await run.status()).nodes["after"].visits == 0


async def test_an_execution_timeout_ends_a_run_that_is_under_way(client: Client) -> None:
    """In dataflow it cancels what runs."""

    async def slow(_: str) -> str:
        await asyncio.sleep(60)
        return "never"

    def graph() -> Graph:
        return build(
            {"slow": slow, "after": "A"},
            [("slow", "after")],
            configure=lambda builder: builder.set_execution_timeout(0.3),
        )

    async with serve(client, graph, defaults=ONCE) as durable:
        began = time.monotonic()
        result = await durable.invoke_async("T")
        assert time.monotonic() - began < 10
    assert result.status is Status.FAILED
    assert order(result) == []


async def test_an_execution_timeout_is_looked_at_between_batches(client: Client) -> None:
    """As in Strands: the batch that overruns it ends, and nothing follows."""

    async def slow(_: str) -> str:
        await asyncio.sleep(0.5)
        return "S"

    def graph() -> Graph:
        return build(
            {"slow": slow, "after": "A"},
            [("slow", "after")],
            configure=lambda builder: builder.set_execution_timeout(0.3),
        )

    theirs = await graph().invoke_async("T")
    async with serve(client, graph, semantics="strands") as durable:
        ours = await durable.invoke_async("T")
    for result in (theirs, ours):
        assert result.status is Status.FAILED
        assert order(result) == ["slow"]


@both_semantics
@pytest.mark.parametrize("alone", [False, True])
async def test_a_resume_knows_the_siblings_that_completed_beside_the_question(
    client: Client, semantics: Semantics, alone: bool
) -> None:
    """The join reads both; and what only the sibling leads to isn't forgotten either."""
    notes = Notes()
    edges = [("b", "j")] if alone else [("a", "j"), ("b", "j")]

    def graph() -> Graph:
        return build(notes.nodes("a b j"), edges, configure=gated(Gate("a")))

    async with serve(client, graph, semantics=semantics) as durable:
        run = await durable.start("T")
        ids = await asked_by(run, "a")
        await eventually(lambda: has_completed(run, "b"))
        await run.respond({ids["a"]: "yes"})
        result = await run.result()
    assert result.status is Status.COMPLETED
    assert sorted(notes.order) == ["a", "b", "j"]
    read = "" if alone else "\nFrom a:  - Agent: A\n"
    assert notes["j"].text == (
        f"Original Task: T\nInputs from previous nodes:{read}\nFrom b:  - Agent: B\n"
    )


class Verdict(BaseModel):
    passed: bool
    points: list[int]


@both_semantics
async def test_structured_output_reaches_conditions_prompts_and_the_caller(
    client: Client, semantics: Semantics
) -> None:
    notes = Notes()

    def passed(state: GraphState) -> bool:
        output = state.results["judge"].result.structured_output  # type: ignore[union-attr]
        return isinstance(output, Verdict) and output.points == [3, 4]

    def graph() -> Graph:
        judge = Agent(
            model=CallingModel("Verdict", {"passed": True, "points": [3, 4]}),
            structured_output_model=Verdict,
            callback_handler=None,
        )
        return build(
            {"judge": judge, **notes.nodes("yes no")},
            [("judge", "yes", passed), ("judge", "no", lambda state: not passed(state))],
        )

    async with serve(client, graph, semantics=semantics) as durable:
        result = await durable.invoke_async("T")
    assert notes.order == ["yes"]
    assert notes["yes"].text.endswith('  - Agent: {"passed":true,"points":[3,4]}')
    judged: Any = result.results["judge"].result
    assert judged.structured_output == Verdict(passed=True, points=[3, 4])


@both_semantics
async def test_bytes_in_messages_come_back_as_bytes(client: Client, semantics: Semantics) -> None:
    """To the caller, to conditions, and to the agent's own model at its next visit."""
    seen: list[Any] = []
    conditions: list[bytes] = []

    def again(state: GraphState) -> bool:
        message = state.results["agent"].result.message  # type: ignore[union-attr]
        conditions.extend(image["source"]["bytes"] for image in blocks_of([message], "image"))
        return len(state.execution_order) < 2

    def paint(event: MessageAddedEvent) -> None:
        """Let the agent's last word hold an image, as image models' do."""
        if event.message["role"] == "assistant":
            event.message["content"].append(IMAGE)  # type: ignore[arg-type]

    def graph() -> Graph:
        painter = Agent(model=SeeingModel(seen), callback_handler=None)
        painter.add_hook(paint, MessageAddedEvent)
        return build({"agent": painter}, [("agent", "agent", again)], entries=["agent"])

    async with serve(client, graph, semantics=semantics) as durable:
        task: Any = [{"text": "look"}, IMAGE, DOCUMENT]
        result = await durable.invoke_async(task)
    assert order(result) == ["agent", "agent"]
    answer: Any = result.results["agent"].result
    assert blocks_of([answer.message], "image") == [IMAGE["image"]]
    assert set(conditions) == {PNG}
    second = seen[-1]
    assert len(second) == 3
    assert all(image["source"]["bytes"] == PNG for image in blocks_of(second, "image"))
    assert len(blocks_of(second[1:2], "image")) == 1
    assert blocks_of(second, "document")[0] == DOCUMENT["document"]


@both_semantics
async def test_images_and_documents_of_the_task_reach_every_node(
    client: Client, semantics: Semantics
) -> None:
    notes = Notes()

    def graph() -> Graph:
        return build(notes.nodes("a b c"), [("a", "b"), ("b", "c")])

    task: Any = [{"text": "look"}, IMAGE, DOCUMENT]
    async with serve(client, graph, semantics=semantics) as durable:
        await durable.invoke_async(task)
    assert notes["a"].prompt == task
    assert notes["b"].prompt == [
        {"text": "Original Task:"},
        *task,
        {"text": "\nInputs from previous nodes:"},
        {"text": "\nFrom a:"},
        {"text": "  - Agent: A\n"},
    ]
    assert notes["c"].prompt[:4] == [{"text": "Original Task:"}, *task]
