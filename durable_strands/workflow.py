"""What a user's own workflow may call: a registered graph as its child workflow.

It imports neither strands nor anything that does, so a workflow's module may import it in
Temporal's sandbox as it is:

    from durable_strands.workflow import run_graph

    @workflow.defn
    class Order:
        @workflow.run
        async def run(self, text: str) -> str:
            report = await run_graph("brief", text)
            return report.results["editor"].text

What is wrong with an input, or with the graph's run, is raised as a `ChildGraphError`, which is
a failure in Temporal's sense: a workflow that doesn't catch it fails, and never hangs in a
workflow task that fails again and again.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

from temporalio import workflow
from temporalio.exceptions import (
    ApplicationError,
    ChildWorkflowError,
    FailureError,
    TerminatedError,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)
from temporalio.exceptions import TimeoutError as RunTimeoutError
from temporalio.workflow import ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from pydantic import ValidationError

    from . import wire
    from .workflows.gate import TaskGate

__all__ = ["ChildGraphError", "ChildGraphRun", "run_graph", "start_graph"]

RUN_CLOSED = "RunClosed"
"""`type` of the error of a run that was ended from outside: terminated, or timed out."""

_LONGEST_ID = 1000
"""Bytes that a Temporal server takes of a workflow id and of a task queue's name."""

_LONGEST_SUMMARY = 200
"""Bytes of a name in a summary; a server takes 400 in all."""


class _Caller:
    """What is kept of a workflow that starts graphs.

    Attributes:
        started: How many it has started under a default id, by name.
        gate: Keeps what it sends in one step small enough for the server.
    """

    def __init__(self) -> None:
        self.started: Counter[str] = Counter()
        self.gate = TaskGate()


_callers: WeakKeyDictionary[asyncio.AbstractEventLoop, _Caller] = WeakKeyDictionary()
"""Each run of a workflow, and each of its replays, has an event loop of its own, so all of them
count from one, in the same order."""


class ChildGraphError(ApplicationError):
    """A graph's run as a child didn't complete, or couldn't be started.

    Its `type` says why: `"GraphFailed"`, `"InvalidGraphInput"`, `"GraphNotRegistered"`,
    `"InterruptNotPending"` (an answer that is none), or `"RunClosed"` (terminated, timed out).

    Attributes:
        workflow_id: Id of the child workflow; empty if it has none for want of a good one.
        report: What a run that failed had reached.
    """

    def __init__(
        self,
        message: str,
        *,
        type: str,  # noqa: A002 - as the base class
        workflow_id: str = "",
        report: wire.RunReport | None = None,
    ) -> None:
        """Keep what is known of the run.

        The report doesn't become a detail of the failure: the child's failure, which is the
        cause of this one, has it, and twice it might be too large for a server.
        """
        super().__init__(message, type=type, non_retryable=True)
        self.workflow_id = workflow_id
        self.report = report


class ChildGraphRun:
    """A graph's run as a child of the workflow that calls.

    Attributes:
        id: The child's workflow id. Outside of workflows `DurableGraph.attach(id)` gives the
            same run, with its questions and everything else.
    """

    def __init__(self, handle: workflow.ChildWorkflowHandle[Any, Any], payload_limit: int | None):
        """Wrap a child that has been started; use `start_graph` instead."""
        self.id = handle.id
        self._handle = handle
        self._payload_limit = payload_limit

    async def result(self) -> wire.RunReport:
        """Wait for the run's end and return its report.

        Cancelling who waits cancels the run, as with any child workflow.

        Raises:
            ChildGraphError: The run failed, its input was refused, or it was ended from outside.
            temporalio.exceptions.ChildWorkflowError: It was cancelled.
        """
        try:
            return wire.RunReport.load(await self._handle)
        except ChildWorkflowError as failure:
            if is_cancelled_exception(failure):
                raise
            raise _error_of(failure, self.id) from failure
        except ValidationError as invalid:
            raise ChildGraphError(
                f"The child workflow {self.id!r} returned something else than a graph's report: "
                f"{wire.explain(invalid)}.",
                type=wire.ErrorType.GRAPH_FAILED,
                workflow_id=self.id,
            ) from invalid

    async def respond(
        self, answers: Mapping[str, Any], invocation_state: Mapping[str, Any] | None = None
    ) -> None:
        """Send answers to questions of the run, by a signal: all that a workflow can send.

        Nothing tells whether they were taken: the run logs what it refuses, and goes on
        waiting. So an answer must not come before its question. Where the ids come from the
        outside, they do; see `wire.interrupt_id` for how they are made. Who is outside of a
        workflow better uses `DurableGraph.attach(id).respond()`, which tells.

        Args:
            answers: A response by interrupt id. Any JSON is one: None, False and "" too.
            invocation_state: JSON values to merge into the run's invocation state.

        Raises:
            ChildGraphError: An answer is not JSON or too large, or the run has ended.
        """
        arguments: list[Any] = [dict(answers)]
        if invocation_state:
            arguments.append(dict(invocation_state))
        for what, given in zip(("response to", "invocation_state"), arguments, strict=False):
            for name, value in given.items():
                if not _is_json(value):
                    raise _refused(f"{what} {name!r} is a {_kind(value)}, which is not JSON.")
        if not answers:
            raise _refused("There is no answer to send.", wire.ErrorType.NOT_PENDING)
        await _admit("an answer", arguments, self._payload_limit)
        try:
            await self._handle.signal(wire.RESPOND, args=arguments)
        except FailureError as failure:
            if is_cancelled_exception(failure):
                raise
            raise ChildGraphError(
                f"Run {self.id!r} has ended: nobody waits for an answer.",
                type=RUN_CLOSED,
                workflow_id=self.id,
            ) from failure

    def cancel(self) -> None:
        """Ask for the run's cancellation; `result()` raises when it has come to its end."""
        self._handle.cancel()


async def run_graph(
    name: str,
    task: str | list[dict[str, Any]],
    *,
    invocation_state: Mapping[str, Any] | None = None,
    id: str | None = None,  # noqa: A002 - Temporal's own name for it
    task_queue: str | None = None,
    run_timeout: timedelta | None = None,
    payload_limit: int | None = wire.DEFAULT_PAYLOAD_LIMIT,
) -> wire.RunReport:
    """Run a registered graph as a child workflow, and return its report.

    The report's `results` have what each node gave: `report.results["editor"].text`, or its
    `structured_output` as JSON. Cancelling the calling workflow cancels the run.

    Args:
        name: Name under which the graph is registered on its worker.
        task: Text, or content blocks as Strands has them, bytes included.
        invocation_state: JSON values for the run.
        id: Id of the child workflow. Default: the caller's workflow id, a slash, and the
            graph's name; from the second of that name on with `-2`, `-3` and so on.
        task_queue: Task queue of the graph's worker. Default: the calling workflow's own.
        run_timeout: Longest that the run may take, waiting included.
        payload_limit: Bytes that the task with its state may have; None where the workers'
            data converter has external storage.

    Raises:
        ChildGraphError: The run failed (then with its `report`), or an input is wrong.
        temporalio.exceptions.ChildWorkflowError: It was cancelled.
    """
    run = await start_graph(
        name,
        task,
        invocation_state=invocation_state,
        id=id,
        task_queue=task_queue,
        run_timeout=run_timeout,
        payload_limit=payload_limit,
    )
    return await run.result()


async def start_graph(
    name: str,
    task: str | list[dict[str, Any]],
    *,
    invocation_state: Mapping[str, Any] | None = None,
    id: str | None = None,  # noqa: A002 - Temporal's own name for it
    task_queue: str | None = None,
    run_timeout: timedelta | None = None,
    payload_limit: int | None = wire.DEFAULT_PAYLOAD_LIMIT,
    parent_close_policy: ParentClosePolicy = ParentClosePolicy.REQUEST_CANCEL,
) -> ChildGraphRun:
    """Start a registered graph as a child workflow, and return when it has begun.

    Args:
        name: As in `run_graph`; so are all that are not described here.
        task: The task.
        invocation_state: JSON values for the run.
        id: Id of the child workflow.
        task_queue: Task queue of the graph's worker.
        run_timeout: Longest that the run may take.
        payload_limit: Bytes that the task with its state may have.
        parent_close_policy: What becomes of the run if the calling workflow ends before it.
            Default: it is cancelled, so that its nodes in flight end in good order.

    Raises:
        ChildGraphError: An input is wrong, or a run of that id is going on.
    """
    data = _input(name, task, invocation_state)
    chosen = _default_id(name) if id is None else id
    _check_text("id", chosen)
    if task_queue is not None:
        _check_text("task_queue", task_queue)
    if run_timeout is not None and not (
        isinstance(run_timeout, timedelta) and timedelta(0) < run_timeout < timedelta(days=3650)
    ):
        raise _refused(
            f"run_timeout must be a timedelta above 0 and below ten years, not {run_timeout!r}."
        )
    await _admit("the task with its state", data, payload_limit)
    try:
        handle = await workflow.start_child_workflow(
            wire.WORKFLOW_TYPE,
            data,
            id=chosen,
            task_queue=task_queue,
            execution_timeout=run_timeout,
            parent_close_policy=parent_close_policy,
            memo={"graph": name},
            static_summary=f"Strands graph {_cut(name)}",
        )
    except WorkflowAlreadyStartedError as error:
        raise ChildGraphError(
            f"A workflow with id {chosen!r} is running. Give this one an `id` of its own.",
            type=wire.ErrorType.INVALID_INPUT,
            workflow_id=chosen,
        ) from error
    return ChildGraphRun(handle, payload_limit)


def _caller() -> _Caller:
    loop = asyncio.get_running_loop()
    if loop not in _callers:
        _callers[loop] = _Caller()
    return _callers[loop]


def _default_id(name: str) -> str:
    started = _caller().started
    started[name] += 1
    base = f"{workflow.info().workflow_id}/{name}"
    return base if started[name] == 1 else f"{base}-{started[name]}"


def _cut(name: str) -> str:
    return name.encode()[:_LONGEST_SUMMARY].decode(errors="ignore")


# -- errors ------------------------------------------------------------------------------------


def _error_of(failure: ChildWorkflowError, workflow_id: str) -> ChildGraphError:
    """Return the error of a child that ended badly, in terms of its graph."""
    cause = failure.cause
    if not isinstance(cause, ApplicationError):
        how = {TerminatedError: "was terminated", RunTimeoutError: "timed out"}.get(type(cause))
        return ChildGraphError(
            f"Run {workflow_id!r} {how or f'ended: {cause}'}.",
            type=RUN_CLOSED,
            workflow_id=workflow_id,
        )
    report = None
    if cause.type == wire.ErrorType.GRAPH_FAILED and cause.details:
        # Details of another form are another version's; the message says what happened.
        with contextlib.suppress(ValidationError):
            report = wire.RunReport.load(cause.details[0])
    return ChildGraphError(
        cause.message,
        type=cause.type or wire.ErrorType.GRAPH_FAILED,
        workflow_id=workflow_id,
        report=report,
    )


def _refused(problem: str, kind: str = wire.ErrorType.INVALID_INPUT) -> ChildGraphError:
    return ChildGraphError(problem, type=kind)


# -- input -------------------------------------------------------------------------------------


def _input(name: Any, task: Any, invocation_state: Any) -> dict[str, Any]:
    """Check an input as far as that is possible without strands, and return it as it travels.

    What isn't noticed here would make the command fail, and with it every workflow task.
    """
    state = {} if invocation_state is None else invocation_state
    if not isinstance(state, Mapping):
        raise _refused(f"invocation_state is a {_kind(state)}; it must be a dict.")
    for key, value in state.items():
        if not isinstance(key, str) or not _is_json(value):
            raise _refused(f"invocation_state[{key!r}] is a {_kind(value)}, which is not JSON.")
    if not isinstance(task, str):
        if not isinstance(task, list) or not all(isinstance(block, dict) for block in task):
            raise _refused(f"A task is text or a list of content blocks, not {_kind(task)}.")
        with contextlib.suppress(RecursionError):  # Then it isn't JSON either, as it is.
            task = _encoded(task)
    if not _is_json(task):
        raise _refused("The task can't travel: it has something that is neither JSON nor bytes.")
    try:
        return wire.GraphInput(graph=name, task=task, invocation_state=dict(state)).dump()
    except (ValidationError, ValueError) as error:
        problem = wire.explain(error) if isinstance(error, ValidationError) else str(error)
        raise _refused(f"The input is wrong: {problem}") from error


def _encoded(value: Any) -> Any:
    """Return content blocks with their bytes encoded, as Strands' session code does it."""
    if isinstance(value, bytes):
        return {wire.BYTES_MARK: True, "data": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {key: _encoded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_encoded(item) for item in value]
    return value


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _kind(value: Any) -> str:
    return type(value).__name__


async def _admit(what: str, data: Any, limit: int | None) -> None:
    """Return when some data may be sent; refuse what is too large at any time."""
    size = len(json.dumps(data))
    if limit is not None and size > limit:
        raise _refused(wire.too_large(what, size, limit))
    await _caller().gate.admit(size)


def _check_text(what: str, text: Any) -> None:
    """Refuse a text that a server would refuse, in every workflow task anew."""
    try:
        size = len(text.encode()) if isinstance(text, str) else 0
    except UnicodeError:
        size = 0
    if not 0 < size <= _LONGEST_ID:
        raise _refused(f"{what} must be a text of 1 to {_LONGEST_ID} bytes, not {text!r:.80}.")
