"""What the docs say of nested graphs, swarms, mapped nodes and sessions, where they meet."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from strands import Agent, tool
from strands.hooks import AfterNodeCallEvent, BeforeNodeCallEvent
from strands.multiagent.base import Status
from strands.multiagent.graph import Graph
from strands.multiagent.swarm import Swarm
from strands.types.tools import ToolContext
from temporalio.client import Client
from temporalio.common import RetryPolicy

from durable_strands import DurableGraph, GraphRegistry, NodeOptions, on_error
from durable_strands.wire import NodeStatus

from .support import Gate, asked_by, build, eventually, gated, serve, worker_for
from .test_sessions import Remembering
from .test_swarm import StepModel, asking_swarm, member, swarm_of, to

ONCE = RetryPolicy(maximum_attempts=1)


def broken(_: str) -> str:
    raise ValueError("no luck")


def remembering(name: str = "Strands Agents") -> Agent:
    return Agent(name=name, model=Remembering(""), callback_handler=None)


async def test_an_agent_that_cancels_itself_fails_its_swarm(client: Client) -> None:
    """A difference from Strands, whose swarm is COMPLETED then; its graph isn't, either."""

    @tool(context=True)
    def stop(tool_context: ToolContext) -> str:
        """Stop."""
        tool_context.agent.cancel()
        return "stopping"

    def factory() -> Swarm:
        model = StepModel(("stop", {}), "A")
        a = Agent(name="a", model=model, tools=[stop], callback_handler=None)
        return Swarm([a, member("b", "B")])

    assert (await factory().invoke_async("T")).status is Status.COMPLETED
    async with swarm_of(client, factory) as durable:
        result = await durable.invoke_async("T")
    assert result.status is Status.FAILED
    assert [node.node_id for node in result.node_history] == ["a"]


async def test_who_asks_in_a_swarm_has_a_result_that_says_so(client: Client) -> None:
    theirs = await asking_swarm().invoke_async("T")
    async with swarm_of(client, asking_swarm) as durable:
        result = await durable.invoke_async("T")
    assert result.status is Status.INTERRUPTED
    for ours in (result, theirs):
        assert [part.status for part in ours.results.values()] == [Status.INTERRUPTED]
    assert list(result.results) == list(theirs.results)
    assert result.accumulated_usage == theirs.accumulated_usage


async def test_error_edges_follow_whatever_fails(client: Client) -> None:
    read: dict[str, str] = {}

    def note(name: str) -> Any:
        def reply(prompt: str) -> str:
            read[name] = prompt.partition("\nFrom ")[2]
            return name

        return reply

    def factory() -> Graph:
        swarm = Swarm([member("a", to("a"), "A")], max_handoffs=1)
        endless = build(
            {"x": "X"},
            [("x", "x")],
            entries=["x"],
            configure=lambda b: b.set_max_node_executions(1),
        )
        failing = {"swarm": swarm, "limit": endless, "asks": "Q"}
        handlers = {f"after {name}": note(name) for name in failing}
        edges = [(name, f"after {name}", on_error) for name in failing]
        return build({**failing, **handlers}, edges, configure=gated(Gate("asks")))

    options = {"asks": NodeOptions(interrupt_timeout=timedelta(seconds=0.3))}
    async with serve(client, factory, nodes=options) as graph:
        run = await graph.start("T")
        result = await run.result()
    assert result.status is Status.COMPLETED
    assert result.failed_nodes == 3
    assert read["swarm"] == "swarm:  - Agent: A\n  - Error: Max handoffs reached: 1"
    assert read["limit"] == "limit:  - Agent: X\n  - Error: Max node executions reached: 1"
    assert read["asks"].startswith("asks:  - Error: InterruptTimeoutError: ")


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"on_failure": "prune"}, "GraphResult"),
        ({"nodes": {"team/bad": NodeOptions(on_failure="prune")}}, "GraphResult"),
        ({"nodes": {"team": NodeOptions(on_failure="prune")}}, "ValueError"),
    ],
)
async def test_a_failure_inside_stops_where_it_is_pruned(
    client: Client, options: dict[str, Any], kind: str
) -> None:
    def factory() -> Graph:
        return build(
            {"team": build({"bad": broken}), "next": "N", "other": "O"}, [("team", "next")]
        )

    async with serve(client, factory, **options) as graph:
        result = await graph.invoke_async("T")
    assert result.status is Status.FAILED
    assert result.results["team"].status is Status.FAILED
    assert type(result.results["team"].result).__name__ == kind
    assert result.results["other"].status is Status.COMPLETED
    assert "next" not in result.results


async def test_a_mapped_node_is_one_execution_for_limits_and_hooks(client: Client) -> None:
    seen: list[str] = []

    class Watch:
        def register_hooks(self, registry: Any, **_: Any) -> None:
            registry.add_callback(BeforeNodeCallEvent, self.note)
            registry.add_callback(AfterNodeCallEvent, self.note)

        def note(self, event: Any) -> None:
            seen.append(event.node_id)

    def work(prompt: str) -> str:
        if "two" in prompt:
            raise ValueError("not two")
        return "ok"

    def factory() -> Graph:
        nodes = {"list": "L", "work": work, "sorry": "S"}
        edges = [("list", "work"), ("work", "sorry", on_error)]

        def configure(builder: Any) -> None:
            builder.set_max_node_executions(3)
            builder.set_hook_providers([Watch()])

        return build(nodes, edges, configure=configure)

    options = {"work": NodeOptions(map_over=lambda: ["one", "two", "three"], retry=ONCE)}
    async with serve(client, factory, nodes=options) as graph:
        run = await graph.start("T")
        result = await run.result()
        assert (await run.status()).nodes["work"].visits == 3
    assert result.status is Status.COMPLETED
    assert seen == ["list", "list", "work", "work", "sorry", "sorry"]


async def test_a_session_does_not_remember_turns_nor_mapped_visits(client: Client) -> None:
    registry = GraphRegistry()
    registry.add(
        "mapped",
        lambda: build(
            {
                "one": remembering(),
                "each": remembering(),
                "team": build({"x": remembering()}, [("x", "x", lambda _: False)], entries=["x"]),
                "swarm": Swarm([remembering("a")]),
            }
        ),
        nodes={name: NodeOptions(map_over=lambda: ["item"]) for name in ("each", "team")},
    )
    async with worker_for(client, registry) as queue:
        graph = DurableGraph(client, "mapped", task_queue=queue, id=f"m-{queue}", session="s")
        for task in ("first", "second"):
            visits = await graph.invoke_async(task)
    assert str(visits.results["one"].result).strip() == "first | second"
    for node in ("each", "team", "swarm"):
        [answer] = visits.results[node].get_agent_results()
        assert " | " not in str(answer)


async def test_a_nested_graph_executes_until_only_questions_are_left_in_it(client: Client) -> None:
    done = asyncio.Event()

    async def work(_: str) -> str:
        await done.wait()
        return "W"

    def factory() -> Graph:
        return build({"team": build({"ask": "A", "work": work}, configure=gated(Gate("ask")))})

    async with serve(client, factory) as graph:
        run = await graph.start("T")
        ids = await asked_by(run, "team/ask")
        report = await run.status()
        assert (report.status, report.nodes["team"].status) == ("executing", "executing")
        done.set()

        async def rests() -> bool:
            report = await run.status()
            return report.nodes["team"].status is NodeStatus.INTERRUPTED

        await eventually(rests)
        assert (await run.status()).status == "interrupted"
        await run.respond({ids["team/ask"]: "yes"})
        assert (await run.result()).status is Status.COMPLETED
