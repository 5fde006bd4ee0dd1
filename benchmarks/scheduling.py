"""What the scheduler costs per event, without Temporal, and how that grows with the graph."""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Callable

from durable_strands.wire import EdgePlan, GraphPlan, NodePlan
from durable_strands.workflows.commands import Dispatch, Ending
from durable_strands.workflows.scheduler import Scheduler
from durable_strands.workflows.topology import Topology

from .shapes import Kind, Shape
from .tables import Table

TARGET = 1.5
"""Most that an event may cost in the largest graph, as a multiple of the smallest."""

_EVENTS = 20_000
"""Events to time per measurement, so that small graphs aren't measured by their noise."""

_KINDS: tuple[Kind, ...] = ("chain", "fan_out", "layered")


def measure(sizes: list[int], repeats: int) -> Table:
    """Return a table of costs per ended event at each size, as ratios to the smallest."""
    small, large = sizes[0], sizes[-1]
    table = Table(
        "Scheduler, cost of one ended visit",
        [
            "graph",
            *(f"{size:,} / {small:,} nodes" for size in sizes[1:]),
            f"<= {TARGET}",
            f"topology of {large:,} nodes / all events of one run",
        ],
        f"Best of {repeats} repeats at each size. In the layered graph each node waits for 3 of "
        "the layer before, and visits end in a seeded random order.",
    )
    for kind in _KINDS:
        plans = [_plan(Shape(kind, size)) for size in sizes]
        orders = [_order(plan) for plan in plans]
        costs = _costs(plans, orders, repeats)
        growth = [cost / costs[0] for cost in costs]
        table.rows.append(
            [
                {"chain": "chain", "fan_out": "fan-out and join", "layered": "layered"}[kind],
                *(f"{ratio:.2f}" for ratio in growth[1:]),
                table.judge(growth[-1] <= TARGET),
                f"{_topology(plans[-1]) / (costs[-1] * len(orders[-1])):.2f}",
            ]
        )
        print(f"  {kind}: done", file=sys.stderr)
    return table


def _plan(shape: Shape) -> GraphPlan:
    inner = {target for _, target in shape.edges}
    return GraphPlan(
        graph=shape.graph,
        nodes=[NodePlan(id=node) for node in shape.nodes],
        edges=[EdgePlan(source=source, target=target) for source, target in shape.edges],
        entry_points=[node for node in shape.nodes if node not in inner],
    )


def _order(plan: GraphPlan) -> list[str]:
    """Return a random order in which the nodes of a plan may end.

    Drawing it isn't part of what is timed. The first run also leaves the plan's topology in
    its cache, where every later run of the same plan finds it.
    """
    draw = random.Random(plan.graph)
    scheduler: Scheduler[None] = Scheduler(plan)
    flying: list[str] = []
    order: list[str] = []
    commands = scheduler.start()
    while True:
        flying += [command.node for command in commands if isinstance(command, Dispatch)]
        if not flying:
            assert len(order) == len(plan.nodes)
            return order
        place = draw.randrange(len(flying))
        flying[place], flying[-1] = flying[-1], flying[place]
        order.append(flying.pop())
        commands = scheduler.ended(order[-1], Ending.COMPLETED, None)


def _costs(plans: list[GraphPlan], orders: list[list[str]], repeats: int) -> list[float]:
    """Return the best seconds per event at each size; the sizes take turns.

    Taking turns lets a busy moment of the machine hit every size.
    """
    best = [float("inf")] * len(plans)
    for _ in range(repeats):
        for at, (plan, order) in enumerate(zip(plans, orders, strict=True)):
            best[at] = min(best[at], _cost(plan, order))
    return best


def _cost(plan: GraphPlan, order: list[str]) -> float:
    schedulers: list[Scheduler[None]] = [
        Scheduler(plan) for _ in range(max(1, _EVENTS // len(order)))
    ]
    for scheduler in schedulers:
        scheduler.start()

    def replay() -> None:
        for scheduler in schedulers:
            for node in order:
                scheduler.ended(node, Ending.COMPLETED, None)

    return _timed(replay) / len(schedulers) / len(order)


def _topology(plan: GraphPlan) -> float:
    nodes = [node.id for node in plan.nodes]
    edges = [(edge.source, edge.target, edge.condition is not None, False) for edge in plan.edges]
    return min(_timed(lambda: Topology(nodes, edges)) for _ in range(3))


def _timed(work: Callable[[], object]) -> float:
    """Return the seconds of processor time that something takes.

    Garbage collection is part of it, but only of what the work itself makes, not of the rest of
    this process.
    """
    gc.collect()
    gc.freeze()
    try:
        started = time.process_time()
        work()
        return time.process_time() - started
    finally:
        gc.unfreeze()
