"""Plays a scenario on the installed Strands `Graph`, in this process.

Where `rules` wants Strands to be spared one of its faults, this is where it is spared.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

from strands.interrupt import Interrupt
from strands.multiagent.base import Status
from strands.multiagent.graph import Graph
from strands.types.exceptions import EventLoopException

from ..oracles.strands_graph import silence
from .rules import Rules
from .scenario import Scenario
from .stage import STAGE, Call, Gatekeeper, Spent, Stage, error_of, result_of, spent_of

MOST_CALLS = 40


class InProcess(Stage):
    """A run in Strands' process.

    A node may end when all of its batch have come to their gate or to an end without one, and
    when the end before was heard. Once something raised, nobody is let go any more.

    Attributes:
        released: Nodes that go on in the call that is under way; None in the first call.
        unreleased: Nodes that still wait, of which Strands asks again.
        passed_hooks: Those of the released that had asked after their hooks.
        spent: What each node's latest visit used, and the sum over all visits that ended.
    """

    def __init__(self, scenario: Scenario, graph: Graph, rules: Rules) -> None:
        super().__init__()
        self.scenario = scenario
        self.graph = graph
        self.rules = rules
        self.released: set[str] | None = None
        self.locked_by = 0
        self.unreleased: set[str] = set()
        self.passed_hooks: set[str] = set()
        self.together: dict[str, dict[str, Any]] = {}
        self.spent: dict[str, Spent] = {}
        self.total = Spent()
        self._keeper = Gatekeeper()
        self._to_start = len(scenario.plan.entry_points)
        self._started: dict[str, None] = {}
        self._leaving: str | None = None
        self._over = False
        self._endings = 0
        self._part: defaultdict[str, Spent] = defaultdict(Spent)
        self._open: dict[str, Spent] = {}

    # -- the stage -----------------------------------------------------------------------------

    def visit(self, node: str) -> int:
        return 1 + [str(done.node_id) for done in self.graph.state.execution_order].count(node)

    def skips(self, node: str) -> bool:
        return self.released is not None and self.pending_of(node)

    def pending_of(self, node: str) -> bool:
        """Say whether a node has open questions."""
        return any(who == node for who, _ in self.pending)

    async def gate(self, node: str) -> None:
        if node == self._leaving or self.skips(node):
            return
        leave = self._keeper.ticket(node)
        self._proceed()
        await asyncio.shield(leave)

    def interrupts(self, node: str, names: list[str]) -> list[Interrupt]:
        return [self.rules.interrupt(node, name) for name in names]

    def spend(self, node: str, spent: Spent) -> None:
        self._part[node] += spent

    def came(self, node: str, visit: int, prompt: Any, state: Any) -> None:
        super().came(node, visit, prompt, state)
        if node in self.together and not self.skips(node):
            key = f"{node}#{visit}"
            given, shown = self.trace.inputs[key][-1]
            whole = self.rules.answers_together(node, given, self.together.pop(node))
            self.trace.inputs[key][-1] = (whole, shown)

    # -- who may go ----------------------------------------------------------------------------

    def hear(self, event: dict[str, Any]) -> None:
        kind = event["type"].removeprefix("multiagent_")
        if kind == "handoff":
            self._to_start = len(event["to_node_ids"])
        elif kind == "node_start":
            self._to_start -= 1
            self._started[str(event["node_id"])] = None
        elif kind == "node_stream":
            self.rules.inner_event()
        super().hear(event)
        self._proceed()

    def ended(self, node: str, how: str) -> None:
        self._started.pop(node, None)
        if self._leaving == node:
            self._leaving = None
        if how == "raised":
            self._over = True
            self._part.pop(node, None)
        elif how == "stop" and self.scenario.gate(node, self.visit(node) - 1).raises == "after":
            self._over = True  # A hook has raised, but that is heard of after this.
        self._open[node] = self._open.get(node, Spent()) + self._part.pop(node, Spent())
        if how != "interrupt":
            self.spent[node] = self._open.pop(node)
            self.total += self.spent[node]

    def cut_off(self) -> None:
        """Count what open visits have used, now that the run has ended."""
        self.total = sum(self._open.values(), self.total)

    def _proceed(self) -> None:
        waiting = self._keeper.waiting
        if self._to_start or self._over or self._leaving or not waiting:
            return
        if set(self._started) - set(waiting):
            return
        self._leaving = self.scenario.next_to_end(self._endings, waiting)
        self._endings += 1
        self._keeper.let_go(self._leaving)

    def resumes(self, count: int) -> None:
        """Expect so many nodes to start again."""
        self._to_start = count


async def play(scenario: Scenario, rules: Rules) -> InProcess:
    """Play a scenario to its end."""
    graph = scenario.strands_graph()
    rules.build_inputs_early(graph)
    rules.reset_whoever_revisits(graph)
    stage = InProcess(scenario, graph, rules)
    STAGE.set(stage)
    task: Any = scenario.task
    state = scenario.brings(0)
    for number in range(1, MOST_CALLS):
        stage.trace.calls.append(Call())
        await _call(stage, task, state)
        if graph.state.status is not Status.INTERRUPTED:
            break
        answers = scenario.answers(number, sorted(stage.pending))
        if rules.holds_slots(graph):
            graph.max_node_executions = None
        task = [
            {"interruptResponse": {"interruptId": stage.pending[key].id, "response": answer}}
            for key, answer in answers.items()
        ]
        asked = Counter(node for node, _ in stage.pending)
        by_executor = {node for node, name in stage.pending if name.startswith(f"{node} ")}
        for (node, name), answer in answers.items():
            del stage.pending[node, name]
            stage.answers[node, stage.visit(node)][name] = answer
            stage.together.setdefault(node, {})[name] = answer
        stage.released = {node for node in asked if not stage.pending_of(node)}
        stage.unreleased = set(asked) - stage.released
        stage.passed_hooks = by_executor & stage.released
        stage.resumes(len(asked))
        state = rules.state_kept(state, scenario.brings(number))
    stage.trace.state = rules.plain_state(state)
    return stage


async def _call(stage: InProcess, task: Any, state: dict[str, Any]) -> None:
    graph, call = stage.graph, stage.call
    stream = cast("AsyncGenerator[dict[str, Any], None]", graph.stream_async(task, state))
    error: Exception | None = None
    result: Any = None
    with silence():
        try:
            async with aclosing(stream) as events:
                async for event in events:
                    graph.max_node_executions = stage.scenario.plan.max_node_executions
                    stage.hear(event)
                    result = event.get("result", result)
        except Exception as raised:
            error = raised
    if isinstance(error, EventLoopException):
        stage.rules.use("a model's exception is its own")
    shown = graph.state if result is None else result
    interrupted = shown.status is Status.INTERRUPTED
    if not interrupted:
        stage.cut_off()
    call.outcome = {
        "error": None if error is None else error_of(error),
        "status": shown.status.value,
        "order": [str(node.node_id) for node in shown.execution_order],
        "total": shown.total_nodes,
        "completed": _count(shown.completed_nodes),
        "failed": _count(shown.failed_nodes),
        "interrupted": _count(shown.interrupted_nodes),
        "count": shown.execution_count,
        "results": {
            str(node): (
                *result_of(item),
                spent_of(item.accumulated_usage, item.accumulated_metrics),
            )
            for node, item in sorted(shown.results.items())
        },
        "spent": spent_of(shown.accumulated_usage, shown.accumulated_metrics),
        "edges": [(str(a.node_id), str(b.node_id)) for a, b in shown.edges],
        "entries": [str(node.node_id) for node in shown.entry_points],
    }
    if interrupted:
        ids = {item.id: key for key, item in stage.pending.items()}
        call.asked = sorted(((*ids[item.id], item.reason) for item in result.interrupts), key=repr)
    stage.rules.apply(stage, call)


def _count(nodes: Any) -> int:
    return nodes if isinstance(nodes, int) else len(nodes)
