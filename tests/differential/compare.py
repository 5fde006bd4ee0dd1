"""Plays scenarios on both sides, batch by batch, and compares."""

from __future__ import annotations

import asyncio
import difflib
import pprint
import traceback
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

from temporalio.client import Client
from temporalio.common import RetryPolicy

from durable_strands import GraphRegistry, NodeOptions

from ..support import failed_tasks, replay, worker_for
from . import durable, in_process
from .durable import LONGEST
from .rules import Rules
from .scenario import Scenario
from .stage import STAGES, Trace

BATCH = 50
AT_ONCE = 12
ONCE = NodeOptions(retry=RetryPolicy(maximum_attempts=1), heartbeat_timeout=timedelta(seconds=30))


@dataclass
class Figures:
    """What is counted over all graphs.

    Attributes:
        runs: Counts by what happened in a run.
        rules: Uses by rule.
        differences: One text for each run that differs.
    """

    runs: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)


async def compare(
    client: Client, seeds: Sequence[int], figures: Figures, *, replays: bool = False
) -> None:
    """Compare the scenarios of some seeds.

    Args:
        client: A client of a real server.
        seeds: The seeds; each is a graph.
        figures: Where to count.
        replays: Also replay what the worker's runs have recorded.
    """
    for first in range(0, len(seeds), BATCH):
        scenarios = [Scenario(seed) for seed in seeds[first : first + BATCH]]
        registry = GraphRegistry()
        for scenario in scenarios:
            registry.add(scenario.name, scenario.graph, semantics="strands", defaults=ONCE)
        gate = asyncio.Semaphore(AT_ONCE)
        async with worker_for(client, registry) as queue:
            await asyncio.gather(
                *(
                    _in_turn(
                        gate, _one(client, queue, scenario, figures, replays), scenario, figures
                    )
                    for scenario in scenarios
                )
            )
        for scenario in scenarios:
            STAGES.pop(scenario.name, None)


async def _in_turn(
    gate: asyncio.Semaphore,
    comparison: Coroutine[Any, Any, None],
    scenario: Scenario,
    figures: Figures,
) -> None:
    """Do a comparison when it is its turn; one that breaks is a difference."""
    async with gate:
        try:
            await comparison
        except Exception as error:
            trace = "".join(traceback.format_exception(error)[-6:])
            figures.differences.append(f"seed {scenario.seed} {trace}")


async def _one(
    client: Client, queue: str, scenario: Scenario, figures: Figures, replays: bool
) -> None:
    rules = Rules()
    # A task of its own, so that its context says which run the executors belong to.
    task = asyncio.create_task(in_process.play(scenario, rules))
    strands = await asyncio.wait_for(task, LONGEST)
    ours, run = await durable.play(client, queue, scenario, strands.trace)
    rules.level(strands, ours)
    figures.rules.update(rules.used)
    figures.runs.update(_happened(strands.trace))
    difference = _difference(strands.trace, ours.trace)
    if run is not None:
        if await failed_tasks(client, run.id):
            difference += "\n  a workflow task failed"
        if replays:
            await replay(await client.get_workflow_handle(run.id).fetch_history())
    if difference:
        figures.differences.append(f"seed {scenario.seed}{difference}")


def _happened(trace: Trace) -> dict[str, int]:
    """Say what happened in a run, each thing once."""
    events = [event for call in trace.calls for event in call.events]
    last = trace.calls[-1].outcome
    things = {
        "with interrupts": any(event[0] == "interrupt" for event in events),
        "with partial answers": any(call.asked for call in trace.calls[1:]),
        "with a node that a hook cancelled": any(event[0] == "cancel" for event in events),
        "with a node that returned FAILED": any(
            event[0] == "stop" and event[2] == "failed" and isinstance(event[3], list)
            for event in events
        ),
        "with cycles": len(last["order"]) > len(set(last["order"])),
        "that raised": last["error"] is not None,
        "that completed": last["status"] == "completed",
        "that returned FAILED": last["status"] == "failed" and last["error"] is None,
    }
    return {thing: 1 for thing, happened in things.items() if happened}


def _difference(strands: Trace, ours: Trace) -> str:
    """Return a readable difference of two traces, empty if they are equal."""
    one, other = _lines(strands), _lines(ours)
    if one == other:
        return ""
    return "\n" + "\n".join(
        difflib.unified_diff(one, other, "Strands", "durable-strands", lineterm="", n=2)
    )


def _lines(trace: Trace) -> list[str]:
    plain: dict[str, Any] = asdict(trace)
    plain["tools"] = {node: sorted(done, key=repr) for node, done in plain["tools"].items()}
    return pprint.pformat(plain, width=140, sort_dicts=True).splitlines()
