"""Random graphs within graphs, and swarms in them: the same as in Strands, at every depth."""

from __future__ import annotations

import asyncio
import random
import re
from functools import partial
from typing import Any

import pytest
from strands import Agent
from strands.multiagent.graph import Graph
from strands.multiagent.swarm import Swarm
from temporalio.client import Client

from durable_strands import DurableGraph, GraphRegistry

from .support import ScriptedModel, build, replay_queue, worker_for
from .test_grand import leaves, plain
from .test_swarm import StepModel, to

SEEDS = range(16)
Seen = dict[str, list[str]]


class Noting(ScriptedModel):
    """Says a digest of what it reads, and notes it under the node's path."""

    def __init__(self, path: str, seen: Seen) -> None:
        super().__init__(lambda prompt: f"{path} read {len(prompt)} characters")
        self.prompts = seen.setdefault(path, [])


def graph_of(seed: int, seen: Seen) -> Graph:
    """Return the random graph of a seed; what its agents read goes into `seen`, by path."""
    return _graph(random.Random(seed), "", seen, depth=0)


def _graph(rng: random.Random, within: str, seen: Seen, depth: int) -> Graph:
    names = [f"n{number}" for number in range(rng.randint(2, 4))]
    executors = {name: _executor(rng, f"{within}{name}", seen, depth) for name in names}
    # In layers of one depth each, so that Strands' rule fires every join once.
    layers: list[list[str]] = []
    for name in names:
        if layers and rng.random() < 0.5:
            layers[-1].append(name)
        else:
            layers.append([name])
    edges = []
    for number, layer in enumerate(layers[1:], start=1):
        for target in layer:
            sources = [name for name in layers[number - 1] if rng.random() < 0.7]
            for source in sources or layers[number - 1][:1]:
                edges.append((source, target))  # noqa: PERF401
    graph = build(executors, edges, configure=lambda b: b.set_max_node_executions(99))
    index = {node: i for i, node in enumerate(graph.nodes)}
    ordered: Any = sorted(
        graph.edges, key=lambda edge: (index[edge.from_node.node_id], index[edge.to_node.node_id])
    )
    graph.edges = ordered
    return graph


def _executor(rng: random.Random, path: str, seen: Seen, depth: int) -> Any:
    kind = rng.random()
    if kind < 0.35 and depth < 3:
        return _graph(rng, f"{path}/", seen, depth + 1)
    if kind < 0.5 and depth < 3:
        return _swarm(rng, f"{path}/", seen)
    return Agent(model=Noting(path, seen), callback_handler=None)


def _swarm(rng: random.Random, within: str, seen: Seen) -> Swarm:
    names = [f"s{number}" for number in range(rng.randint(1, 3))]
    members = []
    for number, name in enumerate(names):
        said = seen.setdefault(f"{within}{name}", [])
        steps: list[Any] = [f"{name} is done"]
        if number + 1 < len(names):
            steps.insert(0, to(names[number + 1], f"from {name}", **{name: rng.randint(0, 9)}))
        model = StepModel(*steps, seen=said)
        members.append(Agent(name=name, model=model, callback_handler=None))
    return Swarm(members)


def _unordered(result: Any) -> dict[str, Any]:
    """Return a result's values, without the order of parallel nodes and of Strands' sets."""
    found = {}
    for at, value in leaves(plain(result)):
        found[at] = sorted(value) if at.endswith(("/order", "/entry points")) else value
    return found


def _read(seen: Seen) -> dict[str, list[list[str]]]:
    """Return what was read, each prompt in sorted parts: a nested result's nodes race."""
    return {
        path: [sorted(filter(None, re.split(r"(?=  - Agent: )|\n", prompt))) for prompt in prompts]
        for path, prompts in seen.items()
        if prompts
    }


@pytest.mark.parametrize("semantics", ["dataflow", "strands"])
async def test_random_graphs_within_graphs(client: Client, semantics: Any) -> None:
    registry = GraphRegistry()
    ours: dict[int, Seen] = {seed: {} for seed in SEEDS}
    for seed in SEEDS:
        registry.add(f"g{seed}", partial(graph_of, seed, ours[seed]), semantics=semantics)
    for told in ours.values():
        told.clear()  # What was built when it was registered reads nothing.
    async with worker_for(client, registry) as queue:

        async def durable(seed: int) -> Any:
            return await DurableGraph(client, f"g{seed}", task_queue=queue).invoke_async("T")

        results = await asyncio.gather(*map(durable, SEEDS))
        await replay_queue(client, queue)
    nested = 0
    for seed in SEEDS:
        theirs: Seen = {}
        expected = await graph_of(seed, theirs).invoke_async("T")
        nested += any("/" in path for path in theirs)
        assert _unordered(results[seed]) == _unordered(expected), seed
        assert _read(ours[seed]) == _read(theirs), seed
    assert nested >= 8
