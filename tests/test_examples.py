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
    "error_edge": """
        book: We have 3 in stock.
          completed: lookup completed, answer completed
        sofa: Sorry, we can't say. (LookupError: there is no sofa)
          completed: lookup failed, apologise completed
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
    "mapped_node": """
        0: found something about 'Temporal: What is it?'
        1: found something about 'Temporal: Who uses it?'
        2: found something about 'Temporal: What does it cost?'
        3 answers
    """,
    "nested_graph": """
        review/approve#1:human asks: May it be published?
          - Agent: Temporal keeps what was done.
          - Agent: nothing wrong
          - Agent: 5 words
        write -> review -> publish
        review: completed ['approve', 'facts', 'style']
    """,
    "session": """
        ann: I am Ann.
        bob: I am Bob.
        ann: I am Ann. I like tea.
        ann: I am Ann. I like tea. Who am I?
    """,
    "swarm": """
        triage: This is about money.
          to billing: check the invoice
        billing: The invoice is wrong by 10.
          to clerk: write to the customer
        clerk: I know ["• triage: {'customer': 7}", "• billing: {'wrong_by': 10}"]
        triage -> billing -> clerk
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
