"""What a retried run takes over from the run before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..wire import JournalEntry, NodeInput, NodeOutcome


class Journal:
    """Finished visits of an earlier run, each usable once.

    A visit is taken over only where its node would see the very same: task, inputs, invocation
    state. So whatever depends on something that came out differently is run again.
    """

    def __init__(self, entries: Iterable[JournalEntry] = ()) -> None:
        """Take over `entries`, which are in order of completion."""
        self._entries = {
            (entry.outcome.node, entry.outcome.visit): (position, entry)
            for position, entry in enumerate(entries)
        }
        self._ready: dict[int, NodeOutcome] = {}

    def has(self, node: str, visit: int, argument: Callable[[], dict[str, Any]]) -> bool:
        """Say whether a visit is done already; if so, make it ready.

        Args:
            node: The node.
            visit: The number of the visit.
            argument: Makes the argument that its activity would get.
        """
        position, entry = self._entries.pop((node, visit), (0, None))
        if entry is None or NodeInput.seen(argument(), entry.hooked) != entry.argument:
            return False
        self._ready[position] = entry.outcome
        return True

    def next(self) -> NodeOutcome | None:
        """Return the ready outcome that came first in the earlier run, None if none is ready.

        Outcomes come in their old order, not that of their dispatch: what a later visit sees
        of the invocation state depends on it.
        """
        return self._ready.pop(min(self._ready)) if self._ready else None
