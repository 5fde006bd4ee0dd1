"""What is one for a whole run, however deep its orchestrations are nested."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from temporalio import workflow

from .. import wire
from .gate import TaskGate
from .interrupts import Interrupts
from .journal import Journal
from .local import LocalActivities
from .slots import Slots

_MOST_AT_ONCE = 1000
"""Most activities of a run at once, whatever the graph says: a server fails each workflow task
that would have more than 2,000 (`limit.numPendingActivities.error`)."""


class Asker(Protocol):
    """Who has visits that ask humans: an orchestration."""

    def answered(self, node: str, answers: list[wire.Answer], *, complete: bool) -> None:
        """Take answers to what a node asked; `complete` says that it has all of them."""


def _depth(plan: wire.GraphPlan) -> int:
    """Return in how many levels a plan's nodes lie."""
    return 1 + max((_depth(node.plan) for node in plan.nodes if node.plan is not None), default=0)


def _calls_functions(plan: wire.GraphPlan) -> bool:
    """Say whether a run of a plan has local activities beside others: hooks, conditions, inputs."""
    return bool(plan.hooks) or any(
        [
            *(edge.condition is not None for edge in plan.edges),
            *(node.maps or node.builds_input for node in plan.nodes),
            *(_calls_functions(node.plan) for node in plan.nodes if node.plan is not None),
        ]
    )


class Run:
    """The memory that the orchestrations of one run share.

    Attributes:
        graph: The registered name.
        payload_limit: Bytes that one payload may have.
        invocation_state: One for all, as in Strands; whoever changes it goes through `merge`.
        interrupts: Questions to humans.
        journal: What an earlier run has done.
        slots: Concurrency slots.
        gate: Keeps workflow tasks small enough.
        local: Runs local activities.
        snapshots: Agents' snapshots from their last visits, by path, and by the visit of a mapped
            node that they take place in: visits of one run side by side at the same paths.
        in_session: Whether agents keep their memory for the next run of a session.
        show: Shows in the Temporal UI how the run stands.
    """

    def __init__(self, plan: wire.GraphPlan, request: wire.GraphInput, journal: Journal) -> None:
        """Begin with the request's own invocation state."""
        self.graph = plan.graph
        self.payload_limit = plan.payload_limit
        self.invocation_state = dict(request.invocation_state)
        self.interrupts = Interrupts()
        self.journal = journal
        self.slots = Slots(min(plan.max_concurrency or _MOST_AT_ONCE, _MOST_AT_ONCE))
        self.gate = TaskGate(lambda: self.local.turn())
        self.local = LocalActivities(
            plan.rules if _calls_functions(plan) else 0,  # Else there is nothing to order.
            self.gate,
            plan.payload_limit or 0,
            lambda: bool(self.interrupts.pending),
        )
        self.snapshots: dict[tuple[str, wire.Visit | None], dict[str, Any]] = {}
        self.in_session = request.session is not None
        self.show: Callable[[], None] = lambda: None
        self._steps = 2 + 2 * _depth(plan)
        self._order: dict[str, int] = {}
        for position, (path, _) in enumerate(plan.paths()):
            self._order[path] = self._order[wire.mapped(path)] = position
        self._visits: dict[str, int] = {}
        self._askers: dict[wire.Visit, tuple[Asker, str]] = {}

    async def settled(self) -> None:
        """Return when nothing more begins without an answer from outside.

        So every visit that an earlier run has finished, and that may come, has been asked for: also
        those in nested graphs that have only begun, or before which hooks run.
        """
        steps = 0
        while steps < self._steps:
            before = self.journal.claims
            await asyncio.sleep(0)
            steps += 1
            if not self.local.is_idle:
                await workflow.wait_condition(lambda: self.local.is_idle)
                steps = 0
            if self.journal.claims != before:
                steps = 0

    def merge(self, changes: wire.StateChanges) -> None:
        """Merge changes into the invocation state; the later in history wins."""
        changes.apply(self.invocation_state)

    def forget(self, item_visit: wire.Visit) -> None:
        """Forget what agents remember of a mapped node's visit that is over."""
        for key in [key for key in self.snapshots if key[1] == item_visit]:
            del self.snapshots[key]

    def visits(self, path: str) -> int:
        """Return how many visits the node at a path has had."""
        return self._visits.get(path, 0)

    def next_visit(self, path: str) -> int:
        """Return the number of a new visit of the node at a path.

        It goes on over all visits of the graphs that the node is in: path and number name a
        visit in the whole run.
        """
        self._visits[path] = number = self.visits(path) + 1
        return number

    def ask(self, visit: wire.Visit, questions: list[wire.Asked], asker: Asker, node: str) -> None:
        """Open the questions of a visit of the asker's node."""
        self.interrupts.ask(visit, questions)
        self._askers[visit] = asker, node

    def respond(self, answers: dict[str, Any], state: dict[str, Any]) -> list[str]:
        """Take answers in, and return the paths of the nodes that go on, having all of theirs.

        Args:
            answers: A response by interrupt id; the ledger has no `problem` with them.
            state: What came with them for the invocation state.
        """
        self.merge(wire.StateChanges(changed=state))
        released = []
        settled = self.interrupts.answer(answers)
        # In declaration order: the members of a JSON object, as the answers are, have none.
        for visit in sorted(settled, key=self._declared):
            given, complete = settled[visit], not self.interrupts.of(visit)
            asker, node = self._askers[visit]
            asker.answered(node, given, complete=complete)
            if complete:
                released.append(visit[0])
                del self._askers[visit]
        return released

    def _declared(self, visit: wire.Visit) -> tuple[int, int]:
        """Return what orders visits as their nodes are declared, those of one by number."""
        path, number = visit
        return self._order[path], number
