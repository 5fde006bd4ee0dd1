"""What a graph under test runs on: a dev server, and workers in a thread of their own.

A test may use its graph from any event loop, or from none (`graph("task")`), and each of Strands'
tests has a loop of its own. So server, client, workers and streams live in one thread with one
loop, and events are handed over.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections.abc import AsyncIterator, Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from strands.multiagent.graph import Graph
from strands.multiagent.swarm import Swarm
from temporalio.common import RetryPolicy
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from durable_strands import (
    DurableGraph,
    DurableSwarm,
    GraphPlugin,
    GraphRegistry,
    GraphRun,
    LocalSink,
    NodeOptions,
    RunClosedError,
)
from durable_strands.demo.processes import temporal_binary

T = TypeVar("T")

_ONE_ATTEMPT = NodeOptions(retry=RetryPolicy(maximum_attempts=1))
"""Strands doesn't retry, and its tests count calls."""


class _Recorded:
    """A durable graph or swarm that remembers its latest run."""

    run: GraphRun[Any] | None = None

    async def start(self, *args: Any, **kwargs: Any) -> Any:
        """Start a run and remember it."""
        self.run = await super().start(*args, **kwargs)  # type: ignore[misc]
        return self.run


class RecordedGraph(_Recorded, DurableGraph):
    """Such a graph."""


class RecordedSwarm(_Recorded, DurableSwarm):
    """Such a swarm."""


class Served:
    """A graph that a worker of its own serves."""

    def __init__(self, durable: RecordedGraph | RecordedSwarm, worker: Worker) -> None:
        """Start the worker."""
        self.durable = durable
        self._worker = worker
        self._task = asyncio.create_task(worker.run())

    async def stop(self) -> None:
        """Stop the worker, and end a run that still waits."""
        run = self.durable.run
        if run is not None and not await run.is_closed():
            await run.cancel()
            with contextlib.suppress(RunClosedError, TimeoutError):
                await asyncio.wait_for(run.result(), 5)
        await self._worker.shutdown()
        await self._task


class Machine:
    """The thread with everything of Temporal's."""

    def __init__(self, semantics: Any) -> None:
        """Start the server; the graphs run with these semantics."""
        self._semantics = semantics
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._environment = self.do(_server())
        self._served: list[Served] = []

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Have something done in the thread, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def stream(self, work: AsyncIterator[T]) -> AsyncIterator[T]:
        """Yield in the calling loop what a generator yields in the thread."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[bool, Any]] = asyncio.Queue()

        def put(is_item: bool, value: Any) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, (is_item, value))

        async def pump() -> None:
            try:
                async for item in work:
                    put(True, item)
                put(False, None)
            except Exception as error:
                put(False, error)

        future = asyncio.run_coroutine_threadsafe(pump(), self._loop)
        try:
            while True:
                is_item, value = await queue.get()
                if is_item:
                    yield value
                elif value is None:
                    return
                else:
                    raise value
        finally:
            future.cancel()

    async def serve(self, orchestrator: Graph | Swarm) -> Served:
        """Serve a graph or a swarm; to be called in the thread."""
        registry = GraphRegistry()
        if isinstance(orchestrator, Swarm):
            swarm = orchestrator
            registry.add_swarm("graph", lambda: swarm, defaults=_ONE_ATTEMPT)
        else:
            graph, semantics = orchestrator, self._semantics
            registry.add("graph", lambda: graph, semantics=semantics, defaults=_ONE_ATTEMPT)
        client, queue, sink = self._environment.client, f"conformance-{uuid.uuid4()}", LocalSink()
        worker = Worker(
            client,
            task_queue=queue,
            plugins=[GraphPlugin(registry, sink=sink)],
            graceful_shutdown_timeout=timedelta(),
        )
        recorded = RecordedSwarm if isinstance(orchestrator, Swarm) else RecordedGraph
        durable = recorded(client, "graph", task_queue=queue, sink=sink)
        self._served.append(Served(durable, worker))
        return self._served[-1]

    def end_of_test(self) -> None:
        """Stop the workers that a test needed."""
        while self._served:
            self.do(self._served.pop().stop())

    def stop(self) -> None:
        """Stop the server."""
        self.do(self._environment.shutdown())


async def _server() -> WorkflowEnvironment:
    return await WorkflowEnvironment.start_local(
        dev_server_existing_path=temporal_binary(),
        dev_server_log_level="error",
        # Without it the dev server throttles itself to 20 tasks a second.
        dev_server_extra_args=[
            "--dynamic-config-value",
            "history.transferProcessorMaxPollRPS=2000",
        ],
    )
