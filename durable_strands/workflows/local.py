"""A run's local activities, and the order in which it acts upon what comes from outside.

Local activities call the run's hooks, its conditions, and what else its nodes' functions make.
Their results must be acted upon in a replay where the run did. Core alone doesn't see to that:

* When a query comes with a workflow task that runs a local activity, the task ends with the
  activity's marker, and the workflow hears of the result only in the next one, together with
  whatever else has happened by then. A replay hears of it in the first.
* A query that builds a run up from its history may act upon events for which there was no workflow
  task yet, and run local activities. A replay brings these events together with later ones.

So where anything else may happen, a local activity signals the run before it ends, and its result
is taken with the signal, which is at one place in history. And whatever comes from outside (ends of
activities, timers, answers) is acted upon one by one, in the order in which it came, each when all
that follows from the one before is done and no result is about to be taken. So it doesn't matter
with what else it came.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Protocol

from temporalio import workflow

from .. import wire
from .calls import start_local, taken
from .gate import TaskGate

_NEAR = timedelta(minutes=5)
"""A limit that is further away can't be met while a few local activities run (60 s each)."""


class Limit(Protocol):
    """A limit of time that is running."""

    def left(self) -> timedelta:
        """Return how much of it is left."""


class Loop(Protocol):
    """Who acts upon what happens: an orchestration."""

    @property
    def has_news(self) -> bool:
        """Whether something has happened that it hasn't acted upon."""


class LocalActivities:
    """Runs a run's local activities, one at a time.

    Where several are under way when a workflow task ends, a replay may see their results in
    another order than the run did. So hooks and conditions of a run are called one after the other,
    and each sees what the one before it wrote.

    Attributes:
        limits: The limits that are running; each puts itself in, and takes itself out.
        loops: The loops that wait for news, likewise.
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
        self.loops: dict[Loop, None] = {}
        self.now: datetime = workflow.now()
        self._has_signals = rules >= 1
        self._gate = gate
        self._largest = largest
        self._is_asking = is_asking
        self._one = asyncio.Lock()
        self._in_flight: dict[wire.Visit, None] = {}
        self._waits = False
        self._tokens: dict[str, None] = {}
        self._outside: deque[Callable[[], None]] = deque()
        self._feeder: asyncio.Task[None] | None = None

    async def before(self) -> None:
        """Return when the local activities that are wanted now are done.

        So the hooks before nodes that begin together run before any of these does: as in Strands,
        and with nothing beside them.
        """
        if self._has_signals:
            async with self._one:
                pass

    def began(self, visit: wire.Visit) -> None:
        """Take note that a visit's activity begins: its end may come while a local one runs."""
        self._in_flight[visit] = None

    def ended(self, visit: wire.Visit) -> None:
        """Take note that the run has heard of a visit's end, or has cut it off."""
        self._in_flight.pop(visit, None)

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
                if self._has_signals:
                    # Nothing may begin beside it that isn't known yet, a question say: what waits
                    # for its turn waits until it is over.
                    await workflow.wait_condition(self._is_quiet)
                tells = self._has_signals and self._something_may_happen()
                result = start_local(activity, [argument(), *([True] if tells else [])], summary)
                if tells:
                    await self._signal(result)
                data = await taken(result)
                self._tokens.pop(data.get("token"), None)
                size = len(json.dumps(data))
                return data
            finally:
                self._gate.settle(self._largest, size)

    def done(self, token: str) -> None:
        """Take the signal of a local activity that is done.

        It may come before the activity is even wanted: one that a query has run.
        """
        self._tokens[token] = None

    def from_outside(self, act: Callable[[], None]) -> None:
        """Act upon something that came from outside, when its turn comes."""
        if not self._has_signals:
            act()
            return
        self._outside.append(act)
        if self._feeder is None:
            self._feeder = asyncio.create_task(self._feed())

    async def turn(self) -> None:
        """Return when it is the turn of something that came from outside just now."""
        come: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.from_outside(lambda: None if come.done() else come.set_result(None))
        await come

    async def _feed(self) -> None:
        while self._outside:
            # A condition is looked at when nothing else can go on.
            await workflow.wait_condition(lambda: not self._is_taking and self._is_quiet())
            self.now = workflow.now()
            self._outside.popleft()()
        self._feeder = None

    @property
    def _is_taking(self) -> bool:
        """Whether a result is about to be taken: its signal is there."""
        return self._waits and bool(self._tokens)

    def _is_quiet(self) -> bool:
        return not any(loop.has_news for loop in self.loops)

    async def _signal(self, result: asyncio.Future[Any]) -> None:
        """Wait for the signal with which a result is to be taken."""
        self._waits = True
        try:
            await workflow.wait_condition(lambda: self._may_be_taken(result))
        except asyncio.CancelledError:
            result.cancel()
            raise
        finally:
            self._waits = False
        self.now = workflow.now()

    def _may_be_taken(self, result: asyncio.Future[Any]) -> bool:
        if not result.done():
            return False
        if result.cancelled() or result.exception() is not None:
            return True  # It came to no signal.
        return result.result().get("token") in self._tokens

    def _something_may_happen(self) -> bool:
        """Say whether history may get an event that the run acts upon, but for being cancelled."""
        near = any(limit.left() < _NEAR for limit in self.limits)
        return bool(self._in_flight) or self._is_asking() or near
