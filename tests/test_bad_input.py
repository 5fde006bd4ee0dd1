"""Bad input to every surface: refused by name, once, and never a run that hangs."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest
import pytest_asyncio
from strands.agent import AgentResult
from strands.hooks import HookProvider, HookRegistry
from strands.hooks.events import BeforeNodeCallEvent
from strands.multiagent.base import Status
from strands.multiagent.graph import Graph, GraphBuilder, GraphResult, GraphState
from strands.session.file_session_manager import FileSessionManager
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ApplicationError, TerminatedError
from temporalio.worker import Worker

from durable_strands import (
    DurableGraph,
    DurableStrandsError,
    GraphFailedError,
    GraphNotRegisteredError,
    GraphPlugin,
    GraphRegistry,
    GraphRun,
    InterruptNotPendingError,
    InvalidGraphError,
    InvalidGraphInputError,
    NodeOptions,
    PayloadTooLargeError,
    RunClosedError,
    TopologyMismatchError,
    wire,
)
from durable_strands.cli import main

from .case_graphs import ONCE
from .support import (
    Reply,
    Stub,
    agent,
    agent_result,
    build,
    eventually,
    replay,
    scheduled,
    serve,
    worker_for,
)

T = TypeVar("T")

PATIENCE = 30
"""Seconds after which a run counts as stuck in any case. All of these end within one."""

MEGABYTE = 1_000_000


class AskBeforeB(HookProvider):
    """A hook that asks before node b."""

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        registry.add_callback(BeforeNodeCallEvent, self.ask)

    def ask(self, event: BeforeNodeCallEvent) -> None:
        if event.node_id == "b":
            event.interrupt("go on?", reason="it is time")


def hello() -> Graph:
    return build({"a": agent("hello"), "b": agent("world")}, [("a", "b")])


def asks() -> Graph:
    return build(
        {"a": "hello", "b": "world"},
        [("a", "b")],
        configure=lambda builder: builder.set_hook_providers([AskBeforeB()]),
    )


def chooses() -> Graph:
    return build({"a": "hello", "b": "world"}, [("a", "b", lambda state: bool(state.task))])


@pytest_asyncio.fixture
async def queue(client: Client) -> AsyncIterator[str]:
    registry = GraphRegistry()
    registry.add("hello", hello)
    registry.add("asks", asks)
    registry.add("chooses", chooses)
    async with worker_for(client, registry) as queue:
        yield queue


async def start(client: Client, queue: str, *args: Any) -> WorkflowHandle[Any, Any]:
    """Start a run as any client may, with any arguments."""
    return await client.start_workflow(
        wire.WORKFLOW_TYPE, args=args, id=f"bad-{uuid.uuid4()}", task_queue=queue
    )


async def ended(client: Client, handle: WorkflowHandle[Any, Any]) -> Any:
    """Wait for a run's end and return its result or failure; it must not get stuck."""
    try:
        outcome = await settled(client, handle.id, handle.result())
    except WorkflowFailureError as failure:
        outcome = failure.cause
    await clean(client, handle.id)
    return outcome


async def settled(client: Client, workflow_id: str, end: Coroutine[Any, Any, T]) -> T:
    """Await a run's end. A run whose workflow task fails is stuck: that is tried for ever."""
    task = asyncio.create_task(end)
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while asyncio.get_running_loop().time() < deadline:
        await asyncio.wait([task], timeout=0.2)
        if task.done():
            return task.result()
        if await failed_by_worker(client, workflow_id):
            break
    task.cancel()
    await client.get_workflow_handle(workflow_id).terminate()
    raise AssertionError("The run is stuck.")


async def failed_by_worker(client: Client, workflow_id: str) -> int:
    """Return how many workflow tasks of a run its worker failed.

    The server itself fails one, and gives it out again at once, when more than 2 MiB of
    results arrive while it is being worked on (FORCE_CLOSE_COMMAND).
    """
    history = await client.get_workflow_handle(workflow_id).fetch_history()
    return sum(
        event.workflow_task_failed_event_attributes.cause
        != WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
    )


async def clean(client: Client, workflow_id: str) -> None:
    """Check that a run has ended, that no workflow task of it failed, and that it replays."""
    handle = client.get_workflow_handle(workflow_id)
    assert (await handle.describe()).status is not WorkflowExecutionStatus.RUNNING
    assert await failed_by_worker(client, workflow_id) == 0
    await replay(await handle.fetch_history())


async def outcome_of(client: Client, graph: DurableGraph, task: Any = "T") -> tuple[GraphRun, Any]:
    """Run a graph, and return the run with its result or its exception."""
    run = await graph.start(task)
    try:
        outcome: Any = await settled(client, run.id, run.result())
    except AssertionError:
        raise
    except Exception as error:
        outcome = error
    await clean(client, run.id)
    return run, outcome


# -- the workflow's input ----------------------------------------------------------------------

GOOD = {"graph": "hello", "task": "T"}
USAGE = 'The input is one JSON object: {"graph": "<name>", "task": "<text>"}.'


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        pytest.param((), "StrandsGraph takes one argument, not 0.", id="nothing"),
        pytest.param((GOOD, GOOD), "takes one argument, not 2.", id="two inputs"),
        pytest.param(("hello", "T"), "takes one argument, not 2.", id="positional"),
        pytest.param((None,), "The argument is a NoneType.", id="null"),
        pytest.param(("hello",), "The argument is a str.", id="a text"),
        pytest.param((5,), "The argument is a int.", id="a number"),
        pytest.param(([GOOD],), "The argument is a list.", id="a list"),
        pytest.param(({},), "graph: Field required; task: Field required.", id="empty"),
        pytest.param(({"graph": "hello"},), "task: Field required.", id="no task"),
        pytest.param(({"task": "T"},), "graph: Field required.", id="no graph"),
        pytest.param(({**GOOD, "graph": ""},), "graph: String should have", id="empty name"),
        pytest.param(({**GOOD, "graph": None},), "graph: Input should be", id="null name"),
        pytest.param(({**GOOD, "graph": ["hello"]},), "graph: Input should be", id="name list"),
        pytest.param(({**GOOD, "task": None},), "task.str: Input should be", id="null task"),
        pytest.param(({**GOOD, "task": 5},), "task.str: Input should be", id="number task"),
        pytest.param(({**GOOD, "task": {"text": "T"}},), "task.str: Input should", id="a block"),
        pytest.param(({**GOOD, "task": ["T"]},), "Input should be a valid dict", id="texts"),
        pytest.param(({**GOOD, "task": [None]},), "Input should be a valid dict", id="null block"),
        pytest.param(
            ({**GOOD, "invocation_state": None},),
            "invocation_state: Input should be",
            id="null state",
        ),
        pytest.param(
            ({**GOOD, "invocation_state": [{"a": 1}]},),
            "invocation_state: Input should be",
            id="state list",
        ),
    ],
)
async def test_a_wrong_input_is_refused_by_name(
    client: Client, queue: str, args: tuple[Any, ...], problem: str
) -> None:
    failure = await ended(client, await start(client, queue, *args))
    assert isinstance(failure, ApplicationError)
    assert failure.type == wire.ErrorType.INVALID_INPUT
    assert problem in failure.message
    assert failure.message.endswith(USAGE)


async def test_bytes_are_no_json_object(client: Client, queue: str) -> None:
    payload = Payload(metadata={"encoding": b"binary/plain"}, data=b"hello")
    failure = await ended(client, await start(client, queue, RawValue(payload)))
    assert isinstance(failure, ApplicationError)
    assert failure.type == wire.ErrorType.INVALID_INPUT


UNDECODABLE = [
    pytest.param("json/plain", b"{", id="broken JSON"),
    pytest.param("json/plain", b"\xff", id="no UTF-8"),
    pytest.param("x/unknown", b"hello", id="unknown encoding"),
    pytest.param("", b"hello", id="no encoding"),
]


@pytest.mark.parametrize(("encoding", "data"), UNDECODABLE)
async def test_bytes_that_no_converter_decodes_leave_the_run_as_in_any_workflow(
    client: Client, queue: str, encoding: str, data: bytes
) -> None:
    """It waits for a worker that has the right codec, without a result, or for its termination."""
    payload = Payload(metadata={"encoding": encoding.encode()}, data=data)
    handle = await start(client, queue, RawValue(payload))
    await eventually(lambda: failed_by_worker(client, handle.id))
    assert (await handle.describe()).status is WorkflowExecutionStatus.RUNNING
    assert await scheduled(client, handle.id) == []
    await handle.terminate("no codec of ours")
    with pytest.raises(WorkflowFailureError) as ended_by_us:
        await handle.result()
    assert isinstance(ended_by_us.value.cause, TerminatedError)


async def test_fields_of_a_newer_client_are_ignored(client: Client, queue: str) -> None:
    handle = await start(client, queue, {**GOOD, "invented": [{"later": None}]})
    assert (await ended(client, handle))["status"] == "completed"


async def test_an_unknown_graph_is_refused_and_the_known_ones_are_named(
    client: Client, queue: str
) -> None:
    run = await DurableGraph(client, "nonsense", task_queue=queue).start("T")
    with pytest.raises(GraphNotRegisteredError) as refused:
        await settled(client, run.id, run.result())
    assert str(refused.value) == (
        "No graph named 'nonsense' is registered on this worker; it has: 'hello', 'asks', "
        "'chooses'. Register it there, or start the run on the task queue of a worker that has it."
    )
    await clean(client, run.id)


async def test_a_refused_run_does_not_say_that_it_executes(client: Client, queue: str) -> None:
    run = await DurableGraph(client, "nonsense", task_queue=queue).start("T")
    with pytest.raises(GraphNotRegisteredError):
        await run.result()
    report = await run.status()
    assert report.status is wire.RunStatus.FAILED
    assert "nonsense" in (report.reason or "")


# -- the client --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "problem"),
    [
        pytest.param(None, "A task is text or a list of content blocks, not NoneType.", id="none"),
        pytest.param(5, "text or a list of content blocks, not int.", id="number"),
        pytest.param({"text": "T"}, "list of content blocks, not dict.", id="one block"),
        pytest.param(("T",), "list of content blocks, not tuple.", id="tuple"),
        pytest.param(b"T", "list of content blocks, not bytes.", id="bytes"),
        pytest.param(["T"], "A task is text or a list of content blocks", id="texts"),
        pytest.param([{"text": "T"}, None], "A task is text or a list", id="null block"),
        pytest.param(
            [{"text": "T"}, {"text": object()}], "Block 1 of the task can't travel", id="object"
        ),
        pytest.param([{"text": float("nan")}], "Block 0 of the task can't travel", id="nan"),
    ],
)
async def test_a_wrong_task_is_refused_where_it_is_given(
    client: Client, queue: str, task: Any, problem: str
) -> None:
    with pytest.raises(InvalidGraphInputError) as refused:
        await DurableGraph(client, "hello", task_queue=queue).start(task)
    assert problem in str(refused.value)
    assert not await runs(client, queue)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("thing", object()),
        ("when", timedelta(1)),
        ("raw", b"bytes"),
        ("some", {1, 2}),
        ("deep", {"a": [{"b": lambda: None}]}),
        ("number", float("inf")),
    ],
)
async def test_a_state_that_is_no_json_is_refused_by_its_key(
    client: Client, queue: str, key: str, value: Any
) -> None:
    graph = DurableGraph(client, "hello", task_queue=queue)
    with pytest.raises(InvalidGraphInputError, match=rf"invocation_state\['{key}'\] is a"):
        await graph.invoke_async("T", {"fine": 1, key: value})
    assert not await runs(client, queue)


def endless() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    "state",
    [
        pytest.param({"deep": endless()}, id="too deep"),
        pytest.param([1], id="a list"),
    ],
)
async def test_a_hopeless_state_is_refused(client: Client, queue: str, state: Any) -> None:
    with pytest.raises(InvalidGraphInputError, match="invocation_state"):
        await DurableGraph(client, "hello", task_queue=queue).start("T", state)


@pytest.mark.parametrize("name", ["", None, 5])
async def test_a_graph_needs_a_name(client: Client, queue: str, name: Any) -> None:
    with pytest.raises(InvalidGraphInputError, match="graph: "):
        await DurableGraph(client, name, id="x", task_queue=queue).start("T")


async def runs(client: Client, queue: str) -> list[str]:
    return [run.id async for run in client.list_workflows(f"TaskQueue='{queue}'")]


GARBAGE = [
    pytest.param({}, id="empty"),
    pytest.param({"invented": [[[{"a": None}]]]}, id="unknown"),
    pytest.param({"text": {"a": [{"b": None}]}}, id="nested garbage"),
    pytest.param({"image": None}, id="no image"),
    pytest.param(
        {"image": {"source": {"bytes": {wire.BYTES_MARK: True, "data": "%"}}}}, id="broken base64"
    ),
    pytest.param({"image": {"source": {"bytes": {wire.BYTES_MARK: True}}}}, id="no base64"),
]


@pytest.mark.parametrize("block", GARBAGE)
@pytest.mark.parametrize("graph", ["hello", "chooses"])
async def test_garbage_inside_a_block_is_for_the_model_to_judge(
    client: Client, queue: str, graph: str, block: Any
) -> None:
    """It reaches the node, or fails there; the run ends either way."""
    handle = await start(client, queue, {"graph": graph, "task": [block]})
    outcome = await ended(client, handle)
    if isinstance(outcome, ApplicationError):
        assert outcome.type == wire.ErrorType.GRAPH_FAILED
    else:
        assert outcome["status"] == "completed"


async def test_attaching_to_nothing_says_so(client: Client, queue: str) -> None:
    run = DurableGraph(client, "hello", task_queue=queue).attach("no-such-run")
    with pytest.raises(RunClosedError, match="no-such-run"):
        await run.respond({"x": 1})


# -- signals, updates, queries -----------------------------------------------------------------


@pytest_asyncio.fixture
async def asking(client: Client, queue: str) -> AsyncIterator[GraphRun]:
    """A run that waits for a human, and that must come to a good end whatever it was sent."""
    run = await DurableGraph(client, "asks", task_queue=queue).start("T")
    async for event in run.events():
        if event["type"] == "multiagent_node_interrupt":
            break
    yield run
    [question] = await run.interrupts()
    assert await run.respond({question.id: "yes"}) == ["b"]
    result = await settled(client, run.id, run.result())
    assert result.status is Status.COMPLETED
    await clean(client, run.id)


ARGUMENTS = [
    pytest.param([], id="none"),
    pytest.param([None], id="null"),
    pytest.param([5], id="a number"),
    pytest.param(["yes"], id="a text"),
    pytest.param([[]], id="a list"),
    pytest.param([{}], id="empty"),
    pytest.param([{"nobody": "yes"}], id="unknown id"),
    pytest.param([{"b#1:x": "yes"}, None], id="null state"),
    pytest.param([{"b#1:x": "yes"}, [1]], id="state list"),
    pytest.param([{}, {}, {}], id="three"),
    pytest.param([[[[{"a": [None]}]]]], id="nested garbage"),
    pytest.param(
        [RawValue(Payload(metadata={"encoding": b"json/plain"}, data=b"{"))], id="broken JSON"
    ),
    pytest.param([RawValue(Payload(data=b"?"))], id="no encoding"),
]


@pytest.mark.parametrize("args", ARGUMENTS)
@pytest.mark.parametrize("name", ["respond", "nonsense"])
async def test_a_signal_of_any_name_and_arity_does_no_harm(
    client: Client, asking: GraphRun, name: str, args: list[Any]
) -> None:
    await client.get_workflow_handle(asking.id).signal(name, args=args)
    assert (await asking.status()).status is wire.RunStatus.INTERRUPTED


@pytest.mark.parametrize("args", ARGUMENTS)
async def test_a_malformed_answer_is_refused_and_leaves_no_trace(
    client: Client, asking: GraphRun, args: list[Any]
) -> None:
    handle = client.get_workflow_handle(asking.id)
    before = (await handle.describe()).history_length
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await asyncio.wait_for(handle.execute_update("respond", args=args), PATIENCE)
    assert str(refused.value.cause)
    assert (await handle.describe()).history_length == before


async def test_an_unknown_answer_names_the_pending_ones(asking: GraphRun) -> None:
    [question] = await asking.interrupts()
    with pytest.raises(InterruptNotPendingError) as refused:
        await asking.respond({"nobody": 1})
    assert str(refused.value) == f"There is no interrupt 'nobody'; pending: {question.id!r}."
    with pytest.raises(InterruptNotPendingError, match="isn't empty"):
        await asking.respond({})


async def test_an_answer_that_is_no_json_is_refused_by_its_id(asking: GraphRun) -> None:
    [question] = await asking.interrupts()
    with pytest.raises(InvalidGraphInputError, match=r"The response to 'b#1:.*' is a object"):
        await asking.respond({question.id: object()})
    with pytest.raises(InvalidGraphInputError, match=r"invocation_state\['x'\]"):
        await asking.respond({question.id: 1}, {"x": object()})


async def test_an_unknown_update_is_refused(client: Client, asking: GraphRun) -> None:
    handle = client.get_workflow_handle(asking.id)
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await asyncio.wait_for(handle.execute_update("nonsense", args=[1, 2]), PATIENCE)
    assert "nonsense" in str(refused.value.cause)


@pytest.mark.parametrize("args", ARGUMENTS)
async def test_a_query_with_extra_arguments_is_answered(
    client: Client, asking: GraphRun, args: list[Any]
) -> None:
    handle = client.get_workflow_handle(asking.id)
    if args and isinstance(args[0], RawValue):
        with pytest.raises(WorkflowQueryFailedError, match="Failed decoding arguments"):
            await handle.query(wire.STATUS_QUERY, args=args)
    else:
        assert (await handle.query(wire.STATUS_QUERY, args=args))["status"] == "interrupted"


@pytest.mark.parametrize("args", [[], [None], [1, 2]])
async def test_an_unknown_query_is_refused_by_name(
    client: Client, asking: GraphRun, args: list[Any]
) -> None:
    with pytest.raises(WorkflowQueryFailedError, match="nonsense"):
        await client.get_workflow_handle(asking.id).query("nonsense", args=args)


# -- the registry ------------------------------------------------------------------------------


class Hooks(HookProvider):
    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None: ...


def with_session(directory: Path) -> Graph:
    return build(
        {"a": "hello"},
        configure=lambda builder: builder.set_session_manager(
            FileSessionManager("s", storage_dir=str(directory))
        ),
    )


def two_edges() -> Graph:
    def condition(wanted: object) -> Callable[[GraphState], bool]:
        return lambda state: state.task is wanted

    return build(
        {"a": "hello", "b": "world"},
        [("a", "b", condition(object())), ("a", "b", condition(object()))],
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"nodes": {"c": NodeOptions()}}, "'c', which is no node of it; it has: a, b"),
        ({"nodes": {"a/b": NodeOptions()}}, "'a/b', which is no node of it"),
        ({"nodes": {"a": {"timeout": 5}}}, "the options of 'a' must be a NodeOptions, not dict"),
        ({"defaults": {"timeout": 5}}, "the options of 'defaults' must be a NodeOptions, not dict"),
        ({"join": "or"}, "join must be one of all, any, not 'or'"),
        ({"join": None}, "join must be one of all, any, not None"),
        ({"semantics": "graph"}, "semantics must be one of dataflow, strands, not 'graph'"),
        ({"on_failure": "ignore"}, "on_failure must be one of fail_fast, prune, not 'ignore'"),
        ({"max_concurrency": 0}, "max_concurrency must be a number from 1, or None, not 0"),
        ({"max_concurrency": -1}, "max_concurrency must be a number from 1"),
        ({"max_concurrency": True}, "max_concurrency must be a number from 1"),
        ({"max_concurrency": 1.5}, "max_concurrency must be a number from 1"),
        ({"max_concurrency": "2"}, "max_concurrency must be a number from 1"),
        ({"semantics": "strands", "join": "any"}, 'join "any" has no meaning with semantics'),
        (
            {"semantics": "strands", "nodes": {"b": NodeOptions(join="any")}},
            'join "any" has no meaning with semantics',
        ),
        (
            {"semantics": "strands", "defaults": NodeOptions(join="any")},
            'join "any" has no meaning with semantics',
        ),
        ({"nodes": {"a": NodeOptions(join="or")}}, "a: join must be one of"),  # type: ignore[arg-type]
        (
            {"defaults": NodeOptions(timeout=timedelta(0))},
            "defaults: timeout must be a timedelta above 0",
        ),
        (
            {"nodes": {"a": NodeOptions(timeout=5)}},  # type: ignore[arg-type]
            "a: timeout must be a timedelta above 0 and below ten years, not 5",
        ),
        (
            {"nodes": {"b": NodeOptions(heartbeat_timeout=timedelta(-1))}},
            "b: heartbeat_timeout must be a timedelta above 0",
        ),
        ({"nodes": {"a": NodeOptions(retry=3)}}, "a: retry must be a temporalio RetryPolicy"),  # type: ignore[arg-type]
        (
            {"nodes": {"a": NodeOptions(task_queue="")}},
            "a: task_queue must be a text of 1 to 1000 bytes, not ''",
        ),
        ({"nodes": {"a": NodeOptions(on_revisit="drop")}}, "a: on_revisit must be one of"),  # type: ignore[arg-type]
        *(
            pytest.param({"nodes": {"a": options}}, f"a: {option}")
            for option, options in [
                ("retry", NodeOptions(retry=RetryPolicy(backoff_coefficient=0.5))),
                ("retry", NodeOptions(retry=RetryPolicy(maximum_attempts=-1))),
                ("retry", NodeOptions(retry=RetryPolicy(initial_interval=timedelta(-1)))),
                ("retry", NodeOptions(retry=RetryPolicy(maximum_interval=timedelta(seconds=0.5)))),
                ("timeout", NodeOptions(timeout=timedelta.max)),
                ("heartbeat_timeout", NodeOptions(heartbeat_timeout=timedelta.max)),
                ("task_queue", NodeOptions(task_queue="q" * 1200)),
                ("summary", NodeOptions(summary="s" * 3 * MEGABYTE)),
            ]
        ),
        *(
            pytest.param({"nodes": {"a": options}}, f"a: {option}")
            for option, options in [
                ("task_queue", NodeOptions(task_queue=5)),  # type: ignore[arg-type]
                ("summary", NodeOptions(summary=5)),  # type: ignore[arg-type]
                ("retry", NodeOptions(retry=RetryPolicy(non_retryable_error_types=[5]))),  # type: ignore[list-item]
            ]
        ),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, Any], problem: str) -> None:
    registry = GraphRegistry()
    with pytest.raises(InvalidGraphError) as refused:
        registry.add("hello", hello, **options)
    assert str(refused.value).startswith("Graph 'hello': ")
    assert problem in str(refused.value)
    assert registry.names == []


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "must be a text that isn't empty, not ''"),
        ("  ", "must be a text that isn't empty"),
        (None, "must be a text that isn't empty, not None"),
        (7, "must be a text that isn't empty, not 7"),
        ("durable_strands.mine", "starts with 'durable_strands.', which is kept"),
        pytest.param("n" * 1200, "too long", id="too long"),
        pytest.param("n\ud83d", "Unicode", id="no Unicode"),
    ],
)
def test_a_wrong_name_is_refused(name: Any, problem: str) -> None:
    with pytest.raises(InvalidGraphError) as refused:
        GraphRegistry().add(name, hello)
    assert problem in str(refused.value)


def test_a_name_is_taken_once() -> None:
    registry = GraphRegistry()
    registry.add("hello", hello)
    with pytest.raises(InvalidGraphError, match="A graph named 'hello' is registered already"):
        registry.graph("hello")(hello)


def test_what_a_graph_cannot_have_is_refused(tmp_path: Path) -> None:
    registry = GraphRegistry()
    with pytest.raises(InvalidGraphError, match="has a session manager"):
        registry.add("graph", lambda: with_session(tmp_path))
    with pytest.raises(InvalidGraphError, match="has a node whose id is empty"):
        registry.add("graph", lambda: build({"": "hello"}))
    with pytest.raises(InvalidGraphError, match="two edges a -> b whose conditions"):
        registry.add("graph", two_edges)


@pytest.mark.parametrize(
    "node",
    [
        pytest.param("n" * 1200, id="too long"),
        pytest.param("n\ud83d", id="no Unicode"),
    ],
)
def test_a_node_id_that_temporal_cannot_take_is_refused(node: str) -> None:
    with pytest.raises(InvalidGraphError, match="node"):
        GraphRegistry().add("graph", lambda: build({node: "hello"}))


@pytest.mark.parametrize(
    "limit", [GraphBuilder.set_max_node_executions, GraphBuilder.set_execution_timeout]
)
def test_a_limit_that_is_no_number_is_refused(limit: Callable[..., Any]) -> None:
    with pytest.raises(InvalidGraphError, match="'graph'"):
        GraphRegistry().add(
            "graph", lambda: build({"a": "x"}, configure=lambda builder: limit(builder, "x"))
        )


@pytest.mark.parametrize("made", [None, "graph", GraphBuilder(), agent("hello")])
def test_a_factory_must_return_a_built_graph(made: Any) -> None:
    with pytest.raises(InvalidGraphError) as refused:
        GraphRegistry().add("graph", lambda: made)
    assert f"returned a {type(made).__name__}; it must return a built" in str(refused.value)


def test_a_graph_is_no_factory() -> None:
    with pytest.raises(InvalidGraphError, match="hello"):
        GraphRegistry().add("hello", hello())  # type: ignore[arg-type]


def test_a_plugin_needs_a_registry_not_a_graph() -> None:
    with pytest.raises(TypeError, match="registry must be a GraphRegistry, not Graph"):
        GraphPlugin(hello())  # type: ignore[arg-type]


# -- the command -------------------------------------------------------------------------------


async def command(
    capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int | str | None, str]:
    """Run the command, and return its exit status and what it said on standard error."""
    try:
        status: int | str | None = await asyncio.to_thread(main, arguments)
    except SystemExit as left:
        status = left.code
    return status, capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("tests.case_graphs", "Write MODULE:NAME, for example mypackage.graphs:registry."),
        (":registry", "':registry' doesn't name a registry"),
        ("tests.case_graphs:", "'tests.case_graphs:' doesn't name a registry"),
        ("no_such_module:registry", "There is no module 'no_such_module'"),
        ("tests.no_such_module:registry", "There is no module 'tests.no_such_module'"),
        ("tests.case_graphs:nothing", "tests.case_graphs:nothing is missing; it must be a"),
        ("tests.case_graphs:QUICK", "is a NodeOptions; it must be a durable_strands.GraphRegistry"),
        ("tests.case_graphs:registry.names", "is a list; it must be a"),
    ],
)
@pytest.mark.parametrize("name", ["worker", "graphs"])
async def test_a_wrong_target_is_named(
    capsys: pytest.CaptureFixture[str], name: str, target: str, problem: str
) -> None:
    status, said = await command(capsys, name, target)
    assert status == 1
    assert problem in said
    assert "Traceback" not in said


async def test_a_module_that_lacks_another_is_not_called_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "absent_graphs.py").write_text("import absent\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'absent'"):
        await command(capsys, "graphs", "absent_graphs:registry")


async def test_an_unknown_graph_of_a_registry_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    status, said = await command(capsys, "graphs", "tests.case_graphs:registry", "nonsense")
    assert status == 1
    assert "No graph named 'nonsense' is registered on this worker; it has: " in said


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--task", "T", "--state", "{"], "--state is not JSON: "),
        (["--task", "T", "--state", "[1]"], "--state must be a JSON object, not [1]"),
        (["--task", "T", "--state", "null"], "--state must be a JSON object, not null"),
        (["--task-file", "/no/such/file"], "No such file or directory: '/no/such/file'"),
    ],
)
async def test_a_wrong_start_is_explained(
    client: Client,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    problem: str,
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", client.service_client.config.target_host)
    queue = f"test-{uuid.uuid4()}"
    status, said = await command(capsys, "start", "hello", "--task-queue", queue, *arguments)
    assert status == 1
    assert problem in said
    assert "Traceback" not in said
    assert not await runs(client, queue)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "the following arguments are required"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["start", "hello"], "one of the arguments --task --task-file is required"),
        (["start", "hello", "--task", "T", "--task-file", "f"], "not allowed with argument --task"),
        (["start", "--task", "T"], "required: graph"),
        (["worker"], "required: MODULE:REGISTRY"),
        (["worker", "m:r", "--max-concurrent-activities", "0"], "must be a number from 1"),
        (["worker", "m:r", "--max-concurrent-activities", "x"], "must be a number from 1"),
        (
            ["worker", "m:r", "--drain", "soon"],
            "argument --drain: must be a number of seconds from 0, not 'soon'",
        ),
        (["worker", "m:r", "--drain", "nan"], "must be a number of seconds from 0"),
        (["worker", "m:r", "--drain", "-1"], "must be a number of seconds from 0"),
        (["show"], "required: ID"),
    ],
)
async def test_wrong_usage_is_explained(
    capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    status, said = await command(capsys, *arguments)
    assert status == 2
    assert problem in said
    assert said.startswith("usage: durable-strands")


async def test_an_unknown_run_is_named(
    client: Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", client.service_client.config.target_host)
    for watch in ([], ["--watch"]):
        status, said = await command(capsys, "show", "no-such-run", *watch)
        assert status == 1
        assert "There is no run 'no-such-run' in this namespace." in said


async def test_a_server_that_is_not_there_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "localhost:1")
    status, said = await command(capsys, "show", "a-run")
    assert status == 1
    assert "No Temporal server answers at localhost:1" in said
    assert "Set TEMPORAL_ADDRESS, or start one with `temporal server start-dev`." in said


async def test_an_unknown_graph_fails_the_start_that_waits(
    client: Client, queue: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", client.service_client.config.target_host)
    status, said = await command(
        capsys, "start", "nonsense", "--task", "T", "--wait", "--task-queue", queue
    )
    assert status == 1
    assert "No graph named 'nonsense' is registered on this worker" in said


# -- sizes -------------------------------------------------------------------------------------

REMEDY = "Configure external storage on the client's data converter"


class Counting(Stub):
    """A stub that counts its executions, in this process."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self.times = 0

    async def invoke_async(self, prompt: Any = None, **kwargs: Any) -> AgentResult:
        self.times += 1
        return await super().invoke_async(prompt, **kwargs)


async def test_a_result_that_is_too_large_fails_once(client: Client) -> None:
    big = Counting("x" * 3 * MEGABYTE)
    async with serve(client, lambda: build({"a": big, "b": "after"}, [("a", "b")])) as graph:
        run, error = await outcome_of(client, graph)
        assert type(error) is PayloadTooLargeError
        assert str(error).startswith("the result of node 'a' has ")
        assert REMEDY in str(error)
        assert isinstance(error.__cause__, GraphFailedError)
        assert big.times == 1
        assert await scheduled(client, run.id) == ["graph.a"]


async def test_an_input_that_is_too_large_fails_its_node_once(client: Client) -> None:
    """Each of three results can travel; what a join would get of them can't."""
    nodes = dict.fromkeys("abc", "x" * 900_000)
    edges = [(name, "j") for name in "abc"]
    async with serve(client, lambda: build({**nodes, "j": "joined"}, edges)) as graph:
        run, error = await outcome_of(client, graph)
        assert type(error) is PayloadTooLargeError
        assert str(error).startswith("the input of node 'j' has ")
        assert REMEDY in str(error)
        assert sorted(await scheduled(client, run.id)) == ["graph.a", "graph.b", "graph.c"]
        assert isinstance(error.__cause__, GraphFailedError)
        partial = error.__cause__.result
        assert isinstance(partial, GraphResult)
        assert sorted(node.node_id for node in partial.execution_order) == ["a", "b", "c"]


async def test_a_fan_out_of_large_inputs_is_spread_over_workflow_tasks(client: Client) -> None:
    """Ten times 500 kB in one workflow task would be more than gRPC takes."""
    targets = [f"n{number}" for number in range(10)]
    nodes = {"s": "x" * 500_000, **{target: lambda prompt: str(len(prompt)) for target in targets}}
    edges = [("s", target) for target in targets]
    async with serve(client, lambda: build(nodes, edges)) as graph:
        run, result = await outcome_of(client, graph)
        assert result.status is Status.COMPLETED
        assert len(result.execution_order) == 11
        assert {int(str(result.results[target])) for target in targets} == {500_064}
        assert (await run.status()).status is wire.RunStatus.COMPLETED


async def test_a_run_with_many_large_results_tells_how_it_stands(client: Client) -> None:
    nodes = dict.fromkeys([f"n{number}" for number in range(10)], "x" * 500_000)
    async with serve(client, lambda: build(nodes)) as graph:
        run, result = await outcome_of(client, graph)
        assert result.status is Status.COMPLETED
        report = await run.status()
        assert report.status is wire.RunStatus.COMPLETED
        assert set(report.nodes) == set(nodes)


async def test_a_task_that_is_too_large_is_refused_where_it_is_given(client: Client) -> None:
    async with serve(client, hello) as graph:
        with pytest.raises(PayloadTooLargeError, match="task"):
            await graph.start("x" * 3 * MEGABYTE)


def raising(size: int) -> Callable[[Any], Any]:
    def fails(_: Any) -> Any:
        raise RuntimeError("x" * size)

    return fails


def write(invocation_state: dict[str, Any] | None) -> None:
    assert invocation_state is not None
    invocation_state["big"] = "x" * 3 * MEGABYTE


def writing(state: GraphState, *, invocation_state: dict[str, Any]) -> bool:
    write(invocation_state)
    return True


class BeforeNode(HookProvider):
    """Does something before each node."""

    def __init__(self, do: Callable[[BeforeNodeCallEvent], Any]) -> None:
        self.do = do

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        registry.add_callback(BeforeNodeCallEvent, self.call)

    def call(self, event: BeforeNodeCallEvent) -> None:
        self.do(event)


class Writing(Stub):
    async def invoke_async(self, prompt: Any = None, **kwargs: Any) -> AgentResult:
        write(kwargs["invocation_state"])
        return agent_result("written")


def under_condition(condition: Callable[..., Any]) -> Graph:
    return build({"a": "hello", "b": "world"}, [("a", "b", condition)])


def under_hook(do: Callable[[BeforeNodeCallEvent], Any]) -> Graph:
    return build(
        {"a": "hello"}, configure=lambda builder: builder.set_hook_providers([BeforeNode(do)])
    )


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        pytest.param(lambda: build({"a": Writing("")}), "the result of node 'a'", id="node writes"),
        pytest.param(
            lambda: build({"a": raising(3 * MEGABYTE)}),
            "RuntimeError: xxx",
            id="node raises 3 MB",
        ),
        pytest.param(
            lambda: build({"a": raising(MEGABYTE)}),
            "RuntimeError: xxx",
            id="node raises 1 MB",
        ),
        pytest.param(
            lambda: under_condition(raising(3 * MEGABYTE)),
            "RuntimeError: xxx",
            id="condition raises 3 MB",
        ),
        pytest.param(
            lambda: under_condition(raising(MEGABYTE)),
            "RuntimeError: xxx",
            id="condition raises 1 MB",
        ),
        pytest.param(lambda: under_condition(writing), "a -> b", id="condition writes"),
        pytest.param(
            lambda: under_hook(raising(3 * MEGABYTE)),
            "RuntimeError: xxx",
            id="hook raises",
        ),
        pytest.param(
            lambda: under_hook(lambda event: write(event.invocation_state)),
            "hook",
            id="hook writes",
        ),
        pytest.param(
            lambda: under_hook(
                lambda event: event.interrupt("read this", reason="x" * 3 * MEGABYTE)
            ),
            "what a hook of before_node asks",
            id="hook asks",
        ),
    ],
)
async def test_nothing_large_gets_a_run_stuck(
    client: Client, factory: Callable[[], Graph], reason: str
) -> None:
    quick = NodeOptions(heartbeat_timeout=timedelta(seconds=1), retry=ONCE)
    async with serve(client, factory, defaults=quick) as graph:
        run, error = await outcome_of(client, graph)
        assert isinstance(error, Exception)
        assert len(str(error)) < 2 * MEGABYTE
        report = await run.status()
        assert report.status is wire.RunStatus.FAILED
        assert reason in (report.reason or "")


async def test_a_plan_that_is_too_large_is_refused(client: Client) -> None:
    names = [f"{number:04}".ljust(900, "x") for number in range(1300)]

    async def register_and_run() -> None:
        factory = partial(build, dict.fromkeys(names, "x"), list(pairwise(names)))
        async with serve(client, factory) as graph:
            _, outcome = await outcome_of(client, graph)
            assert isinstance(outcome, Exception)
            raise outcome

    with pytest.raises(DurableStrandsError, match="plan"):
        await register_and_run()


# -- texts that are no Unicode, exceptions that are no errors ----------------------------------


@pytest.fixture
def silent() -> Iterator[None]:
    """Log nothing: pytest-xdist can't transmit such texts."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def half_a_character(_: Any) -> Any:
    raise RuntimeError("a broken \ud83d emoji")


async def test_a_node_may_raise_a_text_that_is_no_unicode(client: Client, silent: None) -> None:
    node = Counting(half_a_character)
    async with serve(client, lambda: build({"a": node})) as graph:
        _, error = await outcome_of(client, graph)
        assert isinstance(error, RuntimeError)
        assert "a broken" in str(error)
        assert isinstance(error.__cause__, GraphFailedError)
        assert node.times == 3  # A RuntimeError may heal.


async def test_a_condition_may_raise_a_text_that_is_no_unicode(
    client: Client, silent: None
) -> None:
    async with serve(client, lambda: under_condition(half_a_character)) as graph:
        _, error = await outcome_of(client, graph)
        assert isinstance(error, RuntimeError)
        assert "a broken" in str(error)
        assert isinstance(error.__cause__, GraphFailedError)


async def test_an_answer_may_be_no_unicode(client: Client, silent: None) -> None:
    async with serve(client, lambda: build({"a": "\ud83d", "b": "fine"}, [("a", "b")])) as graph:
        _, result = await outcome_of(client, graph)
        assert result.status is Status.COMPLETED


asked: list[str] = []


async def cancels_its_own_task(state: GraphState) -> bool:
    asked.append("once")
    task = asyncio.create_task(asyncio.sleep(10))
    task.cancel()
    await task
    return True


async def test_a_condition_that_ends_in_a_cancellation_fails_the_graph(client: Client) -> None:
    asked.clear()
    async with serve(client, lambda: under_condition(cancels_its_own_task)) as graph:
        run, error = await outcome_of(client, graph)
        assert isinstance(error, GraphFailedError)
        assert "the condition of edge a -> b raised CancelledError" in str(error)
        assert asked == ["once"]
        assert (await run.status()).status is wire.RunStatus.FAILED


async def test_a_graph_that_the_worker_lost_is_a_topology_error(client: Client) -> None:
    """Its nodes have workers of their own; the run's worker is replaced by one without it."""
    begun, go = asyncio.Event(), asyncio.Event()

    async def first(_: str) -> str:
        begun.set()
        await go.wait()
        return "done"

    known, unknown = GraphRegistry(), GraphRegistry()
    unknown.add("another", hello)
    queue = f"test-{uuid.uuid4()}"

    def worker(task_queue: str, registry: GraphRegistry) -> Worker:
        return Worker(client, task_queue=task_queue, plugins=[GraphPlugin(registry)])

    known.add(
        "lost",
        lambda: build({"a": first, "b": "world"}, [("a", "b", lambda state: True)]),
        defaults=NodeOptions(task_queue=f"{queue}-nodes"),
    )
    async with worker(f"{queue}-nodes", known):
        async with worker(queue, known):
            run = await DurableGraph(client, "lost", task_queue=queue).start("T")
            await begun.wait()
        async with worker(queue, unknown):
            go.set()
            with pytest.raises(TopologyMismatchError, match="lost") as lost:
                await settled(client, run.id, run.result())
            report = await run.status()
    await clean(client, run.id)
    assert isinstance(lost.value.__cause__, GraphFailedError)
    assert report.status is wire.RunStatus.FAILED
    assert report.execution_order == ["a"]
