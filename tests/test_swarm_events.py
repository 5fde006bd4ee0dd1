"""A swarm's events: the same, in the same order, as from Strands' own `Swarm`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from strands import tool
from strands.hooks import BeforeNodeCallEvent
from strands.multiagent.swarm import Swarm
from strands.types.tools import ToolContext
from temporalio.client import Client

from .test_swarm import member, swarm_of, to


@tool(context=True)
def ask(tool_context: ToolContext) -> str:
    """Ask a human."""
    return str(tool_context.interrupt("stamp", reason="please"))


class Before:
    """A hook provider that does something before b's turn."""

    def __init__(self, does: Callable[[BeforeNodeCallEvent], Any]) -> None:
        self.does = does

    def register_hooks(self, registry: Any, **kwargs: Any) -> None:
        registry.add_callback(BeforeNodeCallEvent, self.before)

    def before(self, event: BeforeNodeCallEvent) -> None:
        if event.node_id == "b":
            self.does(event)


def asks(event: BeforeNodeCallEvent) -> None:
    event.interrupt("may b go on?")


def cancels(event: BeforeNodeCallEvent) -> None:
    event.cancel_node = "no"


def plain() -> Swarm:
    return Swarm([member("a", to("b"), "A"), member("b", "the end")])


def hooked(does: Callable[[BeforeNodeCallEvent], Any]) -> Callable[[], Swarm]:
    return lambda: Swarm([member("a", to("b"), "A"), member("b", "the end")], hooks=[Before(does)])


def asking() -> Swarm:
    return Swarm([member("a", to("b"), "A"), member("b", ("ask", {}), "the end", tools=[ask])])


async def events_of(swarm: Any, respond: bool) -> list[tuple[Any, ...]]:
    """Return type, node and status of each event, those of a resumed call after `"resumed"`."""
    found: list[tuple[Any, ...]] = []
    result = None

    async def run(task: Any) -> None:
        nonlocal result
        async for event in swarm.stream_async(task):
            if event["type"] == "multiagent_node_stream":
                continue
            status = event["node_result"].status if "node_result" in event else None
            found.append((event["type"], event.get("node_id"), status, event.get("to_node_ids")))
            result = event.get("result", result)

    await run("T")
    if respond:
        assert result is not None
        found.append(("resumed",))
        await run(
            [
                {"interruptResponse": {"interruptId": interrupt.id, "response": "yes"}}
                for interrupt in result.interrupts
            ]
        )
    return found


@pytest.mark.parametrize(
    ("factory", "respond"),
    [
        (plain, False),
        (hooked(cancels), False),
        (hooked(asks), True),
        (asking, True),
    ],
    ids=["plain", "a hook cancels", "a hook asks", "an agent asks"],
)
async def test_events_are_strands_own(
    client: Client, factory: Callable[[], Swarm], respond: bool
) -> None:
    async with swarm_of(client, factory) as swarm:
        durable = await events_of(swarm, respond)

    assert durable == await events_of(factory(), respond)
