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
from enum import StrEnum
from itertools import takewhile
from typing import ClassVar, Generic, Protocol, TypeVar

from ..wire import EdgePlan, GraphPlan, NodeStatus, RunStatus
from .topology import lowest, topology_of

R = TypeVar("R")
"""Type of a visit's result. The machine passes results on and never looks inside."""


class Ending(StrEnum):
    """How a visit ends."""

    COMPLETED = "completed"
    """With a result."""

    FAILED = "failed"
    """With a result that says it failed; prunes the branch under every policy, as in Strands."""

    RAISED = "raised"
    """With an error, after all its retries; `on_failure` decides what that does to the run."""

    CANCELLED = "cancelled"
    """Not run after all, because a hook said so: the branch ends here, and nothing has failed."""


@dataclass(frozen=True, slots=True)
class Dispatch(Generic[R]):
    """Command: run a visit of a node.

    Attributes:
        node: Id of the node.
        visit: Number of the visit, from 1.
        inputs: `(source id, result)` that this visit consumes, in declaration order.
        resume: How often this visit has been resumed after a pause.
    """

    node: str
    visit: int
    inputs: tuple[tuple[str, R], ...]
    resume: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """Edges whose conditions to evaluate, in this order.

    Attributes:
        edges: The edges; each has a condition.
        until_true: Stop after the first that is true.
        hidden: Completed nodes that the conditions must not see as completed.
    """

    edges: tuple[EdgePlan, ...]
    until_true: bool = False
    hidden: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ask:
    """Command: evaluate conditions, then call `Scheduler.answered` before any other event."""

    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """Command: the run is over. Visits still in flight are to be cancelled.

    Attributes:
        status: COMPLETED or FAILED.
        reason: Why it failed, where a limit or `abort` did it.
        failed_node: Id of the node that raised, where that ended the run.
    """

    status: RunStatus
    reason: str | None = None
    failed_node: str | None = None


@dataclass(frozen=True, slots=True)
class _Visit(Generic[R]):
    """A visit from its firing to its end; `number` is 0 before its first dispatch."""

    node: int
    inputs: tuple[tuple[str, R], ...]
    number: int = 0
    resume: int = 0


Command = Dispatch[R] | Ask | Finish
Answers = Sequence[Sequence[bool]]
"""One list of verdicts a question, shorter than the question where `until_true` cut it."""


class _Policy(Protocol):
    """What `Dataflow` and `Supersteps` decide, each in its own way.

    Attributes:
        exact_limit: Whether `max_node_executions` is checked at each dispatch.
        failure_withdraws: Whether a node that fails stops counting as completed.
    """

    exact_limit: ClassVar[bool]
    failure_withdraws: ClassVar[bool]

    def start(self, entry_points: Sequence[int]) -> None:
        """Fire the entry points."""

    def ended(self, node: int, completed: bool) -> None:
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
    """

    def __init__(self, plan: GraphPlan) -> None:
        """Prepare a run of `plan`; nothing happens before `start`."""
        self.plan = plan
        self.topology = topology_of(plan)
        size = len(plan.nodes)
        self.order: list[str] = []
        self.completed: dict[str, None] = {}
        self.failed: dict[str, None] = {}
        self.cancelled: dict[str, None] = {}
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
        self._policy: _Policy
        if plan.semantics == "strands":
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
        """Whether anything is under way: in flight, or a question of the machine's own."""
        return bool(self._in_flight) or self._answer_to is not None

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

    def ended(self, node: str, ending: Ending, result: R) -> list[Command[R]]:
        """Take the end of the visit of `node` that is in flight or paused."""
        index = self.topology.index[node]
        if self._in_flight.pop(index, None) is None:
            del self._paused[index]
        self._busy[index] = False
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
        if self._draining is None:
            if ending is Ending.RAISED and self.plan.nodes[index].on_failure == "fail_fast":
                self._finish(RunStatus.FAILED, failed_node=node)
            else:
                self._policy.ended(index, ending is Ending.COMPLETED)
        return self._advance()

    def pause(self, node: str) -> list[Command[R]]:
        """Take note that the visit of `node` in flight waits for a human.

        It gives up its concurrency slot. It keeps its count as an execution.
        """
        index = self.topology.index[node]
        self._paused[index] = self._in_flight.pop(index)
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
            if self._in_flight or (self._paused and self._draining is None):
                break
            if self._draining is None:
                self._policy.idle()
                if self._queue or self._answer_to is not None or self._over:
                    continue
            if self._draining is not None or self.failed:
                self._finish(RunStatus.FAILED, self._draining)
            else:
                self._finish(RunStatus.COMPLETED)
        commands, self._commands = self._commands, []
        return commands

    def _dispatch(self) -> None:
        """Move visits from the queue into free slots, first ready first served."""
        slots = self.plan.max_concurrency
        while self._queue and (slots is None or len(self._in_flight) < slots):
            visit = self._queue[0]
            if not visit.number:
                limit = self.plan.max_node_executions if self._policy.exact_limit else None
                if limit is not None and self._dispatched >= limit:
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

    def _finish(
        self, status: RunStatus, reason: str | None = None, failed_node: str | None = None
    ) -> None:
        self._over = True
        self._answer_to = None
        for node in (*self._in_flight, *self._paused):
            self._rest[node] = NodeStatus.CANCELLED
        self._busy = bytearray(len(self._busy))
        self._queue.clear()
        self._commands.append(Finish(status, reason, failed_node))


class Dataflow(Generic[R]):
    """The default policy: single-shot joins, no barriers.

    Per edge it keeps the last verdict, whether the edge is marked, and whether it is *recent*:
    its source completed since its target last fired. Per node, how many edges into it are
    marked (a node with any is undecided, unless it is busy) and whether it is alive; `_alive` is
    the same as a bitset, to be intersected with who can take an edge.
    """

    exact_limit: ClassVar[bool] = True
    failure_withdraws: ClassVar[bool] = True

    def __init__(self, machine: Scheduler[R]) -> None:
        self._machine = machine
        self._shape = machine.topology
        edges, nodes = len(self._shape.source), len(self._shape.incoming)
        self._verdict: list[bool | None] = [None] * edges
        self._marked = bytearray(edges)
        self._recent = bytearray(edges)
        self._marks = [0] * nodes
        self._lives = bytearray(nodes)
        self._alive = 0
        # A waiting join: the position of the unmarked edge that holds it back, the node alive
        # that could take that edge, and the other way round, whom a node alive holds back.
        self._cursor = [0] * nodes
        self._witness: list[int | None] = [None] * nodes
        self._held_by: dict[int, list[int]] = {}
        self._waiting_in_cycle: dict[int, None] = {}
        # The rest of a discriminator's wave: edges whose next arrival is swallowed, and which
        # of them hang on a node alive.
        self._swallow: dict[int, int] = {}
        self._swallow_by: dict[int, list[int]] = {}

    # -- events --------------------------------------------------------------------------------

    def start(self, entry_points: Sequence[int]) -> None:
        """Fire the entry points, which consume nothing."""
        for node in entry_points:
            self._enliven(node)
            self._machine.fire(node, ())

    def ended(self, node: int, completed: bool) -> None:
        """Have the conditions of the node's edges evaluated, or prune its branch."""
        if not completed:
            self._fail(node)
            return
        edges = self._edges_to_ask(node)
        plan = self._machine.plan

        def proceed(answers: Answers) -> None:
            verdicts = dict(zip(edges, answers[0], strict=True)) if edges else {}
            self._decide_edges(node, verdicts)

        question = Question(tuple(plan.edges[edge] for edge in edges))
        self._machine.ask([question] if edges else [], proceed)

    def idle(self) -> None:
        """Do nothing: whatever can fire has fired."""
        assert not any(self._marks), "a knot is untied as soon as it is tied"

    def expired(self) -> None:
        """End the run at once."""
        self._machine.stop(self._machine.timeout_reason, drain=False)

    # -- verdicts and marks --------------------------------------------------------------------

    def _edges_to_ask(self, node: int) -> list[int]:
        """Return the edges whose conditions the completion of `node` evaluates.

        Its own conditional edges, and then once more those into the same targets that said no
        while their source has a result: what they waited for may have come with this
        completion (a hand-written "wait for all"), and their results then join the input.
        """
        shape = self._shape
        own = [edge for edge in shape.outgoing[node] if shape.conditional[edge]]
        again: dict[int, None] = {}
        for edge in own:
            for other in shape.incoming[shape.target[edge]]:
                if (
                    shape.conditional[other]
                    and self._verdict[other] is False
                    and shape.source[other] != node
                    and self._machine.usable(shape.source[other])
                ):
                    again[other] = None
        return own + sorted(again)

    def _decide_edges(self, node: int, verdicts: dict[int, bool]) -> None:
        """Apply the verdicts that the completion of `node` brought, then fire what can."""
        shape = self._shape
        touched = [shape.target[edge] for edge in shape.outgoing[node]]
        for edge in shape.outgoing[node]:
            verdict = self._verdict[edge] = verdicts.get(edge, True)
            if not verdict:
                self._unmark(edge)
                self._swallow.pop(edge, None)  # The branch has come to its end.
                self._recent[edge] = True
            elif edge in self._swallow:
                del self._swallow[edge]
                self._recent[edge] = False  # It belongs to the wave that has been.
            else:
                self._mark(edge)
        for edge, verdict in verdicts.items():
            self._verdict[edge] = verdict  # Those asked once more among them: no mark.
        self._settle(node, touched)

    def _fail(self, node: int) -> None:
        """Prune the branch: nothing that `node` said before holds any more."""
        shape = self._shape
        for edge in shape.outgoing[node]:
            self._verdict[edge] = None
            self._unmark(edge)
            self._swallow.pop(edge, None)
        self._settle(node, [shape.target[edge] for edge in shape.outgoing[node]])

    def _mark(self, edge: int) -> None:
        self._recent[edge] = True
        if not self._marked[edge]:
            self._marked[edge] = True
            target = self._shape.target[edge]
            self._marks[target] += 1
            self._enliven(target)

    def _unmark(self, edge: int) -> None:
        self._recent[edge] = False
        if self._marked[edge]:
            self._marked[edge] = False
            target = self._shape.target[edge]
            self._marks[target] -= 1
            self._wait_afresh(target)

    def _enliven(self, node: int) -> None:
        if not self._lives[node]:
            self._lives[node] = True
            self._alive |= 1 << node

    # -- joins ---------------------------------------------------------------------------------

    def _settle(self, node: int, touched: list[int]) -> None:
        """After the end of a visit: see whose life is over, and who need wait no longer.

        Args:
            node: The node whose visit ended.
            touched: Nodes whose marks may have changed.
        """
        candidates: dict[int, None] = {}
        for ending in dict.fromkeys([node, *touched]):
            if self._marks[ending]:
                candidates[ending] = None
            elif self._lives[ending] and not self._machine.busy(ending):
                self._lives[ending] = False
                self._alive ^= 1 << ending
                for waiting in self._held_by.pop(ending, ()):
                    if self._witness[waiting] == ending:
                        candidates[waiting] = None
                for edge in self._swallow_by.pop(ending, ()):
                    if self._swallow.get(edge) == ending:
                        del self._swallow[edge]
                        self._expect(edge)
        for candidate in sorted(candidates):
            if self._marks[candidate] and not self._machine.busy(candidate):
                if self._joined(candidate):
                    self._fire(candidate)
                elif self._shape.joins_cycle[candidate]:
                    self._waiting_in_cycle[candidate] = None
        if self._waiting_in_cycle:
            for candidate in self._knot():
                self._fire(candidate)

    def _knot(self) -> list[int]:
        """Find the joins that wait for nothing but each other, and return those to fire.

        A waiting join is *anchored* if something busy holds it back, or something outside its
        cycle (which has its own reasons), or another anchored one. The rest are in a knot. Of
        these the ones fire that no other of them reaches along forward edges: the first in
        declaration order always, and whatever would run beside it.
        """
        shape = self._shape
        waiting = self._waiting_in_cycle
        loose = dict.fromkeys(sorted(waiting))
        holders = {node: self._holders(node) for node in loose}
        progress = True
        while progress:
            progress = False
            for node in list(loose):
                others = holders[node]
                while others:
                    other = lowest(others)
                    others &= others - 1
                    if other not in loose or shape.cycle[other] != shape.cycle[node]:
                        del loose[node]
                        progress = True
                        break
        knot = sum(1 << node for node in loose)
        return [
            node
            for node in loose
            if not any(
                shape.cyclic[edge] and knot & shape.forward_takers(edge)
                for edge in shape.incoming[node]
                if not self._marked[edge]
            )
        ]

    def _holders(self, node: int) -> int:
        """Return everything alive that could take an unmarked edge into `node`."""
        takers = 0
        for edge in self._shape.incoming[node]:
            if not self._marked[edge]:
                takers |= self._shape.takers(edge)
        return self._alive & takers

    def _joined(self, node: int) -> bool:
        """Say whether the join of an undecided node is satisfied; if not, note what holds it."""
        if self._machine.plan.nodes[node].join == "any":
            return True
        edges = self._shape.incoming[node]
        if self._marks[node] == len(edges):
            return True
        position = self._cursor[node]
        while position < len(edges):
            edge = edges[position]
            if not self._marked[edge]:
                holders = self._alive & self._shape.takers(edge)
                witness = self._witness[node]
                if holders and witness is not None and holders >> witness & 1:
                    return False  # As before.
                if holders:
                    witness = self._witness[node] = lowest(holders)
                    self._held_by.setdefault(witness, []).append(node)
                    self._cursor[node] = position
                    return False
            position += 1
        return True

    def _wait_afresh(self, node: int) -> None:
        """Let the search for what holds `node` back begin again at its first edge."""
        self._cursor[node] = 0
        self._witness[node] = None
        self._waiting_in_cycle.pop(node, None)

    def _fire(self, node: int) -> None:
        shape = self._shape
        self._machine.fire(node, self._inputs(node))
        first_of_wave = self._machine.plan.nodes[node].join == "any"
        for edge in shape.incoming[node]:
            if first_of_wave and not self._marked[edge]:
                self._expect(edge)
            self._marked[edge] = self._recent[edge] = False
        self._marks[node] = 0
        self._wait_afresh(node)

    def _inputs(self, node: int) -> list[int]:
        """Return the sources whose results a firing of `node` consumes.

        Those that say yes. From inside the node's own cycle only what this pass produced: the
        rest is stale.
        """
        shape = self._shape
        sources: dict[int, None] = {}
        for edge in shape.incoming[node]:
            current = self._recent[edge] or not shape.cyclic[edge]
            if self._verdict[edge] and current and self._machine.usable(shape.source[edge]):
                sources[shape.source[edge]] = None
        return list(sources)

    def _expect(self, edge: int) -> None:
        """Swallow the next arrival on `edge`, as long as something alive could bring one."""
        if edge in self._swallow:
            return
        holders = self._alive & self._shape.forward_takers(edge)
        if holders:
            witness = self._swallow[edge] = lowest(holders)
            self._swallow_by.setdefault(witness, []).append(edge)


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

    def ended(self, node: int, completed: bool) -> None:
        """Wait for the batch to end, but remember who said nothing for the next."""
        if not completed:
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
