"""Runs of earlier versions must go on with this one: their histories replay."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory

from .golden import HISTORIES
from .support import replay


@pytest.mark.parametrize("path", sorted(HISTORIES.glob("*.json")), ids=lambda path: path.stem)
def test_a_golden_history_replays(path: Path) -> None:
    history = WorkflowHistory.from_json(path.stem, path.read_text())
    asyncio.run(replay(history))


def test_there_are_golden_histories() -> None:
    assert len(list(HISTORIES.glob("*.json"))) >= 9
