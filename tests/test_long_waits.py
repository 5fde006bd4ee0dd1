"""Waits of hours and days, on a server that skips them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from strands.multiagent.base import Status
from strands.multiagent.graph import Graph
from temporalio.client import Client
from temporalio.testing import TimeSkippingConfig, WorkflowEnvironment

from durable_strands import DurableGraph, GraphRun, InterruptTimeoutError, NodeOptions

from .conftest import temporal_binary
from .support import Gate, asked_by, build, gated, serve

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@pytest_asyncio.fixture(scope="module")
async def skipping() -> AsyncIterator[WorkflowEnvironment]:
    """A dev server whose runs have clocks of their own, which stand unless a test moves them."""
    async with await WorkflowEnvironment.start_time_skipping_v2(
        ts_config=TimeSkippingConfig(enabled=False),
        dev_server_existing_path=temporal_binary(),
        dev_server_log_level="error",
        dev_server_extra_args=[
            "--dynamic-config-value",
            "frontend.WorkflowTimeSkippingEnabled=true",
        ],
    ) as environment:
        yield environment


class Clock:
    """The clock of one run."""

    def __init__(self, env: WorkflowEnvironment, run: GraphRun) -> None:
        self._env = env
        self._handle = env.client.get_workflow_handle(run.id)

    async def skip(self, duration: timedelta) -> bool:
        """Let some time pass; return False if the run ended before it was over."""
        return await self._env.fast_forward(self._handle, duration)

    async def passed(self) -> timedelta:
        """Return how long the run has lived, by its own clock."""
        described = await self._handle.describe()
        now = await self._env.get_current_time(self._handle)
        return now - described.start_time


def asks_before_a(**limits: Any) -> Graph:
    def configure(builder: Any) -> None:
        gated(Gate("a"))(builder)
        for limit, value in limits.items():
            getattr(builder, limit)(value)

    return build({"a": "A", "b": "B"}, [("a", "b")], configure=configure)


async def asking(durable: DurableGraph) -> tuple[GraphRun, dict[str, str]]:
    run = await durable.start("t")
    return run, await asked_by(run, "a")


async def test_an_approval_may_take_days(skipping: WorkflowEnvironment) -> None:
    client: Client = skipping.client
    async with serve(client, asks_before_a) as durable:
        run, ids = await asking(durable)
        clock = Clock(skipping, run)
        assert await clock.skip(7 * DAY)
        assert await clock.passed() > 7 * DAY
        assert await asked_by(run, "a") == ids
        await run.respond({ids["a"]: "yes"})
        assert (await run.result()).status is Status.COMPLETED


async def test_nobody_answers_for_a_day(skipping: WorkflowEnvironment) -> None:
    options = NodeOptions(interrupt_timeout=DAY)
    async with serve(skipping.client, asks_before_a, nodes={"a": options}) as durable:
        run, ids = await asking(durable)
        clock = Clock(skipping, run)
        assert await clock.skip(23 * HOUR)
        assert await asked_by(run, "a") == ids
        await clock.skip(2 * HOUR)
        with pytest.raises(InterruptTimeoutError, match=r"nobody answered within 86400"):
            await run.result()
        report = await run.status()
        assert [info.why for info in report.cancelled_interrupts] == ["interrupt_timeout"]
        assert report.nodes["b"].visits == 0


async def test_an_answer_at_the_last_moment_counts(skipping: WorkflowEnvironment) -> None:
    options = NodeOptions(interrupt_timeout=DAY)
    async with serve(skipping.client, asks_before_a, nodes={"a": options}) as durable:
        run, ids = await asking(durable)
        assert await Clock(skipping, run).skip(DAY - timedelta(minutes=5))
        await run.respond({ids["a"]: "yes"})
        assert (await run.result()).status is Status.COMPLETED


async def test_an_hours_wait_is_no_active_time(skipping: WorkflowEnvironment) -> None:
    """Case 13: an execution timeout of ten seconds."""

    def graph() -> Graph:
        return asks_before_a(set_execution_timeout=10)

    async with serve(skipping.client, graph) as durable:
        run, ids = await asking(durable)
        clock = Clock(skipping, run)
        assert await clock.skip(HOUR)
        assert await clock.passed() > HOUR
        await run.respond({ids["a"]: "yes"})
        result = await run.result()
        assert result.status is Status.COMPLETED
        assert result.execution_time < 10_000
