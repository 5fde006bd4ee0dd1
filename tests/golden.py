"""Records the golden histories: `python -m tests.golden` (`make golden`).

They are what runs that began with an earlier version look like. A change of workflow code that
breaks their replay would break running workflows: it needs `workflow.patched`, and a new
recording beside the old ones, never in their place.
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
from strands.types.tools import ToolContext
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.testing import WorkflowEnvironment

from durable_strands import DurableGraph, GraphRegistry, GraphRun, NodeOptions

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
    return graphs


async def plainly(run: GraphRun) -> None:
    """Wait for a run's end, whatever it is."""
    try:
        await run.result()
    except RuntimeError:
        assert (await run.status()).status.value == "failed"


async def answering(run: GraphRun) -> None:
    """Answer what the run `humans` asks, one thing after the other."""
    ids = await asked_by(run, "hooked", "asker")
    await run.respond({ids["asker"]: "yes"})
    await run.respond({ids["hooked"]: None})
    await run.result()


async def record(client: Client, queue: str, graph: str) -> dict[str, str]:
    """Run a graph, and return the histories that came of it as JSON by name."""
    durable = DurableGraph(client, graph, task_queue=queue)
    drive: Callable[[GraphRun], Awaitable[Any]] = answering if graph == "humans" else plainly
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


async def main() -> None:
    """Record all that aren't there yet."""
    HISTORIES.mkdir(exist_ok=True)
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=temporal_binary(), dev_server_log_level="error"
    ) as env:
        graphs = registry()
        async with worker_for(env.client, graphs) as queue:
            for graph in graphs.names:
                if not (HISTORIES / f"{graph}.json").exists():
                    for name, history in (await record(env.client, queue, graph)).items():
                        clean = json.dumps(anonymous(json.loads(history)), indent=1)
                        (HISTORIES / f"{name}.json").write_text(clean + "\n")
                        print(f"recorded {name}")
    gc.collect()


if __name__ == "__main__":
    asyncio.run(main())
