"""Keeps the messages to the server small enough."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from temporalio import workflow

_TASK_BYTES = 3 * 1024 * 1024
"""Bytes of activity arguments, and of local activities' results, in one workflow task.

A workflow task's completion is one gRPC message of at most 4 MiB; the server terminates the
workflow that sends a larger one.
"""


class TaskGate:
    """Spreads large arguments and results over workflow tasks; see `_TASK_BYTES`.

    It counts what comes between two of its own pauses, however many tasks that are: in which task
    a local activity's result is known isn't the same in a replay (see `local`).
    """

    def __init__(self, turn: Callable[[], Awaitable[None]] | None = None) -> None:
        """Begin with an empty task.

        Args:
            turn: Returns when a pause that is over may end; see `LocalActivities.turn`.
        """
        self._turn = turn
        self._lock = asyncio.Lock()
        self._bytes = 0

    async def admit(self, size: int) -> None:
        """Return when `size` more bytes fit into the workflow task that is going on."""
        async with self._lock:
            if self._bytes and self._bytes + size > _TASK_BYTES:
                await workflow.sleep(0.001, summary="next workflow task: this one is full")
                if self._turn is not None:
                    await self._turn()
                self._bytes = 0
            self._bytes += size

    def settle(self, reserved: int, size: int) -> None:
        """Replace what was admitted for a result by its size, now that there is one."""
        self._bytes = max(self._bytes - reserved, 0) + size
