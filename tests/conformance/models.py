"""The model that Strands' integration tests get in place of Bedrock: no network, no key."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

from strands.models.model import Model


class OfflineModel(Model):
    """A model that calls each of its tools once, then says what they gave.

    It knows no tool by name but a swarm's own: it hands over to the first agent that it is told
    of and that has not had a turn, and to nobody if there is none.
    """

    def __init__(self, **_config: Any) -> None:
        """Take any configuration that Bedrock would."""
        self.config: dict[str, Any] = {"model_id": "offline"}

    def update_config(self, **model_config: Any) -> None:
        """Take a configuration without any effect."""

    def get_config(self) -> dict[str, Any]:
        """Return what there is of a configuration."""
        return self.config

    async def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: no test of graphs needs it."""
        raise NotImplementedError
        yield

    async def stream(
        self, messages: Any, tool_specs: Any = None, *args: Any, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Yield a turn's events: tool uses at the first turn, text at the next."""
        blocks = messages[-1]["content"]
        results = [block["toolResult"] for block in blocks if "toolResult" in block]
        yield {"messageStart": {"role": "assistant"}}
        calls = [] if results else _calls(tool_specs or (), _text(blocks))
        if calls:
            for number, (name, arguments) in enumerate(calls):
                use = {"toolUseId": f"{name}-{len(messages)}-{number}", "name": name}
                given = {"toolUse": {"input": json.dumps(arguments)}}
                yield {"contentBlockStart": {"start": {"toolUse": use}}}
                yield {"contentBlockDelta": {"delta": given}}
                yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "tool_use"}}
        else:
            yield {"contentBlockStart": {"start": {}}}
            for word in _answer(blocks, results).split():
                yield {"contentBlockDelta": {"delta": {"text": f"{word} "}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "end_turn"}}
        usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 7}}}


def _answer(blocks: Any, results: list[Any]) -> str:
    said = [content.get("text", "") for result in results for content in result["content"]]
    if said:
        return "The tools say: " + " ".join(said)
    return "Having read: " + _text(blocks)


def _text(blocks: Any) -> str:
    return " ".join(block.get("text", "") for block in blocks)


def _calls(tool_specs: Any, prompt: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls of a first turn: name and arguments of each."""
    calls = []
    for spec in tool_specs:
        arguments = _arguments(spec["inputSchema"]["json"])
        if spec["name"] == "handoff_to_agent":
            target = _next_agent(prompt)
            if target is None:
                continue
            arguments["agent_name"] = target
        calls.append((spec["name"], arguments))
    return calls


def _next_agent(prompt: str) -> str | None:
    """Return the first agent of a swarm that has not had a turn, by what the prompt says."""
    before = re.search(r"Previous agents who worked on this: (.*)", prompt)
    had = before.group(1).split(" → ") if before else []
    told = re.findall(r"Agent name: (\w+)", prompt)
    return next((name for name in told if name not in had), None)


def _arguments(schema: dict[str, Any]) -> dict[str, Any]:
    """Return arguments that a tool takes."""
    examples = {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
    properties = schema.get("properties", {})
    return {
        name: examples.get(properties[name].get("type"), "text")
        for name in schema.get("required", ())
    }
