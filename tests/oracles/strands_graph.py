"""Runs a random plan on the installed Strands `Graph`, made deterministic.

This is the oracle for `semantics="strands"`: no model of Strands' rules, but Strands itself.
Three things are arranged around it, and none inside it:

* Order. Strands keeps nodes and edges in sets, whose order depends on the hash seed. Node ids
  are `str`s here whose hash is their declaration index, which makes a small set iterate in
  declaration order; edges are replaced by a sorted list.
* Time. The executors are stubs that wait until they are told to end, one at a time, in the
  order that the world wants. Nothing ever waits for a clock.
* Noise. Strands logs each failure with its traceback; failures are expected here.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import warnings
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, Self, cast
from unittest.mock import patch

from strands.agent.agent_result import AgentResult
from strands.multiagent.graph import (
    Graph,
    GraphBuilder,
    GraphEdge,
    GraphState,
    LegacyEdgeCondition,
)
from strands.telemetry.metrics import EventLoopMetrics
from strands.types.agent import AgentInput
from strands.types.content import ContentBlock

from durable_strands.wire import EdgePlan, GraphPlan
from tests.oracles.world import ConditionRaisedError, Result, Trace, View, World

_MODULE = "strands.multiagent.graph"
_TASK = "task"
_HEAD = [f"Original Task: {_TASK}", "\nInputs from previous nodes:"]
_FROM = re.compile(r"\nFrom (.+):")
# `str(AgentResult)` ends each text block with a line feed.
_RESULT = re.compile(r"  - Agent: (.+)#(\d+)\n")

# Even the smallest table of a set has 8 slots, so that the ints below 8 are each in the slot of
# their own number, whatever else is in the set or was. Larger plans would need more care.
LARGEST = 8


async def run_strands(plan: GraphPlan, world: World) -> Trace:
    """Run `plan` in `world` on Strands' own `Graph` and return what happened.

    Where Strands breaks off because something raised, the trace is the state at that moment.
    Mind what a condition does that raises while the input of a node is built: Strands takes it
    for a failure of that node, so the node is in `failed` though it was never dispatched; and
    as all nodes of a batch are started before the first failure is heard of, the later nodes
    of the batch still have their conditions asked and are still dispatched.

    Args:
        plan: A plan with `semantics="strands"` of at most 8 nodes.
        world: What decides about endings and conditions.

    Returns:
        The trace of the run.
    """
    trace = Trace()
    conductor = _Conductor(plan, world, trace)
    graph = _build(plan, conductor)
    stream = cast("AsyncGenerator[dict[str, Any], None]", graph.stream_async(_TASK))
    with silence():
        try:
            # Closing matters when the oracle itself fails: it cancels the stubs in flight.
            async with aclosing(stream) as events:
                async for event in events:
                    conductor.hear(event)
        except _BrokenOffError as error:
            trace.reason = error.reason
        else:
            if conductor.to_start:
                # A batch was ready that never started, and only a limit stops a run there.
                # That alone tells it from a run that reached its limit with its last batch.
                assert not graph.state.should_continue(plan.max_node_executions, None)[0]
                trace.reason = "max_node_executions"
    state = graph.state
    done = {node.node_id for node in state.completed_nodes}
    failed = {node.node_id for node in state.failed_nodes}
    trace.order = [str(node.node_id) for node in state.execution_order]
    trace.completed = [str(node) for node in graph.nodes if node in done]
    trace.failed = [str(node) for node in graph.nodes if node in failed]
    trace.status = state.status.value
    return trace


class _BrokenOffError(RuntimeError):
    """A node or a condition raised, and so ends the run."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Id(str):
    """A node id whose hash is the node's declaration index.

    It equals the plain id but is not found by it in a dict or set: ids that leave Strands go
    through `str()` first.
    """

    slot: int

    def __new__(cls, text: str, slot: int) -> Self:
        new = super().__new__(cls, text)
        new.slot = slot
        return new

    def __hash__(self) -> int:
        return self.slot


class _Conductor:
    """Lets the stubs of a run end one by one, in the order that the world wants.

    It hears Strands' events as the consumer of the stream. A stub may end when all of its
    batch have started, so that no input holds a sibling's result, and when the previous one's
    stop event was heard, since by then it is entered in the graph's state. Once something
    raised that ends the run, nobody is let go anymore: Strands hears of an exception only
    after the events before it, and then cancels who is in flight.

    Attributes:
        to_start: How many nodes of the batch that Strands announced haven't started yet.
    """

    def __init__(self, plan: GraphPlan, world: World, trace: Trace) -> None:
        self._world = world
        self._trace = trace
        self._index = {node.id: index for index, node in enumerate(plan.nodes)}
        self._visits: Counter[str] = Counter()
        self._in_flight: dict[str, asyncio.Future[None]] = {}
        self._endings = 0
        self._over = False
        self.to_start = len(plan.entry_points)

    def hear(self, event: dict[str, Any]) -> None:
        """Take notice of an event of Strands and let the next stub end if it is time."""
        kind = event.get("type")
        if kind == "multiagent_handoff":
            self.check_order(event["to_node_ids"])
            self.to_start = len(event["to_node_ids"])
        elif kind == "multiagent_node_start":
            self.to_start -= 1
            self._proceed()
        elif kind == "multiagent_node_stop":
            self._proceed()

    def _proceed(self) -> None:
        if self.to_start or self._over or not self._in_flight:
            return
        in_flight = sorted(self._in_flight, key=self._index.__getitem__)
        node = self._world.next_to_end(self._endings, in_flight)
        self._endings += 1
        self._in_flight.pop(node).set_result(None)

    def start(self, node: str, prompt: AgentInput) -> tuple[int, asyncio.Future[None]]:
        """Record that a node starts; return its visit and what it must wait for."""
        # Strands starts a whole batch before it tells of the first start. If that changes, a
        # sibling may have ended before this node's input was built.
        assert self.to_start, f"{node} started late"
        self._visits[node] += 1
        visit = self._visits[node]
        inputs = self._read(cast("list[ContentBlock]", prompt))
        self._trace.dispatches.append((node, visit, inputs))
        leave = self._in_flight[node] = asyncio.get_running_loop().create_future()
        return visit, leave

    def end(self, node: str, visit: int) -> bool:
        """Return whether a visit ends well.

        Raises:
            _BrokenOffError: It ends with an exception.
        """
        ending = self._world.ending(node, visit)
        if ending == "raised":
            self._over = True
            raise _BrokenOffError(f"raised:{node}")
        return ending == "completed"

    def condition(self, edge: EdgePlan) -> LegacyEdgeCondition:
        """Return a new function that asks the world, and records what it says."""
        name = str(edge)

        def condition(state: GraphState) -> bool:
            view = View(
                completed=frozenset(str(node.node_id) for node in state.completed_nodes),
                execution_order=tuple(str(node.node_id) for node in state.execution_order),
            )
            try:
                verdict = self._world.condition(edge, view)
            except ConditionRaisedError as error:
                self._over = True
                self._trace.asked.append((name, None))
                raise _BrokenOffError(f"condition:{name}") from error
            self._trace.asked.append((name, verdict))
            return verdict

        return condition

    def check_order(self, nodes: Sequence[str]) -> None:
        """Assert that nodes are in declaration order, each of them once."""
        slots = [self._index[str(node)] for node in nodes]
        assert slots == sorted(set(slots)), f"not in declaration order: {nodes}"

    def _read(self, blocks: list[ContentBlock]) -> tuple[Result, ...]:
        """Return the results that a prompt holds.

        A section may be empty: the node had a result, was started again in this batch, and a
        condition raised while its input was built.
        """
        texts = [block["text"] for block in blocks]
        if texts == [_TASK]:
            return ()
        assert texts[:2] == _HEAD, texts
        sources: list[str] = []
        results: list[Result] = []
        for text in texts[2:]:
            if section := _FROM.fullmatch(text):
                sources.append(section[1])
                continue
            result = _RESULT.fullmatch(text)
            assert result is not None, texts
            assert result[1] == sources[-1], texts
            results.append((result[1], int(result[2])))
        self.check_order(sources)
        assert len(results) == len(sources) or self._over, texts
        return tuple(results)


class _Stub:
    """The least that Strands accepts as an agent."""

    def __init__(self, node: str, conductor: _Conductor) -> None:
        self._node = node
        self._conductor = conductor
        self.cancel_signal = threading.Event()

    async def stream_async(
        self, prompt: AgentInput = None, **kwargs: Any
    ) -> AsyncIterator[dict[str, Any]]:
        """Wait for the conductor's word, then end as the world wants."""
        visit, leave = self._conductor.start(self._node, prompt)
        await leave
        well = self._conductor.end(self._node, visit)
        # Strands counts "cancelled" as FAILED only if the signal is set when the result comes.
        if well:
            self.cancel_signal.clear()
        else:
            self.cancel_signal.set()
        yield {
            "result": AgentResult(
                stop_reason="end_turn" if well else "cancelled",
                message={"role": "assistant", "content": [{"text": f"{self._node}#{visit}"}]},
                metrics=EventLoopMetrics(),
                state={},
            )
        }

    async def invoke_async(self, prompt: AgentInput = None, **kwargs: Any) -> AgentResult:
        """Refuse: a graph streams. The method is here because Strands looks for its name."""
        raise NotImplementedError

    def __call__(self, prompt: AgentInput = None, **kwargs: Any) -> AgentResult:
        """Refuse, as `invoke_async` does."""
        raise NotImplementedError


def _build(plan: GraphPlan, conductor: _Conductor) -> Graph:
    """Build the graph of a plan and pin its order."""
    assert plan.semantics == "strands"
    assert plan.execution_timeout is None
    assert plan.entry_points, "Strands would choose them itself"
    assert len(plan.nodes) <= LARGEST, "the order of a set is only known for small ones"
    resets = {node.on_revisit == "reset" for node in plan.nodes}
    assert len(resets) == 1, "Strands knows one rule for all nodes"

    ids = {node.id: Id(node.id, slot) for slot, node in enumerate(plan.nodes)}
    builder = GraphBuilder()
    for node in ids.values():
        builder.add_node(_Stub(str(node), conductor), node)
    edges = [
        builder.add_edge(
            ids[edge.source],
            ids[edge.target],
            # A function of its own, or else Strands would take parallel edges for one.
            None if edge.condition is None else conductor.condition(edge),
        )
        for edge in sorted(
            plan.edges,
            key=lambda edge: (ids[edge.source].slot, ids[edge.target].slot, edge.ordinal),
        )
    ]
    for name in plan.entry_points:
        builder.set_entry_point(ids[name])
    builder.reset_on_revisit(resets.pop())
    if plan.max_node_executions is not None:
        builder.set_max_node_executions(plan.max_node_executions)
    graph = pinned(builder, edges)
    conductor.check_order([node.node_id for node in graph.entry_points])
    return graph


def pinned(builder: GraphBuilder, edges: list[GraphEdge]) -> Graph:
    """Build a graph whose node ids are `Id`s, with its edges in the order given."""
    with (
        warnings.catch_warnings(),
        # The constructor starts a thread with an event loop to tell the hooks that it is done.
        # No hook here listens, and the thread would take as long as the run.
        patch(f"{_MODULE}.run_async", lambda call: None),
    ):
        warnings.filterwarnings("ignore", message="graph has no max_node_executions")
        graph = builder.build()
    assert len(graph.edges) == len(edges), "Strands took parallel edges for one"
    graph.edges = edges  # type: ignore[assignment]  # Strands only iterates over its set
    return graph


@contextmanager
def silence() -> Iterator[None]:
    """Keep Strands' log of expected failures out of the test's.

    Each run has its own filter, so that runs may overlap.
    """
    logger = logging.getLogger(_MODULE)

    def drop(record: logging.LogRecord) -> bool:
        return False

    logger.addFilter(drop)
    try:
        yield
    finally:
        logger.removeFilter(drop)
