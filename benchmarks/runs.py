"""Wall time and history events of whole runs, ours beside the floor's."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import median

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from .shapes import Shape
from .sides import SIDES
from .tables import Table

WALL_TARGET = 1.15
"""Most that a run of ours may take, as a multiple of the floor's."""

_TASK_EVENTS = {
    EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
    # The server takes a task back when too many results arrive while it is being worked on.
    EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED,
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One run.

    Attributes:
        seconds: From the call to the result.
        processor: Seconds of processor time of the process that is caller and worker at once.
        task_events: Workflow-task events in its history: how many there are is a matter of
            how many results arrive together.
        other_events: All other events: the same for every run.
        size: Bytes of its history.
    """

    seconds: float
    processor: float
    task_events: int
    other_events: int
    size: int


Samples = dict[str, list[Sample]]
"""Samples of each side, in the order of the rounds."""


async def compare(client: Client, rounds: dict[Shape, int]) -> Table:
    """Run shapes on both sides in turn, each for some rounds, and return a table."""
    table = Table(
        "Whole runs, ours / floor",
        [
            "shape",
            "rounds",
            "wall time (min-max)",
            f"<= {WALL_TARGET}",
            "processor time",
            "events floor",
            "ours",
            "more",
            "as expected",
            "task events floor",
            "ours",
            "history bytes",
        ],
        "Times are medians over alternating rounds, after a warm-up, of the ratio in one round. "
        "Events are those that aren't workflow-task events; expected are one more for the plan "
        "and one more for each completed node with conditional edges. How many workflow-task "
        "events there are depends on how many results arrive together, on both sides.",
    )
    async with AsyncExitStack() as stack:
        for side in SIDES.values():
            await stack.enter_async_context(side.worker(client, list(rounds)))
        for shape, count in rounds.items():
            samples: Samples = {name: [] for name in SIDES}
            for number in range(count + 1):
                for name in SIDES:
                    sample = await _sample(client, name, shape)
                    if number:  # The first is the warm-up.
                        samples[name].append(sample)
            table.rows.append(_row(table, shape, samples))
            print(f"  {shape.title}: done", file=sys.stderr)
    return table


async def _sample(client: Client, name: str, shape: Shape) -> Sample:
    gc.collect()  # Neither side pays for the other's garbage.
    started, processor = time.perf_counter(), time.process_time()
    handle = await SIDES[name].run(client, shape)
    processor = time.process_time() - processor
    seconds = time.perf_counter() - started
    described = (await handle.describe()).raw_description.workflow_execution_info
    task_events = other_events = 0
    async for event in handle.fetch_history_events():
        if event.event_type in _TASK_EVENTS:
            task_events += 1
        else:
            other_events += 1
    return Sample(seconds, processor, task_events, other_events, described.history_size_bytes)


def _row(table: Table, shape: Shape, samples: Samples) -> list[str]:
    floor, ours = samples["floor"], samples["ours"]
    pairs = list(zip(floor, ours, strict=True))
    walls = [b.seconds / a.seconds for a, b in pairs]
    wall = median(walls)
    expected = 1 + shape.conditional_nodes
    more = {b.other_events - a.other_events for a, b in pairs}
    return [
        shape.title,
        str(len(pairs)),
        f"{wall:.2f} ({min(walls):.2f}-{max(walls):.2f})",
        # A condition costs the floor nothing, as it is code of the workflow there.
        "no target" if shape.conditional else table.judge(wall <= WALL_TARGET),
        f"{median(b.processor / a.processor for a, b in pairs):.2f}",
        _each(sample.other_events for sample in floor),
        _each(sample.other_events for sample in ours),
        _each(more),
        f"+{expected} {table.judge(more == {expected})}",
        _middle(sample.task_events for sample in floor),
        _middle(sample.task_events for sample in ours),
        f"{median(b.size / a.size for a, b in pairs):.2f}",
    ]


def _each(numbers: Iterable[int]) -> str:
    """Return the number that all have, or all that there are."""
    return ", ".join(f"{number:,}" for number in sorted(set(numbers)))


def _middle(numbers: Iterable[int]) -> str:
    return f"{median(numbers):,.0f}"
