"""The same graph by Strands and on a worker: streams and what hooks see, event by event.

Each scenario is a line of docs/strands-parity.md that says "same". Usage is compared up to the
first answer: from then on Strands counts once more what an agent has used before.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from strands import Agent
from strands.hooks import (
    AfterMultiAgentInvocationEvent,
    AfterNodeCallEvent,
    BeforeMultiAgentInvocationEvent,
    BeforeNodeCallEvent,
)
from strands.multiagent.base import Status
from strands.multiagent.graph import Graph
from strands.multiagent.swarm import Swarm
from temporalio.client import Client

from durable_strands import DurableGraph, DurableSwarm, GraphRegistry
from durable_strands.codec import error_from_wire, error_to_wire

from .side_by_side import ONCE, in_order
from .support import Gate, ToolModel, agent, build, gated, replay_queue, worker_for
from .test_swarm import member, to
from .test_swarm_events import ask

Noted = list[Any]
Scenario = Callable[[Noted], Graph | Swarm]


# -- playing and telling -------------------------------------------------------------------------


def told(event: dict[str, Any], *, used: bool) -> Any:
    """Return what an event says, without times; None for an agent's own events.

    Args:
        event: The event.
        used: Whether tokens count.
    """
    kind = event.get("type", "").removeprefix("multiagent_")
    if kind == "node_stream":
        inner = told(event["event"], used=used)
        return None if inner is None else (event["node_id"], ">", inner)
    if kind == "node_stop":
        result = event["node_result"]
        asked = [
            [item.name for item in (asks or [])]
            for asks in (result.interrupts, getattr(result.result, "interrupts", None))
        ]
        tokens = result.accumulated_usage["totalTokens"] if used else None
        return (kind, event["node_id"], result.status, result.execution_count, tokens, *asked)
    if kind == "result":
        result = event["result"]
        tokens = result.accumulated_usage["totalTokens"] if used else None
        asked = [item.name for item in result.interrupts]
        return (kind, result.status, list(result.results), result.execution_count, tokens, asked)
    if kind == "node_interrupt":
        return (kind, event["node_id"], [item.name for item in event["interrupts"]])
    if kind == "handoff":
        return (kind, sorted(event["from_node_ids"]), event["to_node_ids"], event.get("message"))
    if kind == "node_cancel":
        return (kind, event["node_id"], event["message"])
    if kind == "node_start":
        return (kind, event["node_id"], event["node_type"])
    return None


async def play(graph: Any, state: dict[str, Any]) -> list[Any]:
    """Run a graph, answer what it asks, and return what it tells."""
    task: Any = "T"
    events: list[Any] = []
    while True:
        try:
            async for event in graph.stream_async(task, dict(state)):
                said = told(event, used="answered" not in events)
                if said is not None:
                    events.append(said)
                result = event.get("result")
        except Exception as error:
            return [*events, ("raised", type(error).__name__, str(error))]
        if result.status is not Status.INTERRUPTED:
            return events
        events.append("answered")
        task = [
            {"interruptResponse": {"interruptId": item.id, "response": "yes"}}
            for item in result.interrupts
        ]


async def compare(
    client: Client, scenario: Scenario, semantics: Any, state: dict[str, Any] | None = None
) -> Noted:
    """Play a scenario both ways; both tell and note the same. Return what they noted."""
    theirs: Noted = []
    own = scenario(theirs)
    _in_order(own)
    their_events = await play(own, state or {})
    ours: Noted = []

    def factory() -> Any:
        return scenario(ours)

    registry = GraphRegistry()
    if isinstance(own, Swarm):
        registry.add_swarm("g", factory, defaults=ONCE)
    else:
        registry.add("g", factory, defaults=ONCE, semantics=semantics)
    async with worker_for(client, registry) as queue:
        kind: Any = DurableSwarm if isinstance(own, Swarm) else DurableGraph
        our_events = await play(kind(client, "g", task_queue=queue), state or {})
        await replay_queue(client, queue)
    assert our_events == their_events
    assert ours == theirs
    return ours


def _in_order(executor: Any) -> None:
    if isinstance(executor, Graph):
        in_order(executor)
        for node in executor.nodes.values():
            _in_order(node.executor)


def asker(name: str = "asker") -> Agent:
    return Agent(name=name, model=ToolModel("ask"), tools=[ask], callback_handler=None)


class Watch:
    """Hooks that write down what `see` makes of some events."""

    def __init__(self, noted: Noted, see: Callable[[Any], Any], *events: Any) -> None:
        self.noted, self.see, self.events = noted, see, events

    def register_hooks(self, registry: Any, **kwargs: Any) -> None:
        for event in self.events:
            registry.add_callback(event, lambda event: self.noted.append(self.see(event)))


def hooked(*providers: Any) -> Any:
    return lambda builder: builder.set_hook_providers(list(providers))


class Failing:
    """A hook that raises at one event of one node."""

    def __init__(self, event: Any, node: str | None) -> None:
        self.event, self.node = event, node

    def register_hooks(self, registry: Any, **kwargs: Any) -> None:
        registry.add_callback(self.event, self.call)

    def call(self, event: Any) -> None:
        if getattr(event, "node_id", None) == self.node:
            raise RuntimeError("hook down")


# -- scenarios -----------------------------------------------------------------------------------


def nested_asks(noted: Noted) -> Graph:
    inner = build({"w": agent("W"), "q": asker(), "z": agent("Z")}, [("w", "q"), ("q", "z")])
    return build({"a": agent("A"), "team": inner, "b": agent("B")}, [("a", "team"), ("team", "b")])


def two_ask_at_two_depths(noted: Noted) -> Graph:
    async def later(_: str) -> str:
        await asyncio.sleep(0.3)
        return "L"

    deep = build({"q": "Q", "r": "R"}, [("q", "r")], configure=gated(Gate("q")))
    team = build({"deep": deep, "later": later}, [("deep", "later")])
    return build({"team": team, "b": "B"}, [("team", "b")])


def a_sibling_works_while_it_asks(noted: Noted) -> Graph:
    async def slow(_: str) -> str:
        await asyncio.sleep(0.5)
        return "S"

    inner = build({"q": asker(), "slow": slow, "z": "Z"}, [("q", "z"), ("slow", "z")])
    return build({"team": inner, "b": "B"}, [("team", "b")])


def nested_swarm_asks(noted: Noted) -> Graph:
    swarm = Swarm([member("x", to("y"), "X"), member("y", ("ask", {}), "the end", tools=[ask])])
    return build({"team": swarm, "b": "B"}, [("team", "b")])


def swarm_asks(noted: Noted) -> Swarm:
    return Swarm([member("a", to("b"), "A"), member("b", ("ask", {}), "the end", tools=[ask])])


def swarm_says_nothing(noted: Noted) -> Swarm:
    return Swarm([member("a", to("b", ""), "A"), member("b", "the end")])


def nested_counts(noted: Noted) -> Graph:
    def again(state: Any) -> bool:
        return [node.node_id for node in state.execution_order].count("p") < 3

    sub = build({"m": "M", "n": "N"}, [("m", "n")])
    edges = [("p", "p", again), ("p", "sub", lambda state: not again(state))]
    team = build({"p": "P", "sub": sub}, edges, entries=["p"])
    return build({"team": team, "b": "B"}, [("team", "b")])


def hooks_around_nested(noted: Noted) -> Graph:
    def see(event: Any) -> Any:
        return (type(event).__name__, event.node_id, event.source.state.status)

    watch = Watch(noted, see, BeforeNodeCallEvent, AfterNodeCallEvent)
    team = build({"x": "X", "y": "Y"}, [("x", "y")], configure=hooked(watch))
    nodes = {"a": "A", "team": team, "b": "B"}
    return build(nodes, [("a", "team"), ("team", "b")], configure=hooked(watch))


def swarm_with(provider: Any) -> Scenario:
    return lambda _: Swarm(
        [member("a", to("b"), "A"), member("b", "the end")],
        hooks=[provider],
    )


def nested_swarm_whose_hook_raises(noted: Noted) -> Graph:
    failing = Failing(AfterNodeCallEvent, "x")
    swarm = Swarm([member("x", to("y"), "X"), member("y", "Y")], hooks=[failing])
    return build({"team": swarm, "b": "B"}, [("team", "b")])


def swarm_fails_before_its_hooks(noted: Noted) -> Swarm:
    def see(event: Any) -> Any:
        state = event.source.state
        done = [node.node_id for node in state.node_history]
        return (type(event).__name__, state.completion_status, done, list(state.results))

    events = (BeforeNodeCallEvent, AfterNodeCallEvent, AfterMultiAgentInvocationEvent)

    def boom(_: Any) -> str:
        raise RuntimeError("boom")

    return Swarm(
        [member("a", to("b"), "A"), agent(boom, name="b")],
        hooks=[Watch(noted, see, *events)],
    )


def cut_off_before_its_hooks(noted: Noted) -> Graph:
    async def slow(_: str) -> str:
        await asyncio.sleep(2)
        return "S"

    async def boom(_: str) -> str:
        await asyncio.sleep(0.3)
        raise RuntimeError("boom")

    def see(event: Any) -> Any:
        state, nodes = event.source.state, event.source.nodes
        standing = {name: node.execution_status for name, node in nodes.items()}
        return (type(event).__name__, getattr(event, "node_id", None), state.status, standing)

    watch = Watch(noted, see, AfterNodeCallEvent, AfterMultiAgentInvocationEvent)
    return build({"boom": boom, "slow": slow}, configure=hooked(watch))


def times_in_hooks(noted: Noted) -> Graph:
    async def slow(_: str) -> str:
        await asyncio.sleep(0.3)
        return "S"

    def see(event: Any) -> Any:
        state = event.source.state
        return (
            type(event).__name__,
            time.time() - state.start_time > 0.25,
            bool(state.execution_time),
        )

    watch = Watch(noted, see, AfterNodeCallEvent, AfterMultiAgentInvocationEvent)
    return build({"slow": slow}, configure=hooked(watch))


def times_in_hooks_of_a_swarm(noted: Noted) -> Swarm:
    async def slow(_: Any) -> str:
        await asyncio.sleep(0.3)
        return "S"

    def see(event: Any) -> Any:
        state = event.source.state
        return (
            type(event).__name__,
            time.time() - state.start_time > 0.25,
            bool(state.execution_time),
        )

    watch = Watch(noted, see, AfterNodeCallEvent, AfterMultiAgentInvocationEvent)
    return Swarm([Agent(name="a", model=agent(slow).model, callback_handler=None)], hooks=[watch])


def keys_of_its_own(noted: Noted) -> Graph:
    """`model` and `messages` are keys like any others, as long as no agent has had the state."""

    class Writes:
        def register_hooks(self, registry: Any, **kwargs: Any) -> None:
            registry.add_callback(BeforeNodeCallEvent, self.call)

        def call(self, event: Any) -> None:
            event.invocation_state["system_prompt"] = "by a hook"

    class Reads(type(build({"x": "X"}).nodes["x"].executor)):  # type: ignore[misc]
        async def stream_async(self, prompt: Any = None, **kwargs: Any) -> Any:
            noted.append(("state", sorted((kwargs.get("invocation_state") or {}).items())))
            async for event in super().stream_async(prompt):
                yield event

    return build({"a": Reads("A")}, configure=hooked(Writes()))


SCENARIOS: list[Scenario] = [
    nested_asks,
    two_ask_at_two_depths,
    a_sibling_works_while_it_asks,
    nested_swarm_asks,
    nested_counts,
    hooks_around_nested,
    nested_swarm_whose_hook_raises,
    cut_off_before_its_hooks,
    times_in_hooks,
]

SWARMS: dict[str, Scenario] = {
    "asks": swarm_asks,
    "hands over without a word": swarm_says_nothing,
    "a turn fails": swarm_fails_before_its_hooks,
    "times": times_in_hooks_of_a_swarm,
    "a hook raises before": swarm_with(Failing(BeforeNodeCallEvent, "b")),
    "a hook raises after": swarm_with(Failing(AfterNodeCallEvent, "a")),
    "a hook raises after the last": swarm_with(Failing(AfterNodeCallEvent, "b")),
    "a hook raises at the start": swarm_with(Failing(BeforeMultiAgentInvocationEvent, None)),
}


@pytest.mark.parametrize("semantics", ["strands", "dataflow"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_a_graph_tells_the_same(client: Client, scenario: Scenario, semantics: str) -> None:
    await compare(client, scenario, semantics)


@pytest.mark.parametrize("name", SWARMS)
async def test_a_swarm_tells_the_same(client: Client, name: str) -> None:
    await compare(client, SWARMS[name], None)


async def test_keys_of_the_users_own_reach_the_nodes(client: Client) -> None:
    state = {"agent": "bob", "request_state": {"x": 1}, "messages": ["m"], "model": "fast"}
    noted = await compare(client, keys_of_its_own, "strands", state)
    assert noted == [("state", sorted({**state, "system_prompt": "by a hook"}.items()))]


# -- exceptions ----------------------------------------------------------------------------------


class CodedError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")


class TwoPartsError(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(one, two)

    def __str__(self) -> str:
        return "-".join(self.args)


class Outer:
    class InnerError(ValueError):
        pass


@pytest.mark.parametrize(
    "error",
    [
        ValueError("plain"),
        KeyError("key"),
        CodedError(5),
        TwoPartsError("a", "b"),
        Outer.InnerError("nested"),
        json.JSONDecodeError("bad", "{", 1),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        OSError(2, "No such file"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_comes_back_by_class_and_text(error: Exception) -> None:
    restored = error_from_wire(error_to_wire(error))
    assert isinstance(restored, type(error))
    assert type(restored).__name__ == type(error).__name__
    assert str(restored) == str(error)
