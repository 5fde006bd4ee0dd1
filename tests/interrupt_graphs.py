"""The graphs of tests/test_interrupt_cases.py, for a worker in a process of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from strands.agent import AgentResult
from strands.hooks import BeforeNodeCallEvent
from strands.multiagent.graph import Graph, GraphBuilder

from durable_strands import GraphRegistry, NodeOptions

from .case_graphs import QUICK, Step, arrows, done, ran, this_visit
from .restart import Stage
from .support import Edge, build

ELSEWHERE = "elsewhere"
"""A task queue of nodes that the worker of their runs doesn't serve."""

registry = GraphRegistry()
renamed = GraphRegistry()
"""What is deployed later: `approval` with its node b renamed b2."""


class StagedGate:
    """A hook that asks before some nodes and tells the stage: `asked`, then `answered`.

    An answer of "no" cancels the node.
    """

    def __init__(self, *nodes: str) -> None:
        self.nodes = nodes

    def register_hooks(self, registry: Any, **kwargs: Any) -> None:
        registry.add_callback(BeforeNodeCallEvent, self.check)

    def check(self, event: BeforeNodeCallEvent) -> None:
        if event.node_id not in self.nodes:
            return
        stage = Stage.of(event.invocation_state)
        assert stage is not None
        stage.note("called", event.node_id)
        answer = event.interrupt("approve", reason=f"may {event.node_id} run?")
        stage.note("answered", event.node_id, answer=answer)
        if answer == "no":
            event.cancel_node = "rejected"


class Scribe:
    """A hook that writes into the invocation state before each node."""

    def register_hooks(self, registry: Any, **kwargs: Any) -> None:
        registry.add_callback(BeforeNodeCallEvent, self.write)

    def write(self, event: BeforeNodeCallEvent) -> None:
        assert event.invocation_state is not None
        event.invocation_state[f"before {event.node_id}"] = True


class Fragile(Step):
    """A step that raises, finally, while the test holds `"broken <visit>"`.

    While the test holds `"changed <visit>"`, it answers something else.
    """

    async def invoke_async(
        self, prompt: Any = None, *, invocation_state: Any = None, **kwargs: Any
    ) -> AgentResult:
        stage, visit = Stage.of(invocation_state), this_visit()
        assert stage is not None
        self._reply = (lambda _: f"{visit} changed") if stage.holds(f"changed {visit}") else None
        result = await super().invoke_async(prompt, invocation_state=invocation_state, **kwargs)
        if stage.holds(f"broken {visit}"):
            raise ValueError(f"{visit} broke")
        return result


def graph(
    name: str,
    steps: str,
    edges: str | list[Edge] = "",
    *,
    gate: str = "",
    entries: Iterable[str] = (),
    configure: Any = lambda _: None,
    into: GraphRegistry = registry,
    defaults: NodeOptions = QUICK,
) -> None:
    """Register a graph of fragile steps, some of which need an approval."""
    arcs = arrows(edges) if isinstance(edges, str) else edges

    def set_up(builder: GraphBuilder) -> None:
        configure(builder)
        if gate:
            builder.set_hook_providers([StagedGate(*gate.split())])

    def factory() -> Graph:
        executors = {node: Fragile() for node in steps.split()}
        return build(executors, arcs, entries=entries, configure=set_up)

    into.add(name, factory, defaults=defaults)


def skips(state: Any, *, invocation_state: dict[str, Any]) -> bool:
    return bool(invocation_state.get("skip"))


def skips_not(state: Any, *, invocation_state: dict[str, Any]) -> bool:
    return not invocation_state.get("skip")


graph("skip", "a b c", [("a", "b", skips_not), ("a", "c", skips), ("b", "c")], gate="c")
graph("beside", "a bad c", "a>c bad>c", gate="a")
graph("mirror", "slow a bad", "slow>a", gate="a")
graph("alone", "a", gate="a")
graph("rejection", "a b c d e", "a>b b>c a>d d>e", gate="b")
graph("two", "a b j", "a>j b>j", gate="a b")
graph("approval", "a b c", "a>b b>c", gate="b")
graph("approval", "a b2 c", "a>b2 b2>c", gate="b2", into=renamed)
graph(
    "active_time",
    "a b",
    "a>b",
    gate="a",
    configure=lambda builder: builder.set_execution_timeout(5),
)
graph("one_execution", "a", gate="a", configure=lambda b: b.set_max_node_executions(1))
graph("four", "n f e big", gate="n f e big")
graph("siblings", "a b after", "a>after", gate="a")
graph("chain", "a b c", "a>b b>c")
graph("elsewhere", "a b", "a>b", defaults=NodeOptions(task_queue=ELSEWHERE).over(QUICK))
graph(
    "loop",
    "a b end",
    [("a", "b"), ("b", "a", ran("b", 2)), ("b", "end", done("b", 2))],
    entries=["a"],
)


def nested_midway() -> Graph:
    """Case 10: every graph has Strands' default id."""
    inner = build(
        {"in0": Fragile(), "in1": Fragile()},
        arrows("in0>in1"),
        configure=lambda builder: builder.set_hook_providers([StagedGate("in1")]),
    )
    return build({"nest": inner, "tail": Fragile()}, arrows("nest>tail"))


registry.add("nested", nested_midway, defaults=QUICK)
graph("writing", "a b c", "a>b b>c", configure=lambda b: b.set_hook_providers([Scribe()]))
