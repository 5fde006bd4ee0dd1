"""A swarm: whoever has the turn hands over to the next, with a message and what it found.

    triage -> billing -> clerk

Each turn is an activity, each handoff a recorded decision. Here the swarm is registered on its
own; it may be a node of a graph just as well.
"""

from __future__ import annotations

import json

from strands.multiagent.swarm import Swarm
from strands.types.content import Messages
from temporalio.client import Client

from durable_strands import DurableSwarm, GraphRegistry

from .scripted import Step, last_text, scripted
from .support import run

registry = GraphRegistry()


def hand_over(to: str, message: str, **context: object) -> Step:
    """Return a call of the tool that Strands gives each agent of a swarm."""
    return "handoff_to_agent", {"agent_name": to, "message": message, "context": context}


def triage(messages: Messages) -> Step:
    if "toolResult" in messages[-1]["content"][0]:
        return "This is about money."
    return hand_over("billing", "check the invoice", customer=7)


def billing(messages: Messages) -> Step:
    if "toolResult" in messages[-1]["content"][0]:
        return "The invoice is wrong by 10."
    return hand_over("clerk", "write to the customer", wrong_by=10)


def clerk(messages: Messages) -> Step:
    """Use what the others shared, which Strands puts into the prompt."""
    shared = [line for line in last_text(messages).splitlines() if line.startswith("•")]
    return "I know " + json.dumps(shared, ensure_ascii=False)


@registry.swarm("helpdesk")
def helpdesk() -> Swarm:
    return Swarm(
        [
            scripted("triage", triage, "finds out what it is about"),
            scripted("billing", billing, "knows all invoices"),
            scripted("clerk", clerk),
        ],
        max_handoffs=10,
        execution_timeout=3600,
    )


async def main(client: Client) -> None:
    swarm = DurableSwarm(client, "helpdesk")
    async for event in swarm.stream_async("My invoice is wrong."):
        if event["type"] == "multiagent_node_stop":
            print(f"{event['node_id']}: {str(event['node_result'].result).strip()}")
        elif event["type"] == "multiagent_handoff":
            print(f"  to {event['to_node_ids'][0]}: {event['message']}")
    print(" -> ".join(node.node_id for node in event["result"].node_history))


if __name__ == "__main__":
    run(main, registry)
