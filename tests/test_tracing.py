"""One trace from the caller, through workflow and activities, to Strands' own agent spans.

Strands and the SDK's plugin both take the process's tracer provider, which can be set once and
never again. So the traced program is a process of its own: this module, run as a script.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import uuid
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import timedelta

import opentelemetry.trace
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from strands.multiagent.graph import Graph
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.contrib.opentelemetry import OpenTelemetryPlugin, create_tracer_provider
from temporalio.plugin import SimplePlugin
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from durable_strands import (
    DurableGraph,
    GraphPlugin,
    GraphRegistry,
    NodeOptions,
    current_node,
    wire,
)

from .support import agent, build

AGENT = ["execute_event_loop_cycle", "chat"]


@dataclass(frozen=True)
class Span:
    """What the tests ask of a span."""

    name: str
    trace: int
    id: int
    parent: int | None
    milliseconds: float


class Trace:
    """Everything that the traced program exported."""

    def __init__(self, spans: list[Span]) -> None:
        self.spans = spans
        self._by_id = {span.id: span for span in spans}

    def names(self) -> Counter[str]:
        """Return how many spans have which name."""
        return Counter(span.name for span in self.spans)

    def ids(self) -> set[int]:
        return {span.trace for span in self.spans}

    def lineages(self, name: str) -> list[list[str]]:
        """Return, for each span of that name, the names from the root down to it."""
        return [self._lineage(span) for span in self.spans if span.name == name]

    def _lineage(self, span: Span) -> list[str]:
        above = [] if span.parent is None else self._lineage(self._by_id[span.parent])
        return [*above, span.name]


async def traced(env: WorkflowEnvironment, *arguments: str) -> Trace:
    """Run the traced program against the test server."""
    address = env.client.service_client.config.target_host
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, address, *arguments), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await program.communicate()
    assert program.returncode == 0
    return Trace([Span(**span) for span in json.loads(output)])


@pytest.mark.parametrize("plugins", [["graphs", "spans"], ["spans", "graphs"]], ids=str)
async def test_one_trace_leads_from_the_caller_to_the_model(
    env: WorkflowEnvironment, plugins: list[str]
) -> None:
    trace = await traced(env, *plugins)

    workflow = ["caller", "StartWorkflow:StrandsGraph", "RunWorkflow:StrandsGraph"]
    first = [*workflow, "StartActivity:graph.a", "RunActivity:graph.a", "invoke_agent alpha"]
    second = [*workflow, "StartActivity:graph.b", "RunActivity:graph.b", "invoke_agent beta"]
    assert len(trace.ids()) == 1
    # The second node fails in its first attempt. Each attempt has spans, in one activity.
    assert sorted(trace.lineages("chat")) == [
        [*first, *AGENT],
        [*second, *AGENT],
        [*second, *AGENT],
    ]
    for activity in ("durable_strands.plan", "durable_strands.edges"):
        above = [*workflow, f"StartActivity:{activity}"]
        assert trace.lineages(f"RunActivity:{activity}") == [[*above, f"RunActivity:{activity}"]]
    # Nothing is cached in the traced worker: the workflow was replayed at each of its tasks.
    names = trace.names()
    assert names["RunWorkflow:StrandsGraph"] == 1
    assert names["StartActivity:graph.a"] == names["StartActivity:graph.b"] == 1
    lasted = {span.name: span.milliseconds for span in trace.spans}
    assert lasted["RunWorkflow:StrandsGraph"] > lasted["RunActivity:graph.a"] > 0


async def test_without_temporal_spans_the_agents_are_the_callers_own(
    env: WorkflowEnvironment,
) -> None:
    trace = await traced(env, "graphs", "no spans")

    assert trace.lineages("invoke_agent alpha") == [["caller", "invoke_agent alpha"]]
    assert trace.lineages("invoke_agent beta") == [["caller", "invoke_agent beta"]] * 2
    assert set(trace.names()) == {"caller", "invoke_agent alpha", "invoke_agent beta", *AGENT}


async def test_a_run_that_no_tracing_client_started_is_a_trace_of_its_own(
    env: WorkflowEnvironment,
) -> None:
    trace = await traced(env, "graphs", "spans", "untraced caller")

    assert len(trace.ids()) == 1
    (lineage,) = trace.lineages("invoke_agent alpha")
    assert lineage[0] == "RunWorkflow:StrandsGraph"


# -- the traced program ------------------------------------------------------------------------


def two_agents() -> Graph:
    def fails_once(prompt: str) -> str:
        if current_node().attempt == 1:
            raise ConnectionError("try again")
        return "B"

    return build(
        {"a": agent(lambda prompt: "A", name="alpha"), "b": agent(fails_once, name="beta")},
        [("a", "b", lambda state: True)],
    )


async def traced_program(address: str, *arguments: str) -> list[Span]:
    exporter = InMemorySpanExporter()
    provider = create_tracer_provider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    opentelemetry.trace.set_tracer_provider(provider)
    registry = GraphRegistry()
    quickly = NodeOptions(retry=RetryPolicy(initial_interval=timedelta(milliseconds=10)))
    registry.add("graph", two_agents, defaults=quickly)
    known: dict[str, SimplePlugin] = {
        "graphs": GraphPlugin(registry),
        "spans": OpenTelemetryPlugin(add_temporal_spans=True),
        "no spans": OpenTelemetryPlugin(),
    }
    plugins = [known[name] for name in arguments if name in known]
    client = await Client.connect(address, plugins=[*plugins])
    queue = f"tracing-{uuid.uuid4()}"
    async with Worker(client, task_queue=queue, max_cached_workflows=0):
        if "untraced caller" in arguments:  # As the `temporal` command would.
            await (await Client.connect(address)).execute_workflow(
                wire.WORKFLOW_TYPE,
                {"graph": "graph", "task": "hello"},
                id=queue,
                task_queue=queue,
            )
        else:
            with opentelemetry.trace.get_tracer("test").start_as_current_span("caller"):
                await DurableGraph(client, "graph", task_queue=queue).invoke_async("hello")
    return [
        Span(
            name=span.name,
            trace=span.context.trace_id,
            id=span.context.span_id,
            parent=span.parent.span_id if span.parent else None,
            milliseconds=((span.end_time or 0) - (span.start_time or 0)) / 1e6,
        )
        for span in exporter.get_finished_spans()
    ]


async def main() -> None:
    spans = await traced_program(*sys.argv[1:])
    gc.collect()  # The clients must be gone before the loop is; see conftest.py.
    print(json.dumps([asdict(span) for span in spans]))


if __name__ == "__main__":
    asyncio.run(main())
    sys.stdout.flush()
    os._exit(0)
