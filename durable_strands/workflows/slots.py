"""The concurrency slots of one run. Pure Python."""

from __future__ import annotations

from typing import Protocol


class Waiter(Protocol):
    """Who takes slots.

    Attributes:
        wake: Called when there is a slot for it.
    """

    def wake(self) -> None:
        """Learn that there is a slot."""


class Slots:
    """Slots that the schedulers of a run share: nested graphs have schedulers of their own.

    Who had to wait first is served first.
    """

    def __init__(self, limit: int | None) -> None:
        """Begin with all slots free; None is no limit."""
        self._limit = limit
        self._taken = 0
        self._waiting: dict[Waiter, None] = {}

    def take(self, who: Waiter) -> bool:
        """Take a slot; if there is none, `who` waits for one."""
        if self._limit is None:
            return True
        ahead = 0
        for waiter in self._waiting:
            if waiter is who:
                break
            ahead += 1
        if self._taken + ahead < self._limit:
            self._taken += 1
            self._waiting.pop(who, None)
            self._tell_next(who)
            return True
        self._waiting.setdefault(who)
        return False

    def give(self, who: Waiter) -> None:
        """Give a slot back. `who` looks after itself; another that waits is told."""
        if self._limit is None:
            return
        self._taken -= 1
        self._tell_next(who)

    def leave(self, who: Waiter) -> None:
        """Wait no longer."""
        if who in self._waiting:
            del self._waiting[who]
            self._tell_next(who)

    def _tell_next(self, who: Waiter) -> None:
        if self._limit is not None and self._taken < self._limit:
            for waiter in self._waiting:
                if waiter is not who:
                    waiter.wake()
                break
