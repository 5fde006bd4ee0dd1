"""The two sides behind one face: a worker to start, and shapes to run on it.

What only our side needs is imported where it is used: the floor's worker must not hold it in
memory.
"""

from __future__ import annotations

import uuid
from typing import Any, Protocol

from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from . import floor
from .shapes import TASK, Shape


class Side(Protocol):
    """One of the two."""

    name: str

    def worker(self, client: Client, shapes: list[Shape]) -> Worker:
        """Return a worker for the shapes; the queue has the side's name."""

    async def run(self, client: Client, shape: Shape) -> WorkflowHandle[Any, Any]:
        """Run a shape to its end, result and all, and return the run's handle."""


class Floor:
    """The hand-written workflows."""

    name = "floor"

    def worker(self, client: Client, shapes: list[Shape]) -> Worker:
        """Return a worker whose sandbox shares the workflows' module, as our plugin's does."""
        del shapes
        restrictions = SandboxRestrictions.default.with_passthrough_modules("benchmarks")
        return Worker(
            client,
            task_queue=self.name,
            workflows=list(floor.WORKFLOWS.values()),
            activities=[floor.answer],
            workflow_runner=SandboxedWorkflowRunner(restrictions=restrictions),
        )

    async def run(self, client: Client, shape: Shape) -> WorkflowHandle[Any, Any]:
        """Run a shape."""
        handle = await client.start_workflow(
            floor.WORKFLOWS[shape.kind].run,
            shape.size,
            id=f"floor-{uuid.uuid4()}",
            task_queue=self.name,
            memo={"graph": shape.graph},
            static_summary=f"Strands graph {shape.graph}",
        )
        result = await handle.result()
        assert len(result) == len(shape.nodes)
        return handle


class Ours:
    """This library, used as its README says."""

    name = "ours"

    def worker(self, client: Client, shapes: list[Shape]) -> Worker:
        """Return a worker with the shapes registered."""
        from durable_strands import GraphPlugin

        from . import ours

        plugin = GraphPlugin(ours.registry_of(shapes))
        return Worker(client, task_queue=self.name, plugins=[plugin])

    async def run(self, client: Client, shape: Shape) -> WorkflowHandle[Any, Any]:
        """Run a shape."""
        from durable_strands import DurableGraph

        run = await DurableGraph(client, shape.graph, task_queue=self.name).start(TASK)
        result = await run.result()
        assert result.completed_nodes == len(shape.nodes)
        return client.get_workflow_handle(run.id)


SIDES: dict[str, Side] = {side.name: side for side in (Floor(), Ours())}
