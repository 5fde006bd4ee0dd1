"""What Strands' `Graph` does, row by row: the same here, or better on purpose.

Rows that are to be the same run on Strands' own `Graph` and on a real worker, side by side.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable
from typing import Any

import pytest
from strands import Agent, tool
from strands.agent import AgentResult
from strands.hooks import AfterNodeCallEvent, BeforeNodeCallEvent
from strands.interrupt import Interrupt
from strands.multiagent.base import MultiAgentBase, MultiAgentResult, Status
from strands.multiagent.graph import Graph, GraphBuilder, GraphState
from strands.telemetry.metrics import EventLoopMetrics
from strands.types.tools import ToolContext
from temporalio.client import Client

from durable_strands import InterruptNotPendingError
from durable_strands.wire import Semantics

from .noting import IMAGE, NotingStub, blocks_of
from .side_by_side import Factory, Log, both, equal, of_ours, of_strands, same
from .support import (
    Gate,
    ScriptedModel,
    ToolModel,
    agent,
    agent_result,
    asked_by,
    build,
    gated,
    serve,
)

pytestmark = pytest.mark.filterwarnings("ignore:graph has no max_node_executions")

both_semantics = pytest.mark.parametrize("semantics", ["dataflow", "strands"])

Hook = Callable[[Any], Any]

NEXT_BEGUN = asyncio.Event()
"""Between nodes of different builds of one graph."""


def hooked(hook: Hook, *events: type) -> Callable[[GraphBuilder], Any]:
    """Return a configuration of a builder that calls one hook for some events."""

    class Provider:
        def register_hooks(self, registry: Any, **kwargs: Any) -> None:
            for event in events:
                registry.add_callback(event, hook)

    return lambda builder: builder.set_hook_providers([Provider()])


def plain_graph(nodes: str, edges: str, **options: Any) -> Factory:
    """Return a factory of a graph of noting stubs; edges as in `"a>b b>c"`."""
    arcs = [tuple(edge.split(">")) for edge in edges.split()]
    return lambda log: build(log.nodes(nodes), arcs, **options)


def count(state: GraphState, node: str) -> int:
    return [done.node_id for done in state.execution_order].count(node)


# -- 4.1 Scheduling ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "edges", "order"),
    [
        ("a b c d", "a>b b>c c>d a>d", "a b d c d"),
        ("x a bb z", "x>a x>bb a>bb bb>z", "x a bb bb z z"),
        ("e1 e2 m j", "e1>j e2>m m>j", "e1 e2 m j j"),
        ("s l r j", "s>l s>r l>j r>j", "s l r j"),
    ],
)
async def test_any_edge_from_the_last_batch_fires_a_node(
    client: Client, nodes: str, edges: str, order: str
) -> None:
    """Each target once per batch; at uneven depth a join runs once per batch."""
    seen = await same(client, plain_graph(nodes, edges))
    assert sorted(seen.order) == sorted(order.split())


def three_in_two_batches(log: Log, patience: float) -> Graph:
    """Return fast>next beside slow, which ends when next begins, or when it loses patience."""

    async def slow(_: Any) -> str:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(NEXT_BEGUN.wait(), patience)
        log.note("slow ends")
        return "SLOW"

    def begins(_: Any) -> str:
        log.note("next begins")
        NEXT_BEGUN.set()
        return "NEXT"

    return build(
        {
            "fast": log.node("fast"),
            "slow": log.node("slow", slow),
            "next": log.node("next", begins),
        },
        [("fast", "next")],
    )


async def test_a_batch_ends_as_a_whole(client: Client) -> None:
    """Better in dataflow: there is no barrier."""
    NEXT_BEGUN.clear()
    theirs = await of_strands(lambda log: three_in_two_batches(log, 0.2))
    NEXT_BEGUN.clear()
    ours = await of_ours(client, lambda log: three_in_two_batches(log, 0.2), semantics="strands")
    equal(ours, theirs)
    assert ours.log.lines == ["slow ends", "next begins"]
    assert ours.order == ["fast", "slow", "next"]  # In order of completion.
    NEXT_BEGUN.clear()
    dataflow = await of_ours(client, lambda log: three_in_two_batches(log, 20))
    assert dataflow.log.lines == ["next begins", "slow ends"]


async def test_a_feedback_loop_takes_the_same_passes(client: Client) -> None:
    def graph(log: Log) -> Graph:
        return build(
            log.nodes("w r out"),
            [
                ("w", "r"),
                ("r", "w", lambda state: count(state, "r") < 3),
                ("r", "out", lambda state: count(state, "r") >= 3),
            ],
            entries=["w"],
        )

    seen = await same(client, graph)
    assert seen.order == ["w", "r", "w", "r", "w", "r", "out"]
    assert (await of_ours(client, graph)).order == seen.order


async def test_an_input_has_all_completed_sources_whose_edge_is_true_now(client: Client) -> None:
    """Older parents are in, edges that aren't true yet are not, whichever triggered."""

    def graph(log: Log) -> Graph:
        return build(
            log.nodes("old m1 m2 not_yet z"),
            [
                ("old", "m1"),
                ("m1", "m2"),
                ("m2", "z"),
                ("old", "z", lambda state: "m2" in state.results),
                ("not_yet", "z", lambda state: False),
            ],
        )

    seen = await same(client, graph)
    assert seen.log["z"].text == (
        "Original Task: T\nInputs from previous nodes:"
        "\nFrom old:  - Agent: OLD\n\nFrom m2:  - Agent: M2\n"
    )
    # In dataflow a no is asked again only together with other conditions into the same node.
    assert "From old" not in (await of_ours(client, graph)).log["z"].text


async def test_a_condition_that_changes_its_mind_leaves_the_node_with_the_task(
    client: Client,
) -> None:
    """True for readiness, false for the input."""

    def graph(log: Log) -> Graph:
        def once(state: GraphState) -> bool:
            log.note("asked")
            return log.lines.count("asked") == 1

        return build(log.nodes("a b"), [("a", "b", once)])

    seen = await same(client, graph)
    assert seen.order == ["a", "b"]
    assert seen.log["b"].text == "T"
    assert seen.log.lines == ["asked", "asked"]


async def test_a_batchs_inputs_are_built_before_its_results(client: Client) -> None:
    """Improved: in Strands a slow hook lets a sibling of the same batch leak in."""

    def graph(log: Log) -> Graph:
        async def slowly(event: BeforeNodeCallEvent) -> None:
            if event.node_id == "b":
                await asyncio.sleep(0.2)

        return build(
            log.nodes("a b"),
            [("a", "b")],
            entries=["a", "b"],
            configure=hooked(slowly, BeforeNodeCallEvent),
        )

    theirs, ours = await both(client, graph)
    assert "From a" in theirs.visits["b"][0][0][2]["text"]
    assert ours.visits["b"][0][0] == [{"text": "T"}]


async def test_what_is_in_the_execution_order(client: Client) -> None:
    """In order of completion; a node that returned FAILED is in it."""

    def graph(log: Log) -> Graph:
        async def later(_: Any) -> str:
            await asyncio.sleep(0.3)
            return "LATER"

        return build({"later": log.node("later", later), "failed": Returns(Status.FAILED)})

    seen = await same(client, graph)
    assert seen.order == ["failed", "later"]


async def test_parallel_edges_are_alternatives(client: Client) -> None:
    def no(state: GraphState) -> bool:
        return False

    def yes(state: GraphState) -> bool:
        return True

    def graph(log: Log) -> Graph:
        return build(log.nodes("a b"), [("a", "b", no), ("a", "b", yes), ("a", "b", yes)])

    theirs, ours = await both(client, graph)
    # Among parallel edges Strands has no order: how many it asks depends on the run.
    assert ours.visits == theirs.visits
    assert ours.result is not None
    assert theirs.result is not None
    assert len(ours.result.edges) == len(theirs.result.edges) == 2
    assert (await of_ours(client, graph)).visits == theirs.visits


async def test_an_entry_point_may_have_predecessors_and_a_node_may_be_unreachable(
    client: Client,
) -> None:
    def graph(log: Log) -> Graph:
        return build(log.nodes("a b alone"), [("a", "b"), ("alone", "b")], entries=["a", "b"])

    seen = await same(client, graph)
    assert seen.result is not None
    assert seen.result.status is Status.COMPLETED
    assert seen.result.total_nodes == 3
    assert sorted(seen.order) == ["a", "b", "b"]


async def test_a_second_call_begins_with_fresh_agents(client: Client) -> None:
    """Improved: in Strands the agents go on with the conversation of the last call."""

    class Counting(ScriptedModel):
        def __init__(self, lengths: list[int]) -> None:
            super().__init__("said")
            self.lengths = lengths

        async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            self.lengths.append(len(messages))
            async for event in super().stream(messages):
                yield event

    def graph(lengths: list[int]) -> Graph:
        return build({"a": Agent(model=Counting(lengths), callback_handler=None)})

    theirs: list[int] = []
    shared = graph(theirs)
    ours: list[int] = []
    async with serve(client, lambda: graph(ours)) as durable:
        for _ in range(2):
            await shared.invoke_async("T")
            result = await durable.invoke_async("T")
            assert result.accumulated_usage["totalTokens"] == 15
    assert theirs == [1, 3]
    assert ours == [1, 1]


# -- 4.2 Conditions ----------------------------------------------------------------------------


class CallableCondition:
    def __call__(self, state: GraphState, *, invocation_state: dict[str, Any]) -> bool:
        return bool(invocation_state["go"])


class PlainCallable:
    def __call__(self, state: GraphState) -> bool:
        return "a" in state.results


def _partial(wanted: Any, state: GraphState, invocation_state: dict[str, Any]) -> bool:
    return bool(invocation_state["go"] == wanted)


def _keywords_only(state: GraphState, **kwargs: Any) -> bool:
    return kwargs == {}


def _positional(state: GraphState, invocation_state: dict[str, Any]) -> bool:
    return invocation_state == {"go": True}


def _truthy(state: GraphState) -> Any:
    return [0]


def _falsy(state: GraphState) -> Any:
    return ""


@pytest.mark.parametrize(
    ("condition", "taken"),
    [
        (CallableCondition(), True),
        (PlainCallable(), True),
        (functools.partial(_partial, True), True),
        (functools.partial(_partial, 7), False),
        (_keywords_only, True),
        (_positional, True),
        (_truthy, True),
        (_falsy, False),
    ],
)
async def test_a_condition_gets_the_invocation_state_if_it_has_a_parameter_of_that_name(
    client: Client, condition: Any, taken: bool
) -> None:
    def graph(log: Log) -> Graph:
        return build(log.nodes("a b"), [("a", "b", condition)])

    seen = await same(client, graph, state={"go": True})
    assert seen.order == (["a", "b"] if taken else ["a"])
    assert (await of_ours(client, graph, state={"go": True})).order == seen.order


async def test_what_a_condition_sees(client: Client) -> None:
    def graph(log: Log) -> Graph:
        def look(state: GraphState) -> bool:
            log.note(
                {
                    "status": state.status,
                    "task": state.task,
                    "completed": {node.node_id for node in state.completed_nodes},
                    "failed": {node.node_id for node in state.failed_nodes},
                    "interrupted": {node.node_id for node in state.interrupted_nodes},
                    "order": sorted(node.node_id for node in state.execution_order),
                    "results": {name: str(node.result) for name, node in state.results.items()},
                    "statuses": {name: node.status for name, node in state.results.items()},
                    "kinds": {name: type(node.result) for name, node in state.results.items()},
                    "usage": dict(state.accumulated_usage),
                    "count": state.execution_count,
                    "total": state.total_nodes,
                    "edges": [(a.node_id, b.node_id) for a, b in state.edges],
                    "entries": [node.node_id for node in state.entry_points],
                }
            )
            return True

        return build(
            {"a": agent("A"), "bad": Returns(Status.FAILED), "b": agent("B"), "c": agent("C")},
            [("a", "b"), ("b", "c", look)],
            entries=["a", "bad"],
        )

    seen = await same(client, graph, [{"text": "T"}, IMAGE])
    assert len(seen.log.lines) == 2
    view = seen.log.lines[0]
    assert view["status"] is Status.EXECUTING
    assert view["task"] == [{"text": "T"}, IMAGE]
    assert view["completed"] == {"a", "b"}
    assert view["failed"] == {"bad"}
    assert view["kinds"]["a"] is AgentResult
    assert view["usage"]["totalTokens"] == 30


@both_semantics
async def test_a_condition_sees_how_long_the_graph_has_been_active(
    client: Client, semantics: Semantics
) -> None:
    def graph(log: Log) -> Graph:
        async def slow(_: Any) -> str:
            await asyncio.sleep(0.3)
            return "A"

        def look(state: GraphState) -> bool:
            [node] = state.completed_nodes
            active = state.execution_time / 1000 + time.time() - state.start_time
            log.note((active, node.execution_time))
            return False

        return build({"a": log.node("a", slow), "b": log.node("b")}, [("a", "b", look)])

    theirs = await of_strands(graph)
    ours = await of_ours(client, graph, semantics=semantics)
    for seen in (theirs, ours):
        [(active, of_node)] = seen.log.lines
        assert 0.3 <= active < 10
        assert 300 <= of_node < 10_000


async def test_how_often_conditions_are_asked(client: Client) -> None:
    """For readiness up to the first true edge, and again for each source of the input."""

    def graph(log: Log) -> Graph:
        def says(name: str, answer: bool) -> Callable[[GraphState], bool]:
            def condition(state: GraphState) -> bool:
                log.note(name)
                return answer

            condition.__qualname__ = name
            return condition

        return build(
            log.nodes("a b c z"),
            [
                ("a", "z", says("a", False)),
                ("b", "z", says("b", True)),
                ("c", "z", says("c", True)),
            ],
        )

    seen = await same(client, graph)
    assert seen.log.lines == ["a", "b", "a", "b", "c"]


@both_semantics
async def test_a_condition_that_raises_raises_at_the_caller(
    client: Client, semantics: Semantics
) -> None:
    def graph(log: Log) -> Graph:
        def broken(state: GraphState) -> bool:
            raise LookupError("no such thing")

        return build(log.nodes("a b"), [("a", "b", broken)])

    theirs = await of_strands(graph)
    ours = await of_ours(client, graph, semantics=semantics)
    for seen in (theirs, ours):
        assert type(seen.error) is LookupError
        assert str(seen.error) == "no such thing"
        assert list(seen.visits) == ["a"]


async def test_a_condition_may_write_to_the_invocation_state(client: Client) -> None:
    """Later nodes see it. Improved: the caller's own dict stays as it is."""

    def graph(log: Log) -> Graph:
        def write(state: GraphState, *, invocation_state: dict[str, Any]) -> bool:
            invocation_state["routed"] = True
            return True

        return build(log.nodes("a b"), [("a", "b", write)])

    theirs, ours = await both(client, graph, state={"mine": 1})
    assert ours.visits == theirs.visits
    assert ours.log["b"].state == {"mine": 1, "routed": True}
    assert theirs.state == {"mine": 1, "routed": True}
    assert ours.state == {"mine": 1}


# -- 4.3 Limits --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "executions", "status"),
    [
        (0, 0, Status.FAILED),
        (1, 1, Status.FAILED),
        (2, 4, Status.FAILED),  # Overshot by the batch's width.
        (4, 4, Status.FAILED),
        (5, 5, Status.COMPLETED),
    ],
)
async def test_max_node_executions_is_looked_at_between_batches(
    client: Client, most: int, executions: int, status: Status
) -> None:
    graph = plain_graph(
        "x a b c z",
        "x>a x>b x>c a>z b>z c>z",
        configure=lambda builder: builder.set_max_node_executions(most),
    )
    seen = await same(client, graph)
    assert seen.result is not None
    assert seen.result.status is status
    assert seen.result.execution_count == executions
    assert seen.result.failed_nodes == 0
    dataflow = await of_ours(client, graph)
    assert dataflow.result is not None
    assert dataflow.result.status is status
    assert dataflow.result.execution_count == most


async def test_a_last_batch_may_overrun_the_execution_timeout(client: Client) -> None:
    """As in Strands, whose limit ends no node; in dataflow it does."""

    async def slow(_: Any) -> str:
        await asyncio.sleep(0.4)
        return "S"

    def graph(log: Log) -> Graph:
        return build(
            {"slow": log.node("slow", slow)},
            configure=lambda builder: builder.set_execution_timeout(0.2),
        )

    seen = await same(client, graph)
    assert seen.result is not None
    assert seen.result.status is Status.COMPLETED
    dataflow = await of_ours(client, graph)
    assert dataflow.result is not None
    assert dataflow.result.status is Status.FAILED


async def test_a_node_timeout_raises_and_fails_the_graph(client: Client) -> None:
    """The same words; its class says what it is. Siblings are cancelled."""

    def graph(log: Log) -> Graph:
        async def slow(_: Any) -> str:
            await asyncio.sleep(60)
            return "never"

        return build(
            {"slow": log.node("slow", slow), "after": log.node("after")},
            [("slow", "after")],
            configure=lambda builder: builder.set_node_timeout(0.2),
        )

    theirs, ours = await both(client, graph)
    assert str(theirs.error) == str(ours.error) == "Node 'slow' execution timed out after 0.2s"
    assert type(theirs.error) is Exception
    assert isinstance(ours.error, TimeoutError)
    assert list(theirs.visits) == list(ours.visits) == ["slow"]
    for seen in (theirs, ours):
        assert [event["type"] for event in seen.events] == [
            "multiagent_node_start",
            "multiagent_node_stop",
        ]
        assert seen.events[-1]["node_result"].status is Status.FAILED


# -- 4.4 Failures ------------------------------------------------------------------------------


class Returns(MultiAgentBase):
    """An orchestrator of the user's own that returns a status."""

    def __init__(self, status: Status, then: Status | None = None) -> None:
        super().__init__()
        self.id = "returns"
        self.statuses = status, then or status

    async def invoke_async(
        self, task: Any, invocation_state: dict[str, Any] | None = None, **kwargs: Any
    ) -> MultiAgentResult:
        status, then = self.statuses
        if invocation_state is not None and then is not status:
            if "returned" in invocation_state:
                status = then
            invocation_state["returned"] = True
        return MultiAgentResult(status=status, execution_count=1)


class CustomError(Exception):
    """An error of the user's own, with more than a message."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


@pytest.mark.parametrize(
    "error", [ValueError("bad value"), RuntimeError("broke"), Exception("plain"), CustomError("x")]
)
async def test_what_a_node_raises_reaches_the_caller(client: Client, error: Exception) -> None:
    """Its class and message do; attributes of its own can't travel."""

    def graph(log: Log) -> Graph:
        def broken(_: Any) -> str:
            raise error

        return build(
            {"a": log.node("a"), "b": log.node("b", broken), "c": log.node("c")},
            [("a", "b"), ("b", "c")],
        )

    seen = await same(client, graph)
    assert list(seen.visits) == ["a", "b"]
    assert [event["type"] for event in seen.events][-1] == "multiagent_node_stop"


async def test_a_returned_failure_prunes_its_branch_only(client: Client) -> None:
    """Nothing is raised, the other parent of the join counts, and the graph ends FAILED."""

    def graph(log: Log) -> Graph:
        return build(
            {"bad": Returns(Status.FAILED), **log.nodes("good after_bad join")},
            [("bad", "after_bad"), ("bad", "join"), ("good", "join")],
        )

    seen = await same(client, graph)
    dataflow = await of_ours(client, graph)
    for one in (seen, dataflow):
        assert one.result is not None
        assert one.result.status is Status.FAILED
        assert sorted(one.order) == ["bad", "good", "join"]
        assert one.result.failed_nodes == 1
        assert one.log["join"].text.endswith(
            "Inputs from previous nodes:\nFrom good:  - Agent: GOOD\n"
        )


@both_semantics
async def test_a_node_that_failed_once_leaves_the_graph_failed(
    client: Client, semantics: Semantics
) -> None:
    """Even if it succeeds later; it is then among the completed and the failed."""

    def graph(log: Log) -> Graph:
        return build(
            {"twice": Returns(Status.FAILED, then=Status.COMPLETED), **log.nodes("a b")},
            [("a", "b"), ("b", "twice")],
            entries=["a", "twice"],
        )

    theirs = await of_strands(graph)
    ours = await of_ours(client, graph, semantics=semantics)
    for seen in (theirs, ours):
        assert seen.result is not None
        assert seen.result.status is Status.FAILED
        assert sorted(seen.order) == ["a", "b", "twice", "twice"]
        assert (seen.result.completed_nodes, seen.result.failed_nodes) == (3, 1)


@pytest.mark.parametrize(
    "stop_reason",
    ["max_tokens", "guardrail_intervened", "tool_use", "stop_sequence", "cancelled", "checkpoint"],
)
async def test_other_stop_reasons_are_completions(client: Client, stop_reason: str) -> None:
    def graph(log: Log) -> Graph:
        answer = agent_result("A", stop_reason=stop_reason)
        return build({"a": log.node("a", lambda _: answer), "b": log.node("b")}, [("a", "b")])

    seen = await same(client, graph)
    assert seen.order == ["a", "b"]
    assert seen.result is not None
    assert seen.result.results["a"].result.stop_reason == stop_reason  # type: ignore[union-attr]


@both_semantics
async def test_a_node_that_cancels_itself_is_no_success(
    client: Client, semantics: Semantics
) -> None:
    """Improved: in Strands it vanishes, its successors run, and the graph is COMPLETED."""

    def graph(log: Log) -> Graph:
        def cancelled(_: Any) -> str:
            raise asyncio.CancelledError

        return build({"a": log.node("a", cancelled), "b": log.node("b")}, [("a", "b")])

    theirs = await of_strands(graph)
    assert theirs.result is not None
    assert theirs.result.status is Status.COMPLETED
    ours = await of_ours(client, graph, semantics=semantics)
    assert ours.error is not None
    assert list(ours.visits) == ["a"]


@pytest.mark.parametrize("event", [BeforeNodeCallEvent, AfterNodeCallEvent])
@both_semantics
async def test_a_hook_that_raises_fails_the_graph(
    client: Client, semantics: Semantics, event: type
) -> None:
    def graph(log: Log) -> Graph:
        def broken(event: Any) -> None:
            if event.node_id == "a":
                raise LookupError("the hook broke")

        return build(log.nodes("a b"), [("a", "b")], configure=hooked(broken, event))

    theirs = await of_strands(graph)
    ours = await of_ours(client, graph, semantics=semantics)
    for seen in (theirs, ours):
        assert type(seen.error) is LookupError
        assert str(seen.error) == "the hook broke"
        assert list(seen.visits) == ([] if event is BeforeNodeCallEvent else ["a"])


@pytest.mark.parametrize("cancel", [True, "custom words"])
async def test_a_cancelled_node_fails_the_graph_under_strands_rule(
    client: Client, cancel: Any
) -> None:
    def graph(log: Log) -> Graph:
        def check(event: BeforeNodeCallEvent) -> None:
            if event.node_id == "b":
                event.cancel_node = cancel

        return build(
            log.nodes("a b c"),
            [("a", "b"), ("b", "c")],
            configure=hooked(check, BeforeNodeCallEvent),
        )

    seen = await same(client, graph)
    assert type(seen.error) is RuntimeError
    assert str(seen.error) == ("node cancelled by user" if cancel is True else cancel)
    assert list(seen.visits) == ["a"]


# -- 4.5 Interrupts ----------------------------------------------------------------------------


async def test_a_hook_and_a_tool_ask_side_by_side(client: Client) -> None:
    """What is asked, what each answer releases, and what comes of it, are the same."""

    def graph(log: Log) -> Graph:
        asker = Agent(model=ToolModel("ask"), tools=[ask], callback_handler=None)
        return build(
            {**log.nodes("gated free"), "asker": asker, "join": log.node("join")},
            [("gated", "join"), ("asker", "join"), ("free", "join")],
            configure=gated(Gate("gated")),
        )

    theirs, ours = await both(client, graph, respond=lambda item: f"yes to {item.name}")
    assert ours.result is not None
    assert sorted(ours.asked[0]) == sorted(theirs.asked[0])
    assert len(ours.asked) == len(theirs.asked) == 1
    assert ours.visits == theirs.visits
    assert "tool said yes to question" in ours.log["join"].text
    assert sorted(ours.order) == sorted(theirs.order)
    assert ours.result.accumulated_usage == theirs.result.accumulated_usage  # type: ignore[union-attr]


@tool(context=True)
def ask(tool_context: ToolContext) -> str:
    """Ask a human."""
    return str(tool_context.interrupt("question", reason={"of": "the tool"}))


async def test_two_tools_ask_in_one_turn(client: Client) -> None:
    """The agent goes on when it has both answers, each at its own tool."""

    class Asking(ScriptedModel):
        async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            results = blocks_of(messages[-1:], "toolResult")
            if results:
                self.reply = " and ".join(one["content"][0]["text"] for one in results)
                async for event in super().stream(messages, *args, **kwargs):
                    yield event
                return
            yield {"messageStart": {"role": "assistant"}}
            for name in ("ask", "ask_more"):
                use = {"toolUseId": f"use-{name}", "name": name}
                yield {"contentBlockStart": {"start": {"toolUse": use}}}
                yield {"contentBlockDelta": {"delta": {"toolUse": {"input": "{}"}}}}
                yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "tool_use"}}

    @tool(context=True)
    def ask_more(tool_context: ToolContext) -> str:
        """Ask another thing."""
        return str(tool_context.interrupt("another"))

    def graph(log: Log) -> Graph:
        asker = Agent(model=Asking(""), tools=[ask, ask_more], callback_handler=None)
        return build({"a": asker, "b": log.node("b")}, [("a", "b")])

    theirs, ours = await both(client, graph, respond=lambda item: f"to {item.name}")
    assert [sorted(asked) for asked in ours.asked] == [sorted(asked) for asked in theirs.asked]
    assert len(ours.asked[0]) == 2
    assert ours.visits == theirs.visits
    assert "Agent: to question and to another" in ours.log["b"].text


@both_semantics
async def test_equal_ids_of_strands_are_told_apart(client: Client, semantics: Semantics) -> None:
    """Improved: two agents whose tool-use ids are equal share one interrupt in Strands."""

    def graph() -> Graph:
        def asker() -> Agent:
            return Agent(model=ToolModel("ask"), tools=[ask], callback_handler=None)

        return build({"one": asker(), "two": asker()})

    async with serve(client, graph, semantics=semantics) as durable:
        run = await durable.start("T")
        ids = await asked_by(run, "one", "two")
        assert len(set(ids.values())) == 2
        await run.respond({ids["two"]: "B"})
        await run.respond({ids["one"]: "A"})
        result = await run.result()
    assert str(result.results["one"]) == "tool said A\n"
    assert str(result.results["two"]) == "tool said B\n"


async def test_a_question_leaves_no_trace_in_the_result_until_it_is_answered(
    client: Client,
) -> None:
    def graph(log: Log) -> Graph:
        def after(event: AfterNodeCallEvent) -> None:
            log.note(f"after {event.node_id}")

        def configure(builder: GraphBuilder) -> None:
            gate = Gate("a")
            hooked(after, AfterNodeCallEvent)(builder)
            assert builder._hooks is not None
            builder._hooks.append(gate)

        return build(log.nodes("a b"), configure=configure)

    theirs, ours = await both(client, graph)
    for seen in (theirs, ours):
        assert seen.result is not None
        assert seen.result.status is Status.INTERRUPTED
        assert seen.order == ["b"]
        assert list(seen.result.results) == ["b"]
        assert seen.result.execution_count == 1
        assert seen.result.interrupted_nodes == 1
        assert seen.log.lines == ["after b"]
    assert ours.events_by_node == theirs.events_by_node


async def test_an_interrupt_without_a_question_fails_its_node(client: Client) -> None:
    """Improved: in Strands there is no way on from it."""

    def graph(log: Log) -> Graph:
        answer = agent_result("?", stop_reason="interrupt")
        return build({"a": log.node("a", lambda _: answer)})

    theirs, ours = await both(client, graph)
    assert theirs.result is not None
    assert theirs.result.status is Status.INTERRUPTED
    assert theirs.result.interrupts == []
    assert isinstance(ours.error, NotImplementedError)
    assert "Node 'a' asks for input" in str(ours.error)


async def test_a_custom_agent_gets_its_answers_and_nothing_else(client: Client) -> None:
    def graph(log: Log) -> Graph:
        class Asking(NotingStub):
            async def invoke_async(self, prompt: Any = None, **kwargs: Any) -> AgentResult:
                given = [
                    block["interruptResponse"]["response"]
                    for block in prompt
                    if "interruptResponse" in block
                ]
                if given:
                    return agent_result(f"got {given}")
                result = agent_result("?", stop_reason="interrupt")
                result.interrupts = [Interrupt("my-id", "name?", "why")]
                return result

        return build({"a": Asking(log, "a", None)})

    seen = await same(client, graph, respond=lambda _: {"answer": 42})
    assert seen.result is not None
    assert str(seen.result.results["a"]) == "got [{'answer': 42}]\n"
    assert seen.asked == [[("name?", "why")]]


async def test_what_is_no_answer_is_a_new_run(client: Client) -> None:
    """Improved: Strands refuses every task until the question is answered."""

    def graph() -> Graph:
        return build({"a": "A"}, configure=gated(Gate("a")))

    theirs = graph()
    assert (await theirs.invoke_async("first")).status is Status.INTERRUPTED
    with pytest.raises(TypeError):
        await theirs.invoke_async("second")
    async with serve(client, graph) as durable:
        first = await durable.start("first")
        ids = await asked_by(first, "a")
        assert (await durable.invoke_async("second")).status is Status.INTERRUPTED
        await first.respond({ids["a"]: "yes"})
        assert (await first.result()).status is Status.COMPLETED


async def test_an_answer_to_nothing_is_refused(client: Client) -> None:
    """Improved: Strands hands such a list to the nodes, as their task."""
    answer: Any = [{"interruptResponse": {"interruptId": "v1:x", "response": "yes"}}]
    async with serve(client, lambda: build({"a": "A"}, configure=gated(Gate("a")))) as durable:
        with pytest.raises(InterruptNotPendingError):
            await durable.invoke_async(answer)
        first = await durable.invoke_async("T")
        with pytest.raises(InterruptNotPendingError, match="v1:x"):
            await durable.invoke_async(answer)
        answer[0]["interruptResponse"]["interruptId"] = first.interrupts[0].id
        assert (await durable.invoke_async(answer)).status is Status.COMPLETED


# -- 4.7 What a node reads ---------------------------------------------------------------------


def result_of(*blocks: Any, name: str | None = None) -> AgentResult:
    result = AgentResult(
        stop_reason="end_turn",
        message={"role": "assistant", "content": list(blocks)},
        metrics=EventLoopMetrics(),
        state={},
    )
    if name is not None:
        result.agent_name = name  # type: ignore[attr-defined]
    return result


@pytest.mark.parametrize(
    "answer",
    [
        result_of({"text": "one"}, {"text": "two"}),
        result_of(IMAGE),
        result_of({"text": "look"}, IMAGE),
        result_of({"citationsContent": {"content": [{"text": "cited"}], "citations": []}}),
        result_of({"toolUse": {"toolUseId": "1", "name": "x", "input": {}}}),
        result_of({"reasoningContent": {"reasoningText": {"text": "hm"}}}, {"text": "so"}),
        result_of(),
        result_of({"text": "by name"}, name="Ada"),
        result_of({"text": "ünïcödé \u2028 \x00 end"}),
    ],
    ids=lambda answer: str(answer).strip()[:12] or "nothing",
)
@pytest.mark.parametrize("task", ["T", [{"text": "T"}, IMAGE]], ids=["text", "blocks"])
async def test_a_prompt_is_strands_own_block_by_block(
    client: Client, answer: AgentResult, task: Any
) -> None:
    def graph(log: Log) -> Graph:
        return build({"a": log.node("a", lambda _: answer), "b": log.node("b")}, [("a", "b")])

    theirs = await of_strands(graph, task)
    for semantics in ("strands", "dataflow"):
        ours = await of_ours(client, graph, task, semantics=semantics)
        assert ours.visits == theirs.visits


@pytest.mark.parametrize("task", ["", []])
async def test_an_empty_task_is_a_task(client: Client, task: Any) -> None:
    await same(client, plain_graph("a b", "a>b"), task)


@pytest.mark.parametrize("status", [Status.PENDING, Status.EXECUTING])
async def test_an_orchestrators_unfinished_status_is_a_completion(
    client: Client, status: Status
) -> None:
    def graph(log: Log) -> Graph:
        return build({"odd": Returns(status), "b": log.node("b")}, [("odd", "b")])

    theirs, ours = await both(client, graph)
    assert theirs.result is not None
    assert ours.result is not None
    assert ours.order == theirs.order == ["odd", "b"]
    assert ours.result.status is theirs.result.status is Status.COMPLETED
    assert ours.visits == theirs.visits


async def test_extra_arguments_of_a_call_are_dropped(client: Client) -> None:
    graph = build({"a": "A"})
    theirs = await graph.invoke_async("T", None, color="red")
    async with serve(client, lambda: build({"a": "A"})) as durable:
        ours = await durable.invoke_async("T", None, color="red")
    assert ours.status is theirs.status is Status.COMPLETED


async def test_extra_arguments_of_a_synchronous_call(client: Client) -> None:
    """Different: they go into the invocation state, as `MultiAgentBase` has it."""
    theirs, ours = Log(), Log()
    in_process = build(theirs.nodes("a"))
    await asyncio.to_thread(in_process, "T", {"mine": 1}, color="red")
    async with serve(client, lambda: build(ours.nodes("a"))) as durable:
        with pytest.warns(UserWarning, match="invocation_state"):
            await asyncio.to_thread(durable, "T", {"mine": 1}, color="red")
    assert theirs["a"].state == {"mine": 1}
    assert ours["a"].state == {"mine": 1, "color": "red"}


# -- 4.8 Revisits ------------------------------------------------------------------------------


@pytest.mark.parametrize("reset", [False, True])
async def test_a_self_loop_reads_its_own_output_unless_reset(client: Client, reset: bool) -> None:
    def graph(log: Log) -> Graph:
        return build(
            log.nodes("a"),
            [("a", "a", lambda state: len(state.execution_order) < 3)],
            entries=["a"],
            configure=lambda builder: builder.reset_on_revisit(reset),
        )

    seen = await same(client, graph)
    texts = [note.text for note in seen.log.visits]
    again = "Original Task: T\nInputs from previous nodes:\nFrom a:  - Agent: A\n"
    assert texts == ["T", "T", "T"] if reset else ["T", again, again]


@both_semantics
async def test_usage_is_counted_once_per_visit(client: Client, semantics: Semantics) -> None:
    """Improved: Strands adds an agent's lifetime counter at each visit."""

    def graph(log: Log) -> Graph:
        return build(
            {"a": agent("A")},
            [("a", "a", lambda state: len(state.execution_order) < 3)],
            entries=["a"],
        )

    theirs = await of_strands(graph)
    ours = await of_ours(client, graph, semantics=semantics)
    assert theirs.result is not None
    assert ours.result is not None
    assert theirs.result.accumulated_usage["totalTokens"] == 15 + 30 + 45
    assert ours.result.accumulated_usage["totalTokens"] == 3 * 15
    assert ours.result.accumulated_metrics["latencyMs"] == 3 * 7
    assert ours.result.execution_count == theirs.result.execution_count == 3


# -- 4.9 The invocation state ------------------------------------------------------------------


@both_semantics
async def test_one_nodes_stop_does_not_stop_later_ones(
    client: Client, semantics: Semantics
) -> None:
    """Improved: in Strands `request_state` is shared, so later agents end after their tool."""

    @tool(context=True)
    def stop(tool_context: ToolContext) -> str:
        """End this agent's turn."""
        tool_context.invocation_state["request_state"]["stop_event_loop"] = True
        return "stopped"

    @tool
    def work() -> str:
        """Do some work."""
        return "worked"

    def graph(log: Log) -> Graph:
        return build(
            {
                "a": Agent(model=ToolModel("stop"), tools=[stop], callback_handler=None),
                "b": Agent(model=ToolModel("work"), tools=[work], callback_handler=None),
            },
            [("a", "b")],
        )

    theirs = await of_strands(graph)
    ours = await of_ours(client, graph, semantics=semantics)
    assert theirs.result is not None
    assert ours.result is not None
    assert theirs.result.results["b"].result.stop_reason == "tool_use"  # type: ignore[union-attr]
    assert str(ours.result.results["b"]) == "tool said worked\n"


@both_semantics
async def test_siblings_writes_are_merged_by_key(client: Client, semantics: Semantics) -> None:
    """A slow sibling that didn't touch a key doesn't overwrite it with what it was given."""

    def graph(log: Log) -> Graph:
        def quick(state: dict[str, Any]) -> str:
            state["quick"] = "written"
            return "Q"

        async def slow(state: dict[str, Any]) -> str:
            await asyncio.sleep(0.2)
            state["slow"] = "written"
            return "S"

        return build(
            {"quick": log.node("quick", quick), "slow": log.node("slow", slow), **log.nodes("z")},
            [("quick", "z"), ("slow", "z")],
        )

    given = {"quick": "given", "slow": "given", "kept": 1}
    seen = await of_ours(client, graph, state=given, semantics=semantics)
    assert seen.log["z"].state == {"quick": "written", "slow": "written", "kept": 1}


@both_semantics
async def test_the_invocation_state_outlives_a_question(
    client: Client, semantics: Semantics
) -> None:
    """Improved: in Strands whoever answers must pass it again."""

    def graph(log: Log) -> Graph:
        return build(log.nodes("a b"), [("a", "b")], configure=gated(Gate("b")))

    async with serve(
        client, functools.partial(graph, log := Log()), semantics=semantics
    ) as durable:
        first = await durable.invoke_async("T", {"given": 1, "changed": 1})
        answer: Any = [
            {"interruptResponse": {"interruptId": first.interrupts[0].id, "response": "yes"}}
        ]
        await durable.invoke_async(answer, {"changed": 2})
    assert log["b"].state == {"given": 1, "changed": 2}


# -- 4.10 Executors and ids --------------------------------------------------------------------


class OnlyStreams:
    """No agent by Strands' protocol: it can't be invoked."""

    async def stream_async(self, prompt: Any = None, **kwargs: Any) -> Any:
        yield {"result": agent_result("never")}


def a_function(prompt: Any) -> str:
    return "never"


@pytest.mark.parametrize("executor", [OnlyStreams(), a_function], ids=["streams", "function"])
async def test_an_unsupported_executor_fails_when_its_turn_comes(
    client: Client, executor: Any
) -> None:
    """Not when it is built or registered, as in Strands."""

    def graph(log: Log) -> Graph:
        builder = GraphBuilder()
        builder.add_node(log.node("a"), "a")
        builder.add_node(executor, "odd")
        builder.add_edge("a", "odd")
        return builder.build()

    seen = await same(client, graph)
    assert type(seen.error) is ValueError
    assert "is not supported" in str(seen.error)


async def test_a_stream_without_a_result_fails_its_node(client: Client) -> None:
    class Silent(NotingStub):
        async def stream_async(self, prompt: Any = None, **kwargs: Any) -> Any:
            yield {"data": "something"}

    seen = await same(client, lambda log: build({"a": Silent(log, "a", None)}))
    assert type(seen.error) is ValueError
    assert str(seen.error) == "Node 'a' did not produce a result event"


@both_semantics
async def test_an_unnamed_result_is_read_by_its_text(client: Client, semantics: Semantics) -> None:
    """Improved: in Strands a result that is no AgentResult breaks whoever reads it."""

    class Odd(NotingStub):
        async def stream_async(self, prompt: Any = None, **kwargs: Any) -> Any:
            yield {"result": "just a text"}

    def graph(log: Log) -> Graph:
        return build({"a": Odd(log, "a", None), "b": log.node("b")}, [("a", "b")])

    theirs = await of_strands(graph)
    assert isinstance(theirs.error, AttributeError)
    ours = await of_ours(client, graph, semantics=semantics)
    assert ours.log["b"].text.endswith("From a:  - Agent: just a text")


@pytest.mark.parametrize(
    "names", [("with space", "sla/sh"), ("ünï#1", "日本語"), ("Strands Agents", "a:b|c%20\n")]
)
async def test_an_id_may_hold_anything(client: Client, names: tuple[str, str]) -> None:
    first, second = names

    def graph(log: Log) -> Graph:
        return build(
            {first: log.node(first), second: log.node(second)},
            [(first, second)],
            configure=gated(Gate(second)),
        )

    seen = await same(client, graph, respond=lambda _: "yes")
    assert seen.order == [first, second]


async def test_ids_that_strands_makes(client: Client) -> None:
    def graph(log: Log) -> Graph:
        builder = GraphBuilder()
        builder.add_node(agent("A"))
        builder.add_node(agent("B", name="named"))
        builder.add_node(log.node("c"))
        builder.add_node(Returns(Status.COMPLETED))
        return builder.build()

    theirs, ours = await both(client, graph)
    assert theirs.result is not None
    assert ours.result is not None
    assert sorted(ours.order) == sorted(theirs.order)
    assert sorted(theirs.order) == ["Strands Agents", "named", "node_2", "returns"]


# -- 5 What travels ----------------------------------------------------------------------------


@tool
def work() -> str:
    """Do some work."""
    return "worked"


async def test_an_agents_result_is_whole_on_the_callers_side(client: Client) -> None:
    """All that Strands' own serialisation loses: metrics of cycles and tools, state, counts."""

    def graph(log: Log) -> Graph:
        worker = Agent(model=ToolModel("work"), tools=[work], callback_handler=None)
        return build({"a": worker, "b": log.node("b")}, [("a", "b")])

    theirs, ours = await both(client, graph)
    equal(ours, theirs)
    mine: Any = ours.result.results["a"].result  # type: ignore[union-attr]
    other: Any = theirs.result.results["a"].result  # type: ignore[union-attr]
    assert type(mine) is AgentResult
    assert mine.message["content"] == other.message["content"]
    assert mine.stop_reason == other.stop_reason
    assert mine.state == other.state
    assert mine.metrics.cycle_count == other.metrics.cycle_count == 2
    assert mine.metrics.accumulated_usage == other.metrics.accumulated_usage
    assert mine.metrics.accumulated_metrics == other.metrics.accumulated_metrics
    assert mine.metrics.tool_metrics["work"].call_count == 1
    assert mine.metrics.tool_metrics["work"].success_count == 1
    usages = [[cycle.usage for cycle in one.cycles] for one in mine.metrics.agent_invocations]
    assert usages == [
        [cycle.usage for cycle in one.cycles] for one in other.metrics.agent_invocations
    ]


async def test_a_failure_keeps_its_class_and_its_node(client: Client) -> None:
    """Improved: Strands' own serialisation makes a plain `Exception` of it."""

    def graph(log: Log) -> Graph:
        def broken(_: Any) -> str:
            raise CustomError("out of paper", code=7)

        return build({"a": log.node("a", broken)})

    seen = await of_ours(client, graph)
    cause: Any = seen.error.__cause__ if seen.error is not None else None
    failed = cause.result.results["a"]
    assert failed.status is Status.FAILED
    assert type(failed.result) is CustomError
    assert failed.execution_count == 1
