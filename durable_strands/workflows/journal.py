"""What a retried run takes over from the run before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from ..wire import JournalEntry, NodeInput, NodeOutcome


class Taker(Protocol):
    """Who takes visits over: an orchestration."""

    def look(self) -> None:
        """Learn that it may be your turn to take one."""


class Journal:
    """Finished visits of an earlier run, each usable once.

    A visit is taken over only where its node would see the very same: task, inputs, invocation
    state. So whatever depends on something that came out differently is run again.
    """

    def __init__(self, entries: Iterable[JournalEntry] = ()) -> None:
        """Take over `entries`, which are in order of completion."""
        visits = {(entry.outcome.node, entry.outcome.visit): entry for entry in entries}
        self._entries = {
            visit: (position, entry) for position, (visit, entry) in enumerate(visits.items())
        }
        self._unclaimed = dict.fromkeys(range(len(self._entries)))
        self._lowest = 0
        self._ready: dict[int, tuple[Taker, str, NodeOutcome]] = {}

    @property
    def claims(self) -> int:
        """How many visits are still to be taken over."""
        return len(self._unclaimed)

    @property
    def may_have_an_earlier(self) -> bool:
        """Whether one is ready, but another that came before it in the earlier run isn't."""
        while self._lowest not in self._unclaimed and self._unclaimed:
            self._lowest += 1
        return bool(self._ready) and bool(self._unclaimed) and self._lowest < min(self._ready)

    def has(
        self,
        path: str,
        visit: int,
        argument: Callable[[], dict[str, Any]],
        taker: Taker,
        node: str,
    ) -> bool:
        """Say whether a visit is done already; if so, make it ready.

        Args:
            path: The node's path.
            visit: The number of the visit.
            argument: Makes the argument that its activity would get.
            taker: Who is to take it.
            node: The node's id, by which the taker knows it.
        """
        position, entry = self._entries.pop((path, visit), (-1, None))
        if entry is not None:
            del self._unclaimed[position]
        if entry is None or NodeInput.seen(argument(), entry.hooked) != entry.argument:
            return False
        self._ready[position] = taker, node, entry.outcome
        return True

    def next(self, taker: Taker) -> tuple[str, NodeOutcome] | None:
        """Return the ready outcome that came first in the earlier run, with its node's id.

        Outcomes come in their old order, not that of their dispatch: what a later visit sees
        of the invocation state depends on it. None if none is ready, or if the first one is
        another's; that other is told.
        """
        if not self._ready:
            return None
        first = min(self._ready)
        owner, node, outcome = self._ready[first]
        if owner is not taker:
            owner.look()
            return None
        del self._ready[first]
        return node, outcome

    def forget(self, taker: Taker) -> None:
        """Drop what a taker that has ended would have taken."""
        mine = [position for position, (owner, *_) in self._ready.items() if owner is taker]
        for position in mine:
            del self._ready[position]
        if mine and self._ready:
            self._ready[min(self._ready)][0].look()
