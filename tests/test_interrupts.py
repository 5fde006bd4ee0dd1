"""Questions to humans: asked once, visible at once, answered once, never in the way."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest
from strands import Agent, tool
from strands.hooks import AfterInvocationEvent, BeforeNodeCallEvent
from strands.multiagent.base import Status
from strands.multiagent.graph import Graph
from strands.types.tools import ToolContext
from temporalio.client import Client
from temporalio.common import RetryPolicy

from durable_strands import (
    GraphFailedError,
    InterruptNotPendingError,
    InterruptTimeoutError,
    InvalidGraphInputError,
    NodeOptions,
    RunClosedError,
)

from .support import (
    Gate,
    ToolModel,
    agent_result,
    asked_by,
    build,
    eventually,
    failed_tasks,
    gated,
    scheduled,
    serve,
)

ONCE = NodeOptions(retry=RetryPolicy(maximum_attempts=1))


def order(result: Any) -> list[str]:
    return [node.node_id for node in result.execution_order]


def answer_to(result: Any) -> Any:
    """Return the answer "yes" to a result's first question, as Strands takes it."""
    return [{"interruptResponse": {"interruptId": result.interrupts[0].id, "response": "yes"}}]


async def slowly(seconds: float, text: str) -> str:
    await asyncio.sleep(seconds)
    return text


async def test_skip_pattern_keeps_its_state_over_an_approval(client: Client) -> None:
    """Case 4: B is skipped by the invocation state, which the answer doesn't repeat."""
    gate = Gate("c")

    def graph() -> Graph:
        return build(
            {"a": "A", "b": "B", "c": lambda prompt: f"C({prompt})"},
            [
                ("a", "b", lambda state, *, invocation_state: not invocation_state.get("skip")),
                ("a", "c", lambda state, *, invocation_state: invocation_state.get("skip")),
                ("b", "c"),
            ],
            configure=gated(gate),
        )

    async with serve(client, graph) as durable:
        first = await durable.invoke_async("t", {"skip": True})
        assert first.status is Status.INTERRUPTED
        assert [interrupt.name for interrupt in first.interrupts] == ["approve"]
        result = await durable.invoke_async(answer_to(first))
        assert result.status is Status.COMPLETED
        assert order(result) == ["a", "c"]
        assert "From a:  - Agent: A" in str(result.results["c"])
        assert gate.asked == ["c", "c"]  # Asked, and called once more with its answer.


async def test_failure_beside_a_pending_approval_cancels_the_approval(client: Client) -> None:
    """Case 6."""

    async def bad(prompt: str) -> str:
        await asyncio.sleep(0.3)
        if "first" in prompt:
            raise RuntimeError("bad broke")
        return "fine"

    def graph() -> Graph:
        return build(
            {"a": "A", "bad": bad, "c": "C"}, [("a", "c"), ("bad", "c")], configure=gated(Gate("a"))
        )

    async with serve(client, graph, defaults=ONCE) as durable:
        run = await durable.start("first")
        ids = await asked_by(run, "a")
        with pytest.raises(RuntimeError, match="bad broke") as raised:
            await run.result()
        assert isinstance(raised.value.__cause__, GraphFailedError)
        report = await run.status()
        assert report.interrupts == []
        assert [(info.node, info.id) for info in report.cancelled_interrupts] == [("a", ids["a"])]
        assert "bad broke" in report.cancelled_interrupts[0].why
        assert {node: state.status.value for node, state in report.nodes.items()} == {
            "a": "cancelled",
            "bad": "failed",
            "c": "pending",
        }
        assert await scheduled(client, run.id) == ["graph.bad"]
        with pytest.raises(RunClosedError):
            await run.respond({ids["a"]: "yes"})

        second = await durable.start("second")
        ids = await asked_by(second, "a")
        await second.respond({ids["a"]: "yes"})
        assert order(await second.result())[-1] == "c"


async def test_no_prompt_after_a_failure(client: Client) -> None:
    """Case 6, the mirror: bad fails before a comes to ask."""
    gate = Gate("a")

    def bad(prompt: str) -> str:
        raise RuntimeError("bad broke")

    def graph() -> Graph:
        return build(
            {"slow": lambda _: slowly(0.5, "S"), "a": "A", "bad": bad},
            [("slow", "a")],
            configure=gated(gate),
        )

    async with serve(client, graph, defaults=ONCE) as durable:
        run = await durable.start("t")
        with pytest.raises(RuntimeError, match="bad broke"):
            await run.result()
        assert gate.asked == []
        report = await run.status()
        assert report.cancelled_interrupts == []
        assert report.nodes["slow"].status.value == "cancelled"


async def test_failure_while_resuming_leaves_nothing_locked(client: Client) -> None:
    """Case 7."""

    def a(prompt: str) -> str:
        if "first" in prompt:
            raise RuntimeError("a broke")
        return "A"

    def graph() -> Graph:
        return build({"a": a}, configure=gated(Gate("a")))

    async with serve(client, graph, defaults=ONCE) as durable:
        result = await durable.invoke_async("first")
        with pytest.raises(RuntimeError, match="a broke"):
            await durable.invoke_async(answer_to(result))
        result = await durable.invoke_async("second")
        assert result.status is Status.INTERRUPTED


async def test_a_rejected_node_ends_its_branch_only(client: Client) -> None:
    """Case 8."""

    def graph() -> Graph:
        return build(
            dict.fromkeys("abcde", "x"),
            [("a", "b"), ("b", "c"), ("a", "d"), ("d", "e")],
            configure=gated(Gate("b")),
        )

    async with serve(client, graph) as durable:
        run = await durable.start("t")
        ids = await asked_by(run, "b")
        await run.respond({ids["b"]: "no"})
        result = await run.result()
        assert result.status is Status.COMPLETED
        assert order(result) == ["a", "d", "e"]
        report = await run.status()
        assert report.nodes["b"].status.value == "cancelled"
        assert report.nodes["c"].visits == 0


async def test_a_rejected_node_fails_the_graph_under_strands_rule(client: Client) -> None:
    def graph() -> Graph:
        return build({"a": "A", "b": "B"}, [("a", "b")], configure=gated(Gate("b")))

    async with serve(client, graph, semantics="strands") as durable:
        run = await durable.start("t")
        ids = await asked_by(run, "b")
        await run.respond({ids["b"]: "no"})
        with pytest.raises(RuntimeError, match="rejected"):
            await run.result()


@pytest.mark.parametrize("first", ["a", "b"])
async def test_one_of_two_approvals_answered_releases_one_node(client: Client, first: str) -> None:
    """Case 9."""
    gate = Gate("a", "b")
    second = "b" if first == "a" else "a"

    def graph() -> Graph:
        return build(
            {"a": "A", "b": "B", "j": lambda prompt: prompt},
            [("a", "j"), ("b", "j")],
            configure=gated(gate),
        )

    async with serve(client, graph) as durable:
        run = await durable.start("t")
        ids = await asked_by(run, "a", "b")
        assert await run.respond({ids[first]: "yes"}) == [first]
        assert await asked_by(run, second) == {second: ids[second]}
        report = await run.status()
        assert report.nodes["j"].visits == 0
        assert await run.respond({ids[second]: "yes"}) == [second]
        result = await run.result()
        assert order(result)[-1] == "j"
        assert str(result.results["j"]).count("From ") == 2
        assert sorted(gate.asked) == ["a", "a", "b", "b"]
        report = await run.status()
        assert [state.visits for state in report.nodes.values()] == [1, 1, 1]


async def test_an_asked_node_already_holds_its_execution(client: Client) -> None:
    """Case 14: the limit is met by the very dispatch that asks."""

    def graph() -> Graph:
        def configure(builder: Any) -> None:
            builder.set_max_node_executions(1).set_hook_providers([Gate("a")])

        return build({"a": "A"}, configure=configure)

    async with serve(client, graph) as durable:
        run = await durable.start("t")
        ids = await asked_by(run, "a")
        await run.respond({ids["a"]: "yes"})
        assert (await run.result()).status is Status.COMPLETED


async def test_waiting_for_a_human_is_no_active_time(client: Client) -> None:
    """Case 13: an execution timeout doesn't run while everything waits."""

    def graph() -> Graph:
        def configure(builder: Any) -> None:
            builder.set_execution_timeout(1).set_hook_providers([Gate("a")])

        return build({"a": "A", "b": "B"}, [("a", "b")], configure=configure)

    async with serve(client, graph) as durable:
        run = await durable.start("t")
        ids = await asked_by(run, "a")
        await asyncio.sleep(1.5)
        await run.respond({ids["a"]: "yes"})
        result = await run.result()
        assert result.status is Status.COMPLETED
        assert result.execution_time < 1000


async def test_answer_hygiene(client: Client) -> None:
    """Case 20: unknown, answered and malformed answers are refused, and change nothing."""
    gate = Gate("a", "b")

    def graph() -> Graph:
        return build({"a": "A", "b": "B"}, configure=gated(gate))

    async with serve(client, graph) as durable:
        run = await durable.start("t")
        ids = await asked_by(run, "a", "b")
        with pytest.raises(InterruptNotPendingError, match="There is no interrupt 'nope'"):
            await run.respond({ids["a"]: "yes", "nope": "yes"})
        with pytest.raises(InterruptNotPendingError, match="isn't empty"):
            await run.respond({})
        with pytest.raises(InvalidGraphInputError, match="not JSON"):
            await run.respond({ids["a"]: object()})
        await asked_by(run, "a", "b")  # None of this answered anything.
        await run.respond({ids["a"]: "yes"}, update_id="once")
        assert await run.respond({ids["a"]: "yes"}, update_id="once") == ["a"]
        with pytest.raises(InterruptNotPendingError, match="answered already"):
            await run.respond({ids["a"]: "again"})
        await run.respond({ids["b"]: "yes"})
        await run.result()
        assert gate.answers.count(("a", "yes")) == 1
        assert await failed_tasks(client, run.id) == 0


BIG = {"list": list(range(2000)), "nested": {"a": [None, True, "x" * 1000]}}


@pytest.mark.parametrize("response", [None, False, "", 0, [], {}, BIG], ids=repr)
async def test_any_json_is_an_answer(client: Client, response: Any) -> None:
    """Case 20, for hooks and for tools."""
    gate = Gate("hooked")
    seen: list[Any] = []

    @tool(context=True)
    def ask(tool_context: ToolContext) -> str:
        """Ask a human."""
        seen.append(tool_context.interrupt("question", reason="?"))
        return "asked"

    def graph() -> Graph:
        asker = Agent(model=ToolModel("ask"), tools=[ask], callback_handler=None)
        return build({"hooked": "H", "asker": asker}, configure=gated(gate))

    async with serve(client, graph) as durable:
        run = await durable.start("t")
        ids = await asked_by(run, "hooked", "asker")
        await run.respond({ids["hooked"]: response, ids["asker"]: response})
        result = await run.result()
        assert result.status is Status.COMPLETED
        assert gate.answers == [("hooked", response)]
        assert seen == [response]


async def test_a_prompt_does_not_wait_for_slow_siblings(client: Client) -> None:
    """Case 22."""

    def graph() -> Graph:
        return build(
            {"a": "A", "b": lambda _: slowly(3, "B"), "after": "x"},
            [("a", "after")],
            configure=gated(Gate("a")),
        )

    async with serve(client, graph) as durable:
        began = time.monotonic()
        run = await durable.start("t")
        ids = await asked_by(run, "a")
        await run.respond({ids["a"]: "yes"})
        result = await run.result()
        assert order(result) == ["a", "after", "b"]
        assert time.monotonic() - began < 8


async def test_usage_of_the_part_before_the_question_counts(client: Client) -> None:
    """Two model calls of 15 tokens, one on either side of the question."""

    @tool(context=True)
    def ask(tool_context: ToolContext) -> str:
        """Ask a human."""
        return f"human said {tool_context.interrupt('question', reason='?')}"

    def graph() -> Graph:
        return build({"asker": Agent(model=ToolModel("ask"), tools=[ask], callback_handler=None)})

    async with serve(client, graph) as durable:
        run = await durable.start("t")
        ids = await asked_by(run, "asker")
        assert ids["asker"].startswith("asker#1:v1:tool_call:")
        await run.respond({ids["asker"]: "yes"})
        result = await run.result()
        assert str(result.results["asker"]) == "tool said human said yes\n"
        assert result.accumulated_usage["totalTokens"] == 30
        assert result.results["asker"].accumulated_usage["totalTokens"] == 30
        history = await client.get_workflow_handle(run.id).fetch_history()
        ids_used = [
            event.activity_task_scheduled_event_attributes.activity_id
            for event in history.events
            if event.HasField("activity_task_scheduled_event_attributes")
        ]
        assert ids_used == ["asker#1", "asker#1.1"]


async def test_a_deadline_fails_the_node_with_its_reason(client: Client) -> None:
    def graph() -> Graph:
        return build({"a": "A", "b": "B"}, [("a", "b")], configure=gated(Gate("a")))

    options = NodeOptions(interrupt_timeout=timedelta(seconds=0.5))
    async with serve(client, graph, nodes={"a": options}) as durable:
        run = await durable.start("t")
        ids = await asked_by(run, "a")
        with pytest.raises(InterruptTimeoutError, match="interrupt_timeout"):
            await run.result()
        report = await run.status()
        assert [info.id for info in report.cancelled_interrupts] == [ids["a"]]
        assert report.cancelled_interrupts[0].why == "interrupt_timeout"


async def test_an_answer_in_time_stops_the_deadline(client: Client) -> None:
    def graph() -> Graph:
        return build({"a": lambda _: slowly(1.2, "A")}, configure=gated(Gate("a")))

    options = NodeOptions(interrupt_timeout=timedelta(seconds=1))
    async with serve(client, graph, nodes={"a": options}) as durable:
        run = await durable.start("t")
        ids = await asked_by(run, "a")
        await run.respond({ids["a"]: "yes"})
        assert (await run.result()).status is Status.COMPLETED


async def test_a_question_that_cannot_be_answered_fails_the_node(client: Client) -> None:
    """An agent that stops for input without an interrupt would wait for ever."""

    def graph() -> Graph:
        return build({"a": lambda _: agent_result("?", stop_reason="interrupt")})

    async with serve(client, graph, defaults=ONCE) as durable:
        with pytest.raises(NotImplementedError, match="nothing that could be answered"):
            await durable.invoke_async("t")


async def test_a_signal_answers_too_and_bad_ones_are_harmless(client: Client) -> None:
    def graph() -> Graph:
        return build({"a": "A"}, configure=gated(Gate("a")))

    async with serve(client, graph) as durable:
        run = await durable.start("t")
        ids = await asked_by(run, "a")
        handle = client.get_workflow_handle(run.id)
        bad_arguments: list[list[Any]] = [
            [],
            [None],
            [1, 2],
            [{"nope": 1}],
            [{}],
            ["x", {}, []],
            [{ids["a"]: 1}, 3],
        ]
        for bad in bad_arguments:
            await handle.signal("respond", args=bad)
        await asked_by(run, "a")
        await handle.signal("respond", {ids["a"]: "yes"})
        assert (await run.result()).status is Status.COMPLETED
        assert await failed_tasks(client, run.id) == 0


async def test_a_cancelled_run_lists_its_open_questions(client: Client) -> None:
    def graph() -> Graph:
        return build({"a": "A", "b": lambda _: slowly(30, "B")}, configure=gated(Gate("a")))

    async with serve(client, graph) as durable:
        run = await durable.start("t")
        ids = await asked_by(run, "a")
        await run.cancel()
        with pytest.raises(RunClosedError, match="cancelled"):
            await run.result()
        report = await run.status()
        assert report.status.value == "cancelled"
        assert [info.id for info in report.cancelled_interrupts] == [ids["a"]]
        assert report.nodes["b"].status.value == "cancelled"


@tool(context=True)
def ask_once(tool_context: ToolContext) -> str:
    """Ask a human."""
    return f"human said {tool_context.interrupt('question', reason='?')}"


@pytest.mark.parametrize("on_revisit", ["keep", "reset"])
@pytest.mark.parametrize("first_visit", ["completed", "raised", "unanswered"])
async def test_a_visit_that_asked_leaves_nothing_to_the_next(
    client: Client, on_revisit: Any, first_visit: str
) -> None:
    """The node is visited again, by another edge, after its first visit asked a human."""

    def graph() -> Graph:
        asker = Agent(model=ToolModel("ask_once"), tools=[ask_once], callback_handler=None)
        if first_visit == "raised":

            def fail(event: AfterInvocationEvent) -> None:
                if "fail" in str(event.agent.messages[-2]):
                    raise RuntimeError("as the answer says")

            asker.add_hook(fail)
        return build(
            {"asker": asker, "slow": lambda _: slowly(2, "S")},
            [("slow", "asker")],
            entries=["asker", "slow"],
        )

    options = NodeOptions(
        on_revisit=on_revisit,
        on_failure="prune",
        retry=RetryPolicy(maximum_attempts=1),
        interrupt_timeout=timedelta(seconds=1) if first_visit == "unanswered" else None,
    )
    async with serve(client, graph, nodes={"asker": options}) as durable:
        run = await durable.start("t")
        ids = await asked_by(run, "asker")
        assert ids["asker"].startswith("asker#1:")
        if first_visit != "unanswered":
            await run.respond({ids["asker"]: "fail" if first_visit == "raised" else "yes"})

        async def second() -> bool:
            return any(info.visit == 2 for info in await run.interrupts())

        await eventually(second)
        ids = await asked_by(run, "asker")
        await run.respond({ids["asker"]: "second"})
        result = await run.result()
        assert str(result.results["asker"]) == "tool said human said second\n"
        assert (await run.status()).nodes["asker"].visits == 2


async def test_a_hook_may_ask_one_thing_after_the_other(client: Client) -> None:
    seen: list[tuple[Any, Any]] = []

    def check(event: BeforeNodeCallEvent) -> None:
        seen.append((event.interrupt("first"), event.interrupt("second")))

    def graph() -> Graph:
        built = build({"a": "A"})
        built.add_hook(check, BeforeNodeCallEvent)
        return built

    async with serve(client, graph) as durable:
        run = await durable.start("t")
        for response in (None, "two"):
            ids = await asked_by(run, "a")
            await run.respond({ids["a"]: response})
        assert (await run.result()).status is Status.COMPLETED
        assert seen == [(None, "two")]


async def test_a_tool_may_ask_again_after_a_null(client: Client) -> None:
    seen: list[tuple[Any, Any]] = []

    @tool(context=True)
    def ask_twice(tool_context: ToolContext) -> str:
        """Ask a human, twice."""
        seen.append((tool_context.interrupt("first"), tool_context.interrupt("second")))
        return "asked"

    def graph() -> Graph:
        asker = Agent(model=ToolModel("ask_twice"), tools=[ask_twice], callback_handler=None)
        return build({"asker": asker})

    async with serve(client, graph) as durable:
        run = await durable.start("t")
        for response in (None, "two"):
            ids = await asked_by(run, "asker")
            await run.respond({ids["asker"]: response})
        result = await run.result()
        assert seen == [(None, "two")]
        assert result.accumulated_usage["totalTokens"] == 30  # Each part's calls, once.
