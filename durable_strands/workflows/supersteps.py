"""Strands' own rule for graphs, as a policy. See `scheduler` for the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, ClassVar, Generic

from .commands import Answers, Ending, Question, R

if TYPE_CHECKING:
    from .scheduler import Scheduler


class Supersteps(Generic[R]):
    """Strands' own rule: batches with a barrier, each node fired by whoever of the last batch.

    It reproduces `strands.multiagent.graph.Graph`, evaluation by evaluation, with declaration
    order where Strands has set order: a batch runs to its end; a node fires if any edge from
    a node of that batch is true; limits are checked between batches; conditions are evaluated
    for readiness, up to the first true one, and again for the input.
    """

    exact_limit: ClassVar[bool] = False
    failure_withdraws: ClassVar[bool] = False

    def __init__(self, machine: Scheduler[R]) -> None:
        self._machine = machine
        self._shape = machine.topology
        self._batch: list[int] = []
        self._pruned: dict[int, None] = {}
        self._expired = False

    def start(self, entry_points: Sequence[int]) -> None:
        """Launch the first batch."""
        self._launch(entry_points)

    def ended(self, node: int, ending: Ending) -> None:
        """Wait for the batch to end, but remember who said nothing for the next."""
        if ending is not Ending.COMPLETED:
            self._pruned[node] = None

    def expired(self) -> None:
        """Remember it: what runs is left to end, the next batch doesn't begin."""
        self._expired = True

    def idle(self) -> None:
        """The batch is over: find out who is ready, and launch them."""
        shape = self._shape
        inside = bytearray(len(shape.incoming))
        targets: dict[int, None] = {}
        for node in self._batch:
            if node not in self._pruned:
                inside[node] = True
                targets.update((shape.target[edge], None) for edge in shape.outgoing[node])
        self._batch, self._pruned = [], {}

        candidates: list[tuple[int, list[int], bool]] = []
        for target in sorted(targets):
            edges = [edge for edge in shape.incoming[target] if inside[shape.source[edge]]]
            asked = list(takewhile(shape.conditional.__getitem__, edges))
            candidates.append((target, asked, len(asked) < len(edges)))

        def proceed(answers: Answers) -> None:
            replies = iter(answers)
            ready = [
                target
                for target, asked, sure in candidates
                if (asked and any(next(replies))) or sure
            ]
            if ready:
                self._launch(ready)

        self._machine.ask(
            [self._question(asked, until_true=True) for _, asked, _ in candidates if asked], proceed
        )

    def _launch(self, batch: Sequence[int]) -> None:
        """Check the limits, then gather the inputs of a batch one node after the other.

        A node that starts afresh is taken out of the completed nodes as it starts, so that it
        doesn't see its own last result, nor do those of the batch that start after it.
        """
        machine, shape = self._machine, self._shape
        limit = machine.plan.max_node_executions
        if limit is not None and len(machine.order) >= limit:
            machine.stop(machine.executions_reason, drain=False)
            return
        if self._expired:
            machine.stop(machine.timeout_reason, drain=False)
            return

        restarted: list[int] = []
        gathered: list[tuple[int, list[int], list[int]]] = []
        questions: list[Question] = []
        for node in batch:
            if machine.plan.nodes[node].on_revisit == "reset" and machine.usable(node):
                restarted.append(node)
            edges = [
                edge
                for edge in shape.incoming[node]
                if machine.usable(shape.source[edge]) and shape.source[edge] not in restarted
            ]
            asked = [edge for edge in edges if shape.conditional[edge]]
            gathered.append((node, edges, asked))
            if asked:
                questions.append(self._question(asked, hidden=restarted))

        def proceed(answers: Answers) -> None:
            replies = iter(answers)
            for node, edges, asked in gathered:
                verdicts = dict(zip(asked, next(replies), strict=True)) if asked else {}
                sources = [shape.source[edge] for edge in edges if verdicts.get(edge, True)]
                machine.fire(node, dict.fromkeys(sources))
            for node in restarted:
                del machine.completed[machine.plan.nodes[node].id]
            self._batch = list(batch)

        machine.ask(questions, proceed)

    def _question(
        self, edges: Sequence[int], *, until_true: bool = False, hidden: Sequence[int] = ()
    ) -> Question:
        plan = self._machine.plan
        return Question(
            tuple(plan.edges[edge] for edge in edges),
            until_true,
            tuple(plan.nodes[node].id for node in hidden),
        )
