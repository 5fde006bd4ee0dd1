"""A graph as a child of a user's own workflow."""

from __future__ import annotations

import asyncio
import re
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from strands.multiagent.base import Status
from strands.multiagent.graph import Graph, GraphBuilder
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.service import RPCError
from temporalio.worker import Replayer, Worker

from durable_strands import DurableGraph, GraphPlugin, GraphRegistry, human_gate

from . import child_workflows
from .child_workflows import WORKFLOWS, Answering, Catching, Leaving, Misusing, Plain, Several, Wide
from .restart import ROOT
from .support import asked_by, build, eventually, failed_tasks


def echo() -> Graph:
    return build({"a": lambda prompt: f"a of {prompt}", "b": "b"}, [("a", "b")])


def broken() -> Graph:
    def fail(prompt: str) -> str:
        raise ValueError("b is broken")

    return build({"a": "a", "b": fail}, [("a", "b")])


def big() -> Graph:
    """Fail with a report that is nearly as large as a payload may be."""

    def fail(prompt: str) -> str:
        raise ValueError("b is broken")

    return build({"a": lambda _: "x" * 900_000, "b": fail}, [("a", "b")])


def gated() -> Graph:
    builder = GraphBuilder()
    builder.add_node(human_gate("Go?"), "gate")
    builder.set_max_node_executions(1)
    return builder.build()


async def for_ever(prompt: str) -> str:
    await asyncio.sleep(60)
    return "late"


REGISTRY = GraphRegistry()
REGISTRY.add("echo", echo)
REGISTRY.add("brief", lambda: build({"a": "short"}))
REGISTRY.add("broken", broken)
REGISTRY.add("big", big)
REGISTRY.add("slow", lambda: build({"slow": for_ever}))
REGISTRY.add("gated", gated)


class Parent:
    """A worker's queue, on which there are the workflows and the graphs."""

    def __init__(self, client: Client, queue: str) -> None:
        self.client = client
        self.queue = queue

    async def start(self, run: Any, *args: Any) -> WorkflowHandle[Any, Any]:
        return await self.client.start_workflow(
            run, args=args, id=f"parent-{uuid.uuid4()}", task_queue=self.queue
        )

    async def execute(self, run: Any, *args: Any) -> Any:
        return await (await self.start(run, *args)).result()

    def child(self, parent: WorkflowHandle[Any, Any], graph: str) -> Any:
        return DurableGraph(self.client, graph).attach(f"{parent.id}/{graph}")


@asynccontextmanager
async def parents(client: Client) -> AsyncIterator[Parent]:
    """Serve workflows and graphs on one worker; replay all that has run, and count its failures."""
    queue = f"test-{uuid.uuid4()}"
    plugin = GraphPlugin(REGISTRY)
    async with Worker(client, task_queue=queue, workflows=WORKFLOWS, plugins=[plugin]):
        yield Parent(client, queue)
        await replay_all(client, queue)


async def replay_all(client: Client, queue: str) -> None:
    replayed = 0
    async for execution in client.list_workflows(f"TaskQueue='{queue}'"):
        assert await failed_tasks(client, execution.id) == 0
        handle = client.get_workflow_handle(execution.id, run_id=execution.run_id)
        replayer = Replayer(workflows=WORKFLOWS, plugins=[GraphPlugin()])
        await replayer.replay_workflow(await handle.fetch_history())
        replayed += 1
    assert replayed > 0


async def test_a_workflow_runs_a_graph(client: Client) -> None:
    async with parents(client) as parent:
        handle = await parent.start(Plain.run, "echo", {"task": "hello"})
        result = await handle.result()
        assert result == {"texts": {"a": "a of hello\n", "b": "b\n"}, "strands": []}
        child = parent.child(handle, "echo")
        assert (await child.result()).status is Status.COMPLETED
        described = await client.get_workflow_handle(child.id).describe()
        assert await described.memo() == {"graph": "echo"}


async def test_content_blocks_and_state_reach_the_graph(client: Client) -> None:
    async with parents(client) as parent:
        image = {"image": {"format": "png", "source": {"bytes": {}}}}
        options = {"task": [{"text": "look"}, image], "invocation_state": {"k": [1]}, "id": None}
        handle = await parent.start(Plain.run, "echo", options)
        assert (await handle.result())["texts"]["a"] == "a of look\n"
        report = await parent.child(handle, "echo").status()
        assert report.invocation_state == {"k": [1]}


async def test_ids_count_up(client: Client) -> None:
    async with parents(client) as parent:
        handle = await parent.start(Several.run, "echo")
        *texts, last = await handle.result()
        assert texts == [f"a of T{number}\n" for number in range(4)]
        assert last == f"{handle.id}/echo-4"


async def test_large_tasks_side_by_side(client: Client) -> None:
    async with parents(client) as parent:
        assert await parent.execute(Wide.run, "brief") == 5 * len("short\n")


async def test_a_graph_that_fails_is_an_error_with_its_report(client: Client) -> None:
    async with parents(client) as parent:
        handle = await parent.start(Catching.run, "broken")
        assert await handle.result() == {
            "type": "GraphFailed",
            "message": "Graph 'broken' failed: node 'b' raised ValueError: b is broken",
            "id": f"{handle.id}/broken",
            "results": ["a", "b"],
            "failed_node": "b",
        }
        unknown = await parent.execute(Catching.run, "nowhere")
        assert unknown["type"] == "GraphNotRegistered"
        assert unknown["results"] is None


@pytest.mark.parametrize("graph", ["broken", "big"])
async def test_a_failure_that_nobody_catches_fails_the_workflow(client: Client, graph: str) -> None:
    async with parents(client) as parent:
        with pytest.raises(WorkflowFailureError) as failure:
            await parent.execute(Plain.run, graph, {})
        cause = failure.value.cause
        assert isinstance(cause, ApplicationError)
        assert cause.type == "GraphFailed"
        assert cause.message == f"Graph {graph!r} failed: node 'b' raised ValueError: b is broken"


async def test_a_question_is_answered_from_outside(client: Client) -> None:
    async with parents(client) as parent:
        handle = await parent.start(Answering.run, "gated")
        run = parent.child(handle, "gated")
        await eventually(lambda: begun(client, run.id))
        ids = await asked_by(run, "gate")
        assert await run.respond({ids["gate"]: "yes"}, {"by": "Ada"}) == ["gate"]
        assert await handle.result() == {"text": "yes\n", "state": {"by": "Ada"}}


async def begun(client: Client, workflow_id: str) -> bool:
    try:
        await client.get_workflow_handle(workflow_id).describe()
    except RPCError:
        return False
    return True


async def test_a_question_is_answered_by_the_parent(client: Client) -> None:
    async with parents(client) as parent:
        handle = await parent.start(Answering.run, "gated")
        run = parent.child(handle, "gated")
        await eventually(lambda: begun(client, run.id))
        ids = await asked_by(run, "gate")

        async def answer(*args: Any) -> Any:
            return await handle.execute_update(Answering.answer, args=args)

        assert await answer({}, {}) == "InterruptNotPending"
        assert await answer({"gate#9:human": "yes"}, {}) is None, "nobody tells"
        assert await answer({ids["gate"]: None}, {"by": "Ada"}) is None
        assert await handle.result() == {"text": "null\n", "state": {"by": "Ada"}}


async def test_cancelling_the_parent_cancels_the_graph(client: Client) -> None:
    async with parents(client) as parent:
        handle = await parent.start(Plain.run, "slow", {})
        child = parent.child(handle, "slow")
        await eventually(lambda: begun(client, child.id))
        await handle.cancel()
        with pytest.raises(WorkflowFailureError) as failure:
            await handle.result()
        assert isinstance(failure.value.cause, CancelledError)

        async def cancelled() -> bool:  # The parent may be the first to end.
            described = await client.get_workflow_handle(child.id).describe()
            return described.status is WorkflowExecutionStatus.CANCELED

        await eventually(cancelled)
        assert (await child.status()).nodes["slow"].status == "cancelled"


@pytest.mark.parametrize("what", ["leave", "cancel", "terminate", "again"])
async def test_a_graph_that_is_left_or_ended(client: Client, what: str) -> None:
    async with parents(client) as parent:
        handle = await parent.start(Leaving.run, "slow", what)
        child = client.get_workflow_handle(f"{handle.id}/slow")
        if what == "terminate":
            await eventually(lambda: begun(client, child.id))
            await child.terminate()
            assert await handle.result() == "RunClosed"
            return
        if what == "leave":
            assert await handle.result() == child.id
        else:
            with pytest.raises(WorkflowFailureError) as failure:
                await handle.result()
            if what == "again":
                assert isinstance(failure.value.cause, ApplicationError)
                assert failure.value.cause.type == "InvalidGraphInput"
                assert "is running" in failure.value.cause.message

        async def cancelled() -> bool:
            return (await child.describe()).status is WorkflowExecutionStatus.CANCELED

        await eventually(cancelled)


WRONG = [
    ("no name", "graph: String should have at least 1 character"),
    ("name", "graph: Input should be a valid string"),
    ("task", "text or a list of content blocks, not dict"),
    ("block", "neither JSON nor bytes"),
    ("deep", "neither JSON nor bytes"),
    ("state", r"invocation_state\['key'\] is a set, which is not JSON"),
    ("state key", r"invocation_state\[3\]"),
    ("no state", "invocation_state is a str; it must be a dict"),
    ("size", "more than the 2031616 that one payload may have"),
    ("id", "id must be a text of 1 to 1000 bytes"),
    ("no id", "id must be a text of 1 to 1000 bytes"),
    ("surrogate", "id must be a text of 1 to 1000 bytes"),
    ("surrogate name", "graph: Input should be a valid string"),
    ("default id", "id must be a text of 1 to 1000 bytes"),
    ("queue", "task_queue must be a text of 1 to 1000 bytes"),
    ("timeout", "run_timeout must be a timedelta above 0"),
]


async def test_wrong_input_fails_the_workflow_and_never_its_task(client: Client) -> None:
    async with parents(client) as parent:

        async def misuse(which: str, message: str) -> None:
            with pytest.raises(WorkflowFailureError) as failure:
                await parent.execute(Misusing.run, which)
            cause = failure.value.cause
            assert isinstance(cause, ApplicationError), (which, cause)
            assert cause.type == "InvalidGraphInput", (which, cause)
            assert re.search(message, cause.message), (which, cause)

        await asyncio.gather(*(misuse(*wrong) for wrong in WRONG))


async def test_the_sandbox_never_sees_strands(client: Client) -> None:
    """A worker that has neither our plugin nor strands runs the workflow, and replays it."""
    queue = f"test-{uuid.uuid4()}"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.child_workflows"),
        *(client.service_client.config.target_host, queue),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with parents(client) as parent:
            handle = await client.start_workflow(
                Plain.run,
                args=["echo", {"task_queue": parent.queue}],
                id=f"parent-{uuid.uuid4()}",
                task_queue=queue,
            )
            result = await handle.result()
            assert result == {"texts": {"a": "a of T\n", "b": "b\n"}, "strands": []}
            without_plugin = Replayer(workflows=WORKFLOWS)
            await without_plugin.replay_workflow(await handle.fetch_history())
            assert await failed_tasks(client, handle.id) == 0
        out, _ = await asyncio.wait_for(process.communicate(b""), 20)
        assert out.decode().strip() == "[]"
    finally:
        if process.returncode is None:
            process.kill()


def test_the_module_of_the_workflows_is_what_a_user_writes() -> None:
    assert child_workflows.strands_modules(), "this process has strands, unlike the sandbox"
