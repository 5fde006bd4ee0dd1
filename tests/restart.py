"""Runs our own worker command as a process that a test may kill at a chosen moment.

A run's nodes and its test meet on a `Stage`: a directory whose path travels in the run's
invocation state. Nodes write there what they do, and stand still where the test told them to,
in whatever process they are. So a kill lands where it is meant to, by knowledge, never by
sleeping.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strands.multiagent.graph import GraphResult
from temporalio.api.enums.v1 import EventType, TaskQueueType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    ResetStickyTaskQueueRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError

from durable_strands import DurableGraph, GraphRegistry, GraphRun
from durable_strands.wire import RunReport

from .support import failed_tasks, replay, worker_for

ROOT = Path(__file__).parent.parent
STAGE = "stage"
"""Key of the stage's path in the invocation state."""

_PAUSE = 0.02


async def until(condition: Callable[[], bool], what: str, seconds: float = 30) -> None:
    """Wait for a condition, and say what didn't come if it doesn't."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"{what} did not happen within {seconds} seconds")
        await asyncio.sleep(_PAUSE)


class Stage:
    """Where nodes and test meet. A *visit* is named as its activity is: `"<path>#<visit>"`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._log = directory / "log"

    @classmethod
    def of(cls, invocation_state: Mapping[str, Any] | None) -> Stage | None:
        path = (invocation_state or {}).get(STAGE)
        return None if path is None else cls(Path(path))

    @property
    def state(self) -> dict[str, Any]:
        """The part of an invocation state by which nodes find the stage."""
        return {STAGE: str(self.directory)}

    # -- the nodes' side -----------------------------------------------------------------------

    def note(self, event: str, visit: str, **details: Any) -> None:
        """Append a line to the log; whole lines only, from any number of processes."""
        line = json.dumps({"event": event, "visit": visit, "pid": os.getpid(), **details})
        with self._log.open("a") as log:
            log.write(line + "\n")

    def holds(self, visit: str) -> bool:
        """Say whether the test holds this visit, or whatever else nodes and test agree upon."""
        return self._hold(visit).exists()

    async def stand(self, visit: str) -> None:
        """Stand still as long as the test holds this visit."""
        while self.holds(visit):  # noqa: ASYNC110 - the test may be another process
            await asyncio.sleep(_PAUSE)

    # -- the test's side -----------------------------------------------------------------------

    def hold(self, *visits: str) -> None:
        for visit in visits:
            self._hold(visit).touch()

    def release(self, *visits: str) -> None:
        for visit in visits:
            self._hold(visit).unlink()

    async def reached(self, *visits: str, event: str = "begin", times: int = 1) -> None:
        """Wait until each visit has written an event so many times."""

        def there() -> bool:
            return all(self.counts(event)[visit] >= times for visit in visits)

        await until(there, f"{event} of {visits} ({times} times)")

    def lines(self, event: str) -> list[dict[str, Any]]:
        if not self._log.exists():
            return []
        lines = [json.loads(line) for line in self._log.read_text().splitlines()]
        return [line for line in lines if line["event"] == event]

    def counts(self, event: str) -> Counter[str]:
        return Counter(line["visit"] for line in self.lines(event))

    def _hold(self, visit: str) -> Path:
        return self.directory / f"hold {visit}".replace("/", " in ")


@dataclass
class Outcome:
    """All that a run left behind.

    Attributes:
        result: What the caller got; None if it got an exception.
        error: That exception.
        report: The run's own last report.
        begun: How often each visit began to execute, in whatever process.
        prompts: The prompt of each visit, as text.
        events: What history says of the visits: `"+a#1"` scheduled, `"-a#1"` completed.
    """

    result: GraphResult | None
    error: Exception | None
    report: RunReport
    begun: dict[str, int]
    prompts: dict[str, str]
    events: list[str]

    @property
    def scheduled(self) -> list[str]:
        return [event[1:] for event in self.events if event[0] == "+"]

    @property
    def visits(self) -> dict[str, int]:
        return {node: state.visits for node, state in self.report.nodes.items()}

    @property
    def statuses(self) -> dict[str, str]:
        return {node: state.status.value for node, state in self.report.nodes.items()}


class Case:
    """One run, seen by its test."""

    def __init__(self, client: Client, run: GraphRun, stage: Stage) -> None:
        self.run = run
        self.stage = stage
        self._client = client

    async def recorded(self, *visits: str) -> None:
        """Wait until history has the completions of these visits."""
        events: list[HistoryEvent] = []
        handle = self._client.get_workflow_handle(self.run.id)
        async for event in handle.fetch_history_events(wait_new_event=True):
            events.append(event)
            if {f"-{visit}" for visit in visits} <= set(_visit_events(events)):
                return
        raise AssertionError(f"The run ended without all of {visits}.")

    async def quiet(self) -> None:
        """Wait until no workflow task is under way.

        One that a worker takes to its grave costs ten seconds, whatever the run is.
        """
        handle = self._client.get_workflow_handle(self.run.id)
        while (  # noqa: ASYNC110
            await handle.describe()
        ).raw_description.HasField("pending_workflow_task"):
            await asyncio.sleep(_PAUSE)

    async def has(self, kind: EventType.ValueType) -> None:
        """Wait until history has an event of a kind."""
        handle = self._client.get_workflow_handle(self.run.id)
        async for event in handle.fetch_history_events(wait_new_event=True):
            if event.event_type == kind:
                return
        raise AssertionError(f"The run ended without {EventType.Name(kind)}.")

    async def outcome(self) -> Outcome:
        """Wait for the end. No workflow task may have failed, and the history must replay."""
        result, error = None, None
        try:
            result = await self.run.result()
        except Exception as raised:
            error = raised
        report = await self.run.status()
        assert await failed_tasks(self._client, self.run.id) == 0
        history = await self._client.get_workflow_handle(self.run.id).fetch_history()
        await replay(history)
        begins = self.stage.lines("begin")
        return Outcome(
            result=result,
            error=error,
            report=report,
            begun=dict(self.stage.counts("begin")),
            prompts={line["visit"]: line["prompt"] for line in begins},
            events=_visit_events(history.events),
        )


def _visit_events(history: Sequence[HistoryEvent]) -> list[str]:
    scheduled: dict[int, str] = {}
    events = []
    for event in history:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            visit = event.activity_task_scheduled_event_attributes.activity_id
            scheduled[event.event_id] = visit
            events.append(f"+{visit}")
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            completed = event.activity_task_completed_event_attributes
            events.append(f"-{scheduled[completed.scheduled_event_id]}")
    return events


class Server:
    """Something that serves a registry, and may be killed if it is a process of its own."""

    def __init__(
        self, client: Client, queue: str, directory: Path, *, target: str | None = None
    ) -> None:
        """Refer to a queue.

        Args:
            client: A client of the test's server.
            queue: The task queue.
            directory: Where stages and the workers' output go.
            target: `MODULE:REGISTRY` for the worker command; None if a worker in this process
                serves the queue.
        """
        self.client = client
        self.queue = queue
        self.directory = directory
        self._target = target
        self._process: asyncio.subprocess.Process | None = None
        self._started = 0
        self._runs: list[str] = []

    @property
    def mortal(self) -> bool:
        """Whether `crash` does anything."""
        return self._target is not None

    def graph(self, name: str, **options: Any) -> DurableGraph:
        return DurableGraph(self.client, name, task_queue=self.queue, **options)

    def stage(self, *hold: str) -> Stage:
        """Return a new stage, on which some visits stand still."""
        directory = self.directory / uuid.uuid4().hex
        directory.mkdir()
        stage = Stage(directory)
        stage.hold(*hold)
        return stage

    async def start(
        self,
        graph: str,
        task: Any = "T",
        state: Mapping[str, Any] | None = None,
        *,
        hold: Sequence[str] = (),
    ) -> Case:
        """Start a run of a graph on a stage of its own."""
        stage = self.stage(*hold)
        run = await self.graph(graph).start(task, {**(state or {}), **stage.state})
        self._runs.append(run.id)
        return Case(self.client, run, stage)

    async def crash(self) -> None:
        """Kill the worker and start another. One that lives in this process lives on."""
        if self.mortal:
            await self.kill()
            await self.revive()

    def lost(self, *visits: str) -> tuple[str, ...]:
        """Return the visits of those that ran when the worker crashed, if it could crash."""
        return visits if self.mortal else ()

    async def kill(self) -> None:
        """Kill the worker with SIGKILL, without any warning."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        assert await self._process.wait() == -signal.SIGKILL
        self._process = None
        listed = [
            execution.id
            async for execution in self.client.list_workflows(
                f"TaskQueue='{self.queue}' AND ExecutionStatus='Running'"
            )
        ]
        # Otherwise the server waits ten seconds for the dead worker's sticky queue.
        for run in dict.fromkeys([*self._runs, *listed]):
            request = ResetStickyTaskQueueRequest(namespace=self.client.namespace)
            request.execution.workflow_id = run
            with contextlib.suppress(RPCError):  # It has ended.
                await self.client.workflow_service.reset_sticky_task_queue(request)
        self._runs.clear()

    async def revive(self) -> None:
        """Start the worker command if it doesn't run, and wait until the server sees it poll."""
        assert self._target is not None
        if self._process is not None:
            return
        self._started += 1
        with self._output.open("wb") as output:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "durable_strands.cli", "worker", self._target),
                *("--task-queue", self.queue, "--drain", "0"),
                cwd=ROOT,
                stdout=output,
                stderr=output,
                env={
                    **os.environ,
                    "TEMPORAL_ADDRESS": self.client.service_client.config.target_host,
                    "TEMPORAL_NAMESPACE": self.client.namespace,
                    # No two workers of a run iterate over their sets in the same order.
                    "PYTHONHASHSEED": str(self._started),
                },
            )
        deadline = asyncio.get_running_loop().time() + 60
        while not await self._polls():
            if self._process.returncode is not None:
                raise AssertionError(f"The worker ended:\n{self.output}")
            assert asyncio.get_running_loop().time() < deadline, "The worker doesn't poll."
            await asyncio.sleep(0.05)

    def stop(self) -> None:
        """End the worker, in whatever state it is."""
        if self._process is not None:
            self._process.kill()

    @property
    def output(self) -> str:
        """What the last worker wrote."""
        return self._output.read_text() if self._started else ""

    async def _polls(self) -> bool:
        assert self._process is not None
        identity = f"{self._process.pid}@{socket.gethostname()}"
        for kind in (
            TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
            TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
        ):
            described = await self.client.workflow_service.describe_task_queue(
                DescribeTaskQueueRequest(
                    namespace=self.client.namespace,
                    task_queue=TaskQueue(name=self.queue),
                    task_queue_type=kind,
                )
            )
            if identity not in [poller.identity for poller in described.pollers]:
                return False
        return True

    @property
    def _output(self) -> Path:
        return self.directory / f"worker-{self._started}"


@asynccontextmanager
async def steady_server(
    client: Client, registry: GraphRegistry, directory: Path
) -> AsyncIterator[Server]:
    """Serve a registry in this process; `crash` does nothing."""
    async with worker_for(client, registry) as queue:
        yield Server(client, queue, directory)
