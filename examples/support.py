"""What all examples share: a model without network, and a server and a worker to run on."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from strands import Agent
from temporalio.client import Client
from temporalio.worker import Worker

from durable_strands import GraphPlugin, GraphRegistry
from durable_strands.demo.offline import OfflineModel, Skill
from durable_strands.demo.processes import connect, dev_server
from durable_strands.wire import DEFAULT_TASK_QUEUE

Example = Callable[[Client], Awaitable[None]]


def agent(name: str, skill: Skill) -> Agent:
    """Return a real agent, whose model is a plain function of what the agent is told.

    In a graph of yours it is `Agent(name=..., model=..., system_prompt=..., tools=[...])`.
    """
    return Agent(name=name, model=OfflineModel(skill), callback_handler=None)


@asynccontextmanager
async def worker(
    client: Client, registry: GraphRegistry, workflows: Sequence[type] = ()
) -> AsyncIterator[None]:
    """Serve the graphs of a registry, and workflows beside them, until the block ends."""
    async with Worker(
        client,
        task_queue=DEFAULT_TASK_QUEUE,
        workflows=workflows,
        plugins=[GraphPlugin(registry)],
    ):
        yield


def run(example: Example, registry: GraphRegistry, workflows: Sequence[type] = ()) -> None:
    """Run an example on a Temporal dev server of its own."""

    async def on_server() -> None:
        with tempfile.TemporaryDirectory() as directory:
            async with dev_server(Path(directory)) as server:
                client = await connect(server)
                async with worker(client, registry, workflows):
                    await example(client)

    asyncio.run(on_server())
