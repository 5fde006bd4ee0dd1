"""Runs of earlier versions must go on with this one: their histories replay."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import WorkflowHistory

from .golden import HISTORIES
from .replayer import Replayers


@pytest_asyncio.fixture(scope="module")
async def replayers() -> AsyncIterator[Replayers]:
    replayers = Replayers()
    yield replayers
    await replayers.stop()


@pytest.mark.parametrize("path", sorted(HISTORIES.glob("*.json")), ids=lambda path: path.stem)
async def test_a_golden_history_replays_under_any_hash_seed(
    replayers: Replayers, path: Path
) -> None:
    text = path.read_text()  # noqa: ASYNC240 - nothing else waits
    await replayers.replay_history(WorkflowHistory.from_json(path.stem, text))


def test_there_are_golden_histories() -> None:
    assert len(list(HISTORIES.glob("*.json"))) >= 26
