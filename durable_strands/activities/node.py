"""Runs one visit of one node: the activity behind every node of a graph.

The way of the data: input -> a fresh executor, with its carried state if it has any -> the
prompt -> the executor's stream -> Strands' `NodeResult`, as `Graph` or `Swarm` would make it ->
outcome.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import Awaitable
from typing import Any, cast

from strands.agent.base import AgentBase
from strands.multiagent.base import MultiAgentBase, MultiAgentResult, NodeResult, Status
from strands.multiagent.graph import Graph
from strands.multiagent.swarm import Swarm
from strands.types._snapshot import Snapshot
from strands.types.content import ContentBlock
from strands.types.event_loop import Metrics, Usage
from strands.types.session import decode_bytes_values, encode_bytes_values
from temporalio import activity

from .. import wire
from ..codec import node_result_to_wire
from ..context import CurrentNode, current
from ..errors import NodeTimeoutError, TopologyMismatchError
from ..options import NodeOptions
from ..prompts import prompt_of
from ..sinks import say
from .failures import check_size, to_application_error
from .handoff import turn_notes
from .heartbeat import heartbeats
from .interrupts import asked, resume_input
from .pool import can_snapshot
from .prepare import built_input
from .registry import RegisteredGraph
from .views import state_changes

logger = logging.getLogger(__name__)


async def run_visit(graph: RegisteredGraph, node: str, data: dict[str, Any]) -> dict[str, Any]:
    """Run a visit: the body of a node's activity.

    Args:
        graph: The graph that the node is in.
        node: Path of the node that the activity is of.
        data: A `wire.NodeInput` as a JSON object.

    Returns:
        A `wire.NodeOutcome` as a JSON object.

    Raises:
        ApplicationError: The node raised; its details hold a `wire.ErrorInfo`.
    """
    visit = wire.NodeInput.load(data)
    if visit.node != node:
        mismatch = TopologyMismatchError(
            f"Node {node!r} was asked to run a visit of {visit.node!r}."
        )
        raise to_application_error(mismatch)
    info = activity.info()
    current.set(
        CurrentNode(
            workflow_id=info.workflow_id or "",
            run_id=info.workflow_run_id or "",
            graph=visit.graph,
            path=visit.node,
            visit=visit.visit,
            attempt=info.attempt,
        )
    )
    async with heartbeats():
        try:
            outcome = (await _outcome(graph, visit)).dump()
            check_size(f"the result of node {visit.node!r}", outcome, visit.payload_limit)
            return outcome
        except Exception as error:
            logger.warning(
                "node=<%s>, visit=<%d>, attempt=<%d>, error=<%s> | node raised",
                visit.node,
                visit.visit,
                info.attempt,
                type(error).__name__,
            )
            raise to_application_error(error) from None


async def _outcome(graph: RegisteredGraph, visit: wire.NodeInput) -> wire.NodeOutcome:
    state = copy.deepcopy(visit.invocation_state)
    async with graph.pool.lease(visit.graph, visit.node) as lease:
        executor = lease.executor
        if visit.snapshot is not None:
            executor.load_snapshot(Snapshot.from_dict(decode_bytes_values(visit.snapshot)))
        prompt = (
            resume_input(executor, visit.answers)
            if visit.answers
            else await _prompt(graph.options(visit.node), visit)
        )
        with turn_notes(visit.turn, visit.handoff) as notes:
            name = graph.node_id(visit.node)
            execution = execute(name, executor, prompt, state)
            result = await _within(visit.node_timeout, name, execution)
        asks = result.status is Status.INTERRUPTED
        snapshot = None
        if visit.carries_state or (asks and can_snapshot(executor)):
            snapshot = encode_bytes_values(executor.take_snapshot(preset="session").to_dict())
        lease.reusable = result.status is Status.COMPLETED
    return wire.NodeOutcome(
        node=visit.node,
        visit=visit.visit,
        report=node_result_to_wire(result, visit.visit),
        interrupts=asked(result.interrupts, f"node {visit.node!r}"),
        state_changes=state_changes(visit.invocation_state, state, f"node {visit.node!r}"),
        snapshot=snapshot,
        handoff=notes.handoff if notes is not None else None,
    )


async def _within(seconds: float | None, node: str, execution: Awaitable[NodeResult]) -> NodeResult:
    try:
        async with asyncio.timeout(seconds) as limit:
            return await execution
    except TimeoutError as timeout:
        if not limit.expired():
            raise  # The node's own.
        raise NodeTimeoutError(f"Node '{node}' execution timed out after {seconds}s") from timeout


async def _prompt(options: NodeOptions, visit: wire.NodeInput) -> list[ContentBlock]:
    blocks = prompt_of(visit)
    if options.input is not None:
        blocks = await built_input(options.input, visit)
    return cast(list[ContentBlock], decode_bytes_values(blocks))


async def execute(
    node: str, executor: Any, prompt: list[ContentBlock], state: dict[str, Any]
) -> NodeResult:
    """Run an executor on a prompt, and make of its result what Strands' `Graph` would.

    Args:
        node: The node's id, for error messages.
        executor: An agent, anything that answers like one, or an orchestrator.
        prompt: The content blocks of its input.
        state: The invocation state; it is changed by whoever writes to it.

    Raises:
        ValueError: The executor is of no supported type, or its stream had no result.
    """
    started = time.monotonic()
    if isinstance(executor, MultiAgentBase):
        outcome, _ = await _last_result(node, executor, executor.stream_async(prompt, state))
        return _of_orchestrator(executor, outcome)
    if isinstance(executor, AgentBase):
        stream = executor.stream_async(prompt, invocation_state=state)
        answer, cancelled = await _last_result(node, executor, stream)
        return _of_agent(node, answer, cancelled, round((time.monotonic() - started) * 1000))
    raise ValueError(f"Node '{node}' of type '{type(executor)}' is not supported")


async def _last_result(node: str, executor: Any, stream: Any) -> tuple[Any, bool]:
    """Return a stream's last result, and whether the executor's cancel signal was set then.

    The signal must be read before the stream ends, which clears it.
    """
    result, cancelled = None, False
    async for event in stream:
        if "result" in event:
            result = event["result"]
            signal = getattr(executor, "cancel_signal", None)
            cancelled = signal is not None and bool(signal.is_set())
        else:
            await say(event)
    if result is None:
        raise ValueError(f"Node '{node}' did not produce a result event")
    return result, cancelled


def _of_orchestrator(executor: MultiAgentBase, result: MultiAgentResult) -> NodeResult:
    if result.status is Status.INTERRUPTED:
        if isinstance(executor, (Graph, Swarm)):
            raise NotImplementedError(
                "The orchestrator asked a human. Interrupts inside an orchestrator of Strands' "
                "own that runs whole in one activity are not supported: what it had done is lost."
            )
        if not result.interrupts:
            raise NotImplementedError(
                "The orchestrator asks for input but says nothing that could be answered."
            )
    return NodeResult(
        result=result,
        execution_time=result.execution_time,
        status=result.status,
        accumulated_usage=result.accumulated_usage,
        accumulated_metrics=result.accumulated_metrics,
        execution_count=result.execution_count,
        # One of the user's own gets the answers as its task, and keeps what it needs itself.
        interrupts=list(result.interrupts),
    )


def _of_agent(node: str, result: Any, cancelled: bool, execution_time: int) -> NodeResult:
    stop_reason = getattr(result, "stop_reason", "end_turn")
    interrupts = list(getattr(result, "interrupts", None) or [])
    if stop_reason == "interrupt" and not interrupts:
        raise NotImplementedError(
            f"Node '{node}' asks for input but says nothing that could be answered (so does an "
            "A2A agent that needs input). Let it ask through an interrupt, or end its turn."
        )
    # An abort sets the signal; the stop tool's deferred cancel doesn't, and is a completion.
    failed = stop_reason == "cancelled" and cancelled
    status = Status.FAILED if failed else Status.COMPLETED
    if stop_reason == "interrupt":
        status = Status.INTERRUPTED
    metrics = getattr(result, "metrics", None)
    no_usage = Usage(inputTokens=0, outputTokens=0, totalTokens=0)
    return NodeResult(
        result=result,
        execution_time=execution_time,
        status=status,
        interrupts=interrupts,
        accumulated_usage=getattr(metrics, "accumulated_usage", no_usage),
        accumulated_metrics=getattr(metrics, "accumulated_metrics", Metrics(latencyMs=0)),
        execution_count=1,
    )
