"""One graph of real agents that uses everything at once.

see -> write <-> critic -> (team if the caller wants it, panel) -> approve: image input and
structured output, a feedback loop, a condition on the invocation state, a nested graph, a swarm,
a tool that asks a human.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from strands import Agent, tool
from strands.multiagent.graph import Graph, GraphState
from strands.multiagent.swarm import Swarm
from strands.types.tools import ToolContext
from temporalio.common import RetryPolicy

from durable_strands import GraphRegistry, NodeOptions, current_node

from .restart import Stage
from .support import ScriptedModel, build

IMAGE = bytes(range(256))


class Sighting(BaseModel):
    """What was seen."""

    digest: str
    size: int


class Script(ScriptedModel):
    """A model whose answer is made by a function of the conversation.

    It says a text, or calls a tool: `(name, arguments)`. It tells its stage, if there is one,
    when it is called.
    """

    def __init__(self, answer: Any) -> None:
        super().__init__("")
        self.answer = answer

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        stage = Stage.of(kwargs.get("invocation_state"))
        if stage is not None:
            node = current_node()
            visit = f"{node.path}#{node.visit}"
            stage.note("begin", visit, attempt=node.attempt, prompt=_last(messages))
            await stage.stand(visit)
        elif self.answer is _expert:
            await asyncio.sleep(0.2)  # The panel comes after the team, as with a stage.
        answer = self.answer(messages)
        if isinstance(answer, str):
            self.reply = answer
            async for event in super().stream([{"content": [{"text": ""}]}]):
                yield event
            return
        name, arguments = answer
        use = {"toolUseId": f"use-{len(messages)}", "name": name}
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": f"I call {name}."}}}
        yield {"contentBlockStop": {}}
        yield {"contentBlockStart": {"start": {"toolUse": use}}}
        yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(arguments)}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use"}}
        usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 7}}}


def _turns(messages: Any) -> int:
    return sum(message["role"] == "assistant" for message in messages)


def _last(messages: Any) -> str:
    texts = [block["text"] for block in messages[-1]["content"] if "text" in block]
    return "\n".join(texts)


def _results(messages: Any) -> list[str]:
    blocks = messages[-1]["content"]
    return [b["toolResult"]["content"][0]["text"] for b in blocks if "toolResult" in b]


def _see(messages: Any) -> Any:
    image = next(block["image"] for block in messages[0]["content"] if "image" in block)
    seen = image["source"]["bytes"]
    return "Sighting", {"digest": hashlib.sha256(seen).hexdigest()[:8], "size": len(seen)}


def _critic(messages: Any) -> str:
    return "again" if _turns(messages) == 0 else "good"


def _echo(messages: Any) -> str:
    """Say what was read in full, so that any difference of a prompt shows in the result."""
    return f"read [{_last(messages)}]"


def _expert(messages: Any) -> str:
    return _echo(messages)


def _lead(messages: Any) -> Any:
    if _results(messages):
        return "handed over"
    context = {"z": 1, "a": {"y": 2, "b": [3]}}
    arguments = {"agent_name": "expert", "message": "over to you", "context": context}
    return "handoff_to_agent", arguments


def _approve(messages: Any) -> Any:
    results = _results(messages)
    return f"the human said {results[0]}" if results else ("ask", {})


@tool(context=True)
def ask(tool_context: ToolContext) -> str:
    """Ask a human."""
    return str(tool_context.interrupt("approval", reason={"may": "I"}))


def agent(answer: Any, **options: Any) -> Agent:
    return Agent(model=Script(answer), callback_handler=None, **options)


def said(state: GraphState, node: str) -> str:
    return str(state.results[node].result).strip()


def is_bad(state: GraphState) -> bool:
    return said(state, "critic") == "again"


def is_good(state: GraphState) -> bool:
    return said(state, "critic") == "good"


def team_is_wanted(state: GraphState, *, invocation_state: dict[str, Any]) -> bool:
    return is_good(state) and invocation_state["team"] == "wanted"


def nobody_is_wanted(state: GraphState, *, invocation_state: dict[str, Any]) -> bool:
    return is_good(state) and invocation_state["team"] == "nobody"


def grand() -> Graph:
    """Build the graph."""
    team = build(
        {"one": agent(_echo), "deep": build({"two": agent(_echo)}), "three": agent(_echo)},
        [("one", "deep"), ("deep", "three")],
        configure=lambda b: b.set_graph_id("team"),
    )
    panel = Swarm(
        [
            agent(_lead, name="lead", description="begins"),
            agent(_expert, name="expert", description="knows"),
        ],
        id="panel",
    )
    return build(
        {
            "see": agent(_see, structured_output_model=Sighting),
            "write": agent(lambda messages: f"draft {_turns(messages) + 1}: {_echo(messages)}"),
            "critic": agent(_critic),
            "team": team,
            "panel": panel,
            "nobody": agent(_echo),
            "approve": agent(_approve, tools=[ask]),
        },
        [
            ("see", "write"),
            ("write", "critic"),
            ("critic", "write", is_bad),
            ("critic", "team", team_is_wanted),
            ("critic", "panel", is_good),
            ("critic", "nobody", nobody_is_wanted),
            ("team", "approve"),
            ("panel", "approve"),
        ],
        configure=lambda b: b.set_max_node_executions(30),
    )


TASK: Any = [
    {"text": "What is it?"},
    {"image": {"format": "png", "source": {"bytes": IMAGE}}},
]
STATE = {"team": "wanted"}

QUICK = NodeOptions(
    heartbeat_timeout=timedelta(seconds=1),
    retry=RetryPolicy(initial_interval=timedelta(milliseconds=50), maximum_attempts=3),
)

registry = GraphRegistry()
registry.add("grand", grand, defaults=QUICK)
registry.add("grand strands", grand, semantics="strands", defaults=QUICK)


def _in_order(graph: Graph) -> Graph:
    """Give a graph's edges an order: Strands keeps them in a set, and prompts follow it."""
    index = {node: i for i, node in enumerate(graph.nodes)}
    edges: Any = sorted(
        graph.edges, key=lambda edge: (index[edge.from_node.node_id], index[edge.to_node.node_id])
    )
    graph.edges = edges
    return graph


async def in_process(answer: Any) -> Any:
    """Run it where Strands itself would, and answer its question."""
    graph = _in_order(grand())
    result = await graph.invoke_async(TASK, dict(STATE))
    response: Any = {
        "interruptResponse": {"interruptId": result.interrupts[0].id, "response": answer}
    }
    return await asyncio.wait_for(graph.invoke_async([response], dict(STATE)), 30)
