"""The floor: for each shape a workflow written by hand, for that shape and nothing else.

This is what a Temporal engineer would write who knows the shape beforehand: no plan, no
scheduler, no messages, no failure policies. It schedules the same number of activities with
the same timeouts, ids and summaries as our side, whose payloads are of about the same size:
each activity gets the texts of those it waits for, and the run returns every result.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from .shapes import ANSWER, TASK, Kind, layer_sources, name

Result = dict[str, Any]

_REPORT = {
    "status": "completed",
    "stop_reason": "end_turn",
    "message": {"role": "assistant", "content": [{"text": ANSWER}]},
    "metrics": {"usage": {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}},
    "filler": "." * 170,
}
"""As much as our side's report says besides the text. The filler makes up for the rest of it."""


@activity.defn(name="floor.node")
async def answer(data: dict[str, Any]) -> Result:
    """Stand in for the work of a node."""
    await asyncio.sleep(0)  # As whatever waits for a model would: the event loop has a turn.
    return {"node": data["node"], "text": ANSWER, "report": _REPORT}


def _start(number: int, sources: list[Result]) -> workflow.ActivityHandle[Result]:
    node = name(number)
    return workflow.start_activity(
        answer,
        {
            "graph": "floor",
            "node": node,
            "task": TASK,
            "inputs": [{"source": result["node"], "text": result["text"]} for result in sources],
        },
        activity_id=f"{node}#1",
        start_to_close_timeout=timedelta(hours=1),
        heartbeat_timeout=timedelta(seconds=30),
        retry_policy=RetryPolicy(maximum_attempts=3),
        summary=f"{node}, visit 1",
    )


@workflow.defn
class FloorChain:
    """One after the other."""

    @workflow.run
    async def run(self, size: int) -> dict[str, Result]:
        """Run `size` nodes."""
        results: list[Result] = []
        for number in range(size):
            # A condition on an edge would be an `if` here: no activity and no event.
            results.append(await _start(number, results[-1:]))
        return {result["node"]: result for result in results}


@workflow.defn
class FloorFanOut:
    """One, then many side by side, then one that gets all their texts."""

    @workflow.run
    async def run(self, size: int) -> dict[str, Result]:
        """Run `size` branches."""
        first = await _start(0, [])
        branches = await asyncio.gather(*(_start(i + 1, [first]) for i in range(size)))
        last = await _start(size + 1, branches)
        return {result["node"]: result for result in [first, *branches, last]}


@workflow.defn
class FloorLayered:
    """Each node as soon as those that it waits for are done."""

    @workflow.run
    async def run(self, size: int) -> dict[str, Result]:
        """Run `size` nodes."""
        tasks: list[asyncio.Task[Result]] = []

        async def run_node(number: int) -> Result:
            return await _start(number, [await tasks[i] for i in layer_sources(number, size)])

        tasks.extend(asyncio.create_task(run_node(number)) for number in range(size))
        results = await asyncio.gather(*tasks)
        return {result["node"]: result for result in results}


WORKFLOWS: dict[Kind, Any] = {
    "chain": FloorChain,
    "fan_out": FloorFanOut,
    "layered": FloorLayered,
}
