"""Each example does what it says, and can be run as its docstring says."""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from pathlib import Path

import pytest
from temporalio.client import Client

from examples.order_workflow import Order
from examples.support import worker

from .restart import ROOT

EXAMPLES = ROOT / "examples"
LONGEST = 80

SAYS = {
    "approval": """
        May this be sent?
        > maybe
        May this be sent? Please answer yes or no.
        > yes
        writer -> approve -> send
    """,
    "child_workflow": """
        3 books: accepted, risk 7
          order-0/risk: completed
        100 vouchers: by hand: Graph 'risk' failed: node 'score' raised ValueError: no score for \
vouchers (nodes reached: analyst, score)
          order-1/risk: failed
    """,
    "conditional_routing": """
        My invoice is wrong.  -> billing
        It doesn't start.  -> support
        It doesn't start. {'vip': True} -> manager, support
    """,
    "feedback_loop": """
        writer: Temporal is a really very durable execution system
        critic: REVISE: cut 3 words
        writer: Temporal is durable execution system
        critic: ACCEPT
        publish: published
    """,
    "function_nodes": """
        orders: "3 orders, read by 'orders'"
        total: Total(orders=3, amount=50)
        late: '["A", "C"]'
        report: '{"orders":3,"amount":50}: ["A", "C"]'
    """,
    "image_input": """
        I see images of these sizes: 2x3
        {"bytes": [72], "seen": true}
    """,
}


def said(text: str) -> list[str]:
    """Return the lines of a text, without the indentation that they share in this module."""
    return [line.removeprefix(" " * 8) for line in text.strip("\n").rstrip().splitlines()]


def scripts() -> set[str]:
    return {path.stem for path in EXAMPLES.glob("*.py") if "__main__" in path.read_text()}


def test_each_example_is_tested_and_short() -> None:
    assert scripts() == set(SAYS)
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) <= LONGEST, path.name


@pytest.mark.parametrize("name", sorted(SAYS))
async def test_an_example(client: Client, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    example = import_module(f"examples.{name}")
    capsys.readouterr()
    async with worker(client, example.registry, [Order]):
        await example.main(client)
    assert capsys.readouterr().out.splitlines() == said(SAYS[name])


async def test_an_example_as_a_program(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.child_workflow"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert out.decode().splitlines() == said(SAYS["child_workflow"])
