"""A run's local activities: its hooks, its conditions, what its nodes' functions make.

Their results must be acted upon in a replay where the run did. Core doesn't see to that alone: when
a query comes with a workflow task that runs a local activity, the task ends with the activity's
marker, and the workflow hears of the result only in the next one, together with whatever else has
happened by then. A replay hears of it in the first. So where anything else may happen, a result is
taken at the side of a timer, which fires at one place in history.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Protocol

from temporalio import workflow

from .calls import start_local, taken
from .gate import TaskGate

_NEAR = timedelta(minutes=5)
"""A limit that is further away can't be met while a few local activities run (60 s each)."""


class Limit(Protocol):
    """A limit of time that is running."""

    def left(self) -> timedelta:
        """Return how much of it is left."""


class LocalActivities:
    """Runs a run's local activities, one at a time.

    Where several are under way when a workflow task ends, a replay may see their results in
    another order than the run did. So hooks and conditions of a run are called one after the other,
    and each sees what the one before it wrote.

    Attributes:
        limits: The limits that are running; each puts itself in, and takes itself out.
        now: The workflow's time at the last event that is at one place in history: a local
            activity's result may be at two.
    """

    def __init__(
        self, rules: int, gate: TaskGate, largest: int, is_asking: Callable[[], bool]
    ) -> None:
        """Begin without any.

        Args:
            rules: Version of the rules by which the run goes.
            gate: Keeps workflow tasks small enough.
            largest: Bytes that a result may have.
            is_asking: Says whether the run waits for answers, which may come at any time.
        """
        self.limits: dict[Limit, None] = {}
        self.now: datetime = workflow.now()
        self._has_timers = rules >= 1
        self._gate = gate
        self._largest = largest
        self._is_asking = is_asking
        self._one = asyncio.Lock()
        self._in_flight = 0

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Run an activity of the server's, whose end may come while a local one runs."""
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            self.pin()

    def pin(self) -> None:
        """Take note of the time: this is at one place in history."""
        self.now = workflow.now()

    @property
    def is_idle(self) -> bool:
        """Whether none is under way."""
        return not self._one.locked()

    async def run(self, activity: str, argument: Callable[[], dict[str, Any]], summary: str) -> Any:
        """Run one, when its turn has come; see `calls.local`.

        Args:
            activity: Its type.
            argument: Makes its argument, when its turn comes.
            summary: What the UI shows of it.
        """
        async with self._one:
            await self._gate.admit(self._largest)
            size = 0
            try:
                result = start_local(activity, argument(), summary)
                if self._has_timers and self._something_may_happen():
                    try:
                        await workflow.sleep(0.001, summary="where a local result is taken")
                    except asyncio.CancelledError:
                        result.cancel()
                        raise
                    self.pin()
                data = await taken(result)
                size = len(json.dumps(data))
                return data
            finally:
                self._gate.settle(self._largest, size)

    def _something_may_happen(self) -> bool:
        """Say whether history may get an event that the run acts upon, but for being cancelled."""
        near = any(limit.left() < _NEAR for limit in self.limits)
        return self._in_flight > 0 or self._is_asking() or near
