"""A model for agents that call tools, or that must see their whole conversation."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from strands import Agent
from strands.types.content import Messages

from durable_strands.demo.offline import OfflineModel

Step = str | tuple[str, dict[str, Any]]
"""What a model does next: it says a text, or calls a tool."""

Script = Callable[[Messages], Step]


class ScriptedModel(OfflineModel):
    """A model whose next step is a plain function of the conversation so far."""

    def __init__(self, script: Script) -> None:
        super().__init__(lambda _: "")
        self._script = script

    async def stream(self, messages: Messages, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Take the next step."""
        step = self._script(messages)
        if isinstance(step, str):
            self._skill = lambda _: step
            async for event in super().stream(messages, *args, **kwargs):
                yield event
            return
        tool, arguments = step
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {"toolUse": {"toolUseId": "1", "name": tool}}}}
        yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(arguments)}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use"}}


def scripted(name: str, script: Script, description: str | None = None) -> Agent:
    """Return a real agent, whose model follows a script."""
    model = ScriptedModel(script)
    return Agent(name=name, model=model, description=description, callback_handler=None)


def last_text(messages: Messages) -> str:
    """Return what the agent was told last; nothing if it was a tool's result."""
    return "".join(block.get("text", "") for block in messages[-1]["content"])
