"""The scheduler: the state machine that decides which node of a graph runs when.

Events go in (a run starts, a visit ends, pauses or may go on, conditions were evaluated, time
is up), commands come out (dispatch a visit, evaluate conditions, finish). The machine is pure
Python: it imports neither temporalio nor strands, reads no clock, draws no random number and
iterates over no set, so the same events give the same commands in every process. Results are
opaque to it.

How a graph flows, in the vocabulary of the workflow patterns (van der Aalst et al., 2003;
Russell et al., 2006):

* A **visit** is one execution of a node. A node **fires** when its join is satisfied: a visit
  is queued, and **dispatched** once a concurrency slot is free. A node is **busy** from its
  firing to the end of the visit, and has one visit at a time. A visit that asks a human
  **pauses**: it gives its slot up, but stays the same visit until it has ended.
* When a visit completes, each edge out of its node gets a **verdict** from its condition; one
  without a condition is always true. A true edge is **marked**, a false one unmarked: a mark
  is what the latest visit of the edge's source says.
* A node that is not a start of the run and has a marked edge is **undecided** until it fires.
  Firing consumes its marks. A node is **alive** while it is busy or undecided: something may
  still come of it.

Joins are single-shot; `Dataflow` implements both kinds:

* ``all``, the general synchronizing merge (WCP-38): fire when no unmarked edge into the node
  can be taken any more by anything alive. So a join waits for whatever is under way and for
  nothing that is not. In a cycle, joins may come to wait for nothing but each other: a
  *knot*. Then those fire that wait for no other of the knot along forward edges, that is, by
  declaration order and not counting the edges that lead back in the cycle.
* ``any``, the structured discriminator (WCP-9): fire at the first mark, and swallow the rest
  of that wave. An edge that leads back in a cycle brings the next wave, never the rest of one.

`Supersteps` is the rule of Strands' own `Graph` instead: batches with a barrier, and a
multi-merge (WCP-8) of whatever the last batch says. Both are policies of the one `Scheduler`,
which owns what they share: visits, slots, the queue, endings, failures and limits.

What keeps an event cheap in a graph of any size: a waiting join is held back by one *witness*,
a node alive that could take one particular unmarked edge, and isn't looked at again before
that node's life ends. While a join waits, an unmarked edge that nothing alive can take stays
so, because whatever becomes alive descends from something that was. So the search for the next
witness never has to go back, and visits each edge into the join once per firing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, Protocol

from ..wire import GraphPlan, NodeStatus, RunStatus
from .commands import Answers, Ask, Command, Dispatch, Ending, Finish, Question, R
from .dataflow import Dataflow
from .slots import Slots
from .supersteps import Supersteps
from .topology import topology_of
from .turns import Turns


@dataclass(frozen=True, slots=True)
class _Visit(Generic[R]):
    """A visit from its firing to its end; `number` is 0 before its first dispatch."""

    node: int
    inputs: tuple[tuple[str, R], ...]
    number: int = 0
    resume: int = 0


class _Policy(Protocol):
    """What `Dataflow`, `Supersteps` and `Turns` decide, each in its own way.

    Attributes:
        exact_limit: Whether `max_node_executions` is checked at each dispatch.
        failure_withdraws: Whether a node that fails stops counting as completed.
    """

    exact_limit: ClassVar[bool]
    failure_withdraws: ClassVar[bool]

    def start(self, entry_points: Sequence[int]) -> None:
        """Fire the entry points."""

    def ended(self, node: int, ending: Ending) -> None:
        """A visit ended without ending the run."""

    def idle(self) -> None:
        """Nothing is in flight or queued: fire what there is to fire, or leave it over."""

    def expired(self) -> None:
        """The execution timeout passed."""


class Scheduler(Generic[R]):
    """The state machine of one run. See the module's description.

    Every event method returns the commands that follow from it, in order. After `Finish`, or
    for a node that is not in flight, an event is a mistake of the caller.

    Attributes:
        plan: The plan it follows.
        order: Ids in order of completion, returned failures included, as in Strands.
        completed: Ids of nodes that have completed, in that order.
        failed: Ids of nodes that ever failed, in that order.
        cancelled: Ids of nodes that a hook ever cancelled, in that order.
        results: Latest result of each node that has one.
        handoff: Id of the node that the visit whose end was recorded handed over to, in a swarm.
        is_failing: Whether a visit has ended in a way that ends the run, by `proceed`.
    """

    def __init__(
        self,
        plan: GraphPlan,
        slots: Slots | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare a run of `plan`; nothing happens before `start`.

        Args:
            plan: What to run.
            slots: Concurrency slots to share with other schedulers of the same run. Default:
                the plan's own.
            wake: Called when a slot for this scheduler becomes free by another's doing; then
                `proceed` is to be called.
        """
        self.plan = plan
        self.slots = slots or Slots(plan.max_concurrency)
        self.wake = wake
        self.topology = topology_of(plan)
        size = len(plan.nodes)
        self.order: list[str] = []
        self.completed: dict[str, None] = {}
        self.failed: dict[str, None] = {}
        self.cancelled: dict[str, None] = {}
        self.handoff: str | None = None
        self.results: dict[str, R] = {}
        self._visits = [0] * size
        self._rest = [NodeStatus.PENDING] * size
        self._busy = bytearray(size)
        self._queue: deque[_Visit[R]] = deque()
        self._in_flight: dict[int, _Visit[R]] = {}
        self._paused: dict[int, _Visit[R]] = {}
        self._dispatched = 0
        self._commands: list[Command[R]] = []
        self._answer_to: Callable[[Answers], None] | None = None
        self._draining: str | None = None
        self._over = False
        self._has_failed = False
        self._ended: tuple[int, Ending] | None = None
        self.is_failing = False
        self._holds_slot = [node.plan is None and not node.maps for node in plan.nodes]
        self._policy: _Policy
        if plan.swarm is not None:
            self._policy = Turns(self)
        elif plan.semantics == "strands":
            self._policy = Supersteps(self)
        else:
            self._policy = Dataflow(self)

    # -- what may be read ----------------------------------------------------------------------

    @property
    def in_flight(self) -> list[str]:
        """Ids of the nodes whose visits are in flight, in order of dispatch."""
        return [self.plan.nodes[node].id for node in self._in_flight]

    @property
    def is_running(self) -> bool:
        """Whether anything is under way: in flight or queued, or a question of its own."""
        waits = self._answer_to is not None or self._ended is not None
        return waits or bool(self._in_flight or self._queue)

    @property
    def paused(self) -> list[str]:
        """Ids of the nodes whose visits are paused, in the order in which they paused."""
        return [self.plan.nodes[node].id for node in self._paused]

    def status(self, node: str) -> NodeStatus:
        """Return where a node stands."""
        index = self.topology.index[node]
        if not self._busy[index]:
            return self._rest[index]
        if index in self._paused:
            return NodeStatus.INTERRUPTED
        return NodeStatus.EXECUTING if index in self._in_flight else NodeStatus.DISPATCHED

    def visits(self, node: str) -> int:
        """Return how many visits of a node were dispatched."""
        return self._visits[self.topology.index[node]]

    # -- events --------------------------------------------------------------------------------

    def start(self) -> list[Command[R]]:
        """Begin the run."""
        index = self.topology.index
        self._policy.start(sorted(index[node] for node in self.plan.entry_points))
        return self._advance()

    def ended(
        self, node: str, ending: Ending, result: R, handoff: str | None = None
    ) -> list[Command[R]]:
        """Take the end of a visit, and go on; see `record`."""
        self.record(node, ending, result, handoff)
        return self.proceed()

    def record(self, node: str, ending: Ending, result: R, handoff: str | None = None) -> None:
        """Take note of the end of the visit of `node` that is in flight or paused.

        What follows from it comes with `proceed`: hooks see what has ended, and nothing further.

        Args:
            node: Its id.
            ending: How it ended.
            result: What it gave.
            handoff: Id of the node that it handed over to, in a swarm.
        """
        index = self.topology.index[node]
        if self._in_flight.pop(index, None) is None:
            del self._paused[index]
        else:
            self._give_slot(index)
        self._busy[index] = False
        self.handoff = handoff
        if ending is not Ending.CANCELLED:
            self.results[node] = result
        if ending in (Ending.COMPLETED, Ending.FAILED):
            self.order.append(node)
        if ending is Ending.COMPLETED:
            self._rest[index] = NodeStatus.COMPLETED
            self.completed[node] = None
        elif ending is Ending.CANCELLED:
            self._rest[index] = NodeStatus.CANCELLED
            self.cancelled[node] = None
        else:
            self._rest[index] = NodeStatus.FAILED
            self.failed[node] = None
            if self._policy.failure_withdraws:
                self.completed.pop(node, None)
        caught = bool(self.topology.error_edges[index])
        self._has_failed |= ending in (Ending.FAILED, Ending.RAISED) and not caught
        fails_fast = self.plan.nodes[index].on_failure == "fail_fast" and not caught
        if ending is Ending.RAISED and fails_fast and self._draining is None:
            self.is_failing = True
        self._ended = index, ending

    def proceed(self) -> list[Command[R]]:
        """Go on: with what follows from the end that was recorded, or since there is a slot."""
        if self._ended is not None:
            (index, ending), self._ended = self._ended, None
            if self.is_failing:
                self._finish(RunStatus.FAILED, failed_node=self.plan.nodes[index].id)
            elif self._draining is None:
                self._policy.ended(index, ending)
            self.handoff = None
        return self._advance()

    def pause(self, node: str) -> list[Command[R]]:
        """Take note that the visit of `node` in flight waits for a human.

        It gives up its concurrency slot. It keeps its count as an execution.
        """
        index = self.topology.index[node]
        self._paused[index] = self._in_flight.pop(index)
        self._give_slot(index)
        return self._advance()

    def resume(self, node: str) -> list[Command[R]]:
        """Let the paused visit of `node` go on as soon as there is a slot."""
        visit = self._paused.pop(self.topology.index[node])
        self._queue.append(replace(visit, resume=visit.resume + 1))
        return self._advance()

    def answered(self, answers: Answers) -> list[Command[R]]:
        """Take the verdicts that the last `Ask` asked for."""
        assert self._answer_to is not None, "nothing was asked"
        proceed, self._answer_to = self._answer_to, None
        proceed(answers)
        return self._advance()

    def expired(self) -> list[Command[R]]:
        """Take note that the execution timeout has passed."""
        self._policy.expired()
        return self._advance()

    def abort(self, reason: str) -> list[Command[R]]:
        """End the run as failed: it cannot go on, for a reason from outside the machine."""
        self._ended = None
        self._finish(RunStatus.FAILED, reason)
        return self._advance()

    # -- what policies do ----------------------------------------------------------------------

    def busy(self, node: int) -> bool:
        """Say whether a visit of `node` is queued or in flight."""
        return bool(self._busy[node])

    def usable(self, node: int) -> bool:
        """Say whether `node` has completed, so that its result may be passed on."""
        return self.plan.nodes[node].id in self.completed

    def fire(self, node: int, sources: Iterable[int]) -> None:
        """Queue a visit of `node` that consumes the present results of `sources`."""
        names = (self.plan.nodes[source].id for source in sources)
        self._queue.append(_Visit(node, tuple((name, self.results[name]) for name in names)))
        self._busy[node] = True

    def ask(self, questions: list[Question], proceed: Callable[[Answers], None]) -> None:
        """Have conditions evaluated and `proceed` called with the verdicts.

        With no questions it is called at once, without any command: edges without conditions
        cost nothing.
        """
        if questions:
            self._commands.append(Ask(tuple(questions)))
            self._answer_to = proceed
        else:
            proceed([])

    def stop(self, reason: str, *, drain: bool) -> None:
        """End the run because of a limit.

        Args:
            reason: What the result says.
            drain: Let the visits that have begun end and count first, but for those that wait
                for a human: whatever they'd say, the run has failed. Start nothing new.
        """
        for visit in self._queue:
            self._busy[visit.node] = bool(visit.number)
        self._queue = deque(visit for visit in self._queue if visit.number)
        if drain:
            self._draining = reason
        else:
            self._finish(RunStatus.FAILED, reason)

    @property
    def executions_reason(self) -> str:
        """What the result says where the limit on executions ended the run, as in Strands."""
        return f"Max node executions reached: {self.plan.max_node_executions}"

    @property
    def timeout_reason(self) -> str:
        """What the result says where the execution timeout ended the run, as in Strands."""
        return f"Execution timed out: {self.plan.execution_timeout}s"

    # -- the engine ----------------------------------------------------------------------------

    def _advance(self) -> list[Command[R]]:
        """Dispatch what can be, let the policy go on when idle, finish when nothing is left."""
        while not self._over and self._answer_to is None:
            self._dispatch()
            if self._in_flight or self._queue or (self._paused and self._draining is None):
                break
            if self._draining is None:
                self._policy.idle()
                if self._queue or self._answer_to is not None or self._over:
                    continue
            if self._draining is not None or self._has_failed:
                self._finish(RunStatus.FAILED, self._draining)
            else:
                self._finish(RunStatus.COMPLETED)
        commands, self._commands = self._commands, []
        return commands

    def _dispatch(self) -> None:
        """Move visits from the queue into free slots, first ready first served."""
        while self._queue:
            visit = self._queue[0]
            if self._holds_slot[visit.node] and not self.slots.take(self):
                break
            if not visit.number:
                limit = self.plan.max_node_executions if self._policy.exact_limit else None
                if limit is not None and self._dispatched >= limit:
                    self._give_slot(visit.node)
                    self.stop(self.executions_reason, drain=True)
                    continue
                self._dispatched += 1
                self._visits[visit.node] += 1
                visit = replace(visit, number=self._visits[visit.node])
            self._queue.popleft()
            self._in_flight[visit.node] = visit
            self._commands.append(
                Dispatch(self.plan.nodes[visit.node].id, visit.number, visit.inputs, visit.resume)
            )
        if not self._queue:
            self.slots.leave(self)

    def _give_slot(self, node: int) -> None:
        if self._holds_slot[node]:
            self.slots.give(self)

    def _finish(
        self, status: RunStatus, reason: str | None = None, failed_node: str | None = None
    ) -> None:
        if self._over:
            return
        self._over = True
        self._answer_to = None
        for node in self._in_flight:
            self._give_slot(node)
        self.slots.leave(self)
        for node in (*self._in_flight, *self._paused):
            self._rest[node] = NodeStatus.CANCELLED
        self._busy = bytearray(len(self._busy))
        self._queue.clear()
        self._commands.append(Finish(status, reason, failed_node))
