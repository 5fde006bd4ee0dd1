"""Random graphs, the world they run in, and the trace that is compared.

A *world* answers every question that a run asks of the outside: which node in flight ends
next, how it ends, what a condition says. Every answer is a pure function of the seed and of
what was asked, so that two implementations that ask the same questions hear the same answers
and two that differ drift apart visibly.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from durable_strands.wire import WIRE_VERSION, EdgePlan, GraphPlan, NodePlan, Semantics

Ending = Literal["completed", "failed", "raised"]
"""How a visit ends: with a result, with a result that says FAILED, or with an exception."""

Result = tuple[str, int]
"""The result of a visit: `(node, visit)`. Its identity is all that matters here."""


class ConditionRaisedError(Exception):
    """A condition of the random world raised, as some do."""


@dataclass(frozen=True)
class View:
    """What a condition sees: Strands' `completed_nodes` and `execution_order`."""

    completed: frozenset[str]
    execution_order: tuple[str, ...]


@dataclass
class Trace:
    """Everything about a run that has one right value.

    Attributes:
        dispatches: `(node, visit, inputs)` in order of dispatch; `inputs` are the results
            that the visit consumes, in declaration order of their nodes.
        asked: Every condition evaluation in order: `(str(edge), verdict)`; the verdict of a
            condition that raised is None.
        order: Ids in order of completion, returned failures included, raised ones not.
        completed: Ids of completed nodes, in declaration order.
        failed: Ids of failed nodes, in declaration order.
        status: `"completed"` or `"failed"`.
        reason: `"max_node_executions"`, `"raised:<node>"`, `"condition:<edge>"` or None.
    """

    dispatches: list[tuple[str, int, tuple[Result, ...]]] = field(default_factory=list)
    asked: list[tuple[str, bool | None]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    completed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    status: str = ""
    reason: str | None = None


class World:
    """The outside of one random run; see the module's description."""

    def __init__(self, seed: int, plan: GraphPlan, *, raising: bool = True) -> None:
        self.seed = seed
        self.plan = plan
        self.raising = raising

    def _dice(self, *asked: object) -> random.Random:
        return random.Random(repr((self.seed, asked)))

    def next_to_end(self, step: int, in_flight: Sequence[str]) -> str:
        """Choose which node in flight ends next; `step` counts the endings so far from 0."""
        return self._dice("next", step).choice(sorted(in_flight))

    def ending(self, node: str, visit: int) -> Ending:
        """Say how a visit ends."""
        roll = self._dice("ending", node, visit).random()
        troubled = self._dice("troubled").random() < 0.4
        if not troubled or roll > 0.12:
            return "completed"
        return "raised" if roll < 0.04 else "failed"

    def condition(self, edge: EdgePlan, view: View) -> bool:
        """Evaluate the condition of `edge`.

        Raises:
            ConditionRaisedError: This condition raises now.
        """
        kind = self._dice("kind", str(edge))
        roll = kind.random()
        seen = view.execution_order.count(edge.source)
        if self.raising and kind.random() < 0.01:
            raise ConditionRaisedError(str(edge))
        if roll < 0.4:
            return self._dice("verdict", str(edge), seen).random() < 0.6
        if roll < 0.65:
            return seen < kind.randint(2, 4)
        nodes = [node.id for node in self.plan.nodes]
        wanted = [edge.source, kind.choice(nodes)]
        return all(node in view.completed for node in wanted)


def random_plan(seed: int, semantics: Semantics, *, largest: int = 8) -> GraphPlan:
    """Return a random plan: cycles, self loops, parallel edges, conditions, limits, joins.

    Every plan is bounded by `max_node_executions`, since its conditions need not end it.
    """
    dice = random.Random(f"plan {seed}")
    size = dice.randint(2, largest)
    names = [f"n{index}" for index in range(size)]
    dice.shuffle(names)
    shape = dice.choice(["dag", "dag", "loops", "dense"])
    odds = {"dag": 0.35, "loops": 0.25, "dense": 0.45}[shape]
    conditional = dice.choice([0.0, 0.3, 0.7])
    pairs = [
        (i, j)
        for i in range(size)
        for j in range(size)
        if (i < j or shape != "dag") and dice.random() < (odds if i != j else odds / 3)
    ]
    edges: list[EdgePlan] = []
    for i, j in pairs:
        copies = 2 if dice.random() < 0.08 else 1
        for ordinal in range(copies):
            has_condition = copies == 2 or dice.random() < conditional
            edges.append(
                EdgePlan(
                    source=names[i],
                    target=names[j],
                    ordinal=ordinal,
                    condition="random" if has_condition else None,
                )
            )
    targets = {edge.target for edge in edges}
    entries = [name for name in names if name not in targets]
    if not entries or dice.random() < 0.15:
        entries = sorted(dice.sample(names, dice.randint(1, min(3, size))), key=names.index)
    dataflow = semantics == "dataflow"
    mixed = dice.random() < 0.5
    nodes = [
        NodePlan(
            id=name,
            join=dice.choice(["all", "any"]) if dataflow and mixed else "all",
            on_failure=dice.choice(["fail_fast", "prune"]) if dataflow and mixed else "fail_fast",
            on_revisit="keep",
        )
        for name in names
    ]
    if dice.random() < 0.3:
        nodes = [node.model_copy(update={"on_revisit": "reset"}) for node in nodes]
    return GraphPlan(
        version=WIRE_VERSION,
        graph="random",
        nodes=nodes,
        edges=edges,
        entry_points=entries,
        semantics=semantics,
        max_concurrency=dice.choice([None, None, 1, 2, 3]) if dataflow else None,
        max_node_executions=dice.choice([3, 8, 15, 25]),
    ).with_fingerprint()
