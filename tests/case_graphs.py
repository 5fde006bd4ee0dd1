"""The graphs of tests/test_cases.py, for a worker in the test's process or in one of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from strands import Agent, tool
from strands.agent import AgentResult
from strands.multiagent.graph import Graph, GraphBuilder, GraphState
from strands.multiagent.swarm import Swarm
from strands.types.tools import ToolContext
from temporalio import activity
from temporalio.common import RetryPolicy

from durable_strands import GraphRegistry, NodeOptions, current_node

from .restart import Stage
from .support import Edge, Executors, Reply, ScriptedModel, Stub, agent_result, build

QUICK = NodeOptions(
    heartbeat_timeout=timedelta(seconds=1),
    retry=RetryPolicy(initial_interval=timedelta(milliseconds=50), maximum_attempts=3),
)
"""A lost worker is noticed within a second."""

ONCE = RetryPolicy(maximum_attempts=1)

registry = GraphRegistry()


def this_visit() -> str:
    node = current_node()
    return f"{node.path}#{node.visit}"


def text_of(prompt: Any) -> str:
    return "".join(block.get("text", "") for block in prompt)


class Step(Stub):
    """A stub that tells its stage what it does: begin, end, cancelled.

    It answers `"<name>#<visit>"`, or what a function of the attempt says.
    """

    def __init__(self, reply: Callable[[int], str | AgentResult] | None = None) -> None:
        super().__init__("")
        self._reply = reply

    async def invoke_async(
        self, prompt: Any = None, *, invocation_state: Any = None, **kwargs: Any
    ) -> AgentResult:
        visit, stage = this_visit(), Stage.of(invocation_state)
        attempt = current_node().attempt
        if stage is not None:
            stage.note("begin", visit, attempt=attempt, prompt=text_of(prompt))
            try:
                await stage.stand(visit)
                await stage.stand(f"{visit}@{attempt}")
            except asyncio.CancelledError:
                stage.note("cancelled", visit)
                raise
        answer = visit if self._reply is None else self._reply(attempt)
        if stage is not None:
            stage.note("end", visit)
        return agent_result(answer) if isinstance(answer, str) else answer


class StagedModel(ScriptedModel):
    """A scripted model that tells its stage when it is called, and with what."""

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        visit, stage = this_visit(), Stage.of(kwargs.get("invocation_state"))
        if stage is not None:
            prompt = text_of(messages[-1]["content"])
            images = [
                block["image"]["source"]["bytes"].hex()
                for message in messages
                for block in message["content"]
                if "image" in block
            ]
            stage.note("begin", visit, prompt=prompt, messages=len(messages), images=images)
            await stage.stand(visit)
        async for event in super().stream(messages, *args, **kwargs):
            yield event
        if stage is not None:
            stage.note("end", visit)


class ToolModel(ScriptedModel):
    """A model that calls one tool, and after its result says `"done"`."""

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        super().__init__("done")
        self._call = name, arguments

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        if any("toolResult" in block for block in messages[-1]["content"]):
            async for event in super().stream(messages, *args, **kwargs):
                yield event
            return
        name, arguments = self._call
        use = {"toolUseId": f"use-{len(messages)}", "name": name}
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {"toolUse": use}}}
        yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(arguments)}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use"}}
        usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 7}}}


def staged_agent(reply: Reply, **options: Any) -> Agent:
    """Return a real agent whose model tells its stage."""
    return Agent(model=StagedModel(reply), callback_handler=None, **options)


def graph(
    name: str,
    steps: str | Executors,
    edges: Iterable[Edge] = (),
    *,
    entries: Iterable[str] = (),
    configure: Callable[[GraphBuilder], Any] = lambda _: None,
    **options: Any,
) -> None:
    """Register a graph of plain steps, or of what functions make, by name."""
    kinds = dict.fromkeys(steps.split(), Step) if isinstance(steps, str) else steps
    edges, entries = list(edges), list(entries)

    def factory() -> Graph:
        executors = {node: kind() for node, kind in kinds.items()}
        return build(executors, edges, entries=entries, configure=configure)

    options.setdefault("defaults", QUICK)
    registry.add(name, factory, **options)


def arrows(text: str) -> list[Edge]:
    """Read edges: `"a>b b>c"`."""
    return [(source, target) for source, target in (edge.split(">") for edge in text.split())]


def ran(node: str, times: int) -> Callable[[GraphState], bool]:
    """Return a condition: `node` has completed fewer than so many times."""

    def condition(state: GraphState) -> bool:
        return [done.node_id for done in state.execution_order].count(node) < times

    return condition


def done(node: str, times: int) -> Callable[[GraphState], bool]:
    """Return a condition: `node` has completed so many times."""

    def condition(state: GraphState) -> bool:
        return [done.node_id for done in state.execution_order].count(node) >= times

    return condition


# -- 1: an even fan-in -------------------------------------------------------------------------

graph("even_fan_in", "left right join", arrows("left>join right>join"))


# -- 2, 3, 5: joins ----------------------------------------------------------------------------

graph("uneven_diamond", "s l r1 r2 j k", arrows("s>l s>r1 r1>r2 l>j r2>j j>k"))

JOINS: dict[str, dict[str, Any]] = {
    "all": {"join": "all"},
    "any": {"join": "any"},
    "strands": {"semantics": "strands"},
}
for how, options in JOINS.items():
    graph(f"direct_and_indirect_{how}", "x a z", arrows("x>a x>z a>z"), **options)


def both(state: GraphState) -> bool:
    return "a" in state.results and "b" in state.results


for how, options in JOINS.items():
    graph(f"wait_for_all_{how}", "a b z", [("a", "z", both), ("b", "z", both)], **options)


# -- 11: retries -------------------------------------------------------------------------------


def fails_once(attempt: int) -> str:
    if attempt == 1:
        raise ConnectionError("the line was dropped")
    return f"b after {attempt} attempts"


CHAIN: Executors = {"a": Step, "b": lambda: Step(fails_once), "c": Step}
graph("retry", CHAIN, arrows("a>b b>c"))
graph("no_retry", CHAIN, arrows("a>b b>c"), nodes={"b": NodeOptions(retry=ONCE)})
graph("lost_once", "a b c", arrows("a>b b>c"), nodes={"b": NodeOptions(retry=ONCE)})


# -- 13: limits --------------------------------------------------------------------------------

graph(
    "two_executions",
    "x a b c d",
    arrows("x>a x>b x>c x>d"),
    configure=lambda builder: builder.set_max_node_executions(2),
)
graph(
    "execution_timeout",
    "a b",
    arrows("a>b"),
    configure=lambda builder: builder.set_execution_timeout(0.3),
)
graph("node_timeout", "a b", arrows("a>b"), configure=lambda builder: builder.set_node_timeout(0.2))


# -- 15: a cancelled child ---------------------------------------------------------------------


@tool(context=True)
def give_up(tool_context: ToolContext) -> str:
    """Cancel the calling agent."""
    tool_context.agent.cancel()
    return "as you wish"


def cancels_itself() -> Agent:
    return Agent(model=ToolModel("give_up", {}), tools=[give_up], callback_handler=None)


graph(
    "cancelled_child",
    {"a": cancels_itself, "other": Step, "down": Step, "od": Step},
    arrows("a>down other>od"),
)


# -- 16, 23, 24, 25: runs side by side -------------------------------------------------------------


def echo() -> Agent:
    return staged_agent(lambda prompt: f"<{prompt}>")


graph("agents", {"a": echo, "b": echo}, arrows("a>b"))


class Scribbler(Step):
    """A step that writes into its invocation state, deep inside too."""

    async def invoke_async(
        self, prompt: Any = None, *, invocation_state: Any = None, **kwargs: Any
    ) -> AgentResult:
        invocation_state["who"]["name"] = "Bob"
        invocation_state["added"] = [1]
        del invocation_state["removed"]
        return await super().invoke_async(prompt, invocation_state=invocation_state, **kwargs)


graph("scribblers", {"a": Scribbler, "b": echo, "c": Step}, arrows("a>b b>c"))
graph("steps", "a b", arrows("a>b"))


# -- 17: hash seeds ----------------------------------------------------------------------------

FAN = [f"n{number}" for number in range(6)]
graph("fan", " ".join([*FAN, "join"]), [(node, "join") for node in FAN])
graph(
    "fan_strands",
    " ".join([*FAN, "join"]),
    [(node, "join") for node in FAN],
    semantics="strands",
)


# -- 18: no barrier ----------------------------------------------------------------------------

graph("no_barrier", "fast slow fast2", arrows("fast>fast2"))
graph("one_at_a_time", "left right join", arrows("left>join right>join"), max_concurrency=1)


# -- 19: conditions ----------------------------------------------------------------------------


async def asynchronously_no(state: GraphState, *, invocation_state: dict[str, Any]) -> bool:
    stage = Stage.of(invocation_state)
    assert stage is not None
    stage.note("condition", "a->b", activity=activity.info().activity_type)
    await stage.stand("a->b")
    return False


async def asynchronously_yes(state: GraphState) -> bool:
    await asyncio.sleep(0)
    return "a" in state.results


def raises(state: GraphState, *, invocation_state: dict[str, Any]) -> bool:
    stage = Stage.of(invocation_state)
    assert stage is not None
    stage.note("condition", "a->b")
    raise LookupError("no such review")


graph("async_condition", "a b c", [("a", "b", asynchronously_no), ("a", "c", asynchronously_yes)])
graph("bad_condition", "a b c", [("a", "b", raises), ("a", "c")])


# -- knots -------------------------------------------------------------------------------------

graph(
    "loop_of_two",
    "r w v",
    [("r", "w", ran("r", 2)), ("r", "v", ran("r", 2)), ("w", "r"), ("v", "r")],
    entries=["r"],
)
graph(
    "out_beside_a_loop",
    "p w r out",
    [("p", "out"), ("w", "r"), ("r", "w", ran("r", 2)), ("r", "out", done("r", 2))],
    entries=["p", "w"],
)
graph(
    "planner_and_reviewer", "planner w r", [("planner", "w"), ("w", "r"), ("r", "w", ran("r", 2))]
)
graph(
    "two_that_wait_for_each_other",
    "e a b",
    [("e", "a"), ("e", "b"), ("a", "b"), ("b", "a", ran("b", 2))],
)
for name, steps in {"feedback": "planner w v r", "feedback_r_first": "planner r w v"}.items():
    graph(
        name,
        steps,
        [
            *arrows("planner>w planner>v w>r v>r"),
            ("r", "w", ran("r", 2)),
            ("r", "v", ran("r", 2)),
        ],
    )


# -- agents ------------------------------------------------------------------------------------


class Verdict(BaseModel):
    """What the judge says."""

    passed: bool
    points: list[int]


@tool
def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word}: nothing known"


def uses_a_tool() -> Agent:
    return Agent(model=ToolModel("look_up", {"word": "x"}), tools=[look_up], callback_handler=None)


def judge() -> Agent:
    return Agent(
        model=ToolModel("Verdict", {"passed": True, "points": [3, 4]}),
        structured_output_model=Verdict,
        callback_handler=None,
    )


graph("structured", {"judge": judge, "reader": Step}, arrows("judge>reader"))

for name, reset in {"conversation": False, "conversation_reset": True}.items():
    graph(
        name,
        {"writer": lambda: staged_agent(lambda _: "draft"), "end": Step},
        [("writer", "writer", ran("writer", 3)), ("writer", "end", done("writer", 3))],
        entries=["writer"],
        configure=lambda builder, reset=reset: builder.reset_on_revisit(reset),  # type: ignore[misc]
    )

graph("seeing", {"first": echo, "second": echo}, arrows("first>second"))


@tool(context=True)
def ask(tool_context: ToolContext) -> str:
    """Ask a human."""
    return str(tool_context.interrupt("what is it?"))


class SeesAndAsks(ToolModel):
    """Asks through a tool before it answers, and tells its stage what bytes it saw each time."""

    def __init__(self) -> None:
        super().__init__("ask", {})

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        stage = Stage.of(kwargs.get("invocation_state"))
        assert stage is not None
        sources = [
            block[kind]["source"]["bytes"].hex()
            for message in messages
            for block in message["content"]
            for kind in ("image", "document")
            if kind in block
        ]
        stage.note("begin", this_visit(), prompt=text_of(messages[-1]["content"]), sources=sources)
        async for event in super().stream(messages, *args, **kwargs):
            yield event


def sees_and_asks() -> Agent:
    return Agent(model=SeesAndAsks(), tools=[ask], callback_handler=None)


graph("binary", {"asker": sees_and_asks, "second": echo}, arrows("asker>second"))


# -- graphs and swarms within a graph, and executors that run whole --------------------------------


def nested_graph() -> Graph:
    return build({"in0": echo(), "in1": echo()}, arrows("in0>in1"))


def nested_swarm() -> Swarm:
    lead = Agent(
        name="lead",
        model=ToolModel("handoff_to_agent", {"agent_name": "expert", "message": "over to you"}),
        callback_handler=None,
    )
    expert = Agent(name="expert", model=ScriptedModel("expertise"), callback_handler=None)
    return Swarm([lead, expert])


class Custom(Stub):
    """Has no more than the methods of Strands' `AgentBase`, and streams more than its result."""

    def __init__(self) -> None:
        super().__init__(lambda prompt: f"read {len(prompt)} characters")

    async def stream_async(self, prompt: Any = None, **kwargs: Any) -> Any:
        yield {"data": "half of it"}
        yield {"result": await self.invoke_async(prompt, **kwargs)}


for name, executor in {
    "whole_graph": nested_graph,
    "whole_swarm": nested_swarm,
    "whole_custom": Custom,
}.items():
    graph(name, {"whole": executor, "after": Step}, arrows("whole>after"))
