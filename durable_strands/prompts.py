"""What a node reads: the prompt that Strands' graph, or swarm, would build.

Word by word, since models answer to words. A leaf node's prompt is built by its activity; that
of a nested graph or swarm is its task, so the workflow builds it: this module imports wire alone.
"""

from __future__ import annotations

import json
from typing import Any

from . import wire

Blocks = list[dict[str, Any]]
"""Strands' content blocks, with their bytes encoded."""


def prompt_of(visit: wire.NodeInput) -> Blocks:
    """Return the prompt of a visit, block by block."""
    if visit.turn is not None:
        rest = [] if isinstance(visit.task, str) else visit.task
        return [{"text": f"Context:\n{_context(visit.task, visit.turn)}\n\n"}, *rest]
    if visit.item is not None:
        return [*_task(visit.task), {"text": _item(visit.item)}]
    if not visit.dependencies:
        return [{"text": visit.task}] if isinstance(visit.task, str) else visit.task
    blocks = [*_task(visit.task), {"text": "\nInputs from previous nodes:"}]
    for dependency in visit.dependencies:
        blocks.append({"text": f"\nFrom {dependency.source}:"})
        blocks += [
            {"text": f"  - {said.agent_name or 'Agent'}: {said.text}"} for said in dependency.texts
        ]
    return blocks


def _task(task: wire.Task) -> Blocks:
    if isinstance(task, str):
        return [{"text": f"Original Task: {task}"}]
    return [{"text": "Original Task:"}, *task]


def _item(item: wire.Item) -> str:
    value = item.value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"\nItem {item.index + 1} of {item.of}:\n{text}"


def _context(task: wire.Task, turn: wire.Turn) -> str:
    """Return what Strands' swarm tells an agent."""
    parts = []
    if turn.message:
        parts.append(f"Handoff Message: {turn.message}\n\n")
    parts.append(f"User Request: {task if isinstance(task, str) else 'Multi-modal task'}\n\n")
    if turn.history:
        parts.append(f"Previous agents who worked on this: {' → '.join(turn.history)}\n\n")
    if turn.shared:
        parts.append("Shared knowledge from previous agents:\n")
        parts += [f"• {agent}: {json.loads(shared)}\n" for agent, shared in turn.shared]
        parts.append("\n")
    others = [card for card in turn.agents if card.name != turn.agent]
    if others:
        parts.append("Other agents available for collaboration:\n")
        for card in others:
            about = f" Agent description: {card.description}" if card.description else ""
            parts.append(f"Agent name: {card.name}.{about}\n")
        parts.append("\n")
    parts.append(
        "You have access to swarm coordination tools if you need help from other agents. "
        "If you don't hand off to another agent, the swarm will consider the task complete."
    )
    return "".join(parts)
