"""Replays histories in processes whose hash seed is chosen; run as a program, it is one of them.

A process reads a history per line, as JSON, and answers each with a line: what is wrong with it,
as a JSON text, or null. It lives as long as its tests, since most of its cost is its start.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process

from temporalio.client import Client, WorkflowHistory

from .restart import ROOT
from .support import replay

SEEDS = (11, 22, 33)


class Replayers:
    """A process per hash seed, started by the first history."""

    def __init__(self) -> None:
        self._processes: list[Process] = []

    async def replay(self, client: Client, workflow_id: str) -> None:
        """Replay the history of a run under each seed; fail if it doesn't fit."""
        history = await client.get_workflow_handle(workflow_id).fetch_history()
        await self.replay_history(history)

    async def replay_history(self, history: WorkflowHistory) -> None:
        """Replay a history under each seed; fail if it doesn't fit."""
        if not self._processes:
            self._processes = [await _start(seed) for seed in SEEDS]
        line = json.dumps(json.loads(history.to_json())).encode() + b"\n"
        problems = await asyncio.gather(*(_ask(process, line) for process in self._processes))
        assert problems == [None] * len(SEEDS), problems

    async def stop(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            await process.wait()


async def _start(seed: int) -> Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.replayer"),
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        stdin=PIPE,
        stdout=PIPE,
    )


async def _ask(process: Process, line: bytes) -> str | None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line)
    await process.stdin.drain()
    answer = await process.stdout.readline()
    assert answer, "the replayer died"
    problem: str | None = json.loads(answer)
    return problem


async def main() -> None:
    """Replay what comes on standard input."""
    for line in iter(sys.stdin.readline, ""):
        problem = None
        try:
            await replay(WorkflowHistory.from_json("replayed", line))
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        print(json.dumps(problem), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
    os._exit(0)  # The interpreter's own exit may crash after Temporal's runtime ran.
