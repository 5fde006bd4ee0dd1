"""What a server, JSON and a replay can bear: no graph and no input brings a run beyond that."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from strands.hooks import AfterNodeCallEvent, BeforeNodeCallEvent
from strands.multiagent.base import MultiAgentResult, Status
from strands.multiagent.graph import Graph
from strands.multiagent.swarm import Swarm
from temporalio.client import Client, WorkflowUpdateFailedError

from durable_strands import (
    DurableSwarm,
    GraphFailedError,
    GraphRegistry,
    InvalidGraphInputError,
    NodeOptions,
)

from .support import (
    Gate,
    agent,
    asked_by,
    build,
    failed_tasks,
    gated,
    replay_queue,
    serve,
    worker_for,
)


def levels(count: int) -> Any:
    """Return JSON with so many levels."""
    value: Any = "deep"
    for _ in range(count):
        value = [value]
    return value


# -- one local activity at a time ----------------------------------------------------------------


class Crowd:
    """Hooks that count how many of them are called at once."""

    def __init__(self) -> None:
        self.now = self.most = self.calls = 0

    def register_hooks(self, registry: Any, **kwargs: Any) -> None:
        for event in (BeforeNodeCallEvent, AfterNodeCallEvent):
            registry.add_callback(event, self.call)

    async def call(self, event: Any) -> None:
        self.now += 1
        self.calls += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.01)
        self.now -= 1


async def test_hooks_and_conditions_of_a_run_are_called_one_after_the_other(
    client: Client,
) -> None:
    """Replayed as it was, while its status is asked for: results then cross workflow tasks."""
    crowd = Crowd()

    def slowly_true(state: Any) -> bool:
        return bool(state.results)

    def factory() -> Graph:
        hooked = lambda builder: builder.set_hook_providers([crowd])  # noqa: E731
        teams = {
            f"team{i}": build(
                {"a": "A", "b": "B", "c": "C"},
                [("a", "b", slowly_true), ("a", "c", slowly_true)],
                configure=hooked,
            )
            for i in range(4)
        }
        return build({**teams, "end": "E"}, [(team, "end") for team in teams], configure=hooked)

    async with serve(client, factory) as graph:
        run = await graph.start("T")
        result = asyncio.create_task(run.result())
        while not result.done():
            await run.status()
            await asyncio.sleep(0.005)
        assert (await result).status is Status.COMPLETED
        assert await failed_tasks(client, run.id) == 0
    assert (crowd.most, crowd.calls) == (1, 2 * (4 * 3 + 4 + 1))


async def test_a_status_that_is_asked_for_changes_nothing(client: Client) -> None:
    """Runs with hooks, limits and timers, on a busy worker, replay however often they are asked.

    When a query comes with a workflow task that runs a local activity, the run hears of the result
    one task later than a replay.
    """

    class Hooks:
        def register_hooks(self, registry: Any, **kwargs: Any) -> None:
            for event in (BeforeNodeCallEvent, AfterNodeCallEvent):
                registry.add_callback(event, self.call)

        async def call(self, event: Any) -> None:
            await asyncio.sleep(0.01)

    async def works(prompt: str) -> str:
        await asyncio.sleep(random.uniform(0.05, 0.5))
        return "W"

    def limited(builder: Any) -> None:
        builder.set_hook_providers([Hooks()])
        builder.set_execution_timeout(0.6)

    def factory() -> Graph:
        inner = build({"a": works, "b": works, "c": works}, [("a", "b")], configure=limited)
        nodes = {"plain": works, "team": inner, "each": works, "end": "E"}
        edges = [(name, "end") for name in ("plain", "team", "each")]
        return build(nodes, edges, configure=_hooked(Hooks()))

    options = {
        "each": NodeOptions(map_over=lambda: [1, 2, 3], on_failure="prune"),
        "team": NodeOptions(on_failure="prune"),
    }

    async def watched(run: Any) -> None:
        ended = asyncio.ensure_future(run.result())
        while not ended.done():
            await run.status()
            await asyncio.sleep(0.1)
        await ended
        assert await failed_tasks(client, run.id) == 0

    async with serve(client, factory, nodes=options) as graph:
        runs = [await graph.start("T") for _ in range(24)]
        await asyncio.gather(*map(watched, runs))


async def test_large_states_of_hooks_side_by_side_fit_their_tasks(client: Client) -> None:
    """Each hook changes 900 kB of state; three results in one task would be too large for it."""

    class Heavy:
        def register_hooks(self, registry: Any, **kwargs: Any) -> None:
            registry.add_callback(BeforeNodeCallEvent, self.call)

        def call(self, event: BeforeNodeCallEvent) -> None:
            assert event.invocation_state is not None
            event.invocation_state["big"] = event.node_id * 900_000

    def factory() -> Graph:
        return build({name: name.upper() for name in "abcdef"}, configure=_hooked(Heavy()))

    async with serve(client, factory) as graph:
        run = await graph.start("T")
        assert (await run.result()).status is Status.COMPLETED
        assert await failed_tasks(client, run.id) == 0


def _hooked(provider: Any) -> Any:
    return lambda builder: builder.set_hook_providers([provider])


# -- activities at once --------------------------------------------------------------------------


async def test_more_items_than_a_server_lets_be_pending(client: Client) -> None:
    """A server fails each workflow task that would have more than 2,000 activities pending."""
    count = 2_100

    def factory() -> Graph:
        return build({"list": "L", "work": lambda _: "W"}, [("list", "work")])

    options = {"work": NodeOptions(map_over=lambda: list(range(count)))}
    async with serve(client, factory, nodes=options) as graph:
        run = await graph.start("T")
        result = await run.result()
        assert await failed_tasks(client, run.id) == 0
    mapped = result.results["work"].result
    assert isinstance(mapped, MultiAgentResult)
    assert list(mapped.results) == [str(index) for index in range(count)]


# -- levels of JSON ------------------------------------------------------------------------------


async def test_what_is_nested_too_deep_is_refused_where_it_comes_in(client: Client) -> None:
    message = "more than 100 levels of JSON"
    factory = lambda: build({"a": "A"}, configure=gated(Gate("a")))  # noqa: E731
    async with serve(client, factory) as graph:
        with pytest.raises(InvalidGraphInputError, match=message):
            await graph.start("T", {"deep": levels(150)})
        # Another SDK may send it all the same.
        handle = await client.start_workflow(
            "StrandsGraph",
            {"graph": "graph", "task": "T", "invocation_state": {"deep": levels(110)}},
            id=f"deep-{id(graph)}",
            task_queue=graph._task_queue,
        )
        with pytest.raises(InvalidGraphInputError, match=message):
            await graph.attach(handle.id).result()

        run = await graph.start("T", {"deep": levels(90)})
        [name] = (await asked_by(run, "a")).values()
        for arguments in ([{name: levels(150)}], [{name: "yes"}, {"deep": levels(150)}]):
            with pytest.raises(WorkflowUpdateFailedError) as refused:
                await client.get_workflow_handle(run.id).execute_update("respond", args=arguments)
            assert message in str(refused.value.__cause__)
        await run.respond({name: "yes"})
        assert (await run.result()).status is Status.COMPLETED


async def test_what_a_hook_writes_too_deep_fails_its_node(client: Client) -> None:
    class Deep:
        def register_hooks(self, registry: Any, **kwargs: Any) -> None:
            registry.add_callback(BeforeNodeCallEvent, self.call)

        def call(self, event: BeforeNodeCallEvent) -> None:
            assert event.invocation_state is not None
            event.invocation_state["deep"] = levels(150)

    async with serve(client, lambda: build({"a": "A"}, configure=_hooked(Deep()))) as graph:
        run = await graph.start("T")
        with pytest.raises(Exception, match="more than 100 levels of JSON"):
            await run.result()
        assert (await run.status()).failed_node == "a"
        assert await failed_tasks(client, run.id) == 0


# -- one payload ---------------------------------------------------------------------------------


async def test_nested_and_mapped_results_too_large_for_one_payload_are_whole(
    client: Client,
) -> None:
    """Read back from history by path and visit: all items of a mapped node have one path."""

    def long(name: str) -> Any:
        return lambda prompt: f"{name} of {prompt.splitlines()[-1]} " + name[0] * 400_000

    def factory() -> Graph:
        deep = build({"x": long("x"), "y": "Y"}, [("x", "y")])
        team = build({"deep": deep, "z": long("z")}, [("deep", "z")])
        pair = build({"p": long("p"), "q": lambda prompt: prompt[-40:]}, [("p", "q")])
        return build(
            {"list": "1 2 3", "each": long("e"), "pairs": pair, "team": team},
            [("list", "each"), ("list", "pairs")],
        )

    def items() -> list[str]:
        return ["one", "two", "three"]

    options = {name: NodeOptions(map_over=items) for name in ("each", "pairs")}
    async with serve(client, factory, nodes=options) as graph:
        run = await graph.start("T")
        result = await run.result()
        report = await run.status()

    assert report.truncated
    assert len(json.dumps(report.dump())) < 2_000_000
    assert list((report.results["pairs"].results or {})["2"].results or {}) == ["p", "q"]

    def said(*path: str) -> str:
        inner: Any = result
        for step in path:
            inner = inner.results[step].result
        return str(inner).strip()

    assert [said("each", i).partition(" e")[0] for i in "012"] == [
        "e of one",
        "e of two",
        "e of three",
    ]
    assert [said("pairs", i, "p").partition(" p")[0] for i in "012"] == [
        "p of one",
        "p of two",
        "p of three",
    ]
    assert said("team", "deep", "x") == "x of T " + "x" * 400_000
    assert said("team", "deep", "y") == "Y"
    assert said("team", "z").endswith("z" * 400_000)
    assert {len(said("pairs", i, "p")) for i in "01"} == {400_000 + len("p of one ")}


async def test_a_retry_gives_what_it_took_over_whole(client: Client) -> None:
    calls: list[str] = []

    def long(name: str) -> Any:
        def reply(_: str) -> str:
            calls.append(name)
            if name == "c" and calls.count("c") == 1:
                raise ValueError("once")
            return name * 800_000

        return reply

    def factory() -> Graph:
        nodes = {"a": long("a"), "team": build({"b": long("b")}), "c": long("c")}
        return build(nodes, [("a", "team"), ("team", "c")])

    async with serve(client, factory) as graph:
        run = await graph.start("T")
        with pytest.raises(ValueError, match="once"):
            await run.result()
        result = await (await run.retry()).result()
    assert calls == ["a", "b", "c", "c"]
    assert str(result.results["a"].result).strip() == "a" * 800_000
    assert str(result.results["team"].result.results["b"].result).strip() == "b" * 800_000  # type: ignore[union-attr]


async def test_a_failure_too_large_for_one_payload_has_its_results_whole(client: Client) -> None:
    def broken(_: str) -> str:
        raise ValueError("broken")

    def factory() -> Graph:
        nodes = {f"n{i}": (lambda _, i=i: f"{i}" * 700_000) for i in range(4)}
        return build({**nodes, "bad": broken}, [(name, "bad") for name in ("n0", "n1")])

    async with serve(client, factory) as graph:
        run = await graph.start("T")
        with pytest.raises(ValueError, match="broken") as raised:
            await run.result()
    failed = raised.value.__cause__
    assert isinstance(failed, GraphFailedError)
    assert failed.result is not None
    assert {len(str(failed.result.results[f"n{i}"].result).strip()) for i in range(2)} == {700_000}


# -- sessions ------------------------------------------------------------------------------------


async def test_a_session_of_a_swarm_is_refused(client: Client) -> None:
    registry = GraphRegistry()
    registry.add_swarm("team", lambda: Swarm([agent("A", name="a")]))
    async with worker_for(client, registry) as queue:
        swarm = DurableSwarm(client, "team", task_queue=queue, session="s")
        with pytest.raises(InvalidGraphInputError, match=r"'team' is a swarm.*without one"):
            await swarm.invoke_async("T")
        await replay_queue(client, queue)
