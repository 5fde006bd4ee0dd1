"""What is retried, when, and what is not: with agents whose model really raises it."""

from __future__ import annotations

import json
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import (  # type: ignore[import-untyped]  # it has no types
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
)
from strands.multiagent.base import Status
from strands.multiagent.graph import Graph
from strands.types.exceptions import (
    ContextWindowOverflowException,
    EventLoopException,
    MaxTokensReachedException,
    ModelThrottledException,
)
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError

from durable_strands import GraphFailedError, NodeOptions, current_node
from durable_strands.activities.failures import (
    THROTTLE_DELAY,
    is_retryable,
    retry_delay,
    to_application_error,
)

from .support import agent, build, serve

QUICK = NodeOptions(
    retry=RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=3)
)


class ProviderError(Exception):
    """An error as the clients of openai, anthropic and others raise it."""

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"HTTP {status}")
        self.status_code = status
        self.response = SimpleNamespace(status_code=status, headers=headers or {})


def throttled(cause: Exception | None = None, **attributes: Any) -> Exception:
    error = ModelThrottledException("slow down")
    error.__cause__ = cause
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


def client_error(code: str, status: int) -> ClientError:
    return ClientError(
        {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}},
        "Converse",
    )


BAD_JSON: Any = json.JSONDecodeError("no JSON", "x", 0)

RETRYABLE = [
    RuntimeError("perhaps the network"),
    ConnectionError("reset"),
    TimeoutError("no answer"),
    EndpointConnectionError(endpoint_url="https://example.invalid"),
    client_error("InternalServerException", 500),
    client_error("ThrottlingException", 429),
    ProviderError(503),
    ProviderError(408),
    ProviderError(429),
    throttled(),
    BAD_JSON,
    KeyError("the model left it out"),
]
FINAL = [
    TypeError("a bug"),
    AttributeError("a bug"),
    NotImplementedError("a gap"),
    ValueError("an argument"),
    ContextWindowOverflowException("too long"),
    MaxTokensReachedException("cut off"),
    NoCredentialsError(),
    client_error("AccessDeniedException", 403),
    client_error("ValidationException", 400),
    ProviderError(401),
    ProviderError(404),
]


def name(error: Any) -> str:
    return f"{type(error).__name__} {error}"[:50]


@pytest.mark.parametrize("error", RETRYABLE, ids=name)
async def test_an_error_that_may_heal_is_retried(client: Client, error: Exception) -> None:
    def model(prompt: str) -> str:
        if current_node().attempt == 1:
            raise error
        return f"attempt {current_node().attempt}"

    if retry_delay(error) == THROTTLE_DELAY:
        error.retry_after = 0.05  # type: ignore[attr-defined]  # not to wait for 30 s here

    async with serve(
        client, lambda: build({"a": agent(model, retry_strategy=None)}), defaults=QUICK
    ) as durable:
        result = await durable.invoke_async("t")
        assert result.status is Status.COMPLETED
        assert str(result.results["a"]) == "attempt 2\n"
        assert result.failed_nodes == 0
        assert result.execution_count == 1


@pytest.mark.parametrize("error", FINAL, ids=name)
async def test_an_error_that_cannot_heal_is_not_retried(client: Client, error: Exception) -> None:
    attempts: list[int] = []

    def model(prompt: str) -> str:
        attempts.append(current_node().attempt)
        raise error

    def graph() -> Graph:
        return build({"a": agent(model, retry_strategy=None), "b": "B", "c": "C"}, [("a", "b")])

    async with serve(client, graph, defaults=QUICK, on_failure="prune") as durable:
        run = await durable.start("t")
        result = await run.result()  # Pruned: its branch ended, the rest went on.
        assert result.status is Status.FAILED
        assert [node.node_id for node in result.execution_order] == ["c"]
        assert type(error).__name__ in repr(result.results["a"].result)
        assert attempts == [1]


async def test_attempts_are_bounded_and_the_last_error_is_the_callers(client: Client) -> None:
    attempts: list[str] = []

    def model(prompt: str) -> str:
        attempts.append(current_node().idempotency_key)
        raise ConnectionError(f"attempt {len(attempts)}")

    async with serve(
        client, lambda: build({"a": agent(model, retry_strategy=None)}), defaults=QUICK
    ) as durable:
        with pytest.raises(ConnectionError, match="attempt 3") as raised:
            await durable.invoke_async("t")
        assert isinstance(raised.value.__cause__, GraphFailedError)
        assert len(attempts) == 3
        assert len(set(attempts)) == 1  # One key for all attempts of a visit.


def test_throttling_waits_as_long_as_the_provider_says() -> None:
    assert retry_delay(throttled(retry_after=7)) == timedelta(seconds=7)
    said = ProviderError(429, {"retry-after": "12"})
    assert retry_delay(throttled(said)) == timedelta(seconds=12)
    assert retry_delay(said) == timedelta(seconds=12)
    assert retry_delay(throttled(ProviderError(429, {"retry-after": "Wed"}))) == THROTTLE_DELAY
    assert retry_delay(throttled()) == THROTTLE_DELAY
    assert retry_delay(RuntimeError()) is None
    assert to_application_error(throttled(retry_after=7)).next_retry_delay == timedelta(seconds=7)


def test_a_wrapper_of_strands_does_not_hide_its_cause() -> None:
    wrapped = EventLoopException(TypeError("a bug"))
    failure = to_application_error(wrapped)
    assert failure.type == "TypeError"
    assert failure.non_retryable


def test_the_users_own_application_error_stands() -> None:
    own = ApplicationError("mine", type="Mine", non_retryable=True)
    assert to_application_error(own) is own


def test_a_failure_stays_small_however_deep_it_was_raised() -> None:
    def deep(left: int) -> None:
        if left == 0:
            raise RuntimeError("x" * 10_000)
        deep(left - 1)

    with pytest.raises(RuntimeError) as raised:
        deep(500)
    failure = to_application_error(raised.value)
    assert len(failure.message) + len(json.dumps(failure.details)) < 6_000
    assert "in deep" in failure.details[0]["trace"]
    assert is_retryable(raised.value)
