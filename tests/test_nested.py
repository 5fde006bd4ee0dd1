"""Graphs within graphs: in the same workflow, by path, with limits and questions of their own."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from strands.interrupt import Interrupt
from strands.multiagent.base import MultiAgentResult, Status
from strands.multiagent.graph import Graph, GraphBuilder, GraphResult
from temporalio.client import Client

from durable_strands import GraphFailedError, GraphRegistry, InvalidGraphError, NodeOptions
from durable_strands.wire import NodeStatus

from .support import (
    Gate,
    Stub,
    agent,
    agent_result,
    asked_by,
    build,
    gated,
    scheduled,
    serve,
)


def chain(*names: str, gate: Gate | None = None, **executors: Any) -> Graph:
    """Return a chain of stubs that say their own names."""
    nodes = {name: executors.get(name, name.upper()) for name in names}
    edges = list(pairwise(names))
    return build(nodes, edges, configure=gated(gate) if gate else lambda _: None)


def nested(inner: Graph, *, gate: Gate | None = None, **executors: Any) -> Graph:
    """Return first -> team -> last around an inner graph."""
    nodes = {
        "first": executors.get("first", "F"),
        "team": inner,
        "last": executors.get("last", "L"),
    }
    edges = [("first", "team"), ("team", "last")]
    return build(nodes, edges, configure=gated(gate) if gate else lambda _: None)


async def test_each_inner_node_is_an_activity_of_the_same_workflow(client: Client) -> None:
    async with serve(client, lambda: nested(chain("a", "b"))) as graph:
        run = await graph.start("T")
        result = await run.result()
        assert await scheduled(client, run.id) == [
            "graph.first",
            "graph.team/a",
            "graph.team/b",
            "graph.last",
        ]
    assert result.status is Status.COMPLETED
    assert [node.node_id for node in result.execution_order] == ["first", "team", "last"]
    assert result.total_nodes == result.completed_nodes == 3
    assert result.execution_count == 4
    inner = result.results["team"].result
    assert isinstance(inner, GraphResult)
    assert [node.node_id for node in inner.execution_order] == ["a", "b"]
    assert (inner.total_nodes, inner.completed_nodes, inner.failed_nodes) == (2, 2, 0)
    assert [(a.node_id, b.node_id) for a, b in inner.edges] == [("a", "b")]
    report = await run.status()
    assert list(report.nodes) == ["first", "team", "team/a", "team/b", "last"]


async def test_prompts_at_every_depth_are_those_of_strands(client: Client) -> None:
    seen: dict[str, list[str]] = {}

    def factory() -> Graph:
        def note(name: str) -> Any:
            def reply(prompt: str) -> str:
                seen.setdefault(name, []).append(prompt)
                return name.upper()

            return Stub(reply)

        deepest = chain("x", "y", x=note("x"), y=note("y"))
        middle = build({"m": note("m"), "deep": deepest}, [("m", "deep")])
        return nested(middle, first=note("first"), last=note("last"))

    await factory().invoke_async("T")
    there, seen = seen, {}
    async with serve(client, factory) as graph:
        run = await graph.start("T")
        result = await run.result()
        assert "graph.team/deep/y" in await scheduled(client, run.id)
    assert seen == there
    assert result.results["team"].result.results["deep"].result.results["y"].status  # type: ignore[union-attr]


async def test_a_question_inside_is_answered_by_its_path(client: Client) -> None:
    gate = Gate("b")
    async with serve(client, lambda: nested(chain("a", "b", gate=gate))) as graph:
        run = await graph.start("T")
        ids = await asked_by(run, "team/b")
        report = await run.status()
        assert report.status == "interrupted"
        assert report.nodes["team"].status is NodeStatus.INTERRUPTED
        assert report.nodes["team/b"].status is NodeStatus.INTERRUPTED
        assert report.nodes["team/a"].status is NodeStatus.COMPLETED
        assert await run.respond({ids["team/b"]: "yes"}) == ["team/b"]
        result = await run.result()
        assert await scheduled(client, run.id) == [
            "graph.first",
            "graph.team/a",
            "graph.team/b",
            "graph.last",
        ]
    assert result.status is Status.COMPLETED
    assert gate.answers == [("b", "yes")]


async def test_the_same_question_inside_and_outside_has_two_ids(client: Client) -> None:
    """facts/strands 4.5: in Strands one answer releases both."""

    def factory() -> Graph:
        inner = build({"y": "IN"}, configure=gated(Gate("y")))
        return build({"y": "OUT", "team": inner}, configure=gated(Gate("y")))

    async with serve(client, factory) as graph:
        run = await graph.start("T")
        ids = await asked_by(run, "y", "team/y")
        assert await run.respond({ids["y"]: "yes"}) == ["y"]
        await asked_by(run, "team/y")
        await run.respond({ids["team/y"]: "yes"})
        assert (await run.result()).status is Status.COMPLETED


async def test_a_failure_outside_cancels_what_is_pending_inside(client: Client) -> None:
    async def fail(_: str) -> str:
        await asyncio.sleep(0.3)
        raise ValueError("bad luck")

    def factory() -> Graph:
        deep = chain("ask", gate=Gate("ask"))
        middle = build({"deep": deep})
        return build({"team": middle, "bad": fail})

    async with serve(client, factory) as graph:
        run = await graph.start("T")
        with pytest.raises(ValueError, match="bad luck"):
            await run.result()
        report = await run.status()
        assert [info.node for info in report.cancelled_interrupts] == ["team/deep/ask"]
        assert "bad luck" in report.cancelled_interrupts[0].why
        assert report.interrupts == []
        assert report.nodes["team"].status is NodeStatus.CANCELLED
        assert report.nodes["team/deep/ask"].status is NodeStatus.CANCELLED
        again = await graph.start("another")
        with pytest.raises(ValueError, match="bad luck"):
            await again.result()


async def test_a_failure_inside_cancels_what_is_pending_inside(client: Client) -> None:
    async def fail(_: str) -> str:
        await asyncio.sleep(0.3)
        raise ValueError("bad luck")

    def factory() -> Graph:
        inner = build({"ask": "A", "bad": fail}, configure=gated(Gate("ask")))
        return nested(inner)

    async with serve(client, factory) as graph:
        run = await graph.start("T")
        with pytest.raises(ValueError, match="bad luck") as caught:
            await run.result()
        assert isinstance(caught.value.__cause__, GraphFailedError)
        assert str(caught.value.__cause__).endswith("node 'team/bad' raised ValueError: bad luck")
        report = await run.status()
        assert report.failed_node == "team/bad"
        assert [info.node for info in report.cancelled_interrupts] == ["team/ask"]
        assert report.nodes["last"].visits == 0


async def test_limits_are_each_graphs_own(client: Client) -> None:
    def factory() -> Graph:
        inner = build(
            {"a": "A"},
            [("a", "a")],
            entries=["a"],
            configure=lambda b: b.set_max_node_executions(3),
        )
        return nested(inner)

    async with serve(client, factory) as graph:
        run = await graph.start("T")
        result = await run.result()
        assert (await scheduled(client, run.id)).count("graph.team/a") == 3
        report = await run.status()
    assert result.status is Status.FAILED
    assert result.results["team"].status is Status.FAILED
    assert report.results["team"].reason == "Max node executions reached: 3"
    assert "last" not in result.results
    assert report.reason == "failed nodes: team"


async def test_a_nested_execution_timeout_ends_the_nested_graph_only(client: Client) -> None:
    async def slow(_: str) -> str:
        await asyncio.sleep(5)
        return "late"

    def factory() -> Graph:
        inner = build({"a": slow}, configure=lambda b: b.set_execution_timeout(0.3))
        return build({"team": inner, "b": "B"})

    async with serve(client, factory) as graph:
        run = await graph.start("T")
        result = await run.result()
        report = await run.status()
    assert result.status is Status.FAILED
    assert report.results["team"].reason == "Execution timed out: 0.3s"
    assert result.results["b"].status is Status.COMPLETED
    assert report.nodes["team/a"].status is NodeStatus.CANCELLED


async def test_a_node_timeout_bounds_a_nested_graph_as_a_whole(client: Client) -> None:
    async def slow(_: str) -> str:
        await asyncio.sleep(5)
        return "late"

    def factory() -> Graph:
        inner = build({"a": "A", "b": slow}, [("a", "b")])
        return build({"team": inner}, configure=lambda b: b.set_node_timeout(0.4))

    async with serve(client, factory) as graph:
        run = await graph.start("T")
        with pytest.raises(Exception, match=r"Node 'team' execution timed out after 0\.4s"):
            await run.result()
        assert (await run.status()).usage.totalTokens == 0


async def test_a_node_timeout_counts_the_parts_around_a_question_together(client: Client) -> None:
    async def slow(_: str) -> str:
        await asyncio.sleep(0.4)
        return "done"

    def factory() -> Graph:
        inner = build({"a": slow, "b": slow}, [("a", "b")], configure=gated(Gate("b")))
        return build({"team": inner}, configure=lambda b: b.set_node_timeout(0.65))

    async with serve(client, factory) as graph:
        run = await graph.start("T")
        ids = await asked_by(run, "team/b")
        await asyncio.sleep(0.7)  # The time of a human doesn't count.
        await run.respond({ids["team/b"]: "yes"})
        with pytest.raises(Exception, match=r"Node 'team' execution timed out after 0\.65s"):
            await run.result()


async def test_a_nested_graph_in_a_loop_numbers_its_visits_on(client: Client) -> None:
    def again(state: Any) -> bool:
        return len(state.execution_order) < 4

    def factory() -> Graph:
        inner = chain("a", gate=Gate("a"))
        return build(
            {"r": "R", "team": inner},
            [("r", "team"), ("team", "r", again)],
            entries=["r"],
        )

    async with serve(client, factory) as graph:
        run = await graph.start("T")
        first = await asked_by(run, "team/a")
        await run.respond({first["team/a"]: "yes"})

        async def second() -> dict[str, str]:
            ids = {info.node: info.id for info in await run.interrupts()}
            return ids if ids and ids != first else {}

        from .support import eventually

        ids = await eventually(second)
        assert first["team/a"].startswith("team/a#1:")
        assert ids["team/a"].startswith("team/a#2:")
        await run.respond({ids["team/a"]: "yes"})
        result = await run.result()
        assert (await run.status()).nodes["team/a"].visits == 2
    assert [node.node_id for node in result.execution_order] == ["r", "team", "r", "team"]


@pytest.mark.parametrize(
    ("resets", "options", "expected"),
    [
        (False, {}, [1, 3]),
        # Strands' reset_on_revisit of the outer graph doesn't reach inside.
        (True, {}, [1, 3]),
        (False, {"team": NodeOptions(on_revisit="reset")}, [1, 1]),
    ],
)
async def test_agents_inside_keep_their_conversation_over_visits_of_the_nested_graph(
    client: Client, resets: bool, options: dict[str, NodeOptions], expected: list[int]
) -> None:
    lengths: list[int] = []

    def factory() -> Graph:
        from .support import ScriptedModel

        class Counting(ScriptedModel):
            async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
                lengths.append(len(messages))
                async for event in super().stream(messages):
                    yield event

        from strands import Agent

        inner = build({"a": Agent(model=Counting("A"), callback_handler=None)})
        return build(
            {"r": "R", "team": inner},
            [("r", "team"), ("team", "r", lambda state: len(state.execution_order) < 4)],
            entries=["r"],
            configure=lambda b: b.reset_on_revisit(resets),
        )

    async with serve(client, factory, nodes=options) as graph:
        await graph.invoke_async("T")
    assert lengths == expected


async def test_concurrency_is_the_whole_runs(client: Client) -> None:
    running, most = 0, 0

    async def work(_: str) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1
        return "done"

    def factory() -> Graph:
        def fan() -> Graph:
            return build(dict.fromkeys("abc", work))

        return build({"one": fan(), "two": fan(), "x": work, "y": work})

    async with serve(client, factory, max_concurrency=2) as graph:
        result = await graph.invoke_async("T")
    assert result.status is Status.COMPLETED
    assert result.execution_count == 8
    assert most == 2


async def test_hooks_and_conditions_inside_see_the_inner_graph(client: Client) -> None:
    seen: list[Any] = []

    class Watch:
        def register_hooks(self, registry: Any, **_: Any) -> None:
            from strands.hooks import (
                AfterMultiAgentInvocationEvent,
                AfterNodeCallEvent,
                BeforeMultiAgentInvocationEvent,
                BeforeNodeCallEvent,
            )

            for kind in (
                BeforeMultiAgentInvocationEvent,
                BeforeNodeCallEvent,
                AfterNodeCallEvent,
                AfterMultiAgentInvocationEvent,
            ):
                registry.add_callback(kind, self.note)

        def note(self, event: Any) -> None:
            what = (type(event).__name__, getattr(event, "node_id", None))
            seen.append((what, sorted(event.source.state.results)))

    def never(state: Any) -> bool:
        return "nothing" in state.results

    def always(state: Any, *, invocation_state: dict[str, Any], **_: Any) -> bool:
        return "a" in state.results and invocation_state["go"]

    def factory() -> Graph:
        inner = build(
            {"a": "A", "b": "B", "c": "C"},
            [("a", "b", always), ("a", "c", never)],
            configure=lambda b: b.set_hook_providers([Watch()]),
        )
        return nested(inner)

    async with serve(client, factory) as graph:
        result = await graph.invoke_async("T", {"go": True})
    inner = result.results["team"].result
    assert isinstance(inner, GraphResult)
    assert list(inner.results) == ["a", "b"]
    assert seen == [
        (("BeforeMultiAgentInvocationEvent", None), []),
        (("BeforeNodeCallEvent", "a"), []),
        (("AfterNodeCallEvent", "a"), ["a"]),
        (("BeforeNodeCallEvent", "b"), ["a"]),
        (("AfterNodeCallEvent", "b"), ["a", "b"]),
        (("AfterMultiAgentInvocationEvent", None), ["a", "b"]),
    ]


async def test_a_condition_that_raises_inside_is_named_with_its_path(client: Client) -> None:
    def broken(state: Any) -> bool:
        raise KeyError("oops")

    def factory() -> Graph:
        return nested(build({"a": "A", "b": "B"}, [("a", "b", broken)]))

    async with serve(client, factory) as graph:
        run = await graph.start("T")
        with pytest.raises(KeyError):
            await run.result()
        reason = (await run.status()).reason
    assert reason is not None
    assert reason.startswith("team: the condition of edge a -> b raised KeyError")


async def test_options_by_path_and_what_is_said_of_the_nested_graph(client: Client) -> None:
    registry = GraphRegistry()
    registry.add(
        "graph",
        lambda: nested(build({"a": "A", "deep": chain("x", "y")}, [("a", "deep")])),
        nodes={
            "team": NodeOptions(task_queue="gpu", summary="the team"),
            "team/deep": NodeOptions(on_revisit="reset"),
            "team/deep/y": NodeOptions(task_queue="cpu"),
        },
    )
    nodes = dict(registry["graph"].plan.paths())
    assert nodes["first"].task_queue is None
    assert nodes["team"].summary == "the team"
    assert nodes["team/a"].task_queue == nodes["team/deep/x"].task_queue == "gpu"
    assert nodes["team/a"].summary is None
    assert nodes["team/deep/y"].task_queue == "cpu"
    assert nodes["team/deep/y"].on_revisit == "reset"
    assert nodes["team/a"].on_revisit == "keep"
    with pytest.raises(InvalidGraphError, match=r"'team/z', which is no node of it; it has: first"):
        registry.add("other", lambda: nested(chain("a")), nodes={"team/z": NodeOptions()})


def test_two_nodes_with_one_path_are_refused() -> None:
    with pytest.raises(InvalidGraphError, match="two of its nodes have the path 'team/a'"):
        GraphRegistry().add("g", lambda: build({"team": chain("a"), "team/a": "X"}))


def test_a_session_manager_inside_is_refused(tmp_path: Any) -> None:
    from strands.session import FileSessionManager

    def factory() -> Graph:
        builder = GraphBuilder()
        builder.add_node(agent("A"), "a")
        builder.set_session_manager(FileSessionManager("s", storage_dir=str(tmp_path)))
        return build({"team": builder.build()})

    with pytest.raises(InvalidGraphError, match="nested in 'team', has a session manager"):
        GraphRegistry().add("g", factory)


async def test_cancelling_the_run_reaches_inside(client: Client) -> None:
    started = asyncio.Event()

    async def slow(_: str) -> str:
        started.set()
        await asyncio.sleep(30)
        return "late"

    from durable_strands import RunClosedError

    def factory() -> Graph:
        inner = build({"a": slow, "ask": "Q"}, configure=gated(Gate("ask")))
        return nested(inner)

    async with serve(
        client, factory, nodes={"team/a": NodeOptions(heartbeat_timeout=_seconds(1))}
    ) as graph:
        run = await graph.start("T")
        await asyncio.wait_for(started.wait(), 20)
        await run.cancel()
        with pytest.raises(RunClosedError, match="cancelled"):
            await run.result()
        report = await run.status()
        assert report.nodes["team/a"].status is NodeStatus.CANCELLED
        assert [info.node for info in report.cancelled_interrupts] == ["team/ask"]


def _seconds(number: float) -> Any:
    from datetime import timedelta

    return timedelta(seconds=number)


async def test_events_of_what_is_inside_come_within_the_nodes_stream(client: Client) -> None:
    def shape(event: dict[str, Any]) -> Any:
        kind = event["type"].removeprefix("multiagent_")
        if kind == "node_stream":
            return (event["node_id"], shape(event["event"]))
        if kind == "handoff":
            return (kind, event["from_node_ids"], event["to_node_ids"])
        return (kind, event.get("node_id"))

    def factory() -> Graph:
        return nested(build({"deep": chain("a", "b"), "c": "C"}, [("deep", "c")]))

    def kept(events: list[Any]) -> list[Any]:
        """Leave out what stubs stream themselves: their results."""
        return [shape(event) for event in events if _is_told(event)]

    theirs = kept([event async for event in factory().stream_async("T")])
    async with serve(client, factory) as graph:
        ours = kept([event async for event in graph.stream_async("T")])
    assert ours == theirs


def _is_told(event: dict[str, Any]) -> bool:
    if event.get("type") == "multiagent_node_stream":
        return _is_told(event["event"])
    return "type" in event


async def test_a_stream_comes_to_rest_at_a_question_inside(client: Client) -> None:
    async with serve(client, lambda: nested(chain("a", "b", gate=Gate("b")))) as graph:
        events = [event async for event in graph.stream_async("T")]
        result = events[-1]["result"]
        assert result.status is Status.INTERRUPTED
        assert result.interrupted_nodes == 1
        [question] = result.interrupts
        asking = [
            event["node_id"] for event in events if event["type"] == "multiagent_node_interrupt"
        ]
        assert asking == ["team"]
        answer: Any = {"interruptResponse": {"interruptId": question.id, "response": "yes"}}
        result = await graph.invoke_async([answer])
        assert result.status is Status.COMPLETED


async def test_a_retry_takes_over_what_is_done_inside(client: Client) -> None:
    calls: list[str] = []

    def factory() -> Graph:
        def note(name: str, fail_first: bool = False) -> Any:
            def reply(_: str) -> str:
                calls.append(name)
                if fail_first and calls.count(name) == 1:
                    raise ValueError("once")
                return name

            return Stub(reply)

        inner = build({"a": note("a"), "b": note("b", True)}, [("a", "b")])
        return nested(inner, first=note("first"), last=note("last"))

    async with serve(client, factory) as graph:
        run = await graph.start("T")
        with pytest.raises(ValueError, match="once"):
            await run.result()
        again = await run.retry()
        result = await again.result()
        assert result.status is Status.COMPLETED
        assert calls == ["first", "a", "b", "b", "last"]
        third = await again.retry(from_node="team/b")
        assert (await third.result()).status is Status.COMPLETED
        assert calls == ["first", "a", "b", "b", "last", "b"]
        fourth = await third.retry(from_node="team")
        assert (await fourth.result()).status is Status.COMPLETED
        assert calls == ["first", "a", "b", "b", "last", "b", "a", "b"]


async def test_a_retry_takes_over_a_node_that_builds_its_input_from_a_nested_result(
    client: Client,
) -> None:
    """How long the nested graph took is no reason to pay for the node again."""
    calls: list[str] = []

    def note(name: str) -> Any:
        def reply(_: str) -> str:
            calls.append(name)
            if name == "d" and calls.count("d") == 1:
                raise ValueError("once")
            return name

        return reply

    def factory() -> Graph:
        nodes = {"team": build({"x": note("x")}), "c": note("c"), "d": note("d")}
        return build(nodes, [("team", "c"), ("c", "d")])

    options = NodeOptions(input=lambda results: f"after {list(results)}")
    async with serve(client, factory, nodes={"c": options}) as graph:
        run = await graph.start("T")
        with pytest.raises(ValueError, match="once"):
            await run.result()
        assert (await (await run.retry()).result()).status is Status.COMPLETED
    assert calls == ["x", "c", "d", "d"]


async def test_a_retry_takes_over_what_was_done_side_by_side(client: Client) -> None:
    """In the order in which it was done: each sees the state that those before it have left."""
    calls: list[str] = []
    failures = iter([True])

    class Writes(Stub):
        def __init__(self, name: str, delay: float = 0.0) -> None:
            super().__init__(name)
            self.name, self.delay = name, delay

        async def stream_async(self, prompt: Any = None, **kwargs: Any) -> Any:
            calls.append(self.name)
            await asyncio.sleep(self.delay)
            if self.name == "end" and next(failures, False):
                raise ValueError("once")
            kwargs["invocation_state"] |= {self.name: True, "last": self.name}
            async for event in super().stream_async(prompt):
                yield event

    def factory() -> Graph:
        one = build({"a": Writes("a", 0.6), "a2": Writes("a2")}, [("a", "a2")])
        deep = build({"b": Writes("b"), "b2": Writes("b2", 1.2)}, [("b", "b2")])
        nodes = {"one": one, "two": build({"deep": deep}), "end": Writes("end")}
        return build(nodes, [("one", "end"), ("two", "end")])

    async with serve(client, factory) as graph:
        run = await graph.start("T")
        with pytest.raises(ValueError, match="once"):
            await run.result()
        before = (await run.status()).invocation_state
        del calls[:]
        again = await run.retry()
        await again.result()
        assert calls == ["end"]
        assert (await again.status()).invocation_state == {**before, "end": True, "last": "end"}


async def test_a_subclass_of_graph_runs_whole_in_one_activity(client: Client) -> None:
    class Special(Graph):
        pass

    def factory() -> Graph:
        plain = chain("a", "b")
        special = Special(plain.nodes, plain.edges, plain.entry_points)
        return nested(special)

    async with serve(client, factory) as graph:
        run = await graph.start("T")
        result = await run.result()
        assert await scheduled(client, run.id) == ["graph.first", "graph.team", "graph.last"]
    inner = result.results["team"].result
    assert isinstance(inner, MultiAgentResult)
    assert isinstance(inner, GraphResult)
    assert [node.node_id for node in inner.execution_order] == ["a", "b"]


async def test_an_agent_that_asks_inside_goes_on_from_its_snapshot(client: Client) -> None:
    class Asking(Stub):
        async def invoke_async(self, prompt: Any = None, **kwargs: Any) -> Any:
            if "interruptResponse" in prompt[0]:
                answer = prompt[0]["interruptResponse"]["response"]
                return agent_result(f"answered {answer}")
            result = agent_result("", stop_reason="interrupt")
            result.interrupts = [Interrupt("q1", "question", "what?")]
            return result

    async with serve(client, lambda: nested(build({"a": Asking("")}))) as graph:
        run = await graph.start("T")
        ids = await asked_by(run, "team/a")
        await run.respond({ids["team/a"]: 42})
        result = await run.result()
    assert "answered 42" in str(result.results["team"].get_agent_results()[0])


def test_a_subclass_with_methods_of_its_own_is_no_graph_to_register() -> None:
    class Loud(Graph):
        async def stream_async(self, *args: Any, **kwargs: Any) -> Any:
            yield {}

    def factory() -> Graph:
        plain = chain("a")
        return Loud(plain.nodes, plain.edges, plain.entry_points)

    with pytest.raises(InvalidGraphError, match="a Loud, whose own stream_async would not be"):
        GraphRegistry().add("g", factory)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_hook_after_the_run_sees_how_it_ended(client: Client, fails: bool) -> None:
    seen: list[Status] = []

    class Last:
        def register_hooks(self, registry: Any, **_: Any) -> None:
            from strands.hooks import AfterMultiAgentInvocationEvent

            registry.add_callback(
                AfterMultiAgentInvocationEvent,
                lambda event: seen.append(event.source.state.status),
            )

    def node(_: str) -> str:
        if fails:
            raise ValueError("no")
        return "A"

    def factory() -> Graph:
        return build({"a": node}, configure=lambda b: b.set_hook_providers([Last()]))

    async with serve(client, factory) as graph:
        run = await graph.start("T")
        await asyncio.wait([asyncio.ensure_future(run.result())])
    assert seen == [Status.FAILED if fails else Status.COMPLETED]
