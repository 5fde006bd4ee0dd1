"""Runs Strands' own tests through durable-strands and compares with what is known to fail.

Exit code 1 if a test fails that isn't known to, or if fewer tests reach the adapter.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .suites import SEMANTICS, SUITES, Semantics, Suite
from .upstream import CACHE, fetch

_ROOT = Path(__file__).parents[2]
_TIMEOUT = 600
_NEEDED = ("boto3", "moto", "pytest", "pytest_asyncio", "pytest_timeout")


@dataclass(frozen=True)
class Outcome:
    """How one test went."""

    test: str
    passed: bool
    reached: bool
    reason: str

    @property
    def name(self) -> str:
        """The test's name, without file and class."""
        return self.test.split("::", 1)[1].rpartition("::")[2]


@dataclass(frozen=True)
class Verdict:
    """What came of a suite under one semantics."""

    suite: Suite
    semantics: Semantics
    outcomes: list[Outcome]

    @property
    def reached(self) -> list[Outcome]:
        """The tests that ran a graph."""
        return [outcome for outcome in self.outcomes if outcome.reached]

    @property
    def failed(self) -> list[Outcome]:
        """The tests that failed."""
        return [outcome for outcome in self.outcomes if not outcome.passed]

    def problems(self) -> list[str]:
        """Return what is worse than known."""
        expected = self.suite.expected(self.semantics)
        problems = [
            f"{outcome.name} fails: {outcome.reason}"
            for outcome in self.failed
            if outcome.name not in expected
        ]
        if len(self.reached) < self.suite.reach:
            problems.append(f"only {len(self.reached)} tests reach the adapter")
        return problems

    def surprises(self) -> list[str]:
        """Return what is better than known."""
        failed = {outcome.name for outcome in self.failed}
        return [name for name in self.suite.expected(self.semantics) if name not in failed]


def _run(
    source: Path, suite: Suite, semantics: Semantics, tests: Iterable[str] = ()
) -> list[Outcome]:
    """Run a suite, or some tests of it, in a process of its own."""
    log = CACHE / f"{suite.name.replace(', ', '-')}-{semantics}.log"
    arguments = list(suite.arguments)
    if tests:
        arguments = [argument for argument in arguments if argument.startswith("--")]
        arguments += tests
    with tempfile.TemporaryDirectory() as directory:
        outcomes = Path(directory, "outcomes.json")
        environment = os.environ | {
            # The first is for this package, under a name that isn't Strands' own `tests`.
            "PYTHONPATH": os.pathsep.join([str(_ROOT / "tests"), str(_ROOT)]),
            "AWS_EC2_METADATA_DISABLED": "true",
            "CONFORMANCE_SEMANTICS": semantics,
            "CONFORMANCE_OUTCOMES": str(outcomes),
            "CONFORMANCE_OFFLINE": "1" if suite.offline else "",
        }
        command = [
            *(sys.executable, "-m", "pytest", "-p", "conformance.plugin", "-o", "addopts="),
            *("-p", "no:cacheprovider", "-p", "no:xdist", *arguments),
        ]
        with log.open("w") as output:
            subprocess.run(
                command,
                cwd=source,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_TIMEOUT,
            )
        if not outcomes.exists():
            raise SystemExit(f"{suite.name}, {semantics}: the tests didn't run; see {log}")
        found: dict[str, dict[str, Any]] = json.loads(outcomes.read_text())
    return [Outcome(test, **values) for test, values in found.items()]


def _judge(source: Path, suite: Suite, semantics: Semantics) -> Verdict:
    """Run a suite; what fails unexpectedly gets another chance or two: some tests measure time."""
    outcomes = {outcome.test: outcome for outcome in _run(source, suite, semantics)}
    expected = suite.expected(semantics)
    for _ in range(2):
        again = [
            test
            for test, outcome in outcomes.items()
            if not outcome.passed and outcome.name not in expected
        ]
        if again:
            outcomes |= {outcome.test: outcome for outcome in _run(source, suite, semantics, again)}
    return Verdict(suite, semantics, list(outcomes.values()))


def _table(verdicts: list[Verdict]) -> str:
    head = ("suite", "semantics", "tests", "reached the adapter", "of those passed", "failed")
    rows: list[tuple[str, ...]] = [head]
    for verdict in verdicts:
        passed = sum(outcome.passed for outcome in verdict.reached)
        reached = len(verdict.reached)
        numbers = (len(verdict.outcomes), reached, passed, reached - passed)
        rows.append((verdict.suite.name, verdict.semantics, *map(str, numbers)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    rows.insert(1, tuple("-" * width for width in widths))
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    )


def _failures(verdict: Verdict) -> str:
    """Say what fails, by reason."""
    expected = verdict.suite.expected(verdict.semantics)
    by_reason: dict[str, list[str]] = {}
    for outcome in verdict.failed:
        if outcome.name in expected:
            by_reason.setdefault(expected[outcome.name], []).append(outcome.name)
    lines = [f"{verdict.suite.name}, {verdict.semantics}:"]
    for reason, names in by_reason.items():
        lines.append(f"  {reason}")
        lines += [f"    {name}" for name in names]
    for problem in verdict.problems():
        lines.append(textwrap.shorten(f"  WORSE THAN KNOWN: {problem}", 300))
    for name in verdict.surprises():
        lines.append(f"  better than known: {name} passes; take it out of suites.py")
    return "\n".join(lines)


def main() -> int:
    """Run the suites and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--suite", choices=[suite.name for suite in SUITES], action="append")
    parser.add_argument("--semantics", choices=SEMANTICS, action="append")
    chosen = parser.parse_args()
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        parser.error(f"{', '.join(missing)} missing: pip install 'durable-strands[conformance]'")
    source = fetch()
    verdicts = [
        _judge(source, suite, semantics)
        for suite in SUITES
        for semantics in suite.semantics
        if suite.name in (chosen.suite or [suite.name])
        and semantics in (chosen.semantics or [semantics])
    ]
    print(f"Tests of strands-agents {version('strands-agents')} through durable-strands\n")
    print(_table(verdicts))
    for verdict in verdicts:
        print(f"\n{_failures(verdict)}")
    return 1 if any(verdict.problems() for verdict in verdicts) else 0


if __name__ == "__main__":
    raise SystemExit(main())
