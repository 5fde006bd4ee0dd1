"""From an exception of a node to what Temporal is told: retry, retry later, or never.

The rule: an error that would come back the same is not retried, since each attempt of an agent
node pays for its model calls again. docs/failures.md has the table.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from strands.types.exceptions import (
    CheckpointException,
    ConcurrencyException,
    ContextWindowOverflowException,
    EventLoopException,
    MaxTokensReachedException,
    ModelThrottledException,
    SessionException,
    SnapshotException,
)
from temporalio.exceptions import ApplicationError

from .. import wire
from ..codec import error_to_wire
from ..errors import NodeTimeoutError, PayloadTooLargeError

THROTTLE_DELAY = timedelta(seconds=30)
"""How long a throttled node waits before its next attempt, where the provider named no time."""

_MISTAKES = (
    AssertionError,
    AttributeError,
    ImportError,
    NameError,
    NotImplementedError,
    SyntaxError,
    TypeError,
)
"""A programming error comes back with every attempt."""

_TERMINAL = (
    CheckpointException,
    ConcurrencyException,
    ContextWindowOverflowException,
    MaxTokensReachedException,
    SessionException,
    SnapshotException,
    PayloadTooLargeError,
    NodeTimeoutError,
)
"""So do these of Strands', and ours: the same input gives the same end."""


_NO_CREDENTIALS = frozenset(
    {
        "botocore.exceptions.NoCredentialsError",
        "botocore.exceptions.PartialCredentialsError",
        "openai.OpenAIError",
    }
)
"""Raised for a missing key or credentials. By name: these packages need not be installed."""

_WORTH_ANOTHER_TRY = frozenset({408, 409, 425, 429})
"""Client errors of HTTP that another attempt may not meet: timeouts, conflicts, throttling."""


_WRAPPED = 8
"""Levels that an outcome has around what a node or a hook gave."""


def is_retryable(error: BaseException) -> bool:
    """Say whether another attempt could end otherwise."""
    if isinstance(error, (*_MISTAKES, *_TERMINAL)):
        return False
    if f"{type(error).__module__}.{type(error).__qualname__}" in _NO_CREDENTIALS:
        return False
    status = http_status(error)
    if status is not None and 400 <= status < 500:
        return status in _WORTH_ANOTHER_TRY
    # A ValueError proper is an invalid argument; its subclasses are mostly about data that a
    # model produced (JSON, validation), and a model may do better the next time.
    return type(error) is not ValueError


def http_status(error: BaseException) -> int | None:
    """Return the HTTP status that a provider's client puts on its errors, None without one.

    openai, anthropic, httpx and most others have `status_code`; botocore has it in `response`.
    """
    status = getattr(error, "status_code", None)
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    elif status is None:
        status = getattr(response, "status_code", None)
    return status if isinstance(status, int) else None


def retry_delay(error: BaseException) -> timedelta | None:
    """Return how long to wait before the next attempt, None for the retry policy's own pace.

    A throttled node waits as long as the provider says, in a `retry_after` attribute or a
    `retry-after` header of the error or of its cause; Strands raises its own error from the
    provider's.
    """
    if not isinstance(error, ModelThrottledException) and http_status(error) != 429:
        return None
    for said in (error, error.__cause__):
        headers = getattr(getattr(said, "response", None), "headers", None) or {}
        seconds: Any = getattr(said, "retry_after", None) or headers.get("retry-after")
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            return max(timedelta(0), timedelta(seconds=float(seconds)))
    return THROTTLE_DELAY


def to_application_error(error: Exception) -> ApplicationError:
    """Return the failure of an activity for an exception of its node.

    Its details carry an `ErrorInfo`, from which the caller's side raises the exception again.
    Raise it without a cause: a chain of tracebacks soon is larger than what the server shows of
    an attempt that failed.
    """
    if isinstance(error, ApplicationError):
        return error  # The user's own word to Temporal stands.
    while isinstance(error, EventLoopException):
        error = error.original_exception  # Only a wrapper: the cause decides.
    info = error_to_wire(error)
    return ApplicationError(
        info.message,
        info.dump(),
        type=type(error).__name__,
        non_retryable=not is_retryable(error),
        next_retry_delay=retry_delay(error),
    )


def is_being_cancelled(error: BaseException) -> bool:
    """Tell the cancellation of this activity from one that a user's code caused by itself."""
    task = asyncio.current_task()
    cancelled = isinstance(error, asyncio.CancelledError)
    return cancelled and task is not None and task.cancelling() > 0


def check_size(what: str, data: object, limit: int | None) -> None:
    """Refuse what is too large to travel, or has too many levels.

    Raises:
        PayloadTooLargeError: The JSON of `data` has more than `limit` bytes, or is too deep.
    """
    if wire.is_too_deep(data, wire.MAX_DEPTH + _WRAPPED):
        raise PayloadTooLargeError(wire.too_deep(what))
    if limit is None:
        return
    size = len(json.dumps(data))
    if size > limit:
        raise PayloadTooLargeError(wire.too_large(what, size, limit))
