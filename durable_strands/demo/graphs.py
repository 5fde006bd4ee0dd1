"""An example of a user's project: a document goes in, a brief comes out.

    reader -> facts, terms, risks (side by side) -> editor -> critic
                                                      ^          |
                                                      +-- needs_revision

Serve it like any registry:

    durable-strands worker durable_strands.demo.graphs:registry
    durable-strands start brief --task "Write a brief." --state '{"path": "/tmp/a.txt"}' --wait
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from strands import Agent
from strands.agent import AgentResult
from strands.multiagent.graph import Graph, GraphBuilder, GraphState
from strands.telemetry.metrics import EventLoopMetrics
from temporalio.common import RetryPolicy

from durable_strands import GraphRegistry, NodeOptions

from . import journal
from .document import read_document
from .models import model_for

GRAPH = "brief"
ANALYSTS = ("facts", "terms", "risks")
MOST_REVISIONS = 2
MOST_WORDS = 120

PROMPTS = {
    "facts": "You collect facts. List the 5 most important statements of the document, those "
    "with numbers first. One line each, ending with the number of its passage, like [3].",
    "terms": "You collect terms. List the 5 terms that a reader of the document must know, "
    "each with what the document says of it. One line each, ending with its passage, like [3].",
    "risks": "You look for what could go wrong. List the 4 most important conditions, limits, "
    "open questions and risks in the document. One line each, ending with its passage, like [3].",
    "editor": "You write a brief of your colleagues' notes, in three sections: Facts, Terms, "
    "Risks. Keep the passage numbers. Add nothing of your own. If a critic asks for a revision, "
    "revise your last draft accordingly. Answer with the brief alone.",
    # Only the critic knows the limit, so that there is something to revise.
    "critic": f"You check a brief. It has three sections: Facts, Terms, Risks. It has at most "
    f"{MOST_WORDS} words. It says nothing twice. Begin your answer with ACCEPT if all of that "
    "holds, else with REVISE and what to change.",
}

registry = GraphRegistry()


class Reader:
    """A node without a model: it reads the document and numbers its passages.

    The run carries only the path (`invocation_state["path"]`). The text enters history as this
    node's result, and as the input of those nodes alone that have an edge from here.
    """

    async def invoke_async(
        self, prompt: Any = None, *, invocation_state: dict[str, Any] | None = None, **kwargs: Any
    ) -> AgentResult:
        """Read the document."""
        del prompt, kwargs
        journal.record("began")
        path = (invocation_state or {}).get("path")
        if path is None:
            raise ValueError('The run has no invocation_state["path"]: which document to read?')
        document = read_document(Path(path))
        passages = [f"[{i}] {text}" for i, text in enumerate(document.passages(), 1)]
        journal.record("ended")
        return AgentResult(
            stop_reason="end_turn",
            message={"role": "assistant", "content": [{"text": "\n\n".join(passages)}]},
            metrics=EventLoopMetrics(),
            state={},
        )

    async def stream_async(self, prompt: Any = None, **kwargs: Any) -> AsyncIterator[Any]:
        """Read the document; the result is the only event."""
        yield {"result": await self.invoke_async(prompt, **kwargs)}

    def __call__(self, prompt: Any = None, **kwargs: Any) -> AgentResult:
        """Refuse: graphs call executors asynchronously."""
        raise NotImplementedError("Reader is asynchronous; use invoke_async.")


def agent(role: str) -> Agent:
    """Return a new Strands agent for a role."""
    return Agent(
        name=role,
        model=model_for(role),
        system_prompt=PROMPTS[role],
        hooks=[journal.agent_began, journal.agent_ended],
        callback_handler=None,
    )


def needs_revision(state: GraphState) -> bool:
    """Say whether the critic sends the draft back. A draft that was revised enough stands."""
    drafts = sum(node.node_id == "editor" for node in state.execution_order)
    verdict = str(state.results["critic"].result)
    return drafts <= MOST_REVISIONS and re.match(r"\W*REVISE", verdict) is not None


@registry.graph(
    GRAPH,
    defaults=NodeOptions(
        # How long a worker may be silent before its nodes count as lost. The default of 30
        # seconds suits production better; here somebody is watching.
        heartbeat_timeout=timedelta(seconds=2),
        retry=RetryPolicy(initial_interval=timedelta(milliseconds=100), maximum_attempts=3),
    ),
    # The editor remembers its drafts; the critic looks at each with fresh eyes.
    nodes={"critic": NodeOptions(on_revisit="reset")},
)
def brief() -> Graph:
    """Build the graph: an ordinary Strands factory."""
    builder = GraphBuilder()
    builder.add_node(Reader(), "reader")
    for role in (*ANALYSTS, "editor", "critic"):
        builder.add_node(agent(role), role)
    for role in ANALYSTS:
        builder.add_edge("reader", role)
        builder.add_edge(role, "editor")
    builder.add_edge("editor", "critic")
    builder.add_edge("critic", "editor", condition=needs_revision)
    builder.set_max_node_executions(1 + len(ANALYSTS) + 2 * (1 + MOST_REVISIONS))
    return builder.build()
