"""Strands' `Graph` and `Swarm`, made to run durably: only their `stream_async` is another one.

So a test finds all that it looks at (nodes, edges, hooks, limits), and `invoke_async` and
`graph("task")` are Strands' own. What the tests ask for beyond the results:

* `state` and the nodes' status say after each call what the run came to.
* A span is started once per call, on the caller's side.
* Executors are the tests' own objects, however often the "factory" is called, since they are
  mocks that are counted. For one that is no plain Agent a visit's fresh state is Strands' own
  `reset_executor_state`, where the product would take a newly built executor.
* A mock hands over by the swarm's own `_handle_handoff`, which goes to where the tool of a real
  agent would go.
* Interrupts have Strands' ids. Ours name node and visit too (docs/humans.md), so that two nodes
  may ask the same; a test that compares the id with its own couldn't know.
"""

from __future__ import annotations

import copy
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from opentelemetry import trace
from strands import Agent
from strands.agent import AgentResult
from strands.agent.base import AgentBase
from strands.multiagent.base import MultiAgentBase, MultiAgentResult, Status
from strands.multiagent.graph import Graph, GraphBuilder, GraphEdge, GraphState
from strands.multiagent.swarm import Swarm, SwarmState
from strands.telemetry.metrics import EventLoopMetrics
from strands.types.content import Message
from temporalio import activity

from durable_strands import current_node
from durable_strands.activities.handoff import TOOL_NAME, handoff_to_agent
from durable_strands.codec import result_from_wire

from .machine import Machine, Served

_own_handoff = Swarm._handle_handoff


class Adapter:
    """Puts the durable way in the place of Strands' own.

    Attributes:
        calls: How often a test has come here.
    """

    def __init__(self, machine: Machine) -> None:
        """Run graphs and swarms on a machine."""
        self.calls = 0
        self._machine = machine

    def install(self) -> None:
        """Replace `stream_async` of Strands' own orchestrators."""
        self._install(Graph)
        self._install(Swarm)
        Swarm._handle_handoff = _handle_handoff  # type: ignore[assignment, method-assign]

    def _install(self, kind: Any) -> None:
        own_stream, adapter = kind.stream_async, self

        def stream_async(
            orchestrator: Any,
            task: Any,
            invocation_state: dict[str, Any] | None = None,
            **kwargs: Any,
        ) -> AsyncIterator[dict[str, Any]]:
            if activity.in_activity():  # In a node that runs whole in its activity.
                stream: AsyncIterator[dict[str, Any]] = own_stream(
                    orchestrator, task, invocation_state, **kwargs
                )
                return stream
            adapter.calls += 1
            return adapter._stream(orchestrator, task, invocation_state or {})

        kind.stream_async = stream_async

    def warm_up(self) -> None:
        """Run a graph once: the first run of a process takes longer, and some tests take time."""
        builder = GraphBuilder()
        for name in ("a", "b"):
            builder.add_node(_Yes(), name)
        builder.add_edge("a", "b")
        builder.set_max_node_executions(2).build()("warm up")
        self._machine.end_of_test()

    async def _stream(
        self, orchestrator: Any, task: Any, invocation_state: dict[str, Any]
    ) -> AsyncIterator[dict[str, Any]]:
        started = time.time()
        _begin(orchestrator, task)
        span = orchestrator.tracer.start_multiagent_span(
            task,
            type(orchestrator).__name__.lower(),
            custom_trace_attributes=orchestrator.trace_attributes,
        )
        with trace.use_span(span, end_on_exit=True):
            try:
                run = self._run(orchestrator, task, invocation_state)
                async for event in self._machine.stream(run):
                    yield event
            except Exception:
                _set_status(orchestrator, Status.FAILED)
                raise
            finally:
                took = max(1, round((time.time() - started) * 1000))
                orchestrator.state.execution_time += took

    async def _run(
        self, orchestrator: Any, task: Any, invocation_state: dict[str, Any]
    ) -> AsyncIterator[dict[str, Any]]:
        """Run a call; all of it happens in the machine's thread."""
        ids: dict[str, str] = orchestrator.__dict__.setdefault("_interrupt_ids", {})
        served: Served | None = orchestrator.__dict__.get("_served")
        if served is None or not ids:
            served = await self._machine.serve(_shared(orchestrator))
            orchestrator.__dict__["_served"] = served
        task = _with_ids(task, ids)
        try:
            async for event in served.durable.stream_async(task, invocation_state):
                result = event.get("result")
                if isinstance(result, MultiAgentResult):
                    ids.clear()
                    for interrupt in result.interrupts:
                        strands_id = _strands_id(interrupt.id)
                        # Two that ask the same keep our ids, as they must.
                        if strands_id not in ids:
                            ids[strands_id], interrupt.id = interrupt.id, strands_id
                    await _look_at(orchestrator, served)
                for interrupt in event.get("interrupts", ()):
                    interrupt.id = _strands_id(interrupt.id)
                yield event
        except Exception:
            ids.clear()
            await _look_at(orchestrator, served)
            raise


def _strands_id(interrupt_id: str) -> str:
    """Return Strands' part of an interrupt's id."""
    visit, _, strands_id = interrupt_id.partition(":")
    return strands_id if "#" in visit else interrupt_id


def _with_ids(task: Any, ids: dict[str, str]) -> Any:
    """Return answers with our ids; any other task as it is."""
    if not ids or not isinstance(task, list):
        return task
    answers = copy.deepcopy(task)
    for block in answers:
        response = block.get("interruptResponse", {})
        if response.get("interruptId") in ids:
            response["interruptId"] = ids[response["interruptId"]]
    return answers


# ---------------------------------------------------------------------------------------------
# State
# ---------------------------------------------------------------------------------------------


def _begin(orchestrator: Any, task: Any) -> None:
    """Let the state say that a run begins, or goes on after a question."""
    state = orchestrator.state
    status = state.status if isinstance(orchestrator, Graph) else state.completion_status
    if status is not Status.INTERRUPTED:
        if isinstance(orchestrator, Graph):
            orchestrator.state = GraphState(task=task)
        else:
            first = orchestrator._initial_node()
            orchestrator.state = SwarmState(current_node=first, task=task)
    _set_status(orchestrator, Status.EXECUTING)


def _set_status(orchestrator: Any, status: Status) -> None:
    if isinstance(orchestrator, Graph):
        orchestrator.state.status = status
    else:
        orchestrator.state.completion_status = status


async def _look_at(orchestrator: Any, served: Served) -> None:
    """Let state and nodes say what a run came to, as Strands' own would."""
    if served.durable.run is None:
        return
    report = await served.durable.run.status()
    result: Any = result_from_wire(report)
    nodes, state = orchestrator.nodes, orchestrator.state
    _set_status(orchestrator, result.status)
    state.results = dict(result.results)
    state.accumulated_usage = result.accumulated_usage
    state.accumulated_metrics = result.accumulated_metrics
    standing = {name: of.status.value for name, of in report.nodes.items() if name in nodes}
    asking = [name for name, status in standing.items() if status == "interrupted"]
    orchestrator._interrupt_state.context = {name: {} for name in asking}
    if isinstance(orchestrator, Swarm):
        state.node_history = [nodes[node.node_id] for node in result.node_history]
        return
    state.completed_nodes = _having("completed", standing, nodes)
    state.failed_nodes = _having("failed", standing, nodes)
    state.interrupted_nodes = _having("interrupted", standing, nodes)
    state.execution_order = [nodes[node.node_id] for node in result.execution_order]
    state.execution_count = result.execution_count
    state.total_nodes = result.total_nodes
    known = {status.value for status in Status}
    for name, status in standing.items():
        nodes[name].execution_status = Status(status if status in known else "failed")
        nodes[name].result = result.results.get(name)


def _having(status: str, standing: dict[str, str], nodes: dict[str, Any]) -> set[Any]:
    return {nodes[name] for name, found in standing.items() if found == status}


# ---------------------------------------------------------------------------------------------
# Executors
# ---------------------------------------------------------------------------------------------


def _handle_handoff(swarm: Swarm, target: Any, message: str, context: dict[str, Any]) -> None:
    """Hand over from within a turn; elsewhere do what Strands does."""
    try:
        answer = handoff_to_agent(target.node_id, message, context)
    except LookupError:
        _own_handoff(swarm, target, message, context)
        return
    if answer["status"] == "success":
        swarm.state.handoff_node, swarm.state.handoff_message = target, message
        for key, value in (context or {}).items():
            swarm.shared_context.add_context(swarm.state.current_node, key, value)  # type: ignore[arg-type]


class _Yes:
    """An executor that says yes."""

    async def invoke_async(self, prompt: Any = None, **kwargs: Any) -> AgentResult:
        message = Message(role="assistant", content=[{"text": "yes"}])
        return AgentResult("end_turn", message, EventLoopMetrics(), {})

    def __call__(self, prompt: Any = None, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def stream_async(self, prompt: Any = None, **kwargs: Any) -> AsyncIterator[Any]:
        yield {"result": await self.invoke_async()}


class _SharedExecutor:
    """A test's own executor, behind what can't be snapshotted: mocks would say that they can."""

    def __init__(self, node: Any, orchestrator: Any) -> None:
        """Stand before a node's executor."""
        self._node = node
        self._orchestrator = orchestrator

    def __getattr__(self, name: str) -> Any:
        if name in ("take_snapshot", "load_snapshot", "tool_names"):
            raise AttributeError(name)
        return getattr(self._node.executor, name)

    def _is_reset(self) -> bool:
        """Say whether Strands resets the executor before this visit."""
        if isinstance(self._orchestrator, Swarm):
            return True
        return bool(self._orchestrator.reset_on_revisit) and current_node().visit > 1

    async def invoke_async(self, prompt: Any = None, **kwargs: Any) -> Any:
        raise NotImplementedError

    def __call__(self, prompt: Any = None, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def stream_async(self, prompt: Any = None, **kwargs: Any) -> AsyncIterator[Any]:
        goes_on = any("interruptResponse" in block for block in prompt)
        if not goes_on and self._is_reset():
            self._node.reset_executor_state()
        asks = False
        try:
            async for event in self._node.executor.stream_async(prompt, **kwargs):
                asks |= getattr(event.get("result"), "stop_reason", None) == "interrupt"
                yield event
        finally:
            if isinstance(self._orchestrator, Swarm) and not asks:
                # The turn has ended: in Strands its handoff has been applied, or rolled back.
                state = self._orchestrator.state
                state.handoff_node = state.handoff_message = None


def _shared(orchestrator: Any) -> Any:
    """Return an orchestrator of its own with a test's executors in it, as a factory would."""
    shared = copy.copy(orchestrator)
    shared.__dict__.pop("_served", None)
    shared.nodes = nodes = {}
    for name, node in orchestrator.nodes.items():
        nodes[name] = copy.copy(node)
        nodes[name].executor = _shared_executor(node, orchestrator)
    if isinstance(orchestrator, Graph):
        shared.entry_points = {nodes[node.node_id] for node in orchestrator.entry_points}
        shared.edges = {
            GraphEdge(nodes[edge.from_node.node_id], nodes[edge.to_node.node_id], edge.condition)
            for edge in orchestrator.edges
        }
    return shared


def _shared_executor(node: Any, orchestrator: Any) -> Any:
    executor = node.executor
    if isinstance(executor, (Graph, Swarm)):
        return _shared(executor)
    if isinstance(executor, MultiAgentBase) or type(executor) is Agent:
        return executor
    if not isinstance(executor, AgentBase):
        return executor
    shared = _SharedExecutor(node, orchestrator)
    if isinstance(orchestrator, Swarm):
        # A mock's registry has swallowed the tool that the swarm gave it.
        tools = {TOOL_NAME: orchestrator._create_handoff_tool()}
        shared.__dict__["tool_registry"] = SimpleNamespace(registry=tools)
    return shared
