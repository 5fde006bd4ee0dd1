"""The graphs that the soak runs; every execution of a node leaves a line in a journal."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from strands.hooks import BeforeNodeCallEvent
from strands.multiagent.graph import Graph
from temporalio.common import RetryPolicy

from durable_strands import GraphRegistry, NodeOptions, current_node

from ..support import build

JOURNAL = "SOAK_JOURNAL"
"""Variable with the path of the journal: one JSON object a line."""


class Approvals:
    """Asks before a and b. The answer is kept in the invocation state; "no" cancels the node."""

    def register_hooks(self, registry: Any, **kwargs: Any) -> None:
        registry.add_callback(BeforeNodeCallEvent, self.check)

    def check(self, event: BeforeNodeCallEvent) -> None:
        if event.node_id in ("a", "b"):
            answer = event.interrupt("approve", reason=event.node_id)
            assert event.invocation_state is not None
            event.invocation_state[f"answer-{event.node_id}"] = answer
            if str(answer).startswith("no"):
                event.cancel_node = "rejected"


def journal(what: str) -> None:
    """Append a line: the visit that runs, and what of it."""
    node = current_node()
    line = {
        "run": node.workflow_id,
        "visit": f"{node.path}#{node.visit}",
        "attempt": node.attempt,
        "what": what,
    }
    with Path(os.environ[JOURNAL]).open("a") as file:
        file.write(json.dumps(line) + "\n")


def working(name: str, seconds: float) -> Callable[[str], Any]:
    """Return a node that takes some time; `work` fails as the task says."""

    async def run(prompt: str) -> str:
        journal("begun")
        await asyncio.sleep(seconds)
        if name == "work" and "fatal" in prompt:
            raise TypeError("fatal, as the task says")
        if name == "work" and "transient" in prompt and current_node().attempt == 1:
            raise ConnectionError("transient, as the task says")
        journal("done")
        return name.upper()

    return run


def graph() -> Graph:
    """Two approvals and some work side by side, then a join, then an end."""
    return build(
        {
            "start": working("start", 0.05),
            "a": working("a", 0.1),
            "b": working("b", 0.1),
            "work": working("work", 0.4),
            "join": working("join", 0.1),
            "end": working("end", 0.05),
        },
        [
            ("start", "a"),
            ("start", "b"),
            ("start", "work"),
            ("a", "join"),
            ("b", "join"),
            ("work", "join", lambda state: "work" in state.results),
            ("join", "end"),
        ],
        configure=lambda builder: builder.set_hook_providers([Approvals()]),
    )


def nested() -> Graph:
    """The same with the approvals at two depths, the work mapped over a list."""

    def approved(name: str) -> Graph:
        return build(
            {name: working(name, 0.1)},
            configure=lambda builder: builder.set_hook_providers([Approvals()]),
        )

    return build(
        {
            "start": working("start", 0.05),
            "team": build(
                {"first": working("first", 0.1), "one": approved("a")}, [("first", "one")]
            ),
            "other": approved("b"),
            "work": working("work", 0.2),
            "each": working("each", 0.1),
            "join": working("join", 0.1),
            "end": working("end", 0.05),
        },
        [
            ("start", "team"),
            ("start", "other"),
            ("start", "work"),
            ("start", "each"),
            ("team", "join"),
            ("other", "join"),
            ("work", "join", lambda state: "work" in state.results),
            ("each", "join"),
            ("join", "end"),
        ],
    )


PATIENT = NodeOptions(
    heartbeat_timeout=timedelta(seconds=2),
    # Attempts lost with their worker count, and here workers are lost all the time.
    retry=RetryPolicy(initial_interval=timedelta(milliseconds=100), maximum_attempts=0),
)

registry = GraphRegistry()
registry.add("soak", graph, defaults=PATIENT)
registry.add(
    "nested",
    nested,
    defaults=PATIENT,
    nodes={"each": NodeOptions(map_over=lambda: ["one", "two", "three"])},
)
