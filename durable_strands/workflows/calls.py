"""How the workflow calls activities, and what it makes of their failures."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    FailureError,
    TimeoutType,
    is_cancelled_exception,
)
from temporalio.exceptions import TimeoutError as ActivityTimeoutError

from .. import wire

_LOCAL_RETRY = RetryPolicy(maximum_attempts=3)
_LOCAL_TIMEOUT = timedelta(seconds=60)


async def local(activity: str, argument: dict[str, Any], summary: str) -> Any:
    """Run a local activity.

    Raises:
        FailureError: It failed. (The SDK raises the activity's own error for a local one.)
        asyncio.CancelledError: The run was cancelled meanwhile.
    """
    return await taken(start_local(activity, [argument], summary))


def start_local(activity: str, arguments: list[Any], summary: str) -> asyncio.Future[Any]:
    """Start a local activity, whose result is `taken` then."""
    return workflow.start_local_activity(
        activity,
        args=arguments,
        start_to_close_timeout=_LOCAL_TIMEOUT,
        retry_policy=_LOCAL_RETRY,
        summary=summary[:200],
    )


async def taken(result: asyncio.Future[Any]) -> Any:
    """Wait for the result of a local activity; raises as `local` does."""
    try:
        return await result
    except FailureError as failure:
        if is_cancelled_exception(failure):
            raise asyncio.CancelledError from failure
        raise


def retry_policy(plan: wire.RetryPlan) -> RetryPolicy:
    """Return a plan's retry policy as the SDK takes it."""
    longest = plan.maximum_interval
    return RetryPolicy(
        initial_interval=timedelta(seconds=plan.initial_interval),
        backoff_coefficient=plan.backoff_coefficient,
        maximum_interval=None if longest is None else timedelta(seconds=longest),
        maximum_attempts=plan.maximum_attempts,
        non_retryable_error_types=plan.non_retryable_error_types or None,
    )


def error_info(failure: BaseException) -> wire.ErrorInfo:
    """Say what made an activity fail, in terms of the node rather than of Temporal."""
    cause = failure.cause if isinstance(failure, ActivityError) else failure
    if isinstance(cause, ApplicationError):
        if cause.type == wire.ErrorType.NOT_REGISTERED:
            return wire.ErrorInfo.own(
                "TopologyMismatchError", f"The worker has the run's graph no more: {cause.message}"
            )
        if cause.details and isinstance(cause.details[0], dict):
            try:
                return wire.ErrorInfo.load(cause.details[0])
            except ValidationError:
                pass
        if cause.type == "NotFoundError":  # The SDK's word for an unknown activity type.
            return wire.ErrorInfo.own(
                "TopologyMismatchError",
                f"No worker has the node's activity any more: {cause.message}",
            )
        return wire.ErrorInfo(type=cause.type or "ApplicationError", message=cause.message)
    if isinstance(cause, ActivityTimeoutError):
        what = {
            TimeoutType.HEARTBEAT: "stopped heartbeating: its worker was lost or its event loop "
            "is blocked",
            TimeoutType.START_TO_CLOSE: "took longer than its timeout",
        }.get(cause.type or TimeoutType.SCHEDULE_TO_CLOSE, "timed out")
        return wire.ErrorInfo.own("NodeTimeoutError", f"The node {what} ({cause.message})")
    if isinstance(cause, (CancelledError, asyncio.CancelledError)):
        return wire.ErrorInfo(type="CancelledError", message="The node's activity was cancelled")
    return wire.ErrorInfo(type=type(cause).__name__, message=str(cause))
