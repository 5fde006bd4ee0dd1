"""What the tests share: scripted models, agents, graphs, and replaying what was recorded."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from strands import Agent
from strands.agent import AgentResult
from strands.agent.base import AgentBase
from strands.hooks import BeforeNodeCallEvent
from strands.models.model import Model
from strands.multiagent.base import MultiAgentBase
from strands.multiagent.graph import Graph, GraphBuilder
from strands.telemetry.metrics import EventLoopMetrics
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Replayer, Worker

from durable_strands import DurableGraph, GraphPlugin, GraphRegistry, GraphRun

Reply = str | Callable[[str], Any]
"""What a scripted agent says: a text, or a function of its prompt (async allowed)."""


class ScriptedModel(Model):
    """A model that says what a function of the whole conversation says. No network, no key.

    The function gets the text of the last message, and may raise.
    """

    def __init__(self, reply: Reply, *, tokens: tuple[int, int] = (10, 5)) -> None:
        self.reply = reply
        self.tokens = tokens
        self.prompts: list[str] = []

    def update_config(self, **model_config: Any) -> None: ...

    def get_config(self) -> dict[str, Any]:
        return {}

    async def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError
        yield

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        prompt = "".join(block.get("text", "") for block in messages[-1]["content"])
        self.prompts.append(prompt)
        text = self.reply
        if callable(text):
            text = text(prompt)
            if isinstance(text, Awaitable):
                text = await text
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": text}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}
        used, made = self.tokens
        usage = {"inputTokens": used, "outputTokens": made, "totalTokens": used + made}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 7}}}


def agent(reply: Reply, **options: Any) -> Agent:
    """Return a real Strands agent on a scripted model."""
    return Agent(model=ScriptedModel(reply), callback_handler=None, **options)


def agent_result(text: str, *, stop_reason: Any = "end_turn") -> AgentResult:
    return AgentResult(
        stop_reason=stop_reason,
        message={"role": "assistant", "content": [{"text": text}]},
        metrics=EventLoopMetrics(),
        state={},
    )


class Stub:
    """The smallest executor: it answers with a function of its prompt's text."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply

    async def invoke_async(self, prompt: Any = None, **kwargs: Any) -> AgentResult:
        text = self.reply
        if callable(text):
            text = text("".join(block.get("text", "") for block in prompt))
            if isinstance(text, Awaitable):
                text = await text
        return text if isinstance(text, AgentResult) else agent_result(str(text))

    def __call__(self, prompt: Any = None, **kwargs: Any) -> AgentResult:
        raise NotImplementedError

    async def stream_async(self, prompt: Any = None, **kwargs: Any) -> AsyncIterator[Any]:
        yield {"result": await self.invoke_async(prompt, **kwargs)}


Executors = dict[str, Any]
Edge = tuple[Any, ...]


def build(
    nodes: Executors,
    edges: Iterable[Edge] = (),
    *,
    entries: Iterable[str] = (),
    configure: Callable[[GraphBuilder], Any] = lambda _: None,
) -> Graph:
    """Build a graph; an edge is `(source, target)` or `(source, target, condition)`.

    A value of `nodes` that is a text or a function becomes a stub.
    """
    builder = GraphBuilder()
    for name, executor in nodes.items():
        ready = isinstance(executor, (AgentBase, MultiAgentBase))
        builder.add_node(executor if ready else Stub(executor), name)
    for edge in edges:
        builder.add_edge(*edge)
    for entry in entries:
        builder.set_entry_point(entry)
    configure(builder)
    return builder.build()


@asynccontextmanager
async def worker_for(client: Client, registry: GraphRegistry, **options: Any) -> AsyncIterator[str]:
    """Run a worker for a registry on a task queue of its own, and yield the queue's name.

    Runs are cached, as on any worker: without a cache the SDK evicts a run in the middle of a
    local activity when another needs its place. Replaying is a matter of its own (`replay`).
    """
    queue = f"test-{uuid.uuid4()}"
    async with Worker(client, task_queue=queue, plugins=[GraphPlugin(registry)], **options):
        yield queue


@asynccontextmanager
async def serve(
    client: Client, factory: Callable[[], Graph], **options: Any
) -> AsyncIterator[DurableGraph]:
    """Serve one graph, and yield it as callers see it.

    When the block ends, every run of it is replayed from its history.
    """
    registry = GraphRegistry()
    registry.add("graph", factory, **options)
    async with worker_for(client, registry) as queue:
        yield DurableGraph(client, "graph", task_queue=queue)
        await replay_queue(client, queue)


async def replay_queue(client: Client, queue: str) -> None:
    """Replay every run of a task queue that has made it into history."""
    async for execution in client.list_workflows(f"TaskQueue='{queue}'"):
        history = await client.get_workflow_handle(
            execution.id, run_id=execution.run_id
        ).fetch_history()
        await replay(history)


async def replay(history: WorkflowHistory) -> None:
    """Replay a history with the workflow code as it is now."""
    await Replayer(workflows=[], plugins=[GraphPlugin()]).replay_workflow(history)


async def scheduled(client: Client, workflow_id: str) -> list[str]:
    """Return the activity types that a run scheduled, in order."""
    history = await client.get_workflow_handle(workflow_id).fetch_history()
    return [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    ]


_HARMLESS = (
    # Something arrived while the run's last commands were on their way: the server has the task
    # done again with it.
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
    # More arrived at once than the server buffers for a task that is under way.
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND,
)


async def failed_tasks(client: Client, workflow_id: str) -> int:
    """Return how many workflow tasks failed by the workflow's own fault: none may."""
    history = await client.get_workflow_handle(workflow_id).fetch_history()
    return sum(
        event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
        and event.workflow_task_failed_event_attributes.cause not in _HARMLESS
        for event in history.events
    )


class ToolModel(ScriptedModel):
    """A model that calls one tool with the prompt's text, then says what the tool gave."""

    def __init__(self, tool_name: str) -> None:
        super().__init__(lambda text: text)
        self.tool_name = tool_name
        self.arguments: dict[str, Any] = {}

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        results = [
            block["toolResult"] for block in messages[-1]["content"] if "toolResult" in block
        ]
        if results:
            self.reply = f"tool said {results[0]['content'][0]['text']}"
            async for event in super().stream(messages):
                yield event
            return
        use = {"toolUseId": f"use-{len(messages)}", "name": self.tool_name}
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {"toolUse": use}}}
        yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(self.arguments)}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use"}}
        usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 7}}}


class Gate:
    """A hook provider whose BeforeNodeCall hook asks before some nodes.

    An answer of "no" cancels the node. `asked` has the id of the node at each call, `answers`
    what each got.
    """

    def __init__(self, *nodes: str) -> None:
        self.nodes = nodes
        self.asked: list[str] = []
        self.answers: list[tuple[str, Any]] = []

    def register_hooks(self, registry: Any, **kwargs: Any) -> None:
        registry.add_callback(BeforeNodeCallEvent, self.check)

    def check(self, event: BeforeNodeCallEvent) -> None:
        if event.node_id in self.nodes:
            self.asked.append(event.node_id)
            answer = event.interrupt("approve", reason=f"may {event.node_id} run?")
            self.answers.append((event.node_id, answer))
            if answer == "no":
                event.cancel_node = "rejected"


def gated(gate: Gate) -> Callable[[GraphBuilder], Any]:
    """Return a configuration of a builder that sets the gate."""
    return lambda builder: builder.set_hook_providers([gate])


async def eventually(condition: Callable[[], Awaitable[Any]], seconds: float = 20) -> Any:
    """Poll until `condition` gives something true, and return it."""
    deadline = time.monotonic() + seconds
    while True:
        value = await condition()
        if value:
            return value
        assert time.monotonic() < deadline, "it didn't come about in time"
        await asyncio.sleep(0.05)


async def asked_by(run: GraphRun[Any], *nodes: str) -> dict[str, str]:
    """Wait until exactly these nodes have an open question each; return its id by node."""

    async def found() -> dict[str, str]:
        open_ids = {info.node: info.id for info in await run.interrupts()}
        return open_ids if sorted(open_ids) == sorted(nodes) else {}

    result: dict[str, str] = await eventually(found)
    return result
