"""How an agent of a swarm hands over: the tool that Strands gives it, bound to the visit.

Strands' own tool writes into the `Swarm` object that the agent belongs to. Here each turn runs
by itself, maybe in another process than the one before, so the tool writes down what it is
asked, and the activity's result carries it to the workflow.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from strands import tool
from strands.multiagent.swarm import SharedContext, Swarm

from .. import wire

TOOL_NAME = "handoff_to_agent"


class TurnNotes:
    """What an agent has handed over in its turn.

    Attributes:
        handoff: The first handoff; None so far.
    """

    def __init__(self, turn: wire.Turn, before: wire.Handoff | None) -> None:
        """Begin a turn, or the rest of one that asked a human after handing over."""
        self.handoff = before
        self._lock = threading.Lock()  # Tools of one turn run side by side, in threads.
        self._names = [card.name for card in turn.agents]

    def hand_over(self, agent_name: str, message: str, context: dict[str, Any] | None) -> str:
        """Write a handoff down and return its confirmation.

        Raises:
            ValueError: It is refused; the text tells the model why.
        """
        if agent_name not in self._names:
            raise ValueError(f"Error: Agent '{agent_name}' not found in swarm")
        _check_context(context or {})
        with self._lock:
            return self._first(agent_name, message, context or {})

    def _first(self, agent_name: str, message: str, context: dict[str, Any]) -> str:
        if self.handoff is not None:
            # Strands lets the last one win and says nothing: the first is lost.
            raise ValueError(
                f"Error: this turn has already been handed off to {self.handoff.target}. Only one "
                "handoff is possible in a turn; end the turn, and let that agent go on."
            )
        self.handoff = wire.Handoff(target=agent_name, message=message, context=json.dumps(context))
        return f"Handing off to {agent_name}: {message}"


def _check_context(context: dict[str, Any]) -> None:
    checks = SharedContext()
    try:
        for key, value in context.items():
            checks._validate_key(key)
            checks._validate_json_serializable(value)
    except ValueError as error:
        raise ValueError(f"Error in handoff: {error}") from error


_notes: ContextVar[TurnNotes] = ContextVar("durable_strands_turn")


@contextmanager
def turn_notes(turn: wire.Turn | None, before: wire.Handoff | None) -> Iterator[TurnNotes | None]:
    """Have the handoffs of an agent's turn written down; None for a node that is in no swarm."""
    if turn is None:
        yield None
        return
    notes = TurnNotes(turn, before)
    token = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(token)


def handoff_to_agent(
    agent_name: str, message: str, context: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Hand over to another agent; the model reads Strands' own description of the tool."""
    try:
        text, status = _notes.get().hand_over(agent_name, message, context), "success"
    except ValueError as refusal:
        text, status = str(refusal), "error"
    return {"status": status, "content": [{"text": text}]}


def replace_handoff_tools(swarm: Swarm) -> None:
    """Put our tool in the place of the one that a swarm gave its agents."""
    for node in swarm.nodes.values():
        tools = node.executor.tool_registry.registry
        spec = tools[TOOL_NAME].tool_spec
        tools[TOOL_NAME] = tool(
            name=TOOL_NAME, description=spec["description"], inputSchema=spec["inputSchema"]
        )(handoff_to_agent)
