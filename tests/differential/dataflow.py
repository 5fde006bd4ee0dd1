"""The default semantics: random graphs on a real worker, against the model of the design.

Strands is no oracle here. `tests.oracles` compares the scheduler itself with the model; this
compares what comes of it through a worker: activities, conditions, prompts, the report.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from strands.agent import AgentResult
from strands.multiagent.graph import Graph, GraphBuilder, GraphState
from temporalio.client import Client

from durable_strands import DurableGraph, GraphRegistry, NodeOptions, current_node
from durable_strands.wire import EdgePlan, GraphPlan

from ..oracles.dataflow_model import run_model
from ..oracles.world import Ending, Result, Trace, View, World, random_plan
from ..support import agent_result, failed_tasks, replay, worker_for
from .compare import AT_ONCE, BATCH, ONCE, Figures
from .durable import LONGEST
from .stage import Gatekeeper

_FROM = re.compile(r"\nFrom (.+):")
_RESULT = re.compile(r"  - Agent: (.+)#(\d+)\n")


class _Recorder(World):
    """A world that remembers who ended when."""

    def __init__(self, seed: int, plan: GraphPlan) -> None:
        super().__init__(seed, plan)
        self.script: list[str] = []

    def next_to_end(self, step: int, in_flight: Sequence[str]) -> str:
        node = super().next_to_end(step, in_flight)
        self.script.append(node)
        return node


class _Play:
    """A run on the worker: whoever ended next in the model may end next.

    Attributes:
        trace: What it did.
    """

    def __init__(self, world: _Recorder) -> None:
        self.world = world
        self.trace = Trace()
        self._keeper = Gatekeeper()
        self._script = list(world.script)
        self._leaving = False

    async def visit(self, prompt: Any) -> Ending:
        """Write down a visit's input, and wait until it may end."""
        here = current_node()
        self.trace.dispatches.append((here.path, here.visit, _read(prompt)))
        leave = self._keeper.ticket(here.path)
        self._proceed()
        await asyncio.shield(leave)
        return self.world.ending(here.path, here.visit)

    def ended(self, node: str) -> None:
        """Take note that a visit's end was heard of."""
        self._leaving = False
        if node in self._script:
            self._script.remove(node)
        self._proceed()

    def condition(self, edge: EdgePlan) -> Callable[[GraphState], bool]:
        """Return a new function that asks the world, and writes down what it says."""
        name = f"{edge.source}>{edge.target}[{edge.ordinal}]"

        def condition(state: GraphState) -> bool:
            assert name
            view = View(
                completed=frozenset(node.node_id for node in state.completed_nodes),
                execution_order=tuple(node.node_id for node in state.execution_order),
            )
            self.trace.asked.append((str(edge), None))
            verdict = self.world.condition(edge, view)
            self.trace.asked[-1] = (str(edge), verdict)
            return verdict

        return condition

    def close(self) -> None:
        """Turn away who still waits."""
        self._keeper.close()

    def _proceed(self) -> None:
        if self._script and not self._leaving and self._script[0] in self._keeper.waiting:
            self._leaving = True
            self._keeper.let_go(self._script[0])


class _Stub:
    """An agent that ends as the world wants."""

    def __init__(self, play: _Play) -> None:
        self._play = play
        self.cancel_signal = asyncio.Event()

    async def stream_async(
        self, prompt: Any = None, **kwargs: Any
    ) -> AsyncIterator[dict[str, Any]]:
        ending = await self._play.visit(prompt)
        here = current_node()
        if ending == "raised":
            raise RuntimeError(f"raised:{here.path}")
        self.cancel_signal.clear()
        if ending == "failed":
            self.cancel_signal.set()
        reason = "cancelled" if ending == "failed" else "end_turn"
        yield {"result": agent_result(f"{here.path}#{here.visit}", stop_reason=reason)}

    async def invoke_async(self, prompt: Any = None, **kwargs: Any) -> AgentResult:
        """Refuse: a graph streams."""
        raise NotImplementedError

    def __call__(self, prompt: Any = None, **kwargs: Any) -> AgentResult:
        """Refuse, as `invoke_async` does."""
        raise NotImplementedError


def _graph(play: _Play) -> Graph:
    plan, builder = play.world.plan, GraphBuilder()
    for node in plan.nodes:
        builder.add_node(_Stub(play), node.id)
    for edge in plan.edges:
        condition = None if edge.condition is None else play.condition(edge)
        builder.add_edge(edge.source, edge.target, condition)
    for name in plan.entry_points:
        builder.set_entry_point(name)
    assert plan.max_node_executions is not None, "every random plan has a limit"
    builder.set_max_node_executions(plan.max_node_executions)
    return builder.build()


def _read(blocks: list[Any]) -> tuple[Result, ...]:
    texts = [block["text"] for block in blocks]
    found = [_RESULT.fullmatch(text) for text in texts]
    results = tuple((match[1], int(match[2])) for match in found if match)
    sources = [match[1] for text in texts if (match := _FROM.fullmatch(text))]
    assert [node for node, _ in results] == sources, texts
    return results


async def compare_dataflow(
    client: Client, seeds: Sequence[int], figures: Figures, *, replays: bool = False
) -> None:
    """Compare the graphs of some seeds; the arguments are those of `compare`."""
    for first in range(0, len(seeds), BATCH):
        registry, gate = GraphRegistry(), asyncio.Semaphore(AT_ONCE)
        pairs: list[tuple[_Play, Trace]] = []
        for seed in seeds[first : first + BATCH]:
            plan = random_plan(seed, "dataflow")
            world = _Recorder(seed, plan)
            model = run_model(plan, world)
            play = _Play(world)
            pairs.append((play, model))
            options = {
                node.id: NodeOptions(
                    join=node.join, on_failure=node.on_failure, on_revisit=node.on_revisit
                )
                for node in plan.nodes
            }
            registry.add(
                f"d{seed}",
                lambda play=play: _graph(play),  # type: ignore[misc]
                max_concurrency=plan.max_concurrency,
                nodes=options,
                defaults=ONCE,
            )
        async with worker_for(client, registry) as queue:
            await asyncio.gather(
                *(_one(client, queue, play, model, gate, figures, replays) for play, model in pairs)
            )


async def _one(
    client: Client,
    queue: str,
    play: _Play,
    model: Trace,
    gate: asyncio.Semaphore,
    figures: Figures,
    replays: bool,
) -> None:
    seed, difference = play.world.seed, ""
    async with gate:
        graph = DurableGraph(client, f"d{seed}", task_queue=queue)
        run = await graph.start("task")
        try:
            async with asyncio.timeout(LONGEST):
                await _follow(run, play)
                await _close(run, play)
        except TimeoutError:
            difference = "\n  stuck"
            if not await run.is_closed():
                await client.get_workflow_handle(run.id).terminate("stuck")
        finally:
            play.close()
        # Activities of one workflow task may come to the worker in any order.
        ours, model.dispatches = play.trace, sorted(model.dispatches)
        ours.dispatches.sort()
        model.completed = [f"{len(model.completed)} nodes"]
        model.failed = [f"{len(model.failed)} nodes"]
        for name in ours.__dataclass_fields__:
            mine, other = getattr(ours, name), getattr(model, name)
            if mine != other:
                difference += f"\n  worker {name}: {mine}\n  model  {name}: {other}"
        if await failed_tasks(client, run.id):
            difference += "\n  a workflow task failed"
        if replays:
            await replay(await client.get_workflow_handle(run.id).fetch_history())
    figures.runs.update(_happened(model))
    if difference:
        figures.differences.append(f"dataflow seed {seed}{difference}")


async def _follow(run: Any, play: _Play) -> None:
    async for event in run.events():
        if event["type"] == "multiagent_node_stop":
            play.ended(event["node_id"])


async def _close(run: Any, play: _Play) -> None:
    """Write down how a run ended."""
    report, trace = await run.status(), play.trace
    trace.order = report.execution_order
    trace.status = report.status.value
    # A report has their numbers; a node that failed may have completed another visit since.
    trace.completed = [f"{report.completed_nodes} nodes"]
    trace.failed = [f"{report.failed_nodes} nodes"]
    trace.reason = None
    if report.failed_node is not None:
        trace.reason = f"raised:{report.failed_node}"
    elif report.error is not None:
        trace.reason = f"condition:{report.error.message}"
    elif (report.reason or "").startswith("Max node executions"):
        trace.reason = "max_node_executions"


def _happened(model: Trace) -> Counter[str]:
    what = model.reason.partition(":")[0] if model.reason else model.status
    return Counter({f"that ended: {what}": 1})
