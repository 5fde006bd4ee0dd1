"""Calls a node's own functions: for its input, and for the list that it is mapped over.

A node that an activity runs builds its input there. What has no activity of its own, a nested
graph or the list of a mapped node, gets it by the prepare activity, a local one.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from strands.types.session import encode_bytes_values

from .. import wire
from ..codec import error_to_wire, is_json, node_result_from_wire, task_from_wire
from ..options import FUNCTION_PARAMETERS
from .failures import check_size, is_being_cancelled
from .registry import RegisteredGraph


async def prepare(graph: RegisteredGraph, data: dict[str, Any]) -> dict[str, Any]:
    """Make a node's items, or its input: the body of the prepare activity.

    Args:
        graph: The graph that the node is in.
        data: A `wire.PrepareInput` as a JSON object.

    Returns:
        A `wire.PrepareOutcome` as a JSON object. A function that raises is data: retrying it
        would change nothing, since it is pure.
    """
    request = wire.PrepareInput.load(data)
    options = graph.options(request.node)
    try:
        if options.map_over is not None and request.item is None:
            outcome = wire.PrepareOutcome(items=await _items(options.map_over, request))
        elif options.input is not None:
            outcome = wire.PrepareOutcome(blocks=await built_input(options.input, request))
        else:
            raise graph.gone(f"function of node {request.node!r}")
        check_size(
            f"what the function of {request.node!r} made", outcome.dump(), request.payload_limit
        )
    except (Exception, asyncio.CancelledError) as error:
        if is_being_cancelled(error):
            raise
        return wire.PrepareOutcome(error=error_to_wire(error)).dump()
    return outcome.dump()


async def built_input(
    function: Callable[..., Any], given: wire.NodeInput | wire.PrepareInput
) -> list[dict[str, Any]]:
    """Return the input that a node's builder makes, its bytes encoded.

    Raises:
        TypeError: It made something that is neither text nor content blocks.
    """
    made = await _call(function, given)
    if isinstance(made, str):
        return [{"text": made}]
    if isinstance(made, list) and all(isinstance(block, dict) for block in made):
        blocks: list[dict[str, Any]] = encode_bytes_values(made)
        if is_json(blocks):
            return blocks
    raise TypeError(
        f"The input builder of node {given.node!r} returned {_brief(made)}; it must return text "
        "or a list of content blocks."
    )


async def _items(function: Callable[..., Any], given: wire.PrepareInput) -> list[Any]:
    made = await _call(function, given)
    if isinstance(made, (str, bytes, Mapping)) or not isinstance(made, Iterable):
        raise TypeError(
            f"map_over of node {given.node!r} returned {_brief(made)}; it must return a list."
        )
    items = list(made)
    for position, item in enumerate(items):
        if not is_json(item):
            raise TypeError(
                f"Item {position} that map_over of node {given.node!r} returned is "
                f"{_brief(item)}, which is not JSON and can't travel."
            )
    return items


async def _call(function: Callable[..., Any], given: wire.NodeInput | wire.PrepareInput) -> Any:
    """Call a function with what it asks for by parameter name."""
    available = {
        "task": task_from_wire(given.task),
        "results": {
            dependency.source: node_result_from_wire(dependency.report)
            for dependency in given.dependencies
            if dependency.report is not None
        },
        "invocation_state": copy.deepcopy(given.invocation_state),
        "item": given.item.value if given.item is not None else None,
    }
    asked = inspect.signature(function).parameters
    made = function(**{name: available[name] for name in FUNCTION_PARAMETERS if name in asked})
    return await made if inspect.isawaitable(made) else made


def _brief(value: object) -> str:
    return f"a {type(value).__name__}: {value!r:.80}"
