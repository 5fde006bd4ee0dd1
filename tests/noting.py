"""Executors and models that note what they are given, for tests of what reaches a node."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from strands.agent import AgentResult

from durable_strands.codec import INTERNAL_KEYS, TOOL_KEYS

from .support import ScriptedModel, Stub, ToolModel, agent_result

PNG = bytes(range(256)) + b"\x89PNG\r\n\x1a\n"
IMAGE: dict[str, Any] = {"image": {"format": "png", "source": {"bytes": PNG}}}
DOCUMENT: dict[str, Any] = {
    "document": {"format": "pdf", "name": "report", "source": {"bytes": b"%PDF\x00\xff"}}
}


@dataclass
class Note:
    """One visit as its executor saw it."""

    node: str
    prompt: list[dict[str, Any]]
    state: dict[str, Any]

    @property
    def text(self) -> str:
        return "".join(block.get("text", "") for block in self.prompt)


@dataclass
class Notes:
    """All visits of a graph's noting executors, in the order in which they began."""

    visits: list[Note] = field(default_factory=list)

    def node(
        self,
        name: str,
        reply: Callable[[dict[str, Any]], Any] | None = None,
    ) -> NotingStub:
        """Return an executor that notes its visits under a name.

        Args:
            name: The name.
            reply: Makes the answer of the invocation state, which it may write to; it may be
                async, or raise. Default: the name in capitals.
        """
        return NotingStub(self, name, reply)

    def nodes(self, names: str) -> dict[str, NotingStub]:
        return {name: self.node(name) for name in names.split()}

    @property
    def order(self) -> list[str]:
        return [note.node for note in self.visits]

    @property
    def texts(self) -> list[tuple[str, str]]:
        return [(note.node, note.text) for note in self.visits]

    def __getitem__(self, node: str) -> Note:
        """Return the last visit of a node."""
        return [note for note in self.visits if note.node == node][-1]


class NotingStub(Stub):
    def __init__(
        self, notes: Notes, name: str, reply: Callable[[dict[str, Any]], Any] | None
    ) -> None:
        super().__init__("")
        self._notes, self._name, self._answer = notes, name, reply

    async def invoke_async(
        self, prompt: Any = None, *, invocation_state: Any = None, **kwargs: Any
    ) -> AgentResult:
        blocks: list[Any] = [prompt] if isinstance(prompt, str) else copy.deepcopy(prompt)
        self._notes.visits.append(Note(self._name, blocks, json_part(invocation_state)))
        await asyncio.sleep(0.005)  # Whatever calls a model doesn't answer at once either.
        answer = self._name.upper() if self._answer is None else self._answer(invocation_state)
        if isinstance(answer, Awaitable):
            answer = await answer
        return answer if isinstance(answer, AgentResult) else agent_result(answer)


class SeeingModel(ScriptedModel):
    """A scripted model that notes the whole conversation of each call in a list of the test's."""

    def __init__(self, seen: list[Any], reply: Any = "seen") -> None:
        super().__init__(reply)
        self.seen = seen

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        self.seen.append(copy.deepcopy(messages))
        async for event in super().stream(messages, *args, **kwargs):
            yield event


class CallingModel(ToolModel):
    """A model that calls one tool with given arguments, then says what the tool gave.

    Args:
        name: The tool's name.
        arguments: Its arguments.
        prose: What it says beside the call.
    """

    def __init__(self, name: str, arguments: dict[str, Any], prose: str = "") -> None:
        super().__init__(name)
        self.arguments, self.prose = arguments, prose

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        async for event in super().stream(messages, *args, **kwargs):
            if "toolUse" in event.get("contentBlockStart", {}).get("start", {}) and self.prose:
                yield {"contentBlockStart": {"start": {}}}
                yield {"contentBlockDelta": {"delta": {"text": self.prose}}}
                yield {"contentBlockStop": {}}
            if "toolUse" in event.get("contentBlockDelta", {}).get("delta", {}):
                given = json.dumps(self.arguments)
                yield {"contentBlockDelta": {"delta": {"toolUse": {"input": given}}}}
            else:
                yield event


def json_part(state: dict[str, Any] | None) -> dict[str, Any]:
    """Return what of an invocation state is JSON, as it is now, and not Strands' own."""
    found = {}
    for key, value in (state or {}).items():
        if key in INTERNAL_KEYS or key in TOOL_KEYS:
            continue
        try:
            found[key] = json.loads(json.dumps(value))
        except (TypeError, ValueError):
            continue
    return found


def blocks_of(messages: Any, kind: str) -> list[Any]:
    """Return the blocks of one kind in a conversation, or in a list of blocks."""
    flat = [block for message in messages for block in message.get("content", [message])]
    return [block[kind] for block in flat if kind in block]
