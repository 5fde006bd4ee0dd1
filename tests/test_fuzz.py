"""Generated garbage at every surface of a live run: refused clearly, or harmless."""

from __future__ import annotations

import random
import string
import uuid
from typing import Any

import pytest
from strands.multiagent.base import Status
from strands.multiagent.graph import Graph
from temporalio.client import (
    Client,
    WorkflowFailureError,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import ApplicationError

from .support import Gate, asked_by, build, failed_tasks, gated, serve

STARTS, UPDATES, SIGNALS, QUERIES = 120, 160, 160, 80


def garbage(dice: random.Random, known: list[str], depth: int = 0) -> Any:
    """Return some JSON: wrong types, huge, nested, odd keys, near misses of what is known."""
    kinds = ["none", "bool", "int", "float", "text", "known", "huge", "list", "dict", "near"]
    kind = dice.choice(kinds if depth < 4 else kinds[:6])
    if kind == "list":
        return [garbage(dice, known, depth + 1) for _ in range(dice.randint(0, 4))]
    if kind == "dict":
        keys = [*known, "graph", "task", "invocation_state", "retry_of", "", "é\u0000", "x" * 300]
        return {
            dice.choice(keys): garbage(dice, known, depth + 1) for _ in range(dice.randint(0, 4))
        }
    simple: dict[str, Any] = {
        "none": None,
        "bool": dice.random() < 0.5,
        "int": dice.choice([0, -1, 2**63, -(10**30), 7]),
        "float": dice.choice([0.0, -1.5, 1e308]),
        "text": "".join(dice.choices(string.printable, k=dice.randint(0, 30))),
        "known": dice.choice(known),
        "huge": dice.choice(["y" * 300_000, list(range(20_000)), nested(200)]),
        "near": dice.choice(
            [
                {"graph": "graph"},
                {"graph": "graph", "task": dice.choice([None, 3, [1], {}, [["x"]], [None]])},
                {"graph": "", "task": "t"},
                {"graph": "other", "task": "t"},
                {"graph": "graph", "task": "t", "invocation_state": [1]},
                {"graph": "graph", "task": "t", "retry_of": dice.choice([{}, 1, {"x": 1}])},
                {known[0] + "x": "yes"},
                {known[0]: "yes", "nope": "yes"},
            ]
        ),
    }
    return simple[kind]


def nested(depth: int) -> Any:
    value: Any = "deep"
    for _ in range(depth):
        value = [value]
    return value


def waiting() -> Graph:
    return build({"a": "A", "b": "B"}, [("a", "b")], configure=gated(Gate("a")))


@pytest.mark.timeout(300)
async def test_garbage_is_refused_or_harmless(client: Client) -> None:
    dice = random.Random(20240229)
    async with serve(client, waiting) as durable:
        run = await durable.start("t")
        ids = await asked_by(run, "a")
        handle = client.get_workflow_handle(run.id)
        known = [ids["a"]]

        def arguments() -> list[Any]:
            return [garbage(dice, known) for _ in range(dice.choice([0, 1, 1, 1, 1, 2, 3]))]

        def answers_it(args: list[Any]) -> bool:
            """Say whether garbage happens to be a right answer, which it must not be here."""
            return (
                len(args) in (1, 2)
                and isinstance(args[0], dict)
                and list(args[0]) == known
                and (len(args) == 1 or isinstance(args[1], dict))
            )

        refused = 0
        for _ in range(UPDATES):
            args = arguments()
            if answers_it(args):
                continue
            with pytest.raises(WorkflowUpdateFailedError) as raised:
                await handle.execute_update("respond", args=args)
            assert isinstance(raised.value.cause, ApplicationError)
            assert raised.value.cause.type == "InterruptNotPending"
            assert raised.value.cause.message
            refused += 1
        assert refused > UPDATES * 0.9

        for _ in range(SIGNALS):
            args = arguments()
            if not answers_it(args):
                await handle.signal(
                    dice.choice(["respond", "respond", "no-such-signal"]), args=args
                )

        for _ in range(QUERIES):
            name = dice.choice(["status", "status", "no-such-query"])
            if name == "status":
                report = await handle.query(name, args=arguments())
                assert report["status"] == "interrupted"
            else:
                with pytest.raises(WorkflowQueryFailedError):
                    await handle.query(name, args=arguments())

        ends: dict[str, int] = {}
        for _ in range(STARTS):
            other = await client.start_workflow(
                "StrandsGraph",
                args=arguments(),
                id=f"fuzz-{uuid.uuid4()}",
                task_queue=durable._task_queue,
            )
            with pytest.raises(WorkflowFailureError) as failed:
                await other.result()
            assert isinstance(failed.value.cause, ApplicationError)
            ends[str(failed.value.cause.type)] = ends.get(str(failed.value.cause.type), 0) + 1
            assert await failed_tasks(client, other.id) == 0
        assert set(ends) <= {"InvalidGraphInput", "GraphNotRegistered"}, ends
        assert sum(ends.values()) == STARTS

        assert (await asked_by(run, "a")) == ids
        await run.respond({ids["a"]: "yes"})
        assert (await run.result()).status is Status.COMPLETED
        assert await failed_tasks(client, run.id) == 0
