"""Records the golden histories: `python -m tests.golden` (`make golden`).

They are what runs that began with an earlier version look like. A change of workflow code that
breaks their replay would break running workflows: it needs a new version of `wire.RULES`, to which
runs that began earlier don't keep, and new recordings beside the old ones, never in their place.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import re
import sysconfig
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from strands import Agent, tool
from strands.multiagent.graph import Graph
from strands.multiagent.swarm import Swarm
from strands.types.tools import ToolContext
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.testing import WorkflowEnvironment

from durable_strands import DurableGraph, GraphRegistry, GraphRun, NodeOptions, on_error
from durable_strands.wire import RULES

from .conftest import temporal_binary
from .support import Gate, ToolModel, agent, asked_by, build, gated, worker_for

ROOT = Path(__file__).parent.parent
HISTORIES = Path(__file__).parent / "histories"


@tool(context=True)
def ask(tool_context: ToolContext) -> str:
    """Ask a human."""
    return str(tool_context.interrupt("question", reason={"of": "the tool"}))


def broken(prompt: str) -> str:
    raise RuntimeError("broken")


def registry() -> GraphRegistry:
    """Return the graphs whose runs are recorded, each for what it exercises."""
    graphs = GraphRegistry()
    once = NodeOptions(retry=RetryPolicy(maximum_attempts=1))
    graphs.add(
        "diamond",
        lambda: build(
            {"s": "S", "l": "L", "r1": "R1", "r2": "R2", "j": lambda prompt: prompt, "k": "K"},
            [("s", "l"), ("s", "r1"), ("r1", "r2"), ("l", "j"), ("r2", "j"), ("j", "k")],
        ),
        max_concurrency=2,
    )
    graphs.add(
        "loop",
        lambda: build(
            {"w": agent("draft"), "r": agent("review"), "out": "OUT"},
            [
                ("w", "r"),
                ("r", "w", lambda state: len(state.execution_order) < 4),
                ("r", "out", lambda state: len(state.execution_order) >= 4),
            ],
            entries=["w"],
        ),
    )
    graphs.add(
        "strands-rule",
        lambda: build({"x": "X", "a": "A", "z": "Z"}, [("x", "a"), ("x", "z"), ("a", "z")]),
        semantics="strands",
    )
    graphs.add(
        "any-join",
        lambda: build({"x": "X", "a": "A", "z": "Z"}, [("x", "a"), ("x", "z"), ("a", "z")]),
        join="any",
    )
    graphs.add(
        "humans",
        lambda: build(
            {
                "hooked": "H",
                "asker": Agent(model=ToolModel("ask"), tools=[ask], callback_handler=None),
                "end": lambda prompt: prompt,
            },
            [("hooked", "end"), ("asker", "end")],
            configure=gated(Gate("hooked")),
        ),
    )
    graphs.add("failing", lambda: build({"a": "A", "b": broken}, [("a", "b")]), defaults=once)
    graphs.add(
        "pruned",
        lambda: build({"a": "A", "b": broken, "c": "C"}, [("a", "c"), ("b", "c")]),
        defaults=once,
        on_failure="prune",
    )
    graphs.add(
        "limited",
        lambda: build(
            {"a": "A", "b": "B"},
            [("a", "b")],
            configure=lambda builder: builder.set_max_node_executions(1).set_execution_timeout(60),
        ),
    )
    graphs.add("nested", nested, max_concurrency=2)
    graphs.add(
        "routing",
        lambda: build(
            {"list": "x y z", "work": "W", "bad": broken, "sorry": "S", "team": build({"t": "T"})},
            [("list", "work"), ("work", "bad"), ("bad", "sorry", on_error), ("sorry", "team")],
        ),
        nodes={
            "work": NodeOptions(map_over=lambda results: str(results["list"].result).split()),
            "team": NodeOptions(input=lambda task: f"only {task}"),
        },
        defaults=once,
        max_concurrency=2,
    )
    graphs.add_swarm("swarm", swarm)
    graphs.add("session", lambda: build({"a": agent("A"), "b": "B"}, [("a", "b")]))
    return graphs


def nested() -> Graph:
    """Return a loop around a nested graph in which a human is asked, beside another graph."""
    deep = build({"x": "X", "asked": "Q"}, [("x", "asked")], configure=gated(Gate("asked")))
    team = build({"a": agent("A"), "deep": deep}, [("a", "deep")])
    return build(
        {"plan": "P", "team": team, "side": build({"s1": "S1", "s2": "S2"}), "end": "E"},
        [
            ("plan", "team"),
            ("plan", "side"),
            ("team", "plan", lambda state: len(state.execution_order) < 4),
            ("team", "end", lambda state: len(state.execution_order) >= 4),
            ("side", "end"),
        ],
        entries=["plan"],
        configure=lambda b: b.set_node_timeout(60),
    )


def swarm() -> Swarm:
    """Return a swarm of two, of whom the second asks a human."""
    lead = Agent(name="lead", model=HandoffModel("expert"), callback_handler=None)
    expert = Agent(name="expert", model=ToolModel("ask"), tools=[ask], callback_handler=None)
    return Swarm([lead, expert])


class HandoffModel(ToolModel):
    """Hands over to another agent, then says so."""

    def __init__(self, to: str) -> None:
        super().__init__("handoff_to_agent")
        self.arguments = {"agent_name": to, "message": "yours", "context": {"b": 1, "a": 2}}


async def plainly(run: GraphRun) -> None:
    """Wait for a run's end, whatever it is."""
    try:
        await run.result()
    except RuntimeError:
        assert (await run.status()).status.value == "failed"


async def answering_all(run: GraphRun) -> None:
    """Answer whatever a run asks, until it ends."""
    ended = asyncio.create_task(run.result())
    while not ended.done():
        for question in await run.interrupts():
            await run.respond({question.id: "yes"})
        await asyncio.sleep(0.1)
    await ended


async def answering(run: GraphRun) -> None:
    """Answer what the run `humans` asks, one thing after the other."""
    ids = await asked_by(run, "hooked", "asker")
    await run.respond({ids["asker"]: "yes"})
    await run.respond({ids["hooked"]: None})
    await run.result()


async def record(client: Client, queue: str, graph: str) -> dict[str, str]:
    """Run a graph, and return the histories that came of it as JSON by name."""
    if graph == "session":
        return await record_session(client, queue)
    durable = DurableGraph(client, graph, task_queue=queue)
    drive = DRIVERS.get(graph, plainly)
    run = await durable.start("golden task", {"given": True}, workflow_id=f"golden-{graph}")
    await drive(run)
    runs = {graph: run}
    if graph == "failing":
        runs["retried"] = await run.retry(workflow_id="golden-retried")
        await plainly(runs["retried"])
    return {
        name: (await client.get_workflow_handle(one.id).fetch_history()).to_json()
        for name, one in runs.items()
    }


DRIVERS: dict[str, Callable[[GraphRun], Awaitable[Any]]] = {
    "humans": answering,
    "nested": answering_all,
    "swarm": answering_all,
}


async def record_session(client: Client, queue: str) -> dict[str, str]:
    """Run a session twice, and return the history of the second run."""
    durable = DurableGraph(client, "session", task_queue=queue, session="golden")
    await durable.invoke_async("one")
    run = await durable.start("two")
    await plainly(run)
    handle = client.get_workflow_handle(run.id, run_id=run.run_id)
    return {"session": (await handle.fetch_history()).to_json()}


def anonymous(value: Any, key: str = "") -> Any:
    """Return a history's JSON without the paths and the host of who recorded it."""
    if isinstance(value, dict):
        return {name: anonymous(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [anonymous(item) for item in value]
    if not isinstance(value, str):
        return value
    if key == "data":
        text = base64.b64decode(value).decode(errors="surrogateescape")
        clean = anonymous(text)
        return base64.b64encode(clean.encode(errors="surrogateescape")).decode()
    for place in (sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), str(ROOT)):
        value = value.replace(place, "...")
    return re.sub(r"\d+@[\w.-]+", "golden", value)


def path_of(name: str) -> Path:
    """Return the file of a history by the present rules; those by the first have no number."""
    return HISTORIES / f"{name}-{RULES}.json"


async def main() -> None:
    """Record all that aren't there yet."""
    HISTORIES.mkdir(exist_ok=True)
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=temporal_binary(), dev_server_log_level="error"
    ) as env:
        graphs = registry()
        async with worker_for(env.client, graphs) as queue:
            for graph in graphs.names:
                if not path_of(graph).exists():
                    for name, history in (await record(env.client, queue, graph)).items():
                        clean = json.dumps(anonymous(json.loads(history)), indent=1)
                        path_of(name).write_text(clean + "\n")
                        print(f"recorded {name}")
    gc.collect()


if __name__ == "__main__":
    asyncio.run(main())
