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
    task = asyncio.create_task(_beat(timeout.total_seconds() / 3))
    try:
        yield
    finally:
        task.cancel()


async def _beat(seconds: float) -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(seconds)
