"""A record of what the worker processes really executed, apart from what Temporal knows.

The demo uses it as evidence: Temporal's history says how often a visit *completed*, this file
how often it was *executed*, by which process. Without `VARIABLE` set nothing is written.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from strands.hooks import AfterInvocationEvent, BeforeInvocationEvent

from ..context import current_node

VARIABLE = "DURABLE_STRANDS_DEMO_JOURNAL"
"""Environment variable with the path of the file."""

Moment = Literal["began", "ended"]


@dataclass(frozen=True)
class Entry:
    """One line of the journal.

    Attributes:
        moment: Whether an execution began, or ended with a result.
        node: The node's id.
        visit: Number of the visit, from 1.
        attempt: Number of the attempt at the visit, from 1.
        pid: The worker process.
    """

    moment: Moment
    node: str
    visit: int
    attempt: int
    pid: int


def record(moment: Moment) -> None:
    """Write down that the current node's execution began or ended."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    node = current_node()
    entry = Entry(moment, node.path, node.visit, node.attempt, os.getpid())
    line = json.dumps(asdict(entry)) + "\n"
    # One write in append mode: lines of several processes don't mix, and a killed process has
    # written what it did before.
    with open(path, "ab", buffering=0) as file:
        file.write(line.encode())


def agent_began(event: BeforeInvocationEvent) -> None:
    """Hook: an agent begins."""
    del event
    record("began")


def agent_ended(event: AfterInvocationEvent) -> None:
    """Hook: an agent ends. Without a result it failed, which is no execution to its end."""
    if event.result is not None:
        record("ended")


def read(path: Path) -> list[Entry]:
    """Return what was recorded so far."""
    if not path.exists():
        return []
    # The last line may be in the making.
    lines = path.read_text().splitlines(keepends=True)
    return [Entry(**json.loads(line)) for line in lines if line.endswith("\n")]


def in_flight(entries: list[Entry], pid: int) -> list[Entry]:
    """Return the executions that a process has begun and not ended, in order."""
    ended = {(e.node, e.visit, e.attempt) for e in entries if e.pid == pid and e.moment == "ended"}
    return [
        entry
        for entry in entries
        if entry.pid == pid
        and entry.moment == "began"
        and (entry.node, entry.visit, entry.attempt) not in ended
    ]
