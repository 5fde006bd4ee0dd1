"""What a retried run takes over from the run before it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..wire import JournalEntry, NodeOutcome, digest


class Journal:
    """Finished visits of an earlier run, each usable once.

    A visit is taken over only where the new run would send its activity the very same
    argument: the same node and visit, the same inputs, the same invocation state. So whatever
    depends on something that came out differently is run again.
    """

    def __init__(self, entries: Iterable[JournalEntry] = ()) -> None:
        """Take over `entries`, which are in order of completion."""
        self._entries = {
            entry.argument: (position, entry.outcome) for position, entry in enumerate(entries)
        }
        self._ready: dict[int, NodeOutcome] = {}

    def __bool__(self) -> bool:
        """Say whether there is anything left that could be taken over."""
        return bool(self._entries)

    def has(self, argument: dict[str, Any]) -> bool:
        """Say whether the visit of this argument is done already; if so, make it ready."""
        found = self._entries.pop(digest(argument), None)
        if found is not None:
            position, outcome = found
            self._ready[position] = outcome
        return found is not None

    def next(self) -> NodeOutcome | None:
        """Return the ready outcome that came first in the earlier run, None if none is ready.

        Outcomes come in their old order, not that of their dispatch: what a later visit sees
        of the invocation state depends on it.
        """
        return self._ready.pop(min(self._ready)) if self._ready else None
