"""Everything at once, through two worker kills, to the result that Strands gives without any."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from strands.agent import AgentResult
from strands.multiagent.base import MultiAgentResult, NodeResult
from strands.multiagent.graph import GraphResult
from strands.multiagent.swarm import SwarmResult
from temporalio.client import Client

from .grand_graph import STATE, TASK, Sighting, in_process
from .restart import Server
from .support import asked_by

REVISITED = ("write", "critic")
"""Strands counts an agent's lifetime at each of its visits (facts of its reset and usage): their
first visit is counted twice there."""


def plain(result: Any, where: str = "") -> Any:
    """Return all fields of a result that don't measure time, as plain values."""
    if isinstance(result, NodeResult):
        return {
            "status": result.status,
            "usage": dict(result.accumulated_usage),
            "latency": dict(result.accumulated_metrics),
            "count": result.execution_count,
            "interrupts": [],
            "result": plain(result.result, where),
        }
    if isinstance(result, MultiAgentResult):
        more: dict[str, Any] = {}
        if isinstance(result, GraphResult):
            more = {
                "counts": (
                    result.total_nodes,
                    result.completed_nodes,
                    result.failed_nodes,
                    result.interrupted_nodes,
                ),
                "order": [node.node_id for node in result.execution_order],
                "edges": sorted((a.node_id, b.node_id) for a, b in result.edges),
                "entry points": [node.node_id for node in result.entry_points],
            }
        elif isinstance(result, SwarmResult):
            more = {"history": [node.node_id for node in result.node_history]}
        return {
            "class": type(result).__name__,
            "status": result.status,
            "results": {
                name: plain(node, f"{where}/{name}") for name, node in result.results.items()
            },
            "usage": dict(result.accumulated_usage),
            "latency": dict(result.accumulated_metrics),
            "count": result.execution_count,
            "interrupts": [(item.name, item.reason) for item in result.interrupts],
            **more,
        }
    assert isinstance(result, AgentResult), result
    return {
        "stop": result.stop_reason,
        "message": {key: part for key, part in result.message.items() if key != "tracking_id"},
        "text": str(result),
        "state": result.state,
        "structured": result.structured_output,
        "interrupts": list(result.interrupts or []),
        "usage": dict(result.metrics.accumulated_usage),
        "cycles": result.metrics.cycle_count,
        "tools": {
            name: (tool.call_count, tool.success_count, tool.error_count)
            for name, tool in result.metrics.tool_metrics.items()
        },
    }


def leaves(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all that lies in nested mappings, so that a difference shows where it is."""
    if not isinstance(value, dict):
        yield at, value
        return
    for key, part in value.items():
        if key == "timeToFirstByteMs":
            continue  # It measures time.
        yield from leaves(part, f"{at}/{key}")


def where_strands_is_right(theirs: Any) -> Any:
    """Put right what Strands gets wrong: the usage of nodes that were visited twice."""
    once = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
    for node in REVISITED:
        found = theirs["results"][node]
        assert found["usage"] == {key: 2 * value for key, value in once.items()}
        found["usage"], found["latency"] = once, {"latencyMs": 7}
        found["result"]["usage"], found["result"]["cycles"] = once, 1
        for key, value in once.items():
            theirs["usage"][key] -= value
        theirs["latency"]["latencyMs"] -= 7
    return theirs


@pytest.mark.parametrize("name", ["grand", "grand strands"])
async def test_it_comes_to_the_same_through_two_kills(
    client: Client, tmp_path: Any, name: str
) -> None:
    theirs = where_strands_is_right(plain(await in_process("yes")))
    server = Server(client, f"test-{uuid.uuid4()}", tmp_path, target="tests.grand_graph:registry")
    try:
        await server.revive()
        case = await server.start(name, TASK, STATE, hold=["critic#2", "panel/expert#1"])
        await case.stage.reached("critic#2")
        await case.quiet()
        await server.crash()
        case.stage.release("critic#2")
        await case.stage.reached("panel/expert#1")
        await case.recorded("team/three#1")
        await case.quiet()
        await server.crash()
        case.stage.release("panel/expert#1")
        ids = await asked_by(case.run, "approve")
        await case.run.respond({ids["approve"]: "yes"})
        outcome = await case.outcome()
    finally:
        server.stop()
    assert outcome.error is None
    ours = plain(outcome.result)
    assert dict(leaves(ours)) == dict(leaves(theirs))
    sighting = ours["results"]["see"]["result"]["structured"]
    assert isinstance(sighting, Sighting)
    assert sighting.size == 256
    again = {visit for visit, times in outcome.begun.items() if times > 1}
    # Two calls of one visit are a tool's turn; beyond those, what a kill cut off.
    assert again == {"critic#2", "panel/expert#1", "panel/lead#1", "approve#1"}
