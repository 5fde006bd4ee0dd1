"""The time that a run has been active: waiting for humans doesn't count, as in Strands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

from temporalio import workflow

from .local import LocalActivities


class ActiveClock:
    """Counts active time, and calls back once a limit of it is used up.

    Attributes:
        since: When it last began to count; None while it stands still.
        last: When it last began to count, also after that.
        spent: What it had counted until it stood still last.
    """

    def __init__(
        self, limit: float | None, on_limit: Callable[[], None], local: LocalActivities
    ) -> None:
        """Begin stopped.

        Args:
            limit: Seconds of active time; None for no limit, which costs no timer.
            on_limit: Called when the limit is used up.
            local: The run's local activities, to which a limit that runs out matters.
        """
        self._local = local
        self._sure = timedelta()
        self._sure_since = local.now
        self._limit = limit
        self._on_limit = on_limit
        self.spent = timedelta()
        self.since: datetime | None = None
        self.last: datetime | None = None
        self._timer: asyncio.Task[None] | None = None
        self._told = False

    def ran_out(self) -> bool:
        """Say, once, whether the limit is used up before its timer has said so.

        A server's timer may come a second late, when what it was to stop has gone on already.
        """
        return self.is_spent() and self.expired()

    def expired(self) -> bool:
        """Say, once, that the limit is used up."""
        first, self._told = not self._told, True
        return first

    def is_spent(self) -> bool:
        """Say whether the limit is used up."""
        now = workflow.now()
        return self._limit is not None and self.elapsed(now).total_seconds() >= self._limit

    def elapsed(self, now: datetime) -> timedelta:
        """Return the active time up to `now`."""
        return self.spent + (now - self.since if self.since is not None else timedelta())

    def left(self) -> timedelta:
        """Return what is left of the limit, while it runs, by times that a replay sees too."""
        assert self._limit is not None, "what has no limit never puts itself among them"
        passed = self._sure + (self._local.now - self._sure_since)
        return timedelta(seconds=self._limit) - passed

    def start(self) -> None:
        """Let the time count from now on."""
        if self.since is not None:
            return
        self.since = self.last = workflow.now()
        if self._limit is not None:
            self._sure_since = self._local.now
            self._local.limits[self] = None
            left = max(self._limit - self.spent.total_seconds(), 0.001)
            self._timer = asyncio.create_task(self._watch(left))

    def stop(self) -> None:
        """Let the time stand still."""
        if self.since is None:
            return
        self.spent = self.elapsed(workflow.now())
        self.since = None
        if self._local.limits.pop(self, self) is None:
            self._sure += self._local.now - self._sure_since
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _watch(self, seconds: float) -> None:
        await workflow.sleep(seconds, summary="execution timeout")
        await self._local.turn()
        self._timer = None
        self._on_limit()
