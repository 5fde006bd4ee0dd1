"""`python -m tests.oracles [COUNT]`: compares COUNT random graphs with each oracle."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

from .compare import dataflow_difference, strands_difference


async def _model(seed: int) -> str | None:
    return dataflow_difference(seed)


async def main(count: int) -> int:
    """Compare, print the differences, and return how many there are."""
    oracles: list[tuple[str, Callable[[int], Awaitable[str | None]]]] = [
        ("the model of the design", _model),
        ("Strands' own Graph", strands_difference),
    ]
    total = 0
    for name, difference in oracles:
        found = [text for seed in range(count) if (text := await difference(seed)) is not None]
        print(f"{count} random graphs against {name}: {len(found)} differences")
        for text in found[:5]:
            print(text)
        total += len(found)
    return total


if __name__ == "__main__":
    sys.exit(1 if asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5000)) else 0)
