"""What Strands' graphs lack: error edges, a node mapped over a list, inputs of one's own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel
from strands import Agent, ToolContext, tool
from strands.multiagent.base import MultiAgentResult, Status
from strands.multiagent.graph import Graph, GraphResult
from temporalio.client import Client

from durable_strands import GraphRegistry, InvalidGraphError, NodeOptions, on_error
from durable_strands.wire import NodeStatus

from .support import (
    Gate,
    ScriptedModel,
    ToolModel,
    agent,
    asked_by,
    build,
    eventually,
    gated,
    scheduled,
    serve,
)

# -- error edges ----------------------------------------------------------------------------------


def broken(_: str) -> str:
    raise ValueError("no luck")


async def test_a_failure_with_an_error_edge_is_handled(client: Client) -> None:
    seen: list[str] = []

    def note(prompt: str) -> str:
        seen.append(prompt)
        return "sorry"

    def factory() -> Graph:
        nodes = {"a": broken, "next": "N", "sorry": note, "end": "E"}
        edges = [("a", "next"), ("a", "sorry", on_error), ("next", "end"), ("sorry", "end")]
        return build(nodes, edges)

    async with serve(client, factory) as graph:
        run = await graph.start("T")
        result = await run.result()
        report = await run.status()
    assert result.status is Status.COMPLETED
    assert [node.node_id for node in result.execution_order] == ["sorry", "end"]
    assert report.nodes["a"].status is NodeStatus.FAILED
    assert report.nodes["next"].visits == 0
    assert result.failed_nodes == 1
    assert seen == [
        "Original Task: T\nInputs from previous nodes:\nFrom a:  - Error: ValueError: no luck"
    ]


async def test_an_error_edge_is_not_taken_without_an_error(client: Client) -> None:
    def factory() -> Graph:
        return build(
            {"a": "A", "next": "N", "sorry": "S"}, [("a", "next"), ("a", "sorry", on_error)]
        )

    async with serve(client, factory) as graph:
        run = await graph.start("T")
        result = await run.result()
        assert await scheduled(client, run.id) == ["graph.a", "graph.next"]
    assert result.status is Status.COMPLETED


async def test_a_retry_comes_before_an_error_edge(client: Client) -> None:
    attempts = 0

    def once(_: str) -> str:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise RuntimeError("transient")
        return "A"

    def factory() -> Graph:
        return build({"a": once, "sorry": "S"}, [("a", "sorry", on_error)])

    async with serve(client, factory) as graph:
        result = await graph.invoke_async("T")
    assert list(result.results) == ["a"]
    assert result.status is Status.COMPLETED


async def test_a_nested_graph_that_fails_takes_its_error_edge(client: Client) -> None:
    def factory() -> Graph:
        inner = build({"x": broken, "ask": "Q"}, configure=gated(Gate("ask")))
        return build({"team": inner, "sorry": "S"}, [("team", "sorry", on_error)])

    async with serve(client, factory) as graph:
        run = await graph.start("T")
        result = await run.result()
        report = await run.status()
    assert result.status is Status.COMPLETED
    assert list(result.results) == ["team", "sorry"]
    assert [info.node for info in report.cancelled_interrupts] in ([], ["team/ask"])


async def test_an_error_in_a_loop_may_lead_back(client: Client) -> None:
    attempts = 0

    def sometimes(_: str) -> str:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise ValueError(f"attempt {attempts}")
        return "at last"

    def factory() -> Graph:
        nodes = {"plan": "P", "work": sometimes}
        return build(nodes, [("plan", "work"), ("work", "plan", on_error)], entries=["plan"])

    async with serve(client, factory) as graph:
        run = await graph.start("T")
        result = await run.result()
        assert (await run.status()).nodes["work"].visits == 3
    assert result.status is Status.COMPLETED
    assert str(result.results["work"].result).strip() == "at last"


async def test_an_error_comes_too_late_for_an_any_join(client: Client) -> None:
    async def late(_: str) -> str:
        await asyncio.sleep(0.5)
        raise ValueError("late")

    def factory() -> Graph:
        return build({"a": "A", "b": late, "j": "J"}, [("a", "j"), ("b", "j", on_error)])

    async with serve(client, factory, nodes={"j": NodeOptions(join="any")}) as graph:
        run = await graph.start("T")
        result = await run.result()
        report = await run.status()
    assert result.status is Status.COMPLETED
    assert report.nodes["j"].visits == 1
    assert report.nodes["b"].status is NodeStatus.FAILED


async def test_a_hook_that_cancels_is_no_error(client: Client) -> None:
    def factory() -> Graph:
        nodes = {"a": "A", "sorry": "S"}
        return build(nodes, [("a", "sorry", on_error)], configure=gated(Gate("a")))

    async with serve(client, factory) as graph:
        run = await graph.start("T")
        ids = await asked_by(run, "a")
        await run.respond({ids["a"]: "no"})
        assert (await run.result()).status is Status.COMPLETED
        assert (await run.status()).nodes["sorry"].visits == 0


def test_error_edges_and_strands_own_rule_do_not_go_together() -> None:
    with pytest.raises(InvalidGraphError, match="on_error has no meaning with semantics"):
        GraphRegistry().add(
            "g", lambda: build({"a": "A", "b": "B"}, [("a", "b", on_error)]), semantics="strands"
        )


# -- a node mapped over a list -----------------------------------------------------------------


def words(results: dict[str, Any]) -> list[str]:
    return str(results["list"].result).split()


def fan(worker: Any, *, words_said: str = "one two three", **more: Any) -> Graph:
    nodes = {"list": words_said, "work": worker, "join": more.get("join", "J")}
    gate = gated(Gate("work")) if more.get("gate") else lambda _: None
    return build(nodes, [("list", "work"), ("work", "join")], configure=gate)


async def test_a_mapped_node_has_a_visit_for_each_item_and_is_joined_once(client: Client) -> None:
    running, most = 0, 0
    joins: list[str] = []

    async def work(prompt: str) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.3 if "one" in prompt else 0.05)
        running -= 1
        return prompt.splitlines()[-1].upper()

    def join(prompt: str) -> str:
        joins.append(prompt)
        return "joined"

    def factory() -> Graph:
        return fan(work, join=join)

    async with serve(client, factory, nodes={"work": NodeOptions(map_over=words)}) as graph:
        run = await graph.start("T")
        result = await run.result()
        report = await run.status()
        assert (await scheduled(client, run.id)).count("graph.work") == 3
    assert most == 3
    assert report.nodes["work"].visits == 3
    assert joins == [
        "Original Task: T\nInputs from previous nodes:\nFrom work:"
        "  - Agent: ONE\n  - Agent: TWO\n  - Agent: THREE\n"
    ]
    mapped = result.results["work"].result
    assert isinstance(mapped, MultiAgentResult)
    assert [str(mapped.results[str(i)].result).strip() for i in range(3)] == ["ONE", "TWO", "THREE"]
    assert result.execution_count == 5


async def test_no_items_are_fine(client: Client) -> None:
    def factory() -> Graph:
        return fan("W", words_said=" ")

    async with serve(client, factory, nodes={"work": NodeOptions(map_over=words)}) as graph:
        run = await graph.start("T")
        result = await run.result()
        assert (await run.status()).nodes["work"].visits == 0
    assert result.status is Status.COMPLETED
    assert "join" in result.results


async def test_slots_and_failures_of_a_mapped_node(client: Client) -> None:
    def work(prompt: str) -> str:
        if "two" in prompt:
            raise ValueError("not two")
        return "ok"

    def factory() -> Graph:
        return fan(work)

    options = NodeOptions(map_over=words)
    async with serve(client, factory, nodes={"work": options}, max_concurrency=1) as graph:
        run = await graph.start("T")
        with pytest.raises(ValueError, match="not two"):
            await run.result()
        assert (await scheduled(client, run.id)).count("graph.work") == 2
    pruned = NodeOptions(map_over=words, on_failure="prune")
    async with serve(client, factory, nodes={"work": pruned}) as graph:
        result = await graph.invoke_async("T")
    assert result.status is Status.FAILED
    mapped = result.results["work"].result
    assert isinstance(mapped, MultiAgentResult)
    assert [result.status.value for result in mapped.results.values()].count("completed") == 2
    assert "join" not in result.results


async def test_a_mapped_nested_graph_with_an_input_of_its_own_that_asks(client: Client) -> None:
    seen: list[str] = []

    def note(prompt: str) -> str:
        seen.append(prompt)
        return "done"

    def make(item: str, task: str, results: dict[str, Any]) -> str:
        return f"{task}/{item}/{str(results['list'].result).strip()}"

    def factory() -> Graph:
        inner = build({"do": note}, configure=gated(Gate("do")))
        return fan(inner, words_said="a b")

    options = NodeOptions(map_over=words, input=make)
    async with serve(client, factory, nodes={"work": options}) as graph:
        run = await graph.start("T")

        async def both() -> list[str]:
            asked = [info.id for info in await run.interrupts()]
            return asked if len(asked) == 2 else []

        ids = await eventually(both)
        assert sorted(name.partition(":")[0] for name in ids) == ["work/do#1", "work/do#2"]
        await run.respond({ids[0]: "yes"})
        await run.respond({ids[1]: "yes"})
        assert (await run.result()).status is Status.COMPLETED
    assert sorted(seen) == ["T/a/a b", "T/b/a b"]


async def told(graph: Any, task: Any = "T") -> list[tuple[str, str, Any]]:
    """Return kind, path and result of a stream's events about nodes."""
    found = []
    async for event in graph.stream_async(task):
        path = ""
        while event.get("type") == "multiagent_node_stream":
            path, event = f"{path}{event['node_id']}/", event["event"]
        kind = event.get("type", "").removeprefix("multiagent_")
        if kind == "handoff":
            found.append((kind, "+".join(event["to_node_ids"]), event["from_node_ids"]))
        elif kind.startswith("node"):
            found.append((kind, f"{path}{event['node_id']}", event.get("node_result")))
    return found


@pytest.mark.parametrize("hooked", [False, True])
async def test_a_stream_tells_mapped_nested_graphs_apart(client: Client, hooked: bool) -> None:
    """They run side by side at one path: each starts once, and stops with its own result."""

    async def slow(prompt: str) -> str:
        await asyncio.sleep(0.2 if "one" in prompt else 0.05)
        return prompt.splitlines()[-1]

    def factory() -> Graph:
        inner = build({"do": slow, "then": slow}, [("do", "then")])
        configure = gated(Gate("nothing")) if hooked else lambda _: None
        nodes = {"list": "one two three", "work": inner, "join": "J"}
        return build(nodes, [("list", "work"), ("work", "join")], configure=configure)

    async with serve(client, factory, nodes={"work": NodeOptions(map_over=words)}) as graph:
        events = await told(graph)
    kinds = [(kind, path) for kind, path, _ in events]
    assert kinds[:4] == [
        ("node_start", "list"),
        ("node_stop", "list"),
        ("handoff", "work"),
        ("node_start", "work"),
    ]
    for path, count in (("work", 3), ("work/do", 3), ("work/then", 3), ("join", 1)):
        assert kinds.count(("node_start", path)) == count
        assert kinds.count(("node_stop", path)) == count
    assert kinds.count(("handoff", "work")) == 1
    assert kinds[-3:] == [("handoff", "join"), ("node_start", "join"), ("node_stop", "join")]
    stopped = [
        result.result for kind, path, result in events if (kind, path) == ("node_stop", "work")
    ]
    assert sorted(str(result.results["do"].result).strip() for result in stopped) == [
        "one",
        "three",
        "two",
    ]
    for result in stopped:
        assert list(result.results) == ["do", "then"]


async def test_a_stream_tells_what_a_mapped_node_in_a_nested_graph_gave(client: Client) -> None:
    def say(prompt: str) -> str:
        return prompt.splitlines()[-1]

    def factory() -> Graph:
        team = build(
            {"list": "one two three", "work": say, "end": "E"}, [("list", "work"), ("work", "end")]
        )
        return build({"team": team, "last": "L"}, [("team", "last")])

    options = NodeOptions(map_over=words)
    async with serve(client, factory, nodes={"team/work": options}) as graph:
        events = await told(graph)
    [team] = [result for kind, path, result in events if (kind, path) == ("node_stop", "team")]
    assert [node.node_id for node in team.result.execution_order] == ["list", "work", "end"]
    mapped = team.result.results["work"].result
    assert isinstance(mapped, MultiAgentResult)
    assert [str(item.result).strip() for item in mapped.results.values()] == [
        "one",
        "two",
        "three",
    ]


async def test_a_stream_adds_up_what_items_used_around_their_questions(client: Client) -> None:
    """They ask side by side, and each goes on by itself."""

    @tool(context=True)
    def sure(tool_context: ToolContext) -> str:
        """Ask."""
        return str(tool_context.interrupt("sure", reason="?"))

    def factory() -> Graph:
        asker = Agent(model=ToolModel("sure"), tools=[sure], callback_handler=None)
        return build({"list": "one two", "work": asker}, [("list", "work")])

    async with serve(client, factory, nodes={"work": NodeOptions(map_over=words)}) as graph:
        result = await graph.invoke_async("T")
        assert len(result.interrupts) == 2
        answers: Any = [
            {"interruptResponse": {"interruptId": asked.id, "response": f"yes {index}"}}
            for index, asked in enumerate(result.interrupts)
        ]
        events = await told(graph, answers)
    stopped = [result for kind, path, result in events if (kind, path) == ("node_stop", "work")]
    assert sorted(str(result.result).strip() for result in stopped) == [
        "tool said yes 0",
        "tool said yes 1",
    ]
    assert [result.accumulated_usage["totalTokens"] for result in stopped] == [30, 30]


async def test_a_retry_takes_over_the_items_that_are_done(client: Client) -> None:
    calls: list[str] = []

    def work(prompt: str) -> str:
        word = prompt.splitlines()[-1]
        calls.append(word)
        if word == "two" and calls.count("two") == 1:
            raise ValueError("not yet")
        return word

    def factory() -> Graph:
        return fan(work, gate=True)

    options = NodeOptions(map_over=words)
    async with serve(client, factory, nodes={"work": options}, max_concurrency=1) as graph:
        run = await graph.start("T")
        ids = await asked_by(run, "work[]")  # A hook asks about all its visits at once.
        await run.respond({ids["work[]"]: "yes"})
        with pytest.raises(ValueError, match="not yet"):
            await run.result()
        again = await run.retry()
        ids = await asked_by(again, "work[]")
        await again.respond({ids["work[]"]: "yes"})
        assert (await again.result()).status is Status.COMPLETED
    assert calls == ["one", "two", "two", "three"]


async def test_agents_in_a_mapped_loop_remember_their_own_item_only(client: Client) -> None:
    """They visit the same paths side by side."""

    class Remembering(ScriptedModel):
        async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            texts = [m["content"][-1]["text"] for m in messages if m["role"] == "user"]
            last = texts[0].splitlines()[-1]
            await asyncio.sleep(0.05 if last == "one" else 0.01)
            self.reply = f"{last} {len(texts)}"
            async for event in super().stream(messages):
                yield event

    def again(state: Any) -> bool:
        return "3" not in str(state.results["speak"].result)

    def factory() -> Graph:
        speaker = Agent(model=Remembering(""), callback_handler=None)
        loop = build(
            {"speak": speaker, "listen": "ok"},
            [("speak", "listen", again), ("listen", "speak")],
            entries=["speak"],
        )
        return build({"list": "one two", "work": loop}, [("list", "work")])

    async with serve(client, factory, nodes={"work": NodeOptions(map_over=words)}) as graph:
        result = await graph.invoke_async("T")
    mapped = result.results["work"].result
    assert isinstance(mapped, MultiAgentResult)
    said = [str(item.result.results["speak"].result).strip() for item in mapped.results.values()]  # type: ignore[union-attr]
    assert said == ["one 3", "two 3"]


async def test_a_stream_of_a_retry_tells_of_the_items_that_it_runs(client: Client) -> None:
    calls: list[str] = []

    def work(prompt: str) -> str:
        word = prompt.splitlines()[-1]
        calls.append(word)
        if word == "two" and calls.count("two") == 1:
            raise ValueError("not yet")
        return word

    def factory() -> Graph:
        team = build({"list": "one two three", "work": work}, [("list", "work")])
        return build({"team": team, "last": "L"}, [("team", "last")])

    options = NodeOptions(map_over=words)
    async with serve(client, factory, nodes={"team/work": options}, max_concurrency=1) as graph:
        run = await graph.start("T")
        with pytest.raises(ValueError, match="not yet"):
            await run.result()
        again = await run.retry()
        events = [event async for event in again.events()]
    assert calls == ["one", "two", "two", "three"]
    [team] = [e for e in events if e["type"] == "multiagent_node_stop" and e["node_id"] == "team"]
    items = team["node_result"].result.results["work"].result.results
    assert {index: str(item.result).strip() for index, item in items.items()} == {
        "1": "two",
        "2": "three",
    }


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: "text", "map_over of node 'work' returned a str"),
        (lambda: [object()], "Item 0 that map_over of node 'work' returned is a object"),
        (lambda: 1 / 0, "division by zero"),
    ],
)
async def test_a_list_that_can_not_be_made_is_a_failure_of_the_node(
    client: Client, function: Any, message: str
) -> None:
    options = {"work": NodeOptions(map_over=function)}
    async with serve(client, lambda: fan("W"), nodes=options) as graph:
        with pytest.raises((TypeError, ZeroDivisionError), match=message):
            await graph.invoke_async("T")


# -- inputs of one's own --------------------------------------------------------------------------


class Verdict(BaseModel):
    good: bool


async def test_an_input_builder_sees_prose_and_objects(client: Client) -> None:
    seen: list[str] = []

    def note(prompt: str) -> str:
        seen.append(prompt)
        return "C"

    class Judging(ScriptedModel):
        """Says something, and calls the tool of the structured output."""

        async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            use = {"toolUseId": "u", "name": "Verdict"}
            yield {"messageStart": {"role": "assistant"}}
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": "I think so."}}}
            yield {"contentBlockStop": {}}
            yield {"contentBlockStart": {"start": {"toolUse": use}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": '{"good": true}'}}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "tool_use"}}
            usage = {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}
            yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 7}}}

    async def make(
        task: str, results: dict[str, Any], invocation_state: dict[str, Any]
    ) -> list[dict[str, Any]]:
        judged = results["judge"].result
        assert isinstance(judged.structured_output, Verdict)
        return [{"text": f"{task} {judged.structured_output.good} {invocation_state['who']}"}]

    def factory() -> Graph:
        judge = Agent(model=Judging(""), callback_handler=None, structured_output_model=Verdict)
        return build({"judge": judge, "c": note}, [("judge", "c")])

    async with serve(client, factory, nodes={"c": NodeOptions(input=make)}) as graph:
        await graph.invoke_async("T", {"who": "me"})
    assert seen == ["T True me"]


async def test_an_input_builder_of_a_nested_graph(client: Client) -> None:
    seen: list[str] = []

    def note(prompt: str) -> str:
        seen.append(prompt)
        return "X"

    def factory() -> Graph:
        return build({"a": "A", "team": build({"x": note})}, [("a", "team")])

    options = {"team": NodeOptions(input=lambda results: f"only {list(results)}")}
    async with serve(client, factory, nodes=options) as graph:
        result = await graph.invoke_async("T")
    assert seen == ["only ['a']"]
    assert isinstance(result.results["team"].result, GraphResult)


async def test_a_builder_that_makes_nonsense_fails_its_node(client: Client) -> None:
    options = {"a": NodeOptions(input=lambda: 7)}
    async with serve(client, lambda: build({"a": agent("A")}), nodes=options) as graph:
        with pytest.raises(TypeError, match="input builder of node 'a' returned a int: 7"):
            await graph.invoke_async("T")


def test_functions_are_checked_when_registered() -> None:
    def wants(task: str, weather: str) -> str:
        return task + weather

    registry = GraphRegistry()
    for options, message in (
        (NodeOptions(input=wants), "a: input asks for weather; its parameters may be task"),
        (NodeOptions(map_over="no"), "a: map_over must be a function, not 'no'"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidGraphError, match=message):
            registry.add("g", lambda: build({"a": "A"}), nodes={"a": options})
    with pytest.raises(InvalidGraphError, match="map_over and input belong to single nodes"):
        registry.add("g", lambda: build({"a": "A"}), defaults=NodeOptions(input=lambda: ""))
