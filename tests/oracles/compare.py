"""Compares the scheduler with its two oracles over random graphs."""

from __future__ import annotations

from .dataflow_model import run_model
from .machine import run_scheduler
from .strands_graph import run_strands
from .world import Trace, World, random_plan


def dataflow_difference(seed: int) -> str | None:
    """Compare with the model written from the design's words; None if nothing differs."""
    plan = random_plan(seed, "dataflow")
    ours = run_scheduler(plan, World(seed, plan))
    model = run_model(plan, World(seed, plan))
    return None if ours == model else _describe(seed, ours, model)


async def strands_difference(seed: int) -> str | None:
    """Compare with the installed Strands `Graph` itself; None if nothing differs."""
    plan = random_plan(seed, "strands")
    ours = run_scheduler(plan, World(seed, plan))
    strands = await run_strands(plan, World(seed, plan))
    if ours == strands or _stopped_earlier(ours, strands):
        return None
    return _describe(seed, ours, strands)


def _stopped_earlier(ours: Trace, strands: Trace) -> bool:
    """Say whether ours only stopped at a condition that raised, where Strands went on a little.

    A condition that raises while an input is built counts in Strands as a failure of the node
    that is about to start, and the rest of the batch still starts, to be cancelled at once.
    Here it ends the run. All that came before must be the same.
    """
    return (
        ours.reason == strands.reason
        and (ours.reason or "").startswith("condition:")
        and ours.order == strands.order
        and ours.status == strands.status
        and strands.asked[: len(ours.asked)] == ours.asked
        and strands.dispatches[: len(ours.dispatches)] == ours.dispatches
    )


def _describe(seed: int, ours: Trace, other: Trace) -> str:
    lines = [f"seed {seed}"]
    for name in ours.__dataclass_fields__:
        if getattr(ours, name) != getattr(other, name):
            lines += [f"  ours   {name}: {getattr(ours, name)}"]
            lines += [f"  oracle {name}: {getattr(other, name)}"]
    return "\n".join(lines)
