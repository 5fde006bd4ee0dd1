"""What the two runs of a scenario have in common: who may end when, and what is written down.

Executors wait at a gate until the stage lets them end, one at a time. In Strands' process the
world chooses who is next; on the worker it is whoever ended next in Strands.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from strands.interrupt import Interrupt
from strands.multiagent.graph import GraphState
from strands.types.event_loop import Metrics, Usage
from strands.types.exceptions import EventLoopException

from durable_strands import current_node

STAGE: ContextVar[Stage] = ContextVar("differential_stage")
"""The stage of the run in Strands' process that this task belongs to."""

STAGES: dict[str, Stage] = {}
"""The stages of the runs on the worker, by name of the graph."""


def stage_of(name: str) -> Stage:
    """Return the stage of the run that the caller is part of; `name` is the graph's."""
    return STAGE.get(None) or STAGES[name]


def here() -> Stage:
    """Return the stage of the run that the calling tool is part of."""
    return STAGE.get(None) or STAGES[current_node().graph]


@dataclass(frozen=True)
class Spent:
    """Tokens and latency that somebody used."""

    read: int = 0
    wrote: int = 0
    latency: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.read + other.read, self.wrote + other.wrote, self.latency + other.latency)


@dataclass
class Call:
    """One call of the graph: with a task, or with answers.

    Attributes:
        events: What the stream said, in order; see `Stage.hear`.
        hooks: Which hooks were called, in order, and what they saw.
        asked: The open questions at its end, sorted.
        outcome: The result's fields, or those of the exception.
    """

    events: list[tuple[Any, ...]] = field(default_factory=list)
    hooks: list[tuple[Any, ...]] = field(default_factory=list)
    asked: list[Any] = field(default_factory=list)
    outcome: dict[str, Any] = field(default_factory=dict)


@dataclass
class Trace:
    """Everything about a run that has one right value.

    Attributes:
        calls: Call by call.
        inputs: What each visit's executor was given, by `"node#visit"`.
        tools: What each agent's tools heard, by node.
        state: The invocation state at the end.
    """

    calls: list[Call] = field(default_factory=list)
    inputs: dict[str, list[Any]] = field(default_factory=dict)
    tools: dict[str, list[Any]] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)


class Stage:
    """One run of a scenario.

    Attributes:
        trace: What it did.
        answers: What each visit has been answered, by node and visit.
        pending: The open questions: ids and reasons by node and name.
    """

    def __init__(self) -> None:
        self.trace = Trace()
        self.answers: defaultdict[tuple[str, int], dict[str, Any]] = defaultdict(dict)
        self.pending: dict[tuple[str, str], Interrupt] = {}

    # -- what differs --------------------------------------------------------------------------

    def visit(self, node: str) -> int:
        """Return the number of the visit of `node` that is going on."""
        raise NotImplementedError

    async def gate(self, node: str) -> None:
        """Return when the part of the visit that is going on may come to its end."""
        raise NotImplementedError

    def interrupts(self, node: str, names: list[str]) -> list[Interrupt]:
        """Return what a stub asks."""
        raise NotImplementedError

    def spend(self, node: str, spent: Spent) -> None:
        """Take note of what a node used."""

    def ended(self, node: str, how: str) -> None:
        """Take note that a node's `"stop"` or `"interrupt"` was heard."""

    def skips(self, node: str) -> bool:
        """Say whether what a node is given now is not to be written down."""
        return False

    # -- what is written down ------------------------------------------------------------------

    @property
    def call(self) -> Call:
        """The call that is going on."""
        return self.trace.calls[-1]

    def answered(self, node: str, visit: int) -> dict[str, Any]:
        """Return what the executor of a visit has been answered."""
        return {
            name: answer
            for name, answer in sorted(self.answers[node, visit].items())
            if name.startswith(f"{node} ")
        }

    def came(self, node: str, visit: int, prompt: Any, state: Mapping[str, Any]) -> None:
        """Write down what an executor was given."""
        if self.skips(node):
            return
        if prompt and "interruptResponse" in prompt[0]:
            given = [block["interruptResponse"] for block in prompt]
            texts: Any = {
                block["interruptId"].rpartition(":")[2]: block["response"] for block in given
            }
        else:
            texts = [block["text"] for block in prompt]
        self.trace.inputs.setdefault(f"{node}#{visit}", []).append((texts, _shown(node, state)))

    def model_called(
        self, node: str, visit: int, told: list[Any], state: Mapping[str, Any]
    ) -> None:
        """Write down what a real agent's model was told."""
        self.trace.inputs.setdefault(f"{node}#{visit}", []).append(
            (len(told), told[-1], _shown(node, state))
        )

    def tool_done(self, node: str, question: str, heard: list[Any]) -> None:
        """Write down that a tool got past its questions."""
        self.trace.tools.setdefault(node, []).append((question, heard))

    def hook_called(
        self, event: str, hooks: str, node: str | None, state: GraphState | None
    ) -> None:
        """Write down that a hook was called, and what it saw."""
        seen: tuple[Any, ...] = ()
        if state is not None and event != "after_run":
            seen = (
                [str(done.node_id) for done in state.execution_order],
                sorted(str(done.node_id) for done in state.completed_nodes),
                sorted(str(done.node_id) for done in state.failed_nodes),
                sorted(map(str, state.results)),
            )
        self.call.hooks.append((event, hooks, node, *seen))

    def hear(self, event: dict[str, Any]) -> None:
        """Write down an event of the stream."""
        kind = event["type"].removeprefix("multiagent_")
        if kind == "node_stream":
            return
        if kind == "result":
            self.call.events.append((kind, event["result"].status.value))
            return
        if kind == "handoff":
            ends = ([*map(str, event[side])] for side in ("from_node_ids", "to_node_ids"))
            self.call.events.append((kind, *ends))
            return
        node = str(event["node_id"])
        kind = kind.removeprefix("node_")
        if kind == "start":
            self.call.events.append((kind, node, event["node_type"]))
        elif kind == "cancel":
            self.call.events.append((kind, node, event["message"]))
        elif kind == "stop":
            result = result_of(event["node_result"])
            self.call.events.append((kind, node, *result))
            self.ended(node, "stop" if result[0] != "failed" or not raised(result) else "raised")
        else:
            assert kind == "interrupt", event
            asked = [(item.name, item.reason) for item in event["interrupts"]]
            self.call.events.append((kind, node, asked))
            for item in event["interrupts"]:
                self.pending[node, item.name] = item
            self.ended(node, "interrupt")


def result_of(result: Any) -> tuple[Any, ...]:
    """Return what a `NodeResult` says: status, text or error, count."""
    inner = result.result
    if isinstance(inner, Exception):
        said: Any = error_of(inner)
    else:
        said = [str(part) for part in result.get_agent_results()]
    return (result.status.value, said, result.execution_count)


def raised(result: tuple[Any, ...]) -> bool:
    """Say whether a `result_of` is that of a node that raised."""
    return isinstance(result[1], tuple)


def error_of(error: BaseException) -> tuple[str, str]:
    """Return class and message of an exception; Strands may have wrapped a model's."""
    if isinstance(error, EventLoopException) and isinstance(error.original_exception, Exception):
        error = error.original_exception
    return (type(error).__name__, str(error))


def spent_of(usage: Usage, metrics: Metrics) -> Spent:
    """Return what usage and metrics of Strands' say."""
    assert usage["totalTokens"] == usage["inputTokens"] + usage["outputTokens"]
    return Spent(usage["inputTokens"], usage["outputTokens"], metrics["latencyMs"])


def _shown(node: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of the invocation state is the same for all nodes of a batch.

    What hooks and conditions write depends on how far the start of the batch had come.
    """
    own = ("given", "shared", f"hook first {node}", f"hook second {node}")
    return {key: value for key, value in state.items() if key in own or key.startswith("node ")}


class Gatekeeper:
    """Lets those who wait go, one at a time."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[None]] = {}

    @property
    def waiting(self) -> list[str]:
        """Who waits."""
        return list(self._waiting)

    def ticket(self, who: str) -> asyncio.Future[None]:
        """Queue up; await what is returned, shielded: several may wait under one name."""
        if who not in self._waiting:
            self._waiting[who] = asyncio.get_running_loop().create_future()
        return self._waiting[who]

    def let_go(self, who: str) -> None:
        """Let somebody go."""
        future = self._waiting.pop(who)
        if not future.done():
            future.set_result(None)

    def close(self) -> None:
        """Turn everybody away."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(RuntimeError("the run is over"))
                future.exception()
        self._waiting.clear()
