"""Swarms: each turn an activity, each handoff in history; registered alone or as a node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from strands import Agent, tool
from strands.multiagent.base import Status
from strands.multiagent.graph import Graph
from strands.multiagent.swarm import Swarm, SwarmResult
from strands.types.tools import ToolContext
from temporalio.client import Client

from durable_strands import DurableSwarm, GraphRegistry, InvalidGraphError, NodeOptions

from .support import (
    Gate,
    ScriptedModel,
    asked_by,
    build,
    replay_queue,
    scheduled,
    serve,
    worker_for,
)

Call = tuple[str, dict[str, Any]]
Step = str | Call | list[Call]
"""What a model does next: it says a text, or calls a tool or several."""


class StepModel(ScriptedModel):
    """A model that takes the steps of a script, one at each call; the last one again and again.

    `seen` gets the text of each prompt that begins a turn, and `results` what tools gave.
    """

    def __init__(self, *steps: Step, seen: list[str] | None = None) -> None:
        super().__init__("")
        self.steps = list(steps)
        self.seen = seen if seen is not None else []
        self.results: list[str] = []

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        given = [b["toolResult"] for b in messages[-1]["content"] if "toolResult" in b]
        if given:
            self.results += [result["content"][0]["text"] for result in given]
        else:
            self.seen.append("".join(b.get("text", "") for b in messages[-1]["content"]))
        taken = sum(message["role"] == "assistant" for message in messages)
        step = self.steps[min(taken, len(self.steps) - 1)]
        if isinstance(step, str):
            self.reply = step
            async for event in super().stream([{"content": [{"text": ""}]}]):
                yield event
            return
        yield {"messageStart": {"role": "assistant"}}
        for number, (name, arguments) in enumerate([step] if isinstance(step, tuple) else step):
            use = {"toolUseId": f"use-{taken}-{number}", "name": name}
            yield {"contentBlockStart": {"start": {"toolUse": use}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(arguments)}}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use"}}
        usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 7}}}


def member(name: str, *steps: Step, seen: list[str] | None = None, **options: Any) -> Agent:
    model = StepModel(*steps, seen=seen)
    return Agent(name=name, model=model, callback_handler=None, **options)


def to(name: str, message: str = "yours", **context: Any) -> Call:
    """Return the call of the handoff tool."""
    arguments: dict[str, Any] = {"agent_name": name, "message": message}
    return "handoff_to_agent", arguments | ({"context": context} if context else {})


@asynccontextmanager
async def swarm_of(
    client: Client, factory: Callable[[], Swarm], **options: Any
) -> AsyncIterator[DurableSwarm]:
    """Serve a swarm, and replay what it did."""
    registry = GraphRegistry()
    registry.add_swarm("swarm", factory, **options)
    async with worker_for(client, registry) as queue:
        yield DurableSwarm(client, "swarm", task_queue=queue)
        await replay_queue(client, queue)


def relay(seen: dict[str, list[str]], **options: Any) -> Swarm:
    """Return a swarm in which a hands to b, b to c, and c says the end."""
    return Swarm(
        [
            member(
                "a",
                to("b", "look into it", z="last", y=[1, {"b": 2, "a": 1}]),
                "A",
                seen=seen.setdefault("a", []),
                description="begins",
            ),
            member("b", to("c", "end it", found=True), "B", seen=seen.setdefault("b", [])),
            member("c", "the end", seen=seen.setdefault("c", []), description="ends"),
        ],
        **options,
    )


async def test_prompts_events_and_result_are_those_of_strands(client: Client) -> None:
    theirs: dict[str, list[str]] = {}
    ours: dict[str, list[str]] = {}
    swarm = relay(theirs)
    expected = [event async for event in swarm.stream_async("T") if _told(event)]
    async with swarm_of(client, lambda: relay(ours)) as durable:
        run = await durable.start("T")
        events = [event async for event in run.events()]
        result = await run.result()
        assert await scheduled(client, run.id) == ["swarm.a", "swarm.b", "swarm.c"]
    assert ours == theirs
    assert [_shape(event) for event in events] == [_shape(event) for event in expected]
    there = expected[-1]["result"]
    assert isinstance(result, SwarmResult)
    assert result.status is there.status is Status.COMPLETED
    assert [n.node_id for n in result.node_history] == [n.node_id for n in there.node_history]
    assert result.execution_count == there.execution_count == 3
    assert result.accumulated_usage == there.accumulated_usage
    assert {name: str(node.result) for name, node in result.results.items()} == {
        name: str(node.result) for name, node in there.results.items()
    }


def _told(event: dict[str, Any]) -> bool:
    return bool(event["type"] != "multiagent_node_stream")


def _shape(event: dict[str, Any]) -> Any:
    kept = {"type", "node_id", "node_type", "from_node_ids", "to_node_ids", "message"}
    return {key: value for key, value in event.items() if key in kept}


async def test_a_multimodal_task_reaches_every_turn(client: Client) -> None:
    theirs: dict[str, list[str]] = {}
    ours: dict[str, list[str]] = {}
    task: Any = [{"text": "see:"}, {"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}}]
    await relay(theirs).invoke_async(task)
    async with swarm_of(client, lambda: relay(ours)) as durable:
        await durable.invoke_async(task)
    assert ours == theirs
    assert "User Request: Multi-modal task" in ours["a"][0]


async def test_the_second_handoff_of_a_turn_is_refused_to_the_model(client: Client) -> None:
    models: list[StepModel] = []

    def factory() -> Swarm:
        model = StepModel([to("b", "first", who="b"), to("c", "second", who="c")], "A")
        models.append(model)
        a = Agent(name="a", model=model, callback_handler=None)
        return Swarm([a, member("b", "B"), member("c", "C")])

    async with swarm_of(client, factory) as durable:
        run = await durable.start("T")
        result = await run.result()
        history = [event async for event in run.events()]
    assert [node.node_id for node in result.node_history] == ["a", "b"]
    told = [text for model in models for text in model.results]
    assert sorted(told) == [
        "Error: this turn has already been handed off to b. Only one handoff is possible in a "
        "turn; end the turn, and let that agent go on.",
        "Handing off to b: first",
    ]
    [handoff] = [event for event in history if event["type"] == "multiagent_handoff"]
    assert handoff["message"] == "first"


async def test_a_handoff_to_nobody_is_an_error_for_the_model(client: Client) -> None:
    models: list[StepModel] = []

    def factory() -> Swarm:
        models.append(StepModel(to("zed"), "alone"))
        return Swarm([Agent(name="a", model=models[-1], callback_handler=None)])

    async with swarm_of(client, factory) as durable:
        result = await durable.invoke_async("T")
    assert [node.node_id for node in result.node_history] == ["a"]
    assert [t for m in models for t in m.results] == ["Error: Agent 'zed' not found in swarm"]


@pytest.mark.parametrize(
    ("options", "turns", "reason"),
    [
        ({"max_handoffs": 3}, 3, "Max handoffs reached: 3"),
        ({"max_iterations": 2}, 2, "Max iterations reached: 2"),
        (
            {
                "repetitive_handoff_detection_window": 4,
                "repetitive_handoff_min_unique_agents": 3,
            },
            4,
            "Repetitive handoff: 2 unique nodes out of 4 recent iterations",
        ),
    ],
)
async def test_limits_end_it_as_failed_and_raise_nothing(
    client: Client, options: dict[str, Any], turns: int, reason: str
) -> None:
    def factory() -> Swarm:
        return Swarm([member("a", to("b"), "A"), member("b", to("a"), "B")], **options)

    there = await factory().invoke_async("T")
    async with swarm_of(client, factory) as durable:
        run = await durable.start("T")
        result = await run.result()
        assert (await run.status()).reason == reason
        assert len(await scheduled(client, run.id)) == turns
    assert result.status is there.status is Status.FAILED
    assert len(result.node_history) == len(there.node_history) == turns


async def test_a_turn_that_fails_fails_the_swarm_and_raises_nothing(client: Client) -> None:
    def broken(_: str) -> str:
        raise ValueError("no idea")

    def factory() -> Swarm:
        b = Agent(name="b", model=ScriptedModel(broken), callback_handler=None)
        return Swarm([member("a", to("b"), "A"), b])

    async with swarm_of(client, factory) as durable:
        run = await durable.start("T")
        result = await run.result()
        assert (await run.status()).reason == "failed nodes: b"
    assert result.status is Status.FAILED
    assert [node.node_id for node in result.node_history] == ["a"]
    assert isinstance(result.results["b"].result, ValueError)


async def test_timeouts(client: Client) -> None:
    async def slow(_: str) -> str:
        await asyncio.sleep(5)
        return "late"

    def factory(**options: Any) -> Swarm:
        a = Agent(name="a", model=ScriptedModel(slow), callback_handler=None)
        return Swarm([a], **options)

    cases: list[tuple[dict[str, Any], str]] = [
        ({"execution_timeout": 0.3}, "Execution timed out: 0.3s"),
        ({"node_timeout": 0.3}, "failed nodes: a"),
    ]
    for options, reason in cases:
        async with swarm_of(client, partial(factory, **options)) as durable:
            run = await durable.start("T")
            assert (await run.result()).status is Status.FAILED
            assert (await run.status()).reason == reason


def asking_swarm(gate: Gate | None = None, **_: Any) -> Swarm:
    @tool(context=True)
    def approve(tool_context: ToolContext) -> str:
        """Ask a human."""
        return f"human said {tool_context.interrupt('approval', reason='may I?')}"

    a = member("a", [to("b", "go on", k=1), ("approve", {})], "A done", tools=[approve])
    return Swarm([a, member("b", "B")], hooks=[gate] if gate else None)


async def test_a_turn_that_hands_over_and_asks_keeps_its_handoff(client: Client) -> None:
    async with swarm_of(client, asking_swarm) as durable:
        run = await durable.start("T")
        ids = await asked_by(run, "a")
        assert (await run.status()).status == "interrupted"
        await run.respond({ids["a"]: "yes"})
        result = await run.result()
        assert (await run.status()).nodes["a"].visits == 1
    assert [node.node_id for node in result.node_history] == ["a", "b"]
    assert result.accumulated_usage["totalTokens"] == 45


async def test_a_hook_may_ask_or_cancel_a_turn(client: Client) -> None:
    def factory() -> Swarm:
        return Swarm([member("a", to("b"), "A"), member("b", "B")], hooks=[Gate("b")])

    for answer, status in (("yes", Status.COMPLETED), ("no", Status.FAILED)):
        async with swarm_of(client, factory) as durable:
            run = await durable.start("T")
            ids = await asked_by(run, "b")
            await run.respond({ids["b"]: answer})
            result = await run.result()
            assert result.status is status
            said = [event["type"] async for event in run.events()]
        assert ("multiagent_node_cancel" in said) == (answer == "no")


async def test_a_turn_that_asks_and_then_fails_leaves_nothing_locked(client: Client) -> None:
    """hs#5340: in Strands the swarm object is unusable from then on."""

    def factory() -> Swarm:
        @tool(context=True)
        def approve(tool_context: ToolContext) -> str:
            """Ask a human."""
            return str(tool_context.interrupt("approval"))

        class Breaking(StepModel):
            async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
                if any("toolResult" in block for block in messages[-1]["content"]):
                    raise ValueError("after the answer")
                async for event in super().stream(messages):
                    yield event

        model = Breaking(("approve", {}), "A")
        return Swarm([Agent(name="a", model=model, tools=[approve], callback_handler=None)])

    async with swarm_of(client, factory) as durable:
        first = await durable.invoke_async("T")
        assert first.status is Status.INTERRUPTED
        response = {"interruptId": first.interrupts[0].id, "response": "yes"}
        answer: Any = {"interruptResponse": response}
        failed = await durable.invoke_async([answer])
        assert failed.status is Status.FAILED
        again = await durable.invoke_async("another task")
        assert again.status is Status.INTERRUPTED


async def test_hooks_see_the_swarms_state(client: Client) -> None:
    seen: list[Any] = []

    class Watch:
        def register_hooks(self, registry: Any, **_: Any) -> None:
            from strands.hooks import AfterNodeCallEvent, BeforeNodeCallEvent

            registry.add_callback(BeforeNodeCallEvent, self.note)
            registry.add_callback(AfterNodeCallEvent, self.note)

        def note(self, event: Any) -> None:
            state = event.source.state
            seen.append(
                (
                    type(event).__name__,
                    event.node_id,
                    state.current_node.node_id,
                    [node.node_id for node in state.node_history],
                    state.shared_context.context,
                    state.handoff_node.node_id if state.handoff_node else None,
                    state.handoff_message,
                )
            )

    def factory() -> Swarm:
        a = member("a", to("b", "go", k="v"), "A")
        return Swarm([a, member("b", "B")], hooks=[Watch()])

    async with swarm_of(client, factory) as durable:
        await durable.invoke_async("T")
    assert seen == [
        ("BeforeNodeCallEvent", "a", "a", [], {}, None, None),
        ("AfterNodeCallEvent", "a", "a", ["a"], {"a": {"k": "v"}}, "b", "go"),
        ("BeforeNodeCallEvent", "b", "b", ["a"], {"a": {"k": "v"}}, None, "go"),
        ("AfterNodeCallEvent", "b", "b", ["a", "b"], {"a": {"k": "v"}}, None, None),
    ]


async def test_a_swarm_as_a_node(client: Client) -> None:
    theirs: dict[str, list[str]] = {}
    ours: dict[str, list[str]] = {}

    def factory(seen: dict[str, list[str]]) -> Graph:
        def last(prompt: str) -> str:
            seen.setdefault("last", []).append(prompt)
            return "L"

        nodes = {"first": "F", "team": relay(seen), "last": last}
        return build(nodes, [("first", "team"), ("team", "last")])

    await factory(theirs).invoke_async("T")
    async with serve(client, lambda: factory(ours)) as graph:
        run = await graph.start("T")
        result = await run.result()
        assert await scheduled(client, run.id) == [
            "graph.first",
            "graph.team/a",
            "graph.team/b",
            "graph.team/c",
            "graph.last",
        ]
    assert ours == theirs
    inner = result.results["team"].result
    assert isinstance(inner, SwarmResult)
    assert [node.node_id for node in inner.node_history] == ["a", "b", "c"]


async def test_a_swarm_that_fails_as_a_node_ends_its_branch(client: Client) -> None:
    def factory() -> Graph:
        endless = Swarm([member("a", to("a"), "A")], max_handoffs=2)
        return build({"team": endless, "last": "L", "other": "O"}, [("team", "last")])

    async with serve(client, factory) as graph:
        result = await graph.invoke_async("T")
    assert result.status is Status.FAILED
    assert list(result.results) == ["other", "team"]


async def test_a_question_in_a_swarm_in_a_graph(client: Client) -> None:
    async with serve(client, lambda: build({"team": asking_swarm()})) as graph:
        run = await graph.start("T")
        ids = await asked_by(run, "team/a")
        await run.respond({ids["team/a"]: "yes"})
        result = await run.result()
    assert result.status is Status.COMPLETED


async def test_two_runs_share_nothing(client: Client) -> None:
    """Strands keeps the shared context of one invocation for the next."""
    seen: dict[str, list[str]] = {}
    async with swarm_of(client, lambda: relay(seen)) as durable:
        await asyncio.gather(durable.invoke_async("ONE"), durable.invoke_async("TWO"))
        await durable.invoke_async("THREE")
    for prompts in seen.values():
        assert all(
            sum(word in prompt for word in ("ONE", "TWO", "THREE")) == 1 for prompt in prompts
        )
    assert not any("Shared knowledge" in prompt for prompt in seen["a"])


def test_what_is_no_swarm_is_refused() -> None:
    registry = GraphRegistry()
    with pytest.raises(InvalidGraphError, match="factory of swarm 's' returned a Graph"):
        registry.add_swarm("s", lambda: build({"a": "A"}))  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidGraphError, match="factory of graph 'g' returned a Swarm"):
        registry.add("g", lambda: Swarm([member("a", "A")]))  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidGraphError, match="an agent of a swarm can't have map_over or input"):
        registry.add_swarm(
            "s", lambda: Swarm([member("a", "A")]), nodes={"a": NodeOptions(input=lambda: "x")}
        )


def test_options_of_turns() -> None:
    registry = GraphRegistry()

    @registry.swarm(
        "s", defaults=NodeOptions(task_queue="gpu"), nodes={"b": NodeOptions(summary="x")}
    )
    def swarm() -> Swarm:
        return Swarm([member("a", "A"), member("b", "B")], entry_point=None)

    plan = registry["s"].plan
    assert [node.task_queue for node in plan.nodes] == ["gpu", "gpu"]
    assert plan.nodes[1].summary == "x"
    assert plan.entry_points == ["a"]
