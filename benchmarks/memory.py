"""Memory of a worker process before and after it served runs, ours beside the floor's."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

from temporalio.client import Client

from .shapes import Shape
from .sides import SIDES
from .tables import Table

_SHAPE = Shape("fan_out", 100)
_EARLY = 5
"""Runs after which the worker has loaded all that it loads once."""


def possible() -> bool:
    """Say whether this system tells what a process holds."""
    return Path("/proc/self/status").exists()


async def measure(client: Client, runs: int) -> Table:
    """Return a table of what the workers of both sides hold."""
    table = Table(
        f"Memory of a worker, {_SHAPE.title}",
        [
            "worker",
            "idle, MB",
            f"after {_EARLY} runs",
            f"after {runs} runs",
            "growth, idle to last",
            f"growth after run {_EARLY}",
        ],
        "Resident memory of a process that does nothing but serve this graph, in MB.",
    )
    sides = {name: await _of_worker(client, name, runs) for name in SIDES}
    sides["ours - floor"] = [
        ours - floor for ours, floor in zip(sides["ours"], sides["floor"], strict=True)
    ]
    for name, (idle, early, last) in sides.items():
        numbers = (idle, early, last, last - idle, last - early)
        table.rows.append([name, *(f"{number:.1f}" for number in numbers)])
    return table


async def _of_worker(client: Client, name: str, runs: int) -> list[float]:
    """Return what a worker holds before its first run, after some, and after all."""
    address = client.service_client.config.target_host
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.memory", name, address), stdin=PIPE, stdout=PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        await process.stdout.readline()
        held = [_resident(process.pid)]
        for count in (_EARLY, runs - _EARLY):
            for _ in range(count):
                await SIDES[name].run(client, _SHAPE)
            held.append(_resident(process.pid))
        print(f"  worker of {name}: done", file=sys.stderr)
        return held
    finally:
        process.stdin.close()
        await process.wait()


def _resident(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


async def _serve(name: str, address: str) -> None:
    """Be the worker, until the parent closes our input."""
    client = await Client.connect(address)
    async with SIDES[name].worker(client, [_SHAPE]):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
