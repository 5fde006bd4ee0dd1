"""What agents bring along works inside a node: each on a real worker, most beside Strands' own."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from pydantic import BaseModel
from strands import Agent, tool
from strands.agent.conversation_manager import (
    ConversationManager,
    NullConversationManager,
    SlidingWindowConversationManager,
    SummarizingConversationManager,
)
from strands.hooks import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    AfterMultiAgentInvocationEvent,
    AfterNodeCallEvent,
    AfterToolCallEvent,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    BeforeMultiAgentInvocationEvent,
    BeforeNodeCallEvent,
    BeforeToolCallEvent,
    HookOrder,
    MessageAddedEvent,
    MultiAgentInitializedEvent,
)
from strands.multiagent.base import MultiAgentBase, MultiAgentResult, NodeResult, Status
from strands.multiagent.graph import Graph, GraphBuilder, GraphState
from strands.plugins import MultiAgentPlugin, Plugin, hook
from strands.tools.mcp import MCPClient
from strands.types.exceptions import ContextWindowOverflowException
from strands.types.tools import ToolContext
from temporalio.client import Client

from durable_strands import NodeOptions
from durable_strands.codec import RestoredAgentResult
from durable_strands.wire import Semantics

from .noting import IMAGE, PNG, CallingModel, Notes, SeeingModel, blocks_of
from .side_by_side import Log, Seen, both, equal, of_ours, of_strands, same
from .support import Gate, ScriptedModel, Stub, ToolModel, agent, agent_result, build, serve

pytestmark = pytest.mark.filterwarnings("ignore:graph has no max_node_executions")

both_semantics = pytest.mark.parametrize("semantics", ["dataflow", "strands"])


@tool(context=True)
def ask(tool_context: ToolContext) -> str:
    """Ask a human."""
    return str(tool_context.interrupt("question"))


@tool
def work() -> str:
    """Do some work."""
    return "worked"


def times(most: int) -> Callable[[GraphState], bool]:
    """Return a condition: fewer visits than so many have completed."""
    return lambda state: len(state.execution_order) < most


def looping(executor: Any, visits: int, *, reset: bool = False) -> Graph:
    """Return a graph of one node that is visited so many times."""
    return build(
        {"a": executor},
        [("a", "a", times(visits))],
        entries=["a"],
        configure=lambda builder: builder.reset_on_revisit(reset),
    )


# -- structured output -------------------------------------------------------------------------


class Verdict(BaseModel):
    passed: bool


@both_semantics
async def test_prose_and_object_are_both_there_for_conditions(
    client: Client, semantics: Semantics
) -> None:
    notes, seen = Notes(), []

    def look(state: GraphState) -> bool:
        result: Any = state.results["judge"].result
        seen.append((result.message["content"][0]["text"], result.structured_output))
        return True

    def graph() -> Graph:
        judge = Agent(
            model=CallingModel("Verdict", {"passed": True}, prose="It is fine."),
            structured_output_model=Verdict,
            callback_handler=None,
        )
        return build({"judge": judge, "reader": notes.node("reader")}, [("judge", "reader", look)])

    async with serve(client, graph, semantics=semantics) as durable:
        result: Any = await durable.invoke_async("T")
    judged = result.results["judge"].result
    assert seen[0] == ("It is fine.", Verdict(passed=True))
    assert judged.message["content"][0]["text"] == "It is fine."
    assert judged.structured_output == Verdict(passed=True)
    assert notes["reader"].text.endswith('From judge:  - Agent: {"passed":true}')


async def test_a_class_that_the_caller_lacks_leaves_json_and_text(client: Client) -> None:
    """Nothing is imported for a name on the wire."""
    module = types.ModuleType("only_on_the_worker")
    sys.modules[module.__name__] = module
    hidden: Any = type(
        "Hidden", (BaseModel,), {"__annotations__": {"n": int}, "__module__": module.__name__}
    )
    module.Hidden = hidden  # type: ignore[attr-defined]

    def graph() -> Graph:
        judge = Agent(
            model=CallingModel("Hidden", {"n": 7}),
            structured_output_model=hidden,
            callback_handler=None,
        )
        return build({"judge": judge})

    async with serve(client, graph) as durable:
        run = await durable.start("T")
        known: Any = (await run.result()).results["judge"].result
        assert known.structured_output == hidden(n=7)
        del sys.modules[module.__name__]
        unknown: Any = (await run.result()).results["judge"].result
        report = (await run.status()).results["judge"]
    assert unknown.structured_output is None
    assert isinstance(unknown, RestoredAgentResult)
    assert str(unknown) == report.text == '{"n":7}'
    assert report.structured_output == {"n": 7}
    assert report.structured_output_class == "only_on_the_worker:Hidden"


# -- images and documents ----------------------------------------------------------------------


async def test_bytes_of_a_tool_survive_a_question(client: Client) -> None:
    """A tool's image, given before another tool asks, is there for the model afterwards.

    And what was done before the question isn't done again.
    """
    seen: list[Any] = []
    photos: list[bytes] = []

    @tool
    def photo() -> dict[str, Any]:
        """Take a photo."""
        photos.append(PNG)
        return {"status": "success", "content": [IMAGE]}

    @tool(context=True)
    def ask(tool_context: ToolContext) -> str:
        """Ask a human."""
        return str(tool_context.interrupt("question"))

    class TwoTools(SeeingModel):
        async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            if blocks_of(messages[-1:], "toolResult"):
                async for event in super().stream(messages, *args, **kwargs):
                    yield event
                return
            yield {"messageStart": {"role": "assistant"}}
            for number, name in enumerate(("photo", "ask")):
                use = {"toolUseId": f"use-{number}", "name": name}
                yield {"contentBlockStart": {"start": {"toolUse": use}}}
                yield {"contentBlockDelta": {"delta": {"toolUse": {"input": "{}"}}}}
                yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "tool_use"}}

    def graph(log: Log) -> Graph:
        asker = Agent(model=TwoTools(seen), tools=[photo, ask], callback_handler=None)
        return build({"a": asker})

    ours = await of_ours(
        client, graph, [{"text": "look"}, IMAGE], respond=lambda _: {"yes": ["really"]}
    )
    assert ours.result is not None, ours.error
    assert len(photos) == 1
    [messages] = seen
    assert blocks_of(messages, "image") == [IMAGE["image"]]
    results = blocks_of(messages, "toolResult")
    assert [block["image"]["source"]["bytes"] for block in results[0]["content"]] == [PNG]
    assert "really" in results[1]["content"][0]["text"]


# -- conversations -----------------------------------------------------------------------------


def summary() -> Agent:
    return agent("a summary of it all")


class Overflowing(SeeingModel):
    """A model that takes no more than so many messages."""

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        if len(messages) > 5:
            raise ContextWindowOverflowException("too long")
        async for event in super().stream(messages, *args, **kwargs):
            yield event


def shape(conversation: Any) -> list[str]:
    """Return a conversation's texts, one per message."""
    return ["".join(block.get("text", "") for block in one["content"]) for one in conversation]


MANAGERS: dict[str, Callable[[], ConversationManager]] = {
    "null": NullConversationManager,
    "window": lambda: SlidingWindowConversationManager(window_size=3),
    "every-third-turn": lambda: SlidingWindowConversationManager(window_size=3, per_turn=3),
    "pinned": lambda: SlidingWindowConversationManager(window_size=3, pin_first=1),
    "summary": lambda: SummarizingConversationManager(
        summary_ratio=0.8, preserve_recent_messages=2, summarization_agent=summary()
    ),
}


@pytest.mark.parametrize("manager", MANAGERS.values(), ids=MANAGERS)
async def test_a_conversation_manager_goes_on_from_visit_to_visit(
    client: Client, manager: Callable[[], ConversationManager]
) -> None:
    """What the model sees at each of six visits is what it sees in Strands; in a second run too."""
    theirs: list[Any] = []
    ours: list[Any] = []

    def graph(seen: list[Any]) -> Graph:
        kind = SeeingModel if isinstance(manager(), NullConversationManager) else Overflowing
        number = iter(range(1000))
        model = kind(seen, lambda _: f"answer {next(number)}")
        if seen is ours:
            model.reply = lambda _: f"answer {len(ours) % 6 - 1 if len(ours) % 6 else 5}"
        return looping(Agent(model=model, conversation_manager=manager(), callback_handler=None), 6)

    await graph(theirs).invoke_async("T")
    expected = [shape(messages) for messages in theirs]
    async with serve(client, lambda: graph(ours)) as durable:
        for run in (1, 2):
            ours.clear()
            await durable.invoke_async("T")
            assert [shape(messages) for messages in ours] == expected, f"run {run}"


@pytest.mark.parametrize("reset", [False, True])
async def test_agent_state_is_kept_over_visits_unless_reset(client: Client, reset: bool) -> None:
    def graph(log: Log) -> Graph:
        @tool(context=True)
        def remember(tool_context: ToolContext) -> str:
            """Count the calls."""
            state = tool_context.agent.state
            state.set("calls", (state.get("calls") or 0) + 1)
            log.note(state.get())
            return f"call {state.get('calls')}"

        counting = Agent(
            model=ToolModel("remember"),
            tools=[remember],
            state={"given": [1]},
            callback_handler=None,
        )
        return looping(counting, 3, reset=reset)

    seen = await same_but_usage(client, graph)
    calls = [1, 1, 1] if reset else [1, 2, 3]
    assert seen == [{"given": [1], "calls": number} for number in calls]
    dataflow = await of_ours(client, graph)
    assert dataflow.log.lines == seen


async def same_but_usage(client: Client, factory: Any) -> list[Any]:
    """Compare what was noted: Strands counts usage once more at each revisit."""
    theirs, ours = await both(client, factory)
    assert ours.order == theirs.order
    assert ours.log.lines == theirs.log.lines
    return ours.log.lines


@both_semantics
async def test_one_node_may_start_afresh_and_another_go_on(
    client: Client, semantics: Semantics
) -> None:
    """`NodeOptions(on_revisit=...)` is for one node, the builder's `reset_on_revisit` for all."""
    fresh: list[Any] = []
    going_on: list[Any] = []

    def graph() -> Graph:
        return build(
            {
                "fresh": Agent(model=SeeingModel(fresh), callback_handler=None),
                "going_on": Agent(model=SeeingModel(going_on), callback_handler=None),
            },
            [("fresh", "going_on"), ("going_on", "fresh", times(6))],
            entries=["fresh"],
        )

    nodes = {"fresh": NodeOptions(on_revisit="reset")}
    async with serve(client, graph, semantics=semantics, nodes=nodes) as durable:
        await durable.invoke_async("T")
    assert [len(messages) for messages in fresh] == [1, 1, 1]
    assert [len(messages) for messages in going_on] == [1, 3, 5]


# -- tools -------------------------------------------------------------------------------------


async def test_tools_of_an_mcp_server(client: Client) -> None:
    def graph(log: Log) -> Graph:
        command = StdioServerParameters(
            command=sys.executable, args=[str(Path(__file__).with_name("mcp_server.py"))]
        )
        connect: Any = lambda: stdio_client(command)  # noqa: E731
        sums = MCPClient(connect)
        calls = CallingModel("add", {"a": 2, "b": 40})
        return build({"a": Agent(model=calls, tools=[sums], callback_handler=None)})

    seen = await same(client, graph)
    assert seen.result is not None
    assert str(seen.result.results["a"]) == "tool said the sum is 42\n"


@pytest.mark.parametrize("preserve", [False, True])
async def test_an_agent_as_a_tool_of_another(client: Client, preserve: bool) -> None:
    """Fresh in each visit: what it keeps with `preserve_context` is the caller's, for one visit."""
    inner: list[Any] = []

    def graph(log: Log) -> Graph:
        helper = Agent(
            name="helper",
            model=SeeingModel(inner, lambda prompt: f"helped with {prompt}"),
            callback_handler=None,
        )
        lead = Agent(
            model=CallingModel("helper", {"input": "this"}),
            tools=[helper.as_tool(preserve_context=preserve)],
            callback_handler=None,
        )
        return build({"a": lead, "b": log.node("b")}, [("a", "b")])

    seen = await same(client, graph)
    assert "tool said helped with this" in seen.log["b"].text
    assert [len(messages) for messages in inner] == [1, 1]


async def test_an_agent_as_a_tool_may_ask(client: Client) -> None:
    """What the inner agent has done before its question isn't done again."""
    inner: list[Any] = []

    def graph(log: Log) -> Graph:
        class Asks(CallingModel):
            async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
                inner.append(len(messages))
                async for event in super().stream(messages, *args, **kwargs):
                    yield event

        helper = Agent(name="helper", model=Asks("ask", {}), tools=[ask], callback_handler=None)
        lead = Agent(
            model=CallingModel("helper", {"input": "this"}),
            tools=[helper.as_tool()],
            callback_handler=None,
        )
        return build({"a": lead, "b": log.node("b")}, [("a", "b")])

    seen = await same(client, graph, respond=lambda item: f"answer to {item.name}")
    assert seen.asked == [[("question", None)]]
    assert "tool said tool said answer to question" in seen.log["b"].text
    assert inner == [1, 3] * 2


async def test_a_hook_of_an_agent_may_ask(client: Client) -> None:
    def graph(log: Log) -> Graph:
        def check(event: BeforeToolCallEvent) -> None:
            answer = event.interrupt("may it?", reason=event.tool_use["name"])
            log.note(answer)
            if answer == "no":
                event.cancel_tool = "refused"

        worker = Agent(model=ToolModel("work"), tools=[work], callback_handler=None)
        worker.add_hook(check, BeforeToolCallEvent)
        return build({"a": worker, "b": log.node("b")}, [("a", "b")])

    seen = await same(client, graph, respond=lambda _: "no")
    assert seen.asked == [[("may it?", "work")]]
    assert seen.log.lines == ["no"]
    assert "refused" in seen.log["b"].text


@pytest.mark.parametrize("reset", [False, True])
async def test_a_stateful_model_goes_on_unless_reset(client: Client, reset: bool) -> None:
    """Its state is the agent's, and travels with it."""

    def graph(log: Log) -> Graph:
        class Stateful(ScriptedModel):
            async def stream(self, *args: Any, model_state: Any = None, **kwargs: Any) -> Any:
                log.note(dict(model_state))
                model_state["calls"] = model_state.get("calls", 0) + 1
                async for event in super().stream(*args, **kwargs):
                    yield event

        return looping(Agent(model=Stateful("said"), callback_handler=None), 3, reset=reset)

    seen = await same_but_usage(client, graph)
    assert seen == ([{}, {}, {}] if reset else [{}, {"calls": 1}, {"calls": 2}])


async def test_other_changes_of_an_agent_end_with_the_visit(client: Client) -> None:
    """Different: Strands keeps one object; here what is no conversation or state is fresh."""

    def graph(log: Log) -> Graph:
        worker = agent("said", system_prompt="as built")

        def change(event: BeforeInvocationEvent) -> None:
            log.note(event.agent.system_prompt)
            event.agent.system_prompt = "changed"

        worker.add_hook(change, BeforeInvocationEvent)
        return looping(worker, 2)

    theirs = await of_strands(graph)
    ours = await of_ours(client, graph)
    assert theirs.log.lines == ["as built", "changed"]
    assert ours.log.lines == ["as built", "as built"]


# -- agents elsewhere --------------------------------------------------------------------------


@contextmanager
def a2a_server() -> Iterator[str]:
    """Serve an agent by the A2A protocol on this machine, and yield its address."""
    pytest.importorskip("a2a")
    import uvicorn
    from strands.multiagent.a2a import A2AServer

    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    served = A2AServer(
        agent_factory=lambda _: agent(
            lambda prompt: f"remote read {len(prompt)} characters",
            name="remote",
            description="reads",
        ),
        port=port,
        enable_a2a_compliant_streaming=True,
    )
    server = uvicorn.Server(uvicorn.Config(served.to_starlette_app(), log_level="error"))
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(5)


@both_semantics
async def test_an_agent_of_another_service(client: Client, semantics: Semantics) -> None:
    """By the A2A protocol, on this machine: text comes back, usage doesn't."""
    pytest.importorskip("a2a")
    from strands.agent.a2a_agent import A2AAgent

    with a2a_server() as address:

        def graph(log: Log) -> Graph:
            return build(
                {"far": A2AAgent(address, name="remote"), "near": log.node("near")},
                [("far", "near")],
            )

        theirs = await of_strands(graph)
        ours = await of_ours(client, graph, semantics=semantics)
    equal(ours, theirs)
    assert "From far:  - Agent: remote read 1 characters" in ours.log["near"].text
    assert ours.result is not None
    far: Any = ours.result.results["far"].result
    assert far.state == {"a2a_task_state": "completed"}
    assert ours.result.accumulated_usage["totalTokens"] == 0


async def test_building_a_graph_does_not_stop_the_worker(client: Client) -> None:
    """A factory may take its time, as one that starts MCP servers does; others' nodes go on."""
    lags: list[float] = []
    builds: list[float] = []

    def slow_to_build() -> Graph:
        if builds:  # Not when it is registered.
            time.sleep(0.6)
        builds.append(time.monotonic())
        return build({"a": "A"})

    async def watch_the_loop() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            lags.append(time.monotonic() - before)

    async with serve(client, slow_to_build) as durable:
        watcher = asyncio.create_task(watch_the_loop())
        await durable.invoke_async("T")
        watcher.cancel()
    assert len(builds) == 2
    assert max(lags) < 0.4


# -- executors of one's own --------------------------------------------------------------------


class Custom(Stub):
    """An agent of the user's own: it streams, counts what it used, and has a name."""

    def __init__(self) -> None:
        super().__init__("custom said so")

    async def stream_async(self, prompt: Any = None, **kwargs: Any) -> Any:
        yield {"data": "custom "}
        result = agent_result("custom said so")
        result.metrics.accumulated_usage = {
            "inputTokens": 3,
            "outputTokens": 4,
            "totalTokens": 7,
            "cacheReadInputTokens": 2,
        }
        result.metrics.accumulated_metrics = {"latencyMs": 11}
        result.state = {"mood": "good"}
        yield {"result": result}


class Orchestrator(MultiAgentBase):
    """An orchestrator of the user's own, of two agents."""

    def __init__(self) -> None:
        super().__init__()
        self.id = "mine"

    async def invoke_async(
        self, task: Any, invocation_state: dict[str, Any] | None = None, **kwargs: Any
    ) -> MultiAgentResult:
        one, two = agent("one"), agent("two")
        results = {}
        for name, member in (("zeta", one), ("alpha", two)):
            answer = await member.invoke_async(task)
            results[name] = NodeResult(
                result=answer,
                status=Status.COMPLETED,
                accumulated_usage=answer.metrics.accumulated_usage,
                accumulated_metrics=answer.metrics.accumulated_metrics,
                execution_count=1,
            )
        return MultiAgentResult(
            status=Status.COMPLETED,
            results=results,
            accumulated_usage={"inputTokens": 20, "outputTokens": 10, "totalTokens": 30},
            accumulated_metrics={"latencyMs": 14},
            execution_count=2,
            execution_time=5,
        )


async def test_executors_of_ones_own(client: Client) -> None:
    def graph(log: Log) -> Graph:
        return build(
            {"custom": Custom(), "mine": Orchestrator(), "end": log.node("end")},
            [("custom", "mine"), ("mine", "end")],
        )

    theirs, ours = await both(client, graph)
    equal(ours, theirs)
    assert ours.result is not None
    assert ours.result.accumulated_usage["totalTokens"] == 37
    assert ours.result.accumulated_usage["cacheReadInputTokens"] == 2
    assert ours.result.accumulated_metrics["latencyMs"] == 25
    assert ours.result.execution_count == 4
    custom: Any = ours.result.results["custom"].result
    assert custom.state == {"mood": "good"}
    inner: Any = ours.result.results["mine"].result
    assert list(inner.results) == ["zeta", "alpha"]
    assert [str(one) for one in inner.results.values()] == ["one\n", "two\n"]
    assert ours.log["end"].text.endswith("From mine:  - Agent: one\n  - Agent: two\n")


# -- usage and metrics -------------------------------------------------------------------------


async def test_usage_and_metrics_count_what_came_before_a_question(client: Client) -> None:
    def graph(log: Log) -> Graph:
        return build({"a": Agent(model=ToolModel("ask"), tools=[ask], callback_handler=None)})

    theirs, ours = await both(client, graph, respond=lambda _: "yes")
    equal(ours, theirs)
    mine: Any = ours.result.results["a"].result  # type: ignore[union-attr]
    other: Any = theirs.result.results["a"].result  # type: ignore[union-attr]
    assert ours.result.accumulated_usage["totalTokens"] == 30  # type: ignore[union-attr]
    assert ours.result.accumulated_metrics == theirs.result.accumulated_metrics  # type: ignore[union-attr]
    assert mine.metrics.accumulated_usage == other.metrics.accumulated_usage
    assert mine.metrics.cycle_count == other.metrics.cycle_count
    assert mine.metrics.tool_metrics.keys() == other.metrics.tool_metrics.keys()


# -- hooks and plugins of agents ---------------------------------------------------------------

AGENT_EVENTS: list[type] = [
    BeforeInvocationEvent,
    MessageAddedEvent,
    BeforeModelCallEvent,
    AfterModelCallEvent,
    BeforeToolCallEvent,
    AfterToolCallEvent,
    AfterInvocationEvent,
]


async def test_an_agents_hooks_are_called_once_per_real_event(client: Client) -> None:
    """In the process of its node, in Strands' order; again in a retry, as what they see is."""

    def graph(log: Log) -> Graph:
        worker = Agent(model=ToolModel("work"), tools=[work], callback_handler=None)
        for event in AGENT_EVENTS:
            worker.add_hook(lambda event: log.note(type(event).__name__), event)
        return build({"a": worker})

    seen = await same(client, graph)
    assert seen.log.lines == [
        "BeforeInvocationEvent",
        "MessageAddedEvent",
        "BeforeModelCallEvent",
        "AfterModelCallEvent",
        "MessageAddedEvent",
        "BeforeToolCallEvent",
        "AfterToolCallEvent",
        "MessageAddedEvent",
        "BeforeModelCallEvent",
        "AfterModelCallEvent",
        "MessageAddedEvent",
        "AfterInvocationEvent",
    ]


on_event: Callable[[Any], Any] = hook
"""Strands' own types of the decorator don't know of methods whose event is generic."""


async def test_an_agents_plugin(client: Client) -> None:
    """Its hooks, its tools, and its own initialisation."""

    def graph(log: Log) -> Graph:
        class Extra(Plugin):
            name = "extra"

            def __init__(self) -> None:
                super().__init__()
                self.calls = 0

            def init_agent(self, agent: Agent) -> None:
                agent.state.set("by", self.name)

            @on_event
            def before(self, event: BeforeToolCallEvent) -> None:
                self.calls += 1
                log.note((event.tool_use["name"], event.agent.state.get("by"), self.calls))

            @tool
            def extra_tool(self) -> str:
                """A tool of the plugin's."""
                return "extra"

        worker = Agent(model=ToolModel("extra_tool"), plugins=[Extra()], callback_handler=None)
        return build({"a": worker, "b": log.node("b")}, [("a", "b")])

    seen = await same(client, graph)
    assert seen.log.lines == [("extra_tool", "extra", 1)]
    assert "tool said extra" in seen.log["b"].text


# -- hooks and plugins of the graph ------------------------------------------------------------

GRAPH_EVENTS: list[type] = [
    MultiAgentInitializedEvent,
    BeforeMultiAgentInvocationEvent,
    BeforeNodeCallEvent,
    AfterNodeCallEvent,
    AfterMultiAgentInvocationEvent,
]


class Watcher:
    """Notes the graph's events, each with what it sees of the run."""

    def __init__(self, log: Log, name: str) -> None:
        self.log, self.name = log, name

    def register_hooks(self, registry: Any, **kwargs: Any) -> None:
        for event in GRAPH_EVENTS[1:]:
            registry.add_callback(event, self.note)

    async def note(self, event: Any) -> None:
        state = event.source.state
        self.log.note(
            (
                self.name,
                type(event).__name__,
                getattr(event, "node_id", None),
                state.task,
                list(state.results),
                [node.node_id for node in state.execution_order],
                sorted(node.node_id for node in state.completed_nodes),
                event.invocation_state,
            )
        )


async def test_the_graphs_hooks_are_called_in_strands_order(client: Client) -> None:
    """Before in order of registration, after in reverse; the state is the run's."""

    def graph(log: Log) -> Graph:
        watchers: list[Any] = [Watcher(log, "first"), Watcher(log, "second")]
        return build(
            log.nodes("a b"),
            [("a", "b")],
            configure=lambda builder: builder.set_hook_providers(watchers),
        )

    theirs, ours = await both(client, graph, state={"mine": 1})
    short = [(line[0], line[1], line[2]) for line in ours.log.lines]
    assert short == [
        ("first", "BeforeMultiAgentInvocationEvent", None),
        ("second", "BeforeMultiAgentInvocationEvent", None),
        ("first", "BeforeNodeCallEvent", "a"),
        ("second", "BeforeNodeCallEvent", "a"),
        ("second", "AfterNodeCallEvent", "a"),
        ("first", "AfterNodeCallEvent", "a"),
        ("first", "BeforeNodeCallEvent", "b"),
        ("second", "BeforeNodeCallEvent", "b"),
        ("second", "AfterNodeCallEvent", "b"),
        ("first", "AfterNodeCallEvent", "b"),
        ("second", "AfterMultiAgentInvocationEvent", None),
        ("first", "AfterMultiAgentInvocationEvent", None),
    ]
    # Before the first event Strands has no task yet: its state is the last call's.
    assert ours.log.lines[2:] == theirs.log.lines[2:]
    assert ours.log.lines[0][3] == "T"
    dataflow = await of_ours(client, graph, state={"mine": 1})
    assert dataflow.log.lines == ours.log.lines


async def test_the_source_of_an_event_is_the_graph(client: Client) -> None:
    def graph(log: Log) -> Graph:
        class Provider:
            def register_hooks(self, registry: Any, **kwargs: Any) -> None:
                for event in GRAPH_EVENTS[1:]:
                    registry.add_callback(event, self.look)

            def look(self, event: Any) -> None:
                source = event.source
                edges = [(edge.from_node.node_id, edge.to_node.node_id) for edge in source.edges]
                log.note((type(source), source.id, list(source.nodes), edges, source.node_timeout))

        def configure(builder: GraphBuilder) -> None:
            builder.set_hook_providers([Provider()])
            builder.set_graph_id("mine").set_node_timeout(30)

        return build(log.nodes("a b"), [("a", "b")], configure=configure)

    seen = await same(client, graph)
    assert seen.log.lines == [(Graph, "mine", ["a", "b"], [("a", "b")], 30)] * 6


async def test_hooks_have_priorities(client: Client) -> None:
    def graph(log: Log) -> Graph:
        built = build(log.nodes("a"))
        built.add_hook(lambda _: log.note("late"), BeforeNodeCallEvent, order=HookOrder.SDK_LAST)
        built.add_hook(lambda _: log.note("plain"), BeforeNodeCallEvent)
        built.add_hook(lambda _: log.note("early"), BeforeNodeCallEvent, order=HookOrder.SDK_FIRST)
        return built

    seen = await same(client, graph)
    assert seen.log.lines == ["early", "plain", "late"]


async def test_the_graphs_plugins(client: Client) -> None:
    """Initialised when the graph is built; their hooks follow those of the providers."""
    built: list[str] = []

    def graph(log: Log) -> Graph:
        class Monitor(MultiAgentPlugin):
            name = "monitor"

            def init_multi_agent(self, orchestrator: MultiAgentBase) -> None:
                built.append("plugin")

            @hook
            def ready(self, event: MultiAgentInitializedEvent) -> None:
                built.append("initialized")

            @hook
            def before(self, event: BeforeNodeCallEvent) -> None:
                log.note(("plugin", event.node_id, list(event.source.state.results)))  # type: ignore[attr-defined]

        class Provider:
            def register_hooks(self, registry: Any, **kwargs: Any) -> None:
                registry.add_callback(
                    BeforeNodeCallEvent, lambda event: log.note(("provider", event.node_id, None))
                )

        def configure(builder: GraphBuilder) -> None:
            builder.set_hook_providers([Provider()])
            builder.set_plugins([Monitor()])

        return build(log.nodes("a b"), [("a", "b")], configure=configure)

    seen = await same(client, graph)
    assert seen.log.lines == [
        ("provider", "a", None),
        ("plugin", "a", []),
        ("provider", "b", None),
        ("plugin", "b", ["a"]),
    ]
    # Strands' own graph, the registered one, and one for the visits.
    assert built == ["plugin", "initialized"] * (len(built) // 2)
    assert len(built) >= 6


async def test_a_hook_writes_to_the_invocation_state(client: Client) -> None:
    def graph(log: Log) -> Graph:
        class Scribe:
            def register_hooks(self, registry: Any, **kwargs: Any) -> None:
                for event in GRAPH_EVENTS[1:4]:
                    registry.add_callback(event, self.write)

            def write(self, event: Any) -> None:
                event.invocation_state.setdefault("trail", []).append(type(event).__name__)

        return build(
            log.nodes("a b"),
            [("a", "b")],
            configure=lambda builder: builder.set_hook_providers([Scribe()]),
        )

    seen = await same(client, graph)
    assert seen.log["b"].state == {
        "trail": [
            "BeforeMultiAgentInvocationEvent",
            "BeforeNodeCallEvent",
            "AfterNodeCallEvent",
            "BeforeNodeCallEvent",
        ]
    }


@pytest.mark.parametrize("kind", ["raises", "returns"])
async def test_hooks_after_a_node_that_failed(client: Client, kind: str) -> None:
    def graph(log: Log) -> Graph:
        def broken(_: Any) -> Any:
            if kind == "raises":
                raise RuntimeError("broke")
            return agent_result("A", stop_reason="end_turn")

        return build(
            {"a": log.node("a", broken), "b": log.node("b")},
            [("a", "b")],
            configure=lambda builder: builder.set_hook_providers([Watcher(log, "w")]),
        )

    theirs, ours = await both(client, graph)
    assert [line[1:3] for line in ours.log.lines] == [line[1:3] for line in theirs.log.lines]


def names(seen: Seen) -> list[tuple[str, str | None]]:
    """Return the graph's events that a watcher noted, shortened."""
    return [
        (line[1].removesuffix("Event").replace("MultiAgentInvocation", "Run"), line[2])
        for line in seen.log.lines
    ]


@pytest.mark.parametrize("asks", ["hook", "tool"])
async def test_a_question_doesnt_end_the_run_for_its_hooks(client: Client, asks: str) -> None:
    """Different: in Strands each call is an invocation of its own; here a run is one, to its end.

    And a node that a tool keeps waiting has been called once: its own hooks aren't called again.
    """

    def graph(log: Log) -> Graph:
        asker = Agent(model=ToolModel("ask"), tools=[ask], callback_handler=None)
        gate: list[Any] = [Watcher(log, "w"), *([Gate("a")] if asks == "hook" else [])]
        return build(
            {"a": asker if asks == "tool" else log.node("a")},
            configure=lambda builder: builder.set_hook_providers(gate),
        )

    theirs, ours = await both(client, graph, respond=lambda _: "yes")
    rest = [("AfterNodeCall", "a"), ("AfterRun", None)]
    before = [("BeforeRun", None), ("BeforeNodeCall", "a")]
    assert names(theirs) == [*before, ("AfterRun", None), *before, *rest]
    again = [("BeforeNodeCall", "a")] if asks == "hook" else []
    assert names(ours) == [*before, *again, *rest]


@pytest.mark.parametrize(
    ("event", "theirs", "ours"),
    [
        (BeforeMultiAgentInvocationEvent, "", "AfterRun"),
        (BeforeNodeCallEvent, "BeforeNodeCall AfterRun", "BeforeNodeCall AfterNodeCall AfterRun"),
        (AfterNodeCallEvent, "BeforeNodeCall AfterRun", "BeforeNodeCall AfterRun"),
    ],
)
async def test_what_follows_a_hook_that_raises(
    client: Client, event: type, theirs: str, ours: str
) -> None:
    """Different: what began before it raised has its end here, whoever raised."""

    def graph(log: Log) -> Graph:
        class Broken:
            def register_hooks(self, registry: Any, **kwargs: Any) -> None:
                registry.add_callback(event, self.broken)

            def broken(self, event: Any) -> None:
                raise LookupError("the hook broke")

        return build(
            log.nodes("a"),
            configure=lambda builder: builder.set_hook_providers([Watcher(log, "w"), Broken()]),
        )

    strands, durable = await both(client, graph)
    for seen, expected in ((strands, theirs), (durable, ours)):
        assert str(seen.error) == "the hook broke"
        # The failing one is the first of an after-event: those run in reverse.
        assert " ".join(name for name, _ in names(seen)[1:]) == expected


async def test_a_hook_that_raises_after_the_run_leaves_its_result_alone(client: Client) -> None:
    """Better: the work is done, and its result isn't lost. The worker logs the error."""

    def graph(log: Log) -> Graph:
        class Broken:
            def register_hooks(self, registry: Any, **kwargs: Any) -> None:
                registry.add_callback(AfterMultiAgentInvocationEvent, self.broken)

            def broken(self, event: Any) -> None:
                raise LookupError("the hook broke")

        return build(
            log.nodes("a"), configure=lambda builder: builder.set_hook_providers([Broken()])
        )

    theirs, ours = await both(client, graph)
    assert type(theirs.error) is LookupError
    assert ours.result is not None
    assert ours.result.status is Status.COMPLETED


@both_semantics
async def test_hooks_follow_a_sibling_that_a_failure_cancelled(
    client: Client, semantics: Semantics
) -> None:
    def graph(log: Log) -> Graph:
        async def slow(_: Any) -> str:
            await asyncio.sleep(60)
            return "never"

        async def bad(_: Any) -> str:
            await asyncio.sleep(0.1)
            raise RuntimeError("bad broke")

        return build(
            {"slow": log.node("slow", slow), "bad": log.node("bad", bad)},
            configure=lambda builder: builder.set_hook_providers([Watcher(log, "w")]),
        )

    theirs = await of_strands(graph)
    ours = await of_ours(client, graph, semantics=semantics)
    assert names(theirs)[-3:] == [
        ("AfterNodeCall", "bad"),
        ("AfterNodeCall", "slow"),
        ("AfterRun", None),
    ]
    assert names(ours) == names(theirs)


@both_semantics
async def test_handoffs_name_sources_and_target(client: Client, semantics: Semantics) -> None:
    """Different: one event per node that begins. In Strands it is one per batch."""

    def graph() -> Graph:
        return build(
            {name: name.upper() for name in "abcd"},
            [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")],
        )

    async def handoffs(orchestrator: MultiAgentBase) -> list[Any]:
        return [
            (sorted(event["from_node_ids"]), sorted(event["to_node_ids"]))
            async for event in orchestrator.stream_async("T")
            if event["type"] == "multiagent_handoff"
        ]

    assert await handoffs(graph()) == [(["a"], ["b", "c"]), (["b", "c"], ["d"])]
    async with serve(client, graph, semantics=semantics) as durable:
        assert await handoffs(durable) == [(["a"], ["b"]), (["a"], ["c"]), (["b", "c"], ["d"])]


async def test_a_hook_may_cancel_a_node(client: Client) -> None:
    """In dataflow its branch ends, the run completes, and nothing is raised."""

    def graph(log: Log) -> Graph:
        class Guard:
            def register_hooks(self, registry: Any, **kwargs: Any) -> None:
                registry.add_callback(BeforeNodeCallEvent, self.check)

            def check(self, event: BeforeNodeCallEvent) -> None:
                event.cancel_node = "not today" if event.node_id == "b" else False

        return build(
            log.nodes("a b c d"),
            [("a", "b"), ("b", "c"), ("a", "d")],
            configure=lambda builder: builder.set_hook_providers([Guard(), Watcher(log, "w")]),
        )

    theirs = await of_strands(graph)
    assert str(theirs.error) == "not today"
    ours = await of_ours(client, graph)
    assert ours.result is not None
    assert ours.result.status is Status.COMPLETED
    assert sorted(ours.order) == ["a", "d"]
    assert [event["message"] for event in ours.events if "message" in event] == ["not today"]
    # The hooks that follow a node follow a cancelled one, too.
    assert ("AfterNodeCallEvent", "b") in [line[1:3] for line in ours.log.lines]
