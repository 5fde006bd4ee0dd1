"""Runs a graph's own hooks: the local activity behind every event that has some.

They run on the workflow's worker, where the run's state is at hand, once per event however
often the node's activity is retried. They see an orchestrator whose `state` is the run's state
as far as it is known.
"""

from __future__ import annotations

import asyncio
import copy
from typing import TYPE_CHECKING, Any

from strands.hooks.events import (
    AfterMultiAgentInvocationEvent,
    AfterNodeCallEvent,
    BeforeMultiAgentInvocationEvent,
    BeforeNodeCallEvent,
)
from strands.hooks.registry import BaseHookEvent
from strands.interrupt import _InterruptState
from strands.multiagent.graph import Graph
from strands.multiagent.swarm import Swarm

from .. import wire
from ..codec import error_to_wire
from ..errors import PayloadTooLargeError
from .failures import check_size, is_being_cancelled
from .interrupts import answered, asked
from .views import source_of, state_changes

if TYPE_CHECKING:
    from .registry import RegisteredGraph

_EVENTS: dict[wire.HookEvent, type[BaseHookEvent]] = {
    "before_run": BeforeMultiAgentInvocationEvent,
    "before_node": BeforeNodeCallEvent,
    "after_node": AfterNodeCallEvent,
    "after_run": AfterMultiAgentInvocationEvent,
}


def hook_events(graph: Graph | Swarm) -> list[wire.HookEvent]:
    """Return the events for which a graph or swarm has hooks, plugins' hooks included."""
    callbacks = graph.hooks._registered_callbacks
    return [name for name, event in _EVENTS.items() if callbacks.get(event)]


async def run_hooks(
    graph: RegisteredGraph, data: dict[str, Any], payload_limit: int | None
) -> dict[str, Any]:
    """Run the hooks of one event, in Strands' order: the body of the hooks activity.

    Args:
        graph: The graph whose hooks they are, or in which their graph or swarm is nested.
        data: A `wire.HooksInput` as a JSON object.
        payload_limit: Bytes that the outcome may have; None for no limit.

    Returns:
        A `wire.HooksOutcome` as a JSON object. A hook that raises is data: retrying it would
        run the hooks before it twice.
    """
    request = wire.HooksInput.load(data)
    state = copy.deepcopy(request.invocation_state)
    part = graph.part(request.within)
    source = source_of(part.template, part.plan, request.state)
    source._interrupt_state = _InterruptState(
        interrupts={answer.strands_id: answered(answer) for answer in request.answers}
    )
    kind: Any = _EVENTS[request.event]
    about = {} if request.node is None else {"node_id": request.node}
    event = kind(source=source, invocation_state=state, **about)
    nothing = wire.HooksOutcome(
        event=request.event,
        node=request.path,
        visit=request.visit,
        sources=request.sources,
        enclosing=request.enclosing,
    )
    found: dict[str, Any] = {}
    try:
        _, interrupts = await source.hooks.invoke_callbacks_async(event)
        found["interrupts"] = asked(interrupts, f"a hook of {request.event}")
        found["cancel"] = _cancel_message(event)
    except (Exception, asyncio.CancelledError) as error:
        if is_being_cancelled(error):
            raise
        found = {"error": error_to_wire(error)}  # What hooks wrote before stays, as in Strands.
    found["state_changes"] = state_changes(request.invocation_state, state, "a hook")
    outcome = nothing.model_copy(update=found).dump()
    try:
        check_size(f"what a hook of {request.event} asks and writes", outcome, payload_limit)
    except PayloadTooLargeError as error:
        return nothing.model_copy(update={"error": error_to_wire(error)}).dump()
    return outcome


def _cancel_message(event: Any) -> str | None:
    """Return the message with which a hook cancelled the node, in Strands' words if it has none."""
    cancel = getattr(event, "cancel_node", False)
    if cancel and not isinstance(cancel, str):
        return "node cancelled by user"
    return cancel or None
