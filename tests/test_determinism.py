"""The same under every hash seed, and no import where it doesn't belong.

Run as a program, this module is the process whose hash seed a test chooses: a worker and its
caller. See `main`.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from strands.multiagent.graph import Graph, GraphState
from temporalio.client import Client, WorkflowHistory

from durable_strands import GraphRegistry

from .case_graphs import QUICK, Step
from .restart import ROOT, Case, steady_server
from .support import build, replay

PACKAGE = ROOT / "durable_strands"
NODES = [f"n{number}" for number in range(6)]


# -- hash seeds --------------------------------------------------------------------------------


def first(state: GraphState) -> bool:
    return False


def second(state: GraphState) -> bool:
    return "join" in state.results


def numbered(number: int) -> Any:
    return lambda state: number == 1


def fan() -> Graph:
    """Return a fan-out of 6 from a root, their join, and parallel edges with two conditions."""
    return build(
        {name: Step() for name in ["root", *NODES, "join", "after", "end"]},
        [
            *(("root", name) for name in NODES),
            *((name, "join") for name in NODES),
            ("join", "after", first),
            ("join", "after", second),
            ("after", "end", numbered(1)),
            ("after", "end", numbered(2)),
        ],
    )


def registered() -> GraphRegistry:
    registry = GraphRegistry()
    registry.add("fan", fan, defaults=QUICK)
    registry.add("fan_strands", fan, defaults=QUICK, semantics="strands")
    return registry


async def main(address: str, histories: list[str]) -> dict[str, Any]:
    """Replay histories of another process, then run the graphs and tell what came of it.

    Returns:
        The order of a set in this process; and by graph the plan's fingerprint and edges, each
        visit's prompt, each node's answer, and the run's history.
    """
    for history in histories:
        await replay(WorkflowHistory.from_json("replayed", history))
    client = await Client.connect(address)
    registry = registered()
    told: dict[str, Any] = {"set": list({f"{name}?" for name in NODES})}
    with tempfile.TemporaryDirectory() as directory:
        async with steady_server(client, registry, Path(directory)) as server:
            for plan in [graph.plan for graph in registry]:
                case = await server.start(plan.graph)
                outcome = await case.outcome()
                assert outcome.error is None
                told[plan.graph] = {
                    "fingerprint": plan.fingerprint,
                    "recorded": outcome.report.fingerprint,
                    "edges": [str(edge) + f" if {edge.condition}" for edge in plan.edges],
                    "prompts": outcome.prompts,
                    "answers": {n: report.text for n, report in outcome.report.results.items()},
                    "history": await history_of(client, case),
                }
    return told


async def history_of(client: Client, case: Case) -> str:
    history = await client.get_workflow_handle(case.run.id).fetch_history()
    return history.to_json()


async def process(seed: int, address: str, histories: list[str]) -> dict[str, Any]:
    """Run `main` in a process with a hash seed."""
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.test_determinism", address),
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await running.communicate(json.dumps(histories).encode())
    assert running.returncode == 0, err.decode()
    told: dict[str, Any] = json.loads(out.splitlines()[-1])
    return told


async def test_hash_seeds_change_nothing(client: Client) -> None:
    address = client.service_client.config.target_host
    one = await process(1, address, [])
    graphs = ["fan", "fan_strands"]
    recorded = [one[graph].pop("history") for graph in graphs]
    others = await asyncio.gather(*(process(seed, address, recorded) for seed in (2, 3, 4)))

    orders = [told.pop("set") for told in (one, *others)]
    assert len({tuple(order) for order in orders}) == 4, "the seeds must make a difference"
    for told in others:
        for graph in graphs:
            del told[graph]["history"]
        assert told == one
    for graph in graphs:
        told = one[graph]
        assert told["recorded"] == told["fingerprint"]
        assert told["answers"] == {
            name: f"{name}#1\n" for name in ["root", *NODES, "join", "after", "end"]
        }
        inputs = "".join(f"\nFrom {name}:  - Agent: {name}#1\n" for name in NODES)
        assert told["prompts"]["join#1"] == (
            f"Original Task: T\nInputs from previous nodes:{inputs}"
        )
        assert [edge.rpartition(":")[2] for edge in told["edges"][-4:]] == [
            "first",
            "second",
            "numbered.<locals>.<lambda>",
            "numbered.<locals>.<lambda>",
        ]


def test_two_lambdas_of_one_line_are_told_apart() -> None:
    conditions = [lambda state: False, lambda state: "a" in state.results]
    registry = GraphRegistry()
    registry.add(
        "graph", lambda: build({"a": "", "b": ""}, [("a", "b", each) for each in conditions])
    )
    assert [edge.ordinal for edge in registry["graph"].plan.edges] == [0, 1]


# -- imports -----------------------------------------------------------------------------------


def modules() -> dict[str, Path]:
    """Return the package's modules by dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path
    return found


MODULES = modules()


def imports_of(module: str) -> set[str]:
    """Return the full names of what a module imports at any place, but for type checking only."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return set(_imports(ast.parse(path.read_text()), package))


def _imports(node: ast.AST, package: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (name.name for name in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = child.module or ""
            if child.level:
                home = package.split(".")[: len(package.split(".")) - child.level + 1]
                base = ".".join([*home, *([base] if base else [])])
            # `from package import name` imports the module `package.name` where there is one.
            yield from (
                f"{base}.{name.name}" if f"{base}.{name.name}" in MODULES else base
                for name in child.names
            )
        else:
            yield from _imports(child, package)


def reached_from(module: str) -> set[str]:
    """Return all that importing a module brings in: its parents, and theirs, and so on."""
    seen: set[str] = set()
    todo = [module]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in MODULES:
            todo.extend(imports_of(name))
            todo.extend(name.rsplit(".", end)[0] for end in range(1, name.count(".") + 1))
    return seen


def within(names: set[str], *packages: str) -> set[str]:
    return {
        name
        for name in names
        for package in packages
        if name == package or name.startswith(f"{package}.")
    }


def own(*names: str) -> list[str]:
    return [f"durable_strands.{name}" for name in names]


WORKFLOWS = [
    *(name for name in MODULES if name.startswith("durable_strands.workflows")),
    "durable_strands.workflow",
]


@pytest.mark.parametrize("module", WORKFLOWS)
def test_workflows_import_neither_strands_nor_what_lies_outside(module: str) -> None:
    forbidden = own("activities", "worker", "cli", "client", "codec", "history", "errors")
    assert not within(reached_from(module), "strands", *forbidden)


PURE = own(
    "workflows.scheduler",
    "workflows.topology",
    "workflows.interrupts",
    "workflows.journal",
    "workflows.place",
    "prompts",
)


@pytest.mark.parametrize("module", PURE)
def test_the_state_machine_is_pure(module: str) -> None:
    assert not within(reached_from(module), "temporalio", "strands")


def test_the_wire_needs_neither_strands_nor_temporal() -> None:
    assert not within(reached_from("durable_strands.wire"), "strands", "temporalio")


LAYERS = ["wire", "workflows", "activities", "worker", "cli"]


@pytest.mark.parametrize("position", range(len(LAYERS)), ids=LAYERS)
def test_arrows_point_one_way(position: int) -> None:
    above = own(*LAYERS[position + 1 :])
    for module in within(set(MODULES), f"durable_strands.{LAYERS[position]}"):
        assert not within(imports_of(module), *above), module


def test_nodes_do_not_import_the_worker() -> None:
    assert not within(reached_from("durable_strands.nodes"), *own("workflows", "worker", "client"))


def test_the_client_does_not_import_the_worker() -> None:
    for module in own("client", "history", "codec"):
        names = reached_from(module)
        assert not within(names, *own("workflows", "activities", "worker", "cli"))


@pytest.mark.parametrize("module", own("workflows.graph", "workflow", "wire"))
async def test_importing_it_does_not_load_strands(module: str) -> None:
    script = (
        f"import sys, {module}; print([n for n in sys.modules if n.split('.')[0] == 'strands'])"
    )
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await running.communicate()
    assert out.decode().strip() == "[]"


if __name__ == "__main__":
    told = asyncio.run(main(sys.argv[1], json.load(sys.stdin)))
    print(json.dumps(told), flush=True)
    # A process whose Temporal client lives to the interpreter's end may crash there.
    os._exit(0)
