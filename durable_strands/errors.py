"""The errors that callers see. Each says what happened and what to do about it.

On the wire an error is only its type name (`wire.ErrorType`); these classes live on either
side of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strands.multiagent.graph import GraphResult
    from strands.multiagent.swarm import SwarmResult


class DurableStrandsError(Exception):
    """Base of all errors of this library."""


class InvalidGraphError(DurableStrandsError, ValueError):
    """A graph or an option can't be registered: the message names it and says what to change."""


class InvalidGraphInputError(DurableStrandsError, ValueError):
    """A run was given an input it can't start from: the message names the field."""


class GraphNotRegisteredError(DurableStrandsError, LookupError):
    """No graph of that name is registered on the worker that was asked."""


class TopologyMismatchError(DurableStrandsError):
    """A run needs a node or an edge that the worker's present graph doesn't have."""


class PayloadTooLargeError(DurableStrandsError):
    """Something is too large to travel inline, and no external storage is configured."""


class InterruptNotPendingError(DurableStrandsError, LookupError):
    """An answer is refused: nobody asked that, it was answered already, or it was cancelled."""


class InterruptTimeoutError(DurableStrandsError, TimeoutError):
    """Nobody answered a node's question within its `interrupt_timeout`."""


class NodeTimeoutError(DurableStrandsError, TimeoutError):
    """A node took longer than it may, or its worker was lost for good."""


class RunClosedError(DurableStrandsError):
    """The run has ended, or was terminated, and can't do what was asked of it."""


class SessionBusyError(DurableStrandsError):
    """A session has a run under way, and only one may be at a time."""


class GraphFailedError(DurableStrandsError, RuntimeError):
    """A run failed.

    Attributes:
        result: What it had reached: the partial result, with status FAILED.
    """

    def __init__(self, message: str, result: GraphResult | SwarmResult | None = None) -> None:
        """Keep the partial result beside the message."""
        super().__init__(message)
        self.result = result
