"""The Temporal plugin that makes any client, worker or replayer one for Strands graphs."""

from __future__ import annotations

from dataclasses import replace

from temporalio.plugin import SimplePlugin
from temporalio.worker import WorkerConfig, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from ..activities.definitions import activities_of
from ..activities.registry import GraphRegistry
from ..sinks import StreamSink
from ..wire import DEFAULT_PAYLOAD_LIMIT
from ..workflows.graph import StrandsGraph


class GraphPlugin(SimplePlugin):
    """Adds the workflow `StrandsGraph` and the activities of a registry's graphs to a worker.

    Give it to `Client.connect(plugins=[...])`: workers made from that client inherit it. It
    may also go on a `Worker` or a `Replayer` directly. It leaves the user's own settings
    alone: data converter, codec, external storage, interceptors and workflow runner stay as
    they are, since all that crosses the wire here is plain JSON.

    Example:
        ```python
        client = await Client.connect("localhost:7233", plugins=[GraphPlugin(registry)])
        worker = Worker(client, task_queue="durable-strands")
        ```
    """

    def __init__(
        self, registry: GraphRegistry | None = None, *, sink: StreamSink | None = None
    ) -> None:
        """Create the plugin.

        Args:
            registry: The graphs to serve. A replayer, or a client that only starts runs, needs
                none.
            sink: Where the nodes' token-level events go, for callers that listen. Default: no
                such events.
        """
        if registry is not None and not isinstance(registry, GraphRegistry):
            raise TypeError(f"registry must be a GraphRegistry, not {type(registry).__name__}")
        if sink is not None and not isinstance(sink, StreamSink):
            raise TypeError(f"sink must be a StreamSink, not {type(sink).__name__}")
        super().__init__(
            "durable_strands.GraphPlugin",
            workflows=[StrandsGraph],
            workflow_runner=_pass_through_own_modules,
        )
        self._registry = registry
        self._sink = sink

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """Add the workflow and the activities."""
        config = super().configure_worker(config)
        if self._registry is not None:
            converter = config["client"].data_converter
            limit = None if converter.external_storage is not None else DEFAULT_PAYLOAD_LIMIT
            config["activities"] = [
                *config.get("activities", ()),
                *activities_of(self._registry, limit, self._sink),
            ]
        return config


def _pass_through_own_modules(runner: WorkflowRunner | None) -> WorkflowRunner:
    """Let the sandbox share this library's modules instead of importing them for every run.

    They are deterministic and keep no state but a cache of pure results.
    """
    if runner is None:
        runner = SandboxedWorkflowRunner()
    if isinstance(runner, SandboxedWorkflowRunner):
        restrictions = runner.restrictions.with_passthrough_modules("durable_strands")
        return replace(runner, restrictions=restrictions)
    return runner
