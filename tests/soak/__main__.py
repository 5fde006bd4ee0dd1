"""Runs the soak: `python -m tests.soak [--runs N] [--seed S]`."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment

from durable_strands import DurableGraph, GraphRun, InterruptNotPendingError, RunClosedError
from durable_strands.wire import RunReport

from ..conftest import temporal_binary
from ..support import failed_tasks, replay
from .graphs import JOURNAL

QUEUE = "soak"
CASES = ("plain", "transient", "fatal", "rejected")
GRAPHS = ("soak", "nested")
AT_ONCE = 12
ROOT = Path(__file__).parents[2]


@dataclass
class Figures:
    """What is counted over all runs."""

    kills: int = 0
    accepted: int = 0
    refused: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


class Workers:
    """Two worker processes, one of which is killed and replaced every now and then."""

    def __init__(self, address: str, journal: Path) -> None:
        self._environment = {**os.environ, "TEMPORAL_ADDRESS": address, JOURNAL: str(journal)}
        self._processes: list[asyncio.subprocess.Process] = []

    async def start(self) -> None:
        self._processes.append(
            await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "durable_strands.cli", "worker", "tests.soak.graphs:registry"),
                *("--task-queue", QUEUE),
                cwd=ROOT,
                env=self._environment,
                stderr=asyncio.subprocess.DEVNULL,
            )
        )

    async def kill_one(self, dice: random.Random) -> None:
        """SIGKILL one and start another; there is always one left that goes on."""
        victim = self._processes.pop(dice.randrange(len(self._processes)))
        victim.send_signal(signal.SIGKILL)
        await victim.wait()
        await self.start()

    async def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        await asyncio.gather(*(process.wait() for process in self._processes))


@asynccontextmanager
async def chaos(workers: Workers, dice: random.Random, figures: Figures) -> AsyncIterator[None]:
    """Kill workers at random as long as the block runs."""

    async def kill() -> None:
        while True:
            await asyncio.sleep(dice.uniform(3, 8))
            await workers.kill_one(dice)
            figures.kills += 1

    killer = asyncio.create_task(kill())
    try:
        yield
    finally:
        killer.cancel()
        await asyncio.gather(killer, return_exceptions=True)


async def answer(run: GraphRun, case: str, dice: random.Random, figures: Figures) -> dict[str, str]:
    """Answer what the run asks, in random order, each answer twice; return what was accepted."""
    accepted: dict[str, str] = {}  # By the node's own id, at whatever depth it is.
    while True:
        try:
            report = await asyncio.wait_for(run.status(), 20)
        except (RPCError, TimeoutError):
            await asyncio.sleep(0.2)  # No worker is there to answer: one was just killed.
            continue
        if report.status.value not in ("executing", "interrupted"):
            return accepted
        questions = list(report.interrupts)
        dice.shuffle(questions)
        for info in questions:
            node = info.node.rpartition("/")[2]
            word = "no" if case == "rejected" and node == "b" else "yes"
            texts = [f"{word} {number}" for number in range(2)]
            replies = await asyncio.gather(
                *(respond(run, info.id, text) for text in texts), return_exceptions=True
            )
            for text, reply in zip(texts, replies, strict=True):
                if not isinstance(reply, BaseException):
                    figures.accepted += 1
                    if node in accepted:
                        figures.problems.append(f"{run.id}: {node} took two answers")
                    accepted[node] = text
                elif isinstance(reply, (InterruptNotPendingError, RunClosedError)):
                    figures.refused += 1
                else:
                    figures.problems.append(f"{run.id}: {reply!r}")
        await asyncio.sleep(dice.uniform(0.05, 0.5))


async def respond(run: GraphRun, interrupt: str, text: str) -> None:
    """Answer, however often the caller has to try: the update id makes that harmless."""
    update_id = f"{interrupt}-{text}"
    while True:
        try:
            await asyncio.wait_for(run.respond({interrupt: text}, update_id=update_id), 20)
        except (RPCError, TimeoutError):
            continue
        return


def check(case: str, report: RunReport, accepted: dict[str, str]) -> list[str]:
    """Return what is wrong with a run's end."""
    statuses = {node: state.status.value for node, state in report.nodes.items()}
    expected = dict.fromkeys(statuses, "completed")
    if case == "fatal":
        problems = [] if report.status.value == "failed" else [f"is {report.status.value}"]
        if report.failed_node != "work" or statuses["join"] != "pending":
            problems.append(f"failed otherwise: {report.reason}, {statuses}")
        if report.interrupts:
            problems.append("has open questions after its end")
        return problems
    if case == "rejected":
        expected |= {path: "cancelled" for path in statuses if path in ("b", "other/b")}
    problems = [] if report.status.value == "completed" else [f"is {report.status.value}"]
    if statuses != expected:
        problems.append(f"has {statuses}")
    visits = {path: state.visits for path, state in report.nodes.items()}
    if visits != {path: 3 if path == "each" else 1 for path in statuses}:
        problems.append(f"has visits {visits}")
    for node in ("a", "b"):
        if report.invocation_state.get(f"answer-{node}") != accepted.get(node):
            problems.append(f"{node} saw another answer than was accepted")
    return problems


async def one(client: Client, number: int, figures: Figures, seed: int) -> GraphRun:
    """Start a run, answer it, and check how it ended."""
    dice = random.Random(f"{seed} {number}")
    case = CASES[number % len(CASES)]
    name = GRAPHS[number // len(CASES) % len(GRAPHS)]
    graph = DurableGraph(client, name, task_queue=QUEUE)
    run = await graph.start(case, workflow_id=f"soak-{number}")
    accepted = await answer(run, case, dice, figures)
    report = await run.status()
    figures.ends[f"{case}: {report.status.value}"] += 1
    figures.problems += [f"{run.id} ({case}) {text}" for text in check(case, report, accepted)]
    return run


def check_journal(journal: Path, figures: Figures) -> Counter[str]:
    """Count executions; a visit done may run again only if its worker died with the result."""
    done: set[tuple[str, str]] = set()
    counts: Counter[str] = Counter()
    for line in journal.read_text().splitlines():
        entry = json.loads(line)
        visit = (entry["run"], entry["visit"])
        counts[entry["what"]] += 1
        if entry["what"] == "begun" and visit in done:
            counts["lost with their worker when they were done"] += 1
        if entry["what"] == "done":
            done.add(visit)
    figures.ends["visits done"] = len(done)
    return counts


async def main(runs: int, seed: int) -> int:
    """Run the soak; return the number of problems."""
    figures = Figures()
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal"
        journal.touch()
        async with await WorkflowEnvironment.start_local(
            dev_server_existing_path=temporal_binary(),
            dev_server_log_level="error",
            dev_server_extra_args=[
                "--dynamic-config-value",
                "history.transferProcessorMaxPollRPS=2000",
            ],
        ) as env:
            workers = Workers(env.client.service_client.config.target_host, journal)
            await workers.start()
            await workers.start()
            gate = asyncio.Semaphore(AT_ONCE)

            async def gated(number: int) -> GraphRun:
                async with gate:
                    return await one(env.client, number, figures, seed)

            async with chaos(workers, random.Random(seed), figures):
                made = await asyncio.gather(*(gated(number) for number in range(runs)))
            for run in made:
                if await failed_tasks(env.client, run.id):
                    figures.problems.append(f"{run.id} had a failing workflow task")
                await replay(await env.client.get_workflow_handle(run.id).fetch_history())
            await workers.stop()
            counts = check_journal(journal, figures)
            del made, workers
        gc.collect()
    print(f"{runs} runs, seed {seed}: {figures.kills} workers killed")
    for end, count in sorted(figures.ends.items()):
        print(f"  {end}: {count}")
    for what, count in sorted(counts.items()):
        print(f"  executions {what}: {count}")
    print(f"  answers accepted: {figures.accepted}, refused: {figures.refused}")
    print(f"  problems: {len(figures.problems)}")
    for problem in figures.problems[:20]:
        print(f"    {problem}")
    return len(figures.problems)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    sys.exit(1 if asyncio.run(main(arguments.runs, arguments.seed)) else 0)
