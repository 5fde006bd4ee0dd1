"""Heartbeats that send themselves while a node runs.

They tell the server that the worker is alive, so that a lost one is noticed within the
heartbeat timeout, and they carry cancellation back. They add no events to history.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio import activity


@asynccontextmanager
async def heartbeats() -> AsyncIterator[None]:
    """Heartbeat at a third of the heartbeat timeout as long as the block runs."""
    timeout = activity.info().heartbeat_timeout
    if timeout is None:
        yield
        return
    every = timeout.total_seconds() / 3
    later = asyncio.get_running_loop().call_later  # Cheaper than a task for each visit.
    timer: asyncio.TimerHandle

    def beat() -> None:
        nonlocal timer
        activity.heartbeat()
        timer = later(every, beat)

    timer = later(every, beat)
    try:
        yield
    finally:
        timer.cancel()
