"""Runs one graph on Strands' own `Graph` and on a real worker, and compares what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from strands.interrupt import Interrupt
from strands.multiagent.base import MultiAgentBase, NodeResult, Status
from strands.multiagent.graph import Graph, GraphNode, GraphResult
from temporalio.client import Client
from temporalio.common import RetryPolicy

from durable_strands import NodeOptions

from .noting import Notes
from .support import serve

ONCE = NodeOptions(retry=RetryPolicy(maximum_attempts=1))


@dataclass
class Log(Notes):
    """What a graph's executors, hooks and conditions note of a run."""

    lines: list[Any] = field(default_factory=list)

    def note(self, line: Any) -> None:
        self.lines.append(line)


Factory = Callable[[Log], Graph]
Respond = Callable[[Interrupt], Any]


@dataclass
class Seen:
    """One run as its caller, its executors, hooks and conditions saw it.

    Attributes:
        result: What the caller got in the end; None if an exception was raised.
        error: That exception.
        events: The stream's events; handoffs and the agents' own events are left out.
        asked: What each round of questions asked, as (name, reason).
        log: What was noted.
        state: The caller's own invocation state afterwards.
    """

    result: GraphResult | None
    error: Exception | None
    events: list[dict[str, Any]]
    asked: list[list[tuple[str, Any]]]
    log: Log
    state: dict[str, Any]

    def outcome(self) -> dict[str, Any]:
        """Return all that must be the same on both sides."""
        error = None if self.error is None else (type(self.error), str(self.error))
        return {
            "error": error,
            "result": None if self.result is None else plain(self.result),
            "asked": self.asked,
            "visits": self.visits,
            "lines": self.log.lines,
            "events": self.events_by_node,
        }

    @property
    def order(self) -> list[str]:
        assert self.result is not None, self.error
        return [node.node_id for node in self.result.execution_order]

    @property
    def visits(self) -> dict[str, list[Any]]:
        """The prompts and the states that each node got, visit by visit."""
        visits: dict[str, list[Any]] = {}
        for note in self.log.visits:
            visits.setdefault(note.node, []).append((note.prompt, note.state))
        return visits

    @property
    def events_by_node(self) -> dict[str | None, list[Any]]:
        """What became of each node, as its events tell. Nodes side by side have no order."""
        events: dict[str | None, list[Any]] = {}
        for event in self.events:
            said: Any = event["type"].removeprefix("multiagent_")
            if "node_type" in event:
                said = (said, event["node_type"])
            elif "message" in event:
                said = (said, event["message"])
            elif "interrupts" in event:
                said = (said, [(item.name, item.reason) for item in event["interrupts"]])
            elif "node_result" in event:
                said = (said, node_result(event["node_result"]))
            events.setdefault(event.get("node_id"), []).append(said)
        return events


def plain(result: GraphResult) -> dict[str, Any]:
    """Return a result's fields, but for times, in a form that can be compared.

    What runs side by side ends in any order, so the order of execution is sorted here.
    """
    return {
        "type": type(result).__name__,
        "status": result.status,
        "results": {name: node_result(node) for name, node in result.results.items()},
        "usage": result.accumulated_usage,
        "execution_count": result.execution_count,
        "total": result.total_nodes,
        "completed": result.completed_nodes,
        "failed": result.failed_nodes,
        "interrupted": result.interrupted_nodes,
        "order": sorted(node.node_id for node in result.execution_order),
        "edges": [(source.node_id, target.node_id) for source, target in result.edges],
        "entries": [node.node_id for node in result.entry_points],
    }


def node_result(result: NodeResult) -> Any:
    inner = result.result
    said: Any = str(inner)
    if isinstance(inner, Exception):
        said = (type(inner), str(inner))
    usage = dict(result.accumulated_usage)
    return (result.status, said, usage, result.execution_count)


class _OrderedNode(GraphNode):
    """A node whose place in a small set is that of its declaration."""

    index: int

    def __hash__(self) -> int:
        return self.index


def in_order(graph: Graph) -> Graph:
    """Have Strands go through a graph's nodes and edges in order of declaration.

    It keeps them in sets, whose order is that of their hashes.
    """
    for index, node in enumerate(graph.nodes.values()):
        node.__class__ = _OrderedNode
        node.index = index  # type: ignore[attr-defined]
    place = {name: index for index, name in enumerate(graph.nodes)}
    graph.entry_points = sorted(  # type: ignore[assignment]
        graph.entry_points, key=lambda node: place[node.node_id]
    )
    graph.edges = sorted(  # type: ignore[assignment]
        graph.edges, key=lambda edge: (place[edge.from_node.node_id], place[edge.to_node.node_id])
    )
    return graph


async def of_strands(
    factory: Factory, task: Any = "T", state: Any = None, respond: Respond | None = None
) -> Seen:
    """Run a graph on Strands' own `Graph`."""
    log = Log()
    graph = in_order(factory(log))
    return await watch(graph, log, task, state, respond)


async def of_ours(
    client: Client,
    factory: Factory,
    task: Any = "T",
    state: Any = None,
    respond: Respond | None = None,
    **options: Any,
) -> Seen:
    """Run a graph through a real worker, and replay its history."""
    log = Log()
    options.setdefault("defaults", ONCE)
    async with serve(client, lambda: factory(log), **options) as graph:
        log.lines.clear()  # What building it noted.
        return await watch(graph, log, task, state, respond)


async def both(
    client: Client,
    factory: Factory,
    task: Any = "T",
    state: Any = None,
    respond: Respond | None = None,
) -> tuple[Seen, Seen]:
    """Return what Strands' graph and the durable one under its rule came to."""
    theirs = await of_strands(factory, task, state, respond)
    ours = await of_ours(client, factory, task, state, respond, semantics="strands")
    return theirs, ours


async def same(
    client: Client,
    factory: Factory,
    task: Any = "T",
    state: Any = None,
    respond: Respond | None = None,
) -> Seen:
    """Check that both come to the same, and return what the durable one came to."""
    theirs, ours = await both(client, factory, task, state, respond)
    equal(ours, theirs)
    return ours


def equal(ours: Seen, theirs: Seen) -> None:
    """Check that two runs are the same in all that `outcome` returns."""
    expected = theirs.outcome()
    for aspect, value in ours.outcome().items():
        assert value == expected[aspect], f"{aspect}: {value!r} instead of {expected[aspect]!r}"


async def watch(
    graph: MultiAgentBase, log: Log, task: Any, state: Any, respond: Respond | None
) -> Seen:
    given = dict(state or {})
    seen = Seen(None, None, [], [], log, given)
    try:
        while True:
            async for event in graph.stream_async(task, given):
                seen.result = event.get("result", seen.result)
                if event["type"] not in ("multiagent_node_stream", "multiagent_handoff"):
                    seen.events.append(event)
            assert seen.result is not None
            if seen.result.status is not Status.INTERRUPTED or respond is None:
                break
            seen.asked.append([(item.name, item.reason) for item in seen.result.interrupts])
            task = [
                {"interruptResponse": {"interruptId": item.id, "response": respond(item)}}
                for item in seen.result.interrupts
            ]
    except Exception as error:
        seen.error, seen.result = error, None
    return seen
