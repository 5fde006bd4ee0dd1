"""Runs the comparison: `python -m tests.differential [--graphs N] [--dataflow N] [--seed S]`."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import sys
import time

from ..conftest import start_server
from .compare import Figures, compare
from .dataflow import compare_dataflow
from .rules import RULES


async def main(graphs: int, dataflow: int, seed: int) -> int:
    """Compare, print, and return the number of differences."""
    logging.disable(logging.CRITICAL)  # Failures are expected here.
    first, total = seed * 1_000_000, 0
    async with await start_server() as env:
        for what, count, comparison in (
            ("Strands' own Graph", graphs, compare),
            ("the model of the default semantics", dataflow, compare_dataflow),
        ):
            figures, begun = Figures(), time.monotonic()
            await comparison(env.client, range(first, first + count), figures)
            total += len(figures.differences)
            print(
                f"{count} random graphs through a worker and by {what}, seed {seed}, "
                f"{time.monotonic() - begun:.0f} s: {len(figures.differences)} differences"
            )
            _show(figures)
    gc.collect()
    return total


def _show(figures: Figures) -> None:
    for what, count in figures.runs.most_common():
        print(f"  {count:5} {what}")
    if figures.rules:
        print("uses of the rules for what is better than in Strands:")
        for name in RULES:
            print(f"  {figures.rules[name]:5} {name}")
    for text in figures.differences[:5]:
        print(text)
    if len(figures.differences) > 5:
        print("more:", *(text.split("seed ")[1].split()[0] for text in figures.differences[5:]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--graphs", type=int, default=300)
    parser.add_argument("--dataflow", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    found = asyncio.run(main(arguments.graphs, arguments.dataflow, arguments.seed))
    sys.stdout.flush()
    # Temporal's runtime may crash in the interpreter's own exit; see tests/conftest.py.
    os._exit(1 if found else 0)
