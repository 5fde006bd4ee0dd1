"""The pytest plugin in Strands' test run: installs the adapter, and records what came of it.

Reads `CONFORMANCE_SEMANTICS`, `CONFORMANCE_OUTCOMES` (a file to write) and `CONFORMANCE_OFFLINE`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .adapter import Adapter
from .machine import Machine

_outcomes: dict[str, dict[str, Any]] = {}
_machine: Machine | None = None
_adapter: Adapter | None = None


def pytest_sessionstart(session: pytest.Session) -> None:
    global _machine, _adapter
    if os.environ.get("CONFORMANCE_OFFLINE"):
        from strands.agent import agent

        from .models import OfflineModel

        agent.BedrockModel = OfflineModel  # type: ignore[assignment, attr-defined]
    _machine = Machine(os.environ["CONFORMANCE_SEMANTICS"])
    _adapter = Adapter(_machine)
    _adapter.install()
    _adapter.warm_up()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    assert _machine is not None
    assert _adapter is not None
    _adapter.calls = 0
    yield
    _outcomes[item.nodeid]["reached"] = _adapter.calls > 0
    _machine.end_of_test()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    outcome = _outcomes.setdefault(report.nodeid, {"passed": True, "reason": ""})
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        text = str(report.longrepr) if crash is None else crash.message
        outcome.update(passed=False, reason=text)
    if report.skipped:
        outcome.update(passed=False, reason="skipped")


def pytest_sessionfinish() -> None:
    Path(os.environ["CONFORMANCE_OUTCOMES"]).write_text(json.dumps(_outcomes))
    if _machine is not None:
        _machine.stop()
    gc.collect()


@pytest.hookimpl(hookwrapper=True)
def pytest_cmdline_main() -> Iterator[Any]:
    """Leave without the interpreter's own exit, which may crash after Temporal's runtime ran."""
    outcome = yield
    try:
        code = int(outcome.get_result())  # type: ignore[attr-defined]  # pluggy sends a Result
    except Exception:
        traceback.print_exc()
        code = pytest.ExitCode.INTERNAL_ERROR
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@pytest.fixture
def alist() -> Any:
    """Stand in for the fixture of the conftest that the integration tests don't load."""

    async def collect(items: Any) -> list[Any]:
        return [item async for item in items]

    return collect


@pytest.fixture
def yellow_img(pytestconfig: pytest.Config) -> bytes:
    return (pytestconfig.rootpath / "tests_integ/resources/yellow.png").read_bytes()
