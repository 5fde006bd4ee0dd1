"""Workflows of a user who runs graphs as children; run as a program, a worker for them.

Neither this module nor the worker's process may import strands.
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

from durable_strands.workflow import ChildGraphError, ChildGraphRun, run_graph, start_graph


def strands_modules() -> list[str]:
    return [name for name in list(sys.modules) if name.split(".")[0] == "strands"]


@workflow.defn
class Plain:
    """Runs a graph, and returns what its nodes said."""

    @workflow.run
    async def run(self, name: str, options: dict[str, Any]) -> dict[str, Any]:
        report = await run_graph(name, options.pop("task", "T"), **options)
        texts = {node: result.text for node, result in report.results.items()}
        return {"texts": texts, "strands": strands_modules()}


@workflow.defn
class Catching:
    """Runs a graph that fails, and returns what it learns of it."""

    @workflow.run
    async def run(self, name: str) -> dict[str, Any]:
        try:
            await run_graph(name, "T", invocation_state={"key": 1})
        except ChildGraphError as error:
            report = error.report
            return {
                "type": error.type,
                "message": error.message,
                "id": error.workflow_id,
                "results": None if report is None else list(report.results),
                "failed_node": None if report is None else report.failed_node,
            }
        return {}


@workflow.defn
class Several:
    """Runs one graph several times, side by side and one after the other."""

    @workflow.run
    async def run(self, name: str) -> list[str]:
        reports = await asyncio.gather(*(run_graph(name, f"T{number}") for number in range(3)))
        last = await start_graph(name, "T3")
        reports.append(await last.result())
        return [report.results["a"].text for report in reports] + [last.id]


@workflow.defn
class Wide:
    """Starts in one step what is too much for one message to the server."""

    @workflow.run
    async def run(self, name: str) -> int:
        tasks = ["x" * 1_500_000] * 5
        reports = await asyncio.gather(*(run_graph(name, task) for task in tasks))
        return sum(len(report.results["a"].text) for report in reports)


@workflow.defn
class Answering:
    """Passes answers on to its graph."""

    def __init__(self) -> None:
        self.graph: ChildGraphRun | None = None

    @workflow.run
    async def run(self, name: str) -> dict[str, Any]:
        self.graph = await start_graph(name, "T")
        report = await self.graph.result()
        return {"text": report.results["gate"].text, "state": report.invocation_state}

    @workflow.update
    async def answer(self, answers: dict[str, Any], state: dict[str, Any]) -> str | None:
        await workflow.wait_condition(lambda: self.graph is not None)
        assert self.graph is not None
        try:
            await self.graph.respond(answers, state)
        except ChildGraphError as error:
            return error.type
        return None


@workflow.defn
class Leaving:
    """Starts a graph and does to it what it is told."""

    @workflow.run
    async def run(self, name: str, what: str) -> str:
        graph = await start_graph(name, "T", run_timeout=timedelta(seconds=60))
        if what == "leave":
            return graph.id
        if what == "cancel":
            graph.cancel()
        if what == "again":
            await start_graph(name, "T", id=graph.id)
        try:
            await graph.result()
        except ChildGraphError as error:
            return str(error.type)
        return "completed"


@workflow.defn
class Misusing:
    """Gives `run_graph` what it can't take."""

    @workflow.run
    async def run(self, which: str) -> str:
        wrong: dict[str, tuple[Any, Any, dict[str, Any]]] = {
            "no name": ("", "T", {}),
            "name": (3, "T", {}),
            "task": ("graph", {"text": "T"}, {}),
            "block": ("graph", [{"text": object()}], {}),
            "deep": ("graph", [nested(5_000)], {}),
            "state": ("graph", "T", {"invocation_state": {"key": {1, 2}}}),
            "state key": ("graph", "T", {"invocation_state": {3: 4}}),
            "no state": ("graph", "T", {"invocation_state": "x"}),
            "size": ("graph", "x" * 3_000_000, {}),
            "id": ("graph", "T", {"id": "x" * 1001}),
            "no id": ("graph", "T", {"id": ""}),
            "surrogate": ("graph", "T", {"id": "\ud800"}),
            "surrogate name": ("\ud800", "T", {}),
            "default id": ("g" * 1000, "T", {}),
            "queue": ("graph", "T", {"task_queue": ""}),
            "timeout": ("graph", "T", {"run_timeout": timedelta(0)}),
        }
        name, task, options = wrong[which]
        await run_graph(name, task, **options)
        return "it was taken"


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = {"text": value}
    return value


WORKFLOWS: list[type] = [Plain, Catching, Several, Wide, Answering, Leaving, Misusing]


async def main(address: str, queue: str) -> None:
    """Serve the workflows, without our plugin, until standard input ends."""
    client = await Client.connect(address)
    async with Worker(client, task_queue=queue, workflows=WORKFLOWS):
        await asyncio.to_thread(sys.stdin.read)
    print(strands_modules(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
    os._exit(0)  # The interpreter's own exit may crash after Temporal's runtime ran.
