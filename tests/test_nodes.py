"""Plain functions and human gates as nodes, in Strands' own graph and in a durable one."""

from __future__ import annotations

import functools
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from strands.agent.base import AgentBase
from strands.multiagent.base import Status
from strands.multiagent.graph import Graph, GraphBuilder, GraphState
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.worker import Worker

from durable_strands import (
    DurableGraph,
    FunctionNode,
    GraphPlugin,
    GraphRegistry,
    HumanGate,
    InterruptNotPendingError,
    InvalidGraphError,
    NodeOptions,
    Prompt,
    current_node,
    function_node,
    human_gate,
)

from .support import (
    agent_result,
    asked_by,
    failed_tasks,
    replay_queue,
    scheduled,
    serve,
    worker_for,
)

QUICK = NodeOptions(
    retry=RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=3)
)
IMAGE = {"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}}


class Invoice(BaseModel):
    total: int


def graph_of(nodes: dict[str, Any], *edges: tuple[Any, ...]) -> Graph:
    builder = GraphBuilder()
    for name, node in nodes.items():
        builder.add_node(node, name)
    for edge in edges:
        builder.add_edge(*edge)
    builder.set_max_node_executions(10)
    return builder.build()


@asynccontextmanager
async def graph_in(
    world: str, client: Client, factory: Callable[[], Graph]
) -> AsyncIterator[Graph | DurableGraph]:
    """Yield a graph as Strands runs it, or as a worker does."""
    if world == "process":
        yield factory()
        return
    async with serve(client, factory, defaults=QUICK) as durable:
        yield durable


worlds = pytest.mark.parametrize("world", ["process", "worker"])


def answer(result: Any, *responses: Any) -> list[Any]:
    assert len(result.interrupts) == len(responses)
    return [
        {"interruptResponse": {"interruptId": asked.id, "response": response}}
        for asked, response in zip(result.interrupts, responses, strict=True)
    ]


def inner(result: Any, node: str) -> Any:
    return result.results[node].result


# -- what a function is called with ------------------------------------------------------------


def by_name(invocation_state: Any, prompt: Any) -> list[Any]:
    return [prompt, invocation_state["k"]]


def by_position(text: Any, factor: int = 2, *rest: Any, **more: Any) -> list[Any]:
    return [text, factor, list(rest), more]


async def async_by_name(*, prompt: Any, invocation_state: Any) -> list[Any]:
    return [prompt, invocation_state["k"]]


def positional_only(text: Any, factor: int = 3, invocation_state: Any = None, /) -> list[Any]:
    return [text, factor, invocation_state]


def nothing() -> list[Any]:
    return []


class CallableObject:
    async def __call__(self, prompt: Any) -> Any:
        return [prompt]

    def method(self, text: Any) -> Any:
        return [text]


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (by_name, ["a\nb", 1]),
        (async_by_name, ["a\nb", 1]),
        (by_position, ["a\nb", 2, [], {}]),
        (positional_only, ["a\nb", 3, {"k": 1}]),
        (nothing, []),
        (CallableObject(), ["a\nb"]),
        (CallableObject().method, ["a\nb"]),
        (functools.partial(by_position, factor=5), ["a\nb", 5, [], {}]),
        (functools.partial(async_by_name, prompt="bound"), ["a\nb", 1]),
        (lambda text: async_by_name(prompt=text, invocation_state={"k": 2}), ["a\nb", 2]),
        (lambda state=None: [state], [None]),
    ],
)
async def test_a_function_gets_what_it_asks_for(function: Any, given: list[Any]) -> None:
    prompt = [{"text": "a"}, IMAGE, {"text": "b"}]
    result = await function_node(function).invoke_async(prompt, invocation_state={"k": 1})
    assert result.state == {"value": given}


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda one, two: None, "'one', 'two'"),
        (lambda prompt, model: None, "'model'"),
        (lambda *, model: None, "'model'"),
        (lambda prompt, *, invocation_state, model, tools: None, "'model', 'tools'"),
    ],
)
def test_a_parameter_that_nothing_can_be_given_for_is_refused(function: Any, named: str) -> None:
    with pytest.raises(InvalidGraphError, match=rf"parameter\(s\) {named}\. The function may"):
        function_node(function)


@pytest.mark.parametrize("function", ["text", 3, None.__class__])
def test_what_is_no_function_is_refused(function: Any) -> None:
    with pytest.raises(InvalidGraphError):
        function_node(function)


def test_a_prompt_is_a_text_with_its_blocks() -> None:
    blocks: Any = [{"text": "a"}, IMAGE, {"text": "b"}]
    assert Prompt.of(blocks) == "a\nb"
    assert Prompt.of(blocks).blocks == blocks
    assert Prompt.of([{"role": "user", "content": blocks}]).blocks == blocks
    assert (Prompt.of("a"), Prompt.of("a").blocks) == ("a", [{"text": "a"}])
    assert (Prompt.of(None), Prompt.of(None).blocks) == ("", [])


def test_decorated_functions() -> None:
    @function_node
    def plain(prompt: str) -> str:
        """Say it again."""
        return prompt

    @function_node(name="other", description="something else")
    async def named(prompt: str) -> str:
        return f"{prompt}!"

    assert isinstance(plain, FunctionNode)
    assert isinstance(plain, AgentBase)
    assert (plain.name, plain.description) == ("plain", "Say it again.")
    assert (named.name, named.description) == ("other", "something else")
    assert str(plain("hi")) == "hi\n"
    assert str(named("hi")) == "hi!\n"
    assert plain.function("hi") == "hi"
    assert function_node(functools.partial(by_position, factor=5)).name == "by_position"


# -- what it returns ---------------------------------------------------------------------------

RETURNS: list[tuple[Any, str, dict[str, Any] | None]] = [
    ("text", "text\n", {}),
    ("", "\n", {}),
    (None, "\n", {}),
    ([{"text": "one"}, {"text": "two"}], "one\ntwo\n", {}),
    ([IMAGE], "", {}),
    (Invoice(total=3), '{"total":3}', {}),
    (agent_result("its own"), "its own\n", {}),
    ({"ä": [1, None]}, '{"ä": [1, null]}\n', {"value": {"ä": [1, None]}}),
    ([{"text": "one", "more": 1}], '[{"text": "one", "more": 1}]\n', None),
    ([{"image": "a.png"}], '[{"image": "a.png"}]\n', None),
    ([], "[]\n", {"value": []}),
    ((1, 2), "[1, 2]\n", {"value": [1, 2]}),
    (False, "false\n", {"value": False}),
    (0, "0\n", {"value": 0}),
]


@pytest.mark.parametrize("number", range(len(RETURNS)), ids=lambda n: repr(RETURNS[n][0])[:30])
async def test_what_a_function_returns_is_the_result(number: int) -> None:
    value, text, state = RETURNS[number]
    result = await function_node(lambda: value).invoke_async([{"text": "T"}])
    assert str(result) == text
    assert result.state == ({"value": value} if state is None else state)
    assert result.stop_reason == "end_turn"
    assert result.metrics.accumulated_usage["totalTokens"] == 0
    assert result.structured_output == (value if isinstance(value, Invoice) else None)
    if value == [IMAGE]:
        assert result.message["content"] == [IMAGE]


async def test_what_no_result_can_be_made_of_is_refused() -> None:
    def numbers() -> Any:
        yield 1

    for function, kind in [
        (lambda: {1}, "set"),
        (lambda: object(), "object"),
        (lambda: float("nan"), "float"),
        (lambda: b"bytes", "bytes"),
        (numbers, "generator"),
    ]:
        with pytest.raises(TypeError, match=rf"Node 'odd' returned a {kind}\."):
            await function_node(function, name="odd").invoke_async("T")


async def test_a_function_may_raise_what_no_future_can_hold() -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        await function_node(lambda: next(iter([]))).invoke_async("T")


@worlds
async def test_functions_in_a_graph(client: Client, world: str) -> None:
    def read(prompt: Prompt, invocation_state: dict[str, Any]) -> list[Any]:
        invocation_state["blocks"] = [next(iter(block)) for block in prompt.blocks]
        return [{"text": f"read {prompt}"}, IMAGE]

    async def bill(text: str, invocation_state: dict[str, Any]) -> Invoice:
        assert "From read:\n  - Agent: read T" in text
        return Invoice(total=len(invocation_state["blocks"]))

    def is_two(state: GraphState) -> bool:
        return bool(inner(state, "bill").structured_output.total == 2)

    def numbers() -> Any:
        return {"thread": threading.current_thread() is not threading.main_thread()}

    def factory() -> Graph:
        return graph_of(
            {
                "read": function_node(read),
                "bill": function_node(bill),
                "numbers": function_node(numbers),
            },
            ("read", "bill"),
            ("bill", "numbers", is_two),
        )

    async with graph_in(world, client, factory) as graph:
        result = await graph.invoke_async([{"text": "T"}, IMAGE])  # type: ignore[arg-type]
    assert result.status is Status.COMPLETED
    assert [node.node_id for node in result.execution_order] == ["read", "bill", "numbers"]
    assert inner(result, "read").message["content"] == [{"text": "read T"}, IMAGE]
    assert inner(result, "bill").structured_output == Invoice(total=2)
    assert inner(result, "numbers").state == {"value": {"thread": True}}
    assert result.accumulated_usage["totalTokens"] == 0


async def test_a_function_is_retried_and_knows_its_visit(client: Client) -> None:
    attempts: list[tuple[str, str]] = []

    def flaky() -> str:
        node = current_node()
        attempts.append((f"{node.path}#{node.visit}.{node.attempt}", node.idempotency_key))
        if node.attempt < 3:
            raise ConnectionError("not yet")
        return "at last"

    factory = functools.partial(graph_of, {"flaky": function_node(flaky)})
    async with serve(client, factory, defaults=QUICK) as graph:
        result = await graph.invoke_async("T")
    assert str(inner(result, "flaky")) == "at last\n"
    assert [place for place, _ in attempts] == ["flaky#1.1", "flaky#1.2", "flaky#1.3"]
    assert len({key for _, key in attempts}) == 1


@worlds
async def test_what_a_function_raises_fails_the_node(client: Client, world: str) -> None:
    calls: list[str] = []

    def broken(prompt: str) -> Any:
        calls.append(prompt)
        raise KeyError("gone")

    def factory() -> Graph:
        return graph_of({"broken": function_node(broken)})

    async with graph_in(world, client, factory) as graph:
        with pytest.raises(KeyError, match="gone"):
            await graph.invoke_async("T")
    assert len(calls) == (3 if world == "worker" else 1)


@worlds
async def test_a_wrong_return_fails_the_node_at_once(client: Client, world: str) -> None:
    calls: list[str] = []

    def odd(prompt: str) -> Any:
        calls.append(prompt)
        return {prompt}

    def factory() -> Graph:
        return graph_of({"odd": function_node(odd)})

    async with graph_in(world, client, factory) as graph:
        with pytest.raises(TypeError, match="Node 'odd' returned a set"):
            await graph.invoke_async("T")
    assert calls == ["T"]


# -- human gates -------------------------------------------------------------------------------


@worlds
@pytest.mark.parametrize(
    ("response", "text"),
    [
        ("yes", "yes\n"),
        ("", "\n"),
        (None, "null\n"),
        (False, "false\n"),
        ({"budget": 3}, '{"budget": 3}\n'),
    ],
)
async def test_the_answer_is_the_result(
    client: Client, world: str, response: Any, text: str
) -> None:
    seen: list[str] = []

    def good(state: GraphState) -> bool:
        return bool(inner(state, "gate").state["answer"] == response)

    def factory() -> Graph:
        return graph_of(
            {
                "draft": function_node(lambda: "a draft"),
                "gate": human_gate("Good?"),
                "publish": function_node(seen.append, name="publish"),
            },
            ("draft", "gate"),
            ("gate", "publish", good),
        )

    async with graph_in(world, client, factory) as graph:
        asks = await graph.invoke_async("T")
        assert asks.status is Status.INTERRUPTED
        (asked,) = asks.interrupts
        assert asked.name == "human"
        assert asked.reason["question"] == "Good?"
        assert "From draft:\n  - Agent: a draft" in asked.reason["prompt"]
        result = await graph.invoke_async(answer(asks, response))
    assert result.status is Status.COMPLETED
    assert str(inner(result, "gate")) == text
    assert inner(result, "gate").state == {"answer": response}
    assert inner(result, "gate").stop_reason == "end_turn"
    assert len(seen) == 1
    assert result.accumulated_usage["totalTokens"] == 0


def is_number(answer: Any) -> str | None:
    return None if isinstance(answer, int) else f"{answer!r} is no number"


@worlds
async def test_a_refused_answer_is_asked_for_again(client: Client, world: str) -> None:
    def factory() -> Graph:
        return graph_of({"gate": human_gate("How many?", name="count", check=is_number)})

    async with graph_in(world, client, factory) as graph:
        first = await graph.invoke_async("T")
        second = await graph.invoke_async(answer(first, "some"))
        third = await graph.invoke_async(answer(second, None))
        asked = [result.interrupts[0] for result in (first, second, third)]
        assert [each.reason for each in asked] == [
            {"question": "How many?", "prompt": "T"},
            {"question": "How many?", "prompt": "T", "problem": "'some' is no number"},
            {"question": "How many?", "prompt": "T", "problem": "None is no number"},
        ]
        assert len({each.id for each in asked}) == 3
        result = await graph.invoke_async(answer(third, 3))
    assert inner(result, "gate").state == {"answer": 3}


async def test_a_question_of_ones_own_and_a_check_that_knows_the_state(client: Client) -> None:
    async def question(prompt: Prompt, invocation_state: dict[str, Any]) -> Any:
        invocation_state["asked"] = True
        return f"{invocation_state['who']}: {prompt}"

    def check(given: Any, invocation_state: dict[str, Any]) -> str:
        return "" if given == invocation_state["who"] else "somebody else"

    def factory() -> Graph:
        return graph_of({"gate": human_gate(question, check=check)})

    async with serve(client, factory) as graph:
        run = await graph.start("T", {"who": "Ada"})
        ids = await asked_by(run, "gate")
        assert ids == {"gate": "gate#1:human"}
        assert (await run.interrupts())[0].reason == "Ada: T"
        await run.respond({"gate#1:human": "Bob"})
        assert await asked_by(run, "gate") == {"gate": "gate#1:human:2"}
        assert (await run.interrupts())[0].reason == {
            "question": "Ada: T",
            "problem": "somebody else",
        }
        with pytest.raises(InterruptNotPendingError, match="answered already"):
            await run.respond({"gate#1:human": "Ada"})
        await run.respond({"gate#1:human:2": "Ada"})
        assert str(inner(await run.result(), "gate")) == "Ada\n"
        assert (await run.status()).invocation_state == {"who": "Ada", "asked": True}
        assert await failed_tasks(client, run.id) == 0


@worlds
async def test_two_gates_that_ask_the_same_have_an_answer_each(client: Client, world: str) -> None:
    def factory() -> Graph:
        return graph_of({"legal": human_gate("Go?"), "finance": human_gate("Go?")})

    async with graph_in(world, client, factory) as graph:
        asks = await graph.invoke_async("T")
        assert len({asked.id for asked in asks.interrupts}) == 2
        half = await graph.invoke_async(answer(asks, "yes", "no")[:1])
        assert half.status is Status.INTERRUPTED
        assert [asked.reason for asked in half.interrupts] == [{"question": "Go?", "prompt": "T"}]
        result = await graph.invoke_async(answer(half, "no"))
    given = sorted(str(inner(result, node)) for node in ("legal", "finance"))
    assert given == ["no\n", "yes\n"]


async def test_a_gate_in_a_loop_asks_anew_at_each_visit(client: Client) -> None:
    def factory() -> Graph:
        builder = GraphBuilder()
        builder.add_node(function_node(lambda: "draft"), "draft")
        builder.add_node(human_gate("Good?"), "gate")
        builder.add_edge("draft", "gate")
        builder.add_edge("gate", "draft", lambda s: inner(s, "gate").state["answer"] is False)
        builder.set_entry_point("draft")
        builder.set_max_node_executions(10)
        return builder.build()

    async with serve(client, factory) as graph:
        run = await graph.start("T")
        for visit, good in ((1, False), (2, True)):
            assert await asked_by(run, "gate") == {"gate": f"gate#{visit}:human"}
            await run.respond({f"gate#{visit}:human": good})
            if not good:
                await asked_by(run, "gate")
        result = await run.result()
    assert [node.node_id for node in result.execution_order] == ["draft", "gate"] * 2


async def test_a_gate_outlives_its_worker(client: Client) -> None:
    """Another worker, whose gate was never asked, takes the answers and asks again itself."""
    registry, others = GraphRegistry(), GraphRegistry()
    for each in (registry, others):
        each.add("graph", lambda: graph_of({"gate": human_gate("How many?", check=is_number)}))
    async with worker_for(client, registry) as queue:
        run = await DurableGraph(client, "graph", task_queue=queue).start("T")
        await asked_by(run, "gate")
    async with Worker(client, task_queue=queue, plugins=[GraphPlugin(others)]):
        await run.respond({"gate#1:human": "some"})
        await asked_by(run, "gate")
        assert (await run.interrupts())[0].reason == {
            "question": "How many?",
            "prompt": "T",
            "problem": "'some' is no number",
        }
        await run.respond({"gate#1:human:2": 3})
        assert str(inner(await run.result(), "gate")) == "3\n"
        await replay_queue(client, queue)


async def test_a_retried_run_takes_the_answer_over(client: Client) -> None:
    well: list[bool] = []

    def publish(prompt: str) -> str:
        if not well:
            raise ValueError("the site is down")
        return prompt.rpartition(": ")[2].strip()

    def factory() -> Graph:
        nodes = {"gate": human_gate("Good?"), "publish": function_node(publish)}
        return graph_of(nodes, ("gate", "publish"))

    async with serve(client, factory) as graph:
        run = await graph.start("T")
        await asked_by(run, "gate")
        await run.respond({"gate#1:human": "go"})
        with pytest.raises(ValueError, match="the site is down"):
            await run.result()
        well.append(True)
        again = await run.retry()
        assert str(inner(await again.result(), "publish")) == "go\n"
        assert await scheduled(client, again.id) == ["graph.publish"]


async def test_a_check_that_says_neither_good_nor_why_not_fails_the_node() -> None:
    gate = human_gate(check=lambda given: given == "yes")
    asks = await gate.invoke_async("T")
    with pytest.raises(TypeError, match="Human gate 'human': check returned a bool"):
        await gate.invoke_async(answer(asks, "yes"))


def test_a_gate_that_is_wrong_is_refused() -> None:
    assert isinstance(HumanGate(), AgentBase)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"question": 3}, "Human gate 'human': the question is a text or a function"),
        ({"name": ""}, "name is a text, not ''"),
        ({"check": "yes"}, "check is a function, not a str"),
        ({"check": lambda one, two: None}, "check: nothing can be given for .* 'one', 'two'"),
        ({"question": lambda one, two: None}, "question: nothing can be given for"),
    ]
    for options, message in wrong:
        with pytest.raises(InvalidGraphError, match=message):
            human_gate(**options)
