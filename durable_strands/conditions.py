"""Conditions of edges that mean something to a durable run."""

from __future__ import annotations

from typing import Any


def on_error(state: Any, **_: Any) -> bool:
    """Mark an edge that is taken when its source fails, and only then.

    A failure that has such an edge is handled: the run goes on by it, and ends COMPLETED unless
    something else fails. The node that it leads to reads the error in its input. It is never
    evaluated: in a durable run the failure itself decides; where Strands' own `Graph` runs the
    same graph, a failure ends the run, and the edge is never taken.

    Example:
        ```python
        builder.add_edge("research", "apologise", condition=on_error)
        ```
    """
    del state
    return False
