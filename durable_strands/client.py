"""The caller's side: a durable graph as a Strands orchestrator, and one run of it."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Generic, cast

from pydantic import ValidationError
from strands.multiagent.base import MultiAgentBase, Status
from strands.multiagent.graph import GraphResult
from strands.multiagent.swarm import SwarmResult
from strands.types.multiagent import MultiAgentInput
from temporalio import activity
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateFailedError,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import (
    ApplicationError,
    CancelledError,
    TerminatedError,
    WorkflowAlreadyStartedError,
)
from temporalio.exceptions import TimeoutError as RunTimeoutError
from temporalio.service import RPCError, RPCStatusCode
from typing_extensions import TypeVar

from . import wire
from .codec import (
    error_from_wire,
    is_json,
    loop_keys,
    result_from_wire,
    task_to_wire,
)
from .context import current
from .errors import (
    GraphFailedError,
    InterruptNotPendingError,
    InvalidGraphInputError,
    PayloadTooLargeError,
    RunClosedError,
    SessionBusyError,
)
from .history import (
    Closing,
    HistoryReader,
    ask_status,
    closed_error,
    closing_of,
    has_moved_on,
    started_with,
)
from .sinks import Live, StreamSource, listening

Result = TypeVar("Result", GraphResult, SwarmResult, default=GraphResult)


class _Durable(MultiAgentBase, Generic[Result]):
    """What durable graphs and swarms have in common: all but the class of their results."""

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        task_queue: str = wire.DEFAULT_TASK_QUEUE,
        id: str | None = None,  # noqa: A002 - Strands' own name for it
        run_timeout: timedelta | None = None,
        session: str | None = None,
        sink: StreamSource | None = None,
    ) -> None:
        """Refer to a graph on a worker.

        Args:
            client: A connected Temporal client.
            name: Name under which the graph is registered on the worker.
            task_queue: Task queue of that worker.
            id: Strands' id of this orchestrator, and the beginning of its runs' workflow ids.
                Default: `name`.
            run_timeout: Longest that a run may take, waiting included; the server ends it then.
            session: Name of a conversation over several runs: the agents of each begin with the
                memory that they had at the end of the one before, whether that completed or
                not. It has one run at a time. Default: each run begins with fresh agents.
            sink: The sink that the worker publishes to, for token-level events in `stream_async`.
        """
        super().__init__()
        self.id = id or name
        self._client = client
        self._name = name
        self._task_queue = task_queue
        self._run_timeout = run_timeout
        self._session_id = f"{self.id}-session-{session}" if session is not None else None
        self._sink = sink
        self._interrupted: GraphRun[Result] | None = None

    async def start(
        self,
        task: MultiAgentInput,
        invocation_state: dict[str, Any] | None = None,
        *,
        workflow_id: str | None = None,
    ) -> GraphRun[Result]:
        """Start a run and return at once.

        Args:
            task: Text or content blocks.
            invocation_state: JSON values for the run; they are copied, never changed.
            workflow_id: Id of the workflow. Default: this graph's id and a random part.

        Raises:
            InvalidGraphInputError: `task` or `invocation_state` can't travel; names what.
            PayloadTooLargeError: They are too large, and there is no external storage.
            SessionBusyError: The session has a run under way.
            temporalio.exceptions.WorkflowAlreadyStartedError: `workflow_id` is running.
        """
        request = _to_wire(self._name, task, invocation_state or {})
        if self._session_id is not None:
            if workflow_id is not None:
                raise InvalidGraphInputError(
                    "The runs of a session have its own workflow id; don't give another."
                )
            workflow_id = self._session_id
            session = await self._next_in_session(workflow_id)
            request = request.model_copy(update={"session": session})
        data = request.dump()
        if self._client.data_converter.external_storage is None:
            size = len(json.dumps(data))
            if size > wire.DEFAULT_PAYLOAD_LIMIT:
                raise PayloadTooLargeError(
                    wire.too_large("the task with its state", size, wire.DEFAULT_PAYLOAD_LIMIT)
                )
        workflow_id = workflow_id or self._new_id(request)
        taken_up = _taken_up_again(workflow_id)
        try:
            handle = await self._client.start_workflow(
                wire.WORKFLOW_TYPE,
                data,
                id=workflow_id,
                task_queue=self._task_queue,
                execution_timeout=self._run_timeout,
                memo={"graph": self._name},
                static_summary=f"Strands graph {self._name}",
                **taken_up,
            )
        except WorkflowAlreadyStartedError as error:
            if self._session_id is not None:
                raise _busy(self._session_id) from error
            if not taken_up:
                raise
            return GraphRun(self._client, workflow_id)  # An earlier attempt's, which completed.
        return GraphRun(self._client, handle.id, handle.first_execution_run_id)

    def _new_id(self, request: wire.GraphInput) -> str:
        """Return the workflow id of a new run.

        In a node of another graph it is the same in every attempt of the visit that asks the
        same, so that a retry takes up the run of the attempt before it, and pays for nothing
        twice.
        """
        node = current.get(None)
        if node is None:
            return f"{self.id}-{uuid.uuid4()}"
        return f"{self.id}{_IN_NODE}{wire.digest([node.next_run_key(), request.dump()])}"

    async def _next_in_session(self, workflow_id: str) -> wire.Session:
        """Return the session as its next run gets it."""
        try:
            last = await self._client.get_workflow_handle(workflow_id).describe()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return wire.Session(workflow_id=workflow_id)
        if last.status is WorkflowExecutionStatus.RUNNING:
            raise _busy(workflow_id)
        return wire.Session(workflow_id=workflow_id, run_id=last.run_id)

    def attach(self, workflow_id: str, *, run_id: str | None = None) -> GraphRun[Result]:
        """Return a run that was started elsewhere, or before; nothing is asked of the server."""
        return GraphRun(self._client, workflow_id, run_id)

    async def invoke_async(
        self, task: MultiAgentInput, invocation_state: dict[str, Any] | None = None, **kwargs: Any
    ) -> Result:
        """Run the graph and wait for its result, as Strands' `Graph.invoke_async` does.

        Args:
            task: Text or content blocks; or, after a result that said INTERRUPTED, answers as
                in Strands: `[{"interruptResponse": {"interruptId": ..., "response": ...}}]`.
                Any other task starts a new run; the one that waits stays as it is.
            invocation_state: JSON values for the run; with answers, values to merge into its.
            **kwargs: Ignored, as in Strands.

        Raises:
            Exception: A node or a condition raised: its own exception where the class is
                builtin or imported here, with `GraphFailedError` as its cause; else
                `GraphFailedError` itself. A limit, or a node that returned a failed result,
                raises nothing: the result says FAILED.
            InvalidGraphInputError: The input is wrong.
            InterruptNotPendingError: An answer is to something that isn't asked.
            GraphNotRegisteredError: The worker has no such graph.
            RunClosedError: The run was cancelled, terminated or timed out.
        """
        del kwargs
        result: Result | None = None
        async for event in self._stream(task, invocation_state):
            result = event.get("result", result)
        assert result is not None, "a stream ends with a result or raises"
        return result

    async def stream_async(
        self, task: MultiAgentInput, invocation_state: dict[str, Any] | None = None, **kwargs: Any
    ) -> AsyncIterator[dict[str, Any]]:
        """Run the graph and yield Strands' event dictionaries as history records them.

        Args:
            task: As in `invoke_async`.
            invocation_state: As in `invoke_async`.
            **kwargs: Ignored, as in Strands.

        Yields:
            `multiagent_node_start`, `multiagent_node_stop`, `multiagent_node_interrupt`,
            `multiagent_node_cancel`, `multiagent_handoff`, and last `multiagent_result` with
            the result. Events of what is nested in a node come in its
            `multiagent_node_stream`, as in Strands. With a sink, so does what a node's executor
            yields, between the node's start and its stop.

        Raises:
            Exception: As `invoke_async`, after the events up to the failure.
        """
        del kwargs
        if self._sink is None:
            async for event in self._stream(task, invocation_state):
                yield event
            return
        asked = self._interrupted if _answers(task) is not None else None
        request = _to_wire(self._name, task, invocation_state or {})
        workflow_id = self._session_id or self._new_id(request)
        async with listening(self._sink, asked.id if asked is not None else workflow_id) as live:
            async for event in live.merge(self._stream(task, invocation_state, live)):
                yield event

    async def _stream(
        self,
        task: MultiAgentInput,
        invocation_state: dict[str, Any] | None,
        live: Live | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        answers = _answers(task)
        if answers is None:
            own_id = live.workflow_id if live is not None and self._session_id is None else None
            run = await self.start(task, invocation_state, workflow_id=own_id)
        elif self._interrupted is None and self._session_id is None:
            raise InterruptNotPendingError(
                "The task is a list of interrupt responses, but no run of this object waits for "
                "one. For a run that was started elsewhere use attach(workflow_id).respond()."
            )
        else:
            run = self._interrupted or self.attach(self._session_id or "")
            await run.respond(answers, invocation_state)
        self._interrupted = None
        run._reader.live = live
        try:
            async for event in run._reader.events(until_interrupted=True):
                if "result" in event:
                    _raise_failure(run._reader.closing)
                    if event["result"].status is Status.INTERRUPTED:
                        self._interrupted = run
                yield event
        except asyncio.CancelledError:
            if _node_is_cancelled():
                await run.cancel()
            raise
        _raise_failure(run._reader.closing)


class DurableGraph(_Durable[GraphResult]):
    """A graph that runs durably, wherever a Strands `Graph` could stand.

    It needs no registry: the graph lives on a worker. Each call is a run of its own, so one
    object may be called many times at once. A run doesn't depend on its caller: closing a
    stream early, or losing the caller, leaves it going.

    Example:
        ```python
        graph = DurableGraph(client, "brief")
        result = await graph.invoke_async("Summarise ...")
        ```
    """


class DurableSwarm(_Durable[SwarmResult]):
    """A swarm that runs durably, wherever a Strands `Swarm` could stand.

    As `DurableGraph`, but for a swarm that a worker has registered.

    Example:
        ```python
        swarm = DurableSwarm(client, "triage")
        result = await swarm.invoke_async("My invoice is wrong.")
        ```
    """


class GraphRun(Generic[Result]):
    """One run of a durable graph or swarm: a handle, good in any process at any time.

    Attributes:
        id: The workflow id.
        run_id: Temporal's id of the execution; None for the latest under `id`.
    """

    def __init__(self, client: Client, id: str, run_id: str | None = None) -> None:  # noqa: A002
        """Refer to a run; nothing is asked of the server."""
        self.id = id
        self.run_id = run_id
        self._client = client
        self._handle: WorkflowHandle[Any, Any] = client.get_workflow_handle(id, run_id=run_id)
        self._reader = HistoryReader(self._handle, client.data_converter)

    async def status(self) -> wire.RunReport:
        """Return the run's report as of now, also after it ended.

        A run that ended by itself has its report in history; any other is asked, which takes a
        worker.

        Raises:
            temporalio.service.RPCError: There is no such run, or no worker to answer.
        """
        described = await self._handle.describe()
        if described.status in (WorkflowExecutionStatus.COMPLETED, WorkflowExecutionStatus.FAILED):
            closing = await self._closing()
            if closing.report is not None:
                return closing.report
        return await ask_status(self._handle)

    async def result(self) -> Result:
        """Wait for the run's end and return its result; raises as `DurableGraph.invoke_async`."""
        closing = await self._closing()
        if closing.report is not None and closing.report.truncated:
            # Too large for one payload, but history has it all.
            reader = HistoryReader(self._handle, self._client.data_converter)
            async for _ in reader.events():
                pass
            closing = reader.closing or closing
        _raise_failure(closing)
        assert closing.report is not None, "an end without report has raised"
        return cast(Result, result_from_wire(closing.report))

    async def interrupts(self) -> list[wire.InterruptInfo]:
        """Return the questions that wait for an answer, in the order in which they were asked."""
        return (await self.status()).interrupts

    async def respond(
        self,
        answers: dict[str, Any],
        invocation_state: dict[str, Any] | None = None,
        *,
        update_id: str | None = None,
    ) -> list[str]:
        """Answer interrupts, all or nothing.

        Args:
            answers: A response by interrupt id. Any JSON is one: None, False and "" too.
            invocation_state: JSON values to merge into the run's invocation state.
            update_id: Makes a repeated call harmless: the second with the same id does nothing
                and returns what the first did.

        Returns:
            Ids of the nodes that go on now. A node that asked several things goes on when it
            has all its answers.

        Raises:
            InterruptNotPendingError: Nobody asked that, it is answered, or it was cancelled.
            RunClosedError: The run has ended.
            InvalidGraphInputError: A response is not JSON.
        """
        for name, response in answers.items():
            if wire.is_too_deep(response):
                raise InvalidGraphInputError(wire.too_deep(f"The response to {name!r}"))
            if not is_json(response):
                raise InvalidGraphInputError(
                    f"The response to {name!r} is a {type(response).__name__}, which is not JSON."
                )
        arguments = [answers]
        if invocation_state:
            arguments.append(_checked_state(invocation_state))
        try:
            outcome = await self._handle.execute_update(wire.RESPOND, args=arguments, id=update_id)
        except WorkflowUpdateFailedError as failure:
            cause = failure.cause
            message = cause.message if isinstance(cause, ApplicationError) else str(cause)
            raise InterruptNotPendingError(message) from failure
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                raise RunClosedError(
                    f"Run {self.id!r} has ended, or never was: nobody waits for an answer."
                ) from error
            raise
        return [str(node) for node in outcome["released"]]

    async def retry(
        self, *, from_node: str | None = None, workflow_id: str | None = None
    ) -> GraphRun[Result]:
        """Start a new run that goes on from where this one failed.

        Visits that completed are taken over from this run's history, not run again, nor are the
        hooks around them; conditions are evaluated anew, and so are the hooks around nested
        graphs and swarms. A visit whose input comes out differently now is run again.

        Args:
            from_node: A node to run again even if it completed, and with it whatever then gets
                other input. A run that completed can be retried only so.
            workflow_id: Id of the new run. Default: this one's id and a random part; in a session
                always the session's.

        Raises:
            InvalidGraphInputError: This run hasn't ended, or has nothing to retry.
        """
        described = await self._handle.describe()
        if described.status is WorkflowExecutionStatus.RUNNING:
            raise InvalidGraphInputError(
                f"Run {self.id!r} hasn't ended; cancel it before you retry it."
            )
        if described.status is WorkflowExecutionStatus.COMPLETED and from_node is None:
            raise InvalidGraphInputError(
                f"Run {self.id!r} completed: say from which node it is to be run again."
            )
        request = await self._request()
        retry_of = wire.RetryOf(workflow_id=self.id, run_id=described.run_id, from_node=from_node)
        if request.session is not None:
            workflow_id = request.session.workflow_id
        handle = await self._client.start_workflow(
            wire.WORKFLOW_TYPE,
            request.model_copy(update={"retry_of": retry_of}).dump(),
            id=workflow_id or f"{self.id}-retry-{uuid.uuid4().hex[:8]}",
            task_queue=described.task_queue,
            memo={"graph": request.graph, "retry_of": self.id},
            static_summary=f"Strands graph {request.graph}, retry of {self.id}",
        )
        return GraphRun(self._client, handle.id, handle.first_execution_run_id)

    async def _request(self) -> wire.GraphInput:
        """Return the input that the run was started with."""
        async for event in self._handle.fetch_history_events(page_size=1):
            return await started_with(event, self._client.data_converter)
        raise AssertionError("a run's history begins with its start")

    async def cancel(self) -> None:
        """Ask for the run's cancellation: nodes in flight are cancelled, then it ends."""
        await self._handle.cancel()

    async def events(self, *, sink: StreamSource | None = None) -> AsyncIterator[dict[str, Any]]:
        """Yield Strands' event dictionaries from the run's beginning to its end.

        Unlike `DurableGraph.stream_async` it raises nothing for a failed run: a watcher gets
        its result event like any other.

        Args:
            sink: The sink that the worker publishes to, for token-level events from now on.

        Yields:
            The dictionaries that `DurableGraph.stream_async` yields.

        Raises:
            DurableStrandsError: The run ended without any result: its input was refused, or it
                was cancelled, terminated or timed out.
        """
        reader = HistoryReader(self._handle, self._client.data_converter)
        if sink is None:
            async for event in reader.events():
                yield event
        else:
            async with listening(sink, self.id) as live:
                reader.live = live
                reader.live_after = (await self._handle.describe()).history_length
                async for event in live.merge(reader.events()):
                    yield event
        if reader.closing is not None and reader.closing.error is not None:
            raise reader.closing.error

    async def is_closed(self) -> bool:
        """Say whether the run has ended, in whatever way."""
        described = await self._handle.describe()
        return described.status is not WorkflowExecutionStatus.RUNNING

    async def _closing(self) -> Closing:
        """Wait for the run's end and return what it says of it."""
        try:
            return Closing(report=wire.RunReport.load(await self._handle.result()))
        except RPCError as error:
            if not has_moved_on(error):
                raise
            return await self._closing()
        except WorkflowFailureError as failure:
            for kind, how in (
                (CancelledError, "cancelled"),
                (TerminatedError, "terminated"),
                (RunTimeoutError, "timed out"),
            ):
                if isinstance(failure.cause, kind):
                    return Closing(error=closed_error(self.id, how))
            return closing_of(failure.cause)


_IN_NODE = "-in-node-"


def _taken_up_again(workflow_id: str) -> dict[str, Any]:
    """Return how to start a run that an earlier attempt of a node may have started."""
    if current.get(None) is None or _IN_NODE not in workflow_id:
        return {}
    return {
        "id_conflict_policy": WorkflowIDConflictPolicy.USE_EXISTING,
        "id_reuse_policy": WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY,
    }


def _node_is_cancelled() -> bool:
    """Say whether the node that calls is cancelled for good, and with it what it waits for.

    Not so if its worker only stops: then another attempt takes the run up again.
    """
    if current.get(None) is None or not activity.in_activity():
        return False
    details = activity.cancellation_details()
    return details is not None and (details.cancel_requested or details.not_found)


def _busy(workflow_id: str) -> SessionBusyError:
    return SessionBusyError(
        f"The session's run {workflow_id!r} hasn't ended. Wait for it, answer what it asks, or "
        "cancel it (attach(workflow_id).cancel()) before you start the next."
    )


def _to_wire(graph: str, task: Any, invocation_state: dict[str, Any]) -> wire.GraphInput:
    """Check a caller's input and return it as it travels.

    Strands' own keys are left out: they are there when this graph is a node of another.
    """
    state = _checked_state(invocation_state)
    try:
        return wire.GraphInput(graph=graph, task=task_to_wire(task), invocation_state=state)
    except ValidationError as error:
        raise InvalidGraphInputError(wire.explain(error)) from error
    except (TypeError, ValueError) as error:
        raise InvalidGraphInputError(str(error)) from error


def _checked_state(invocation_state: dict[str, Any]) -> dict[str, Any]:
    """Return an invocation state as it travels, refusing what can't."""
    if not isinstance(invocation_state, dict):
        raise InvalidGraphInputError(
            f"invocation_state is a {type(invocation_state).__name__}; it must be a dict."
        )
    own = loop_keys(invocation_state)  # Strands', if this graph is a node of another.
    state = {}
    for key, value in invocation_state.items():
        if key in own:
            continue
        if not is_json(value):
            raise InvalidGraphInputError(
                f"invocation_state[{key!r}] is a {type(value).__name__}, which is not JSON and "
                "can't travel to the worker. Pass a plain value that the node can make it from."
            )
        if wire.is_too_deep(value):
            raise InvalidGraphInputError(wire.too_deep(f"invocation_state[{key!r}]"))
        state[key] = value
    return state


def _answers(task: Any) -> dict[str, Any] | None:
    """Return the answers that a task consists of, in Strands' form; None for any other task."""
    if not isinstance(task, list) or not task:
        return None
    if not all(isinstance(block, dict) and "interruptResponse" in block for block in task):
        return None
    answers = {}
    for block in task:
        response = block["interruptResponse"]
        if not isinstance(response, dict) or not {"interruptId", "response"} <= response.keys():
            raise InvalidGraphInputError(
                f"An interruptResponse must have 'interruptId' and 'response', unlike {response!r}."
            )
        answers[response["interruptId"]] = response["response"]
    return answers


def _raise_failure(closing: Closing | None) -> None:
    """Raise what a run's end has to raise, if anything."""
    if closing is None:
        return
    if closing.error is not None:
        raise closing.error
    report = cast(wire.RunReport, closing.report)
    if report.error is None:
        return
    failed = GraphFailedError(
        f"Graph {report.graph!r} failed: {report.reason}", result_from_wire(report)
    )
    error = error_from_wire(report.error)
    if type(error).__name__ == report.error.type:
        raise error from failed
    raise failed
