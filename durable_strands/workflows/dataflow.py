"""The default policy: single-shot joins, no barriers. See `scheduler` for the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Generic

from .commands import Answers, Ending, Question, R
from .topology import lowest

if TYPE_CHECKING:
    from .scheduler import Scheduler


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

    def ended(self, node: int, ending: Ending) -> None:
        """Have the conditions of the node's edges evaluated; or prune its branch, or reroute it."""
        if ending is not Ending.COMPLETED:
            self._fail(node, reroute=ending is not Ending.CANCELLED)
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
            verdict = self._verdict[edge] = verdicts.get(edge, not shape.on_error[edge])
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

    def _fail(self, node: int, *, reroute: bool) -> None:
        """Prune the branch: nothing that `node` said before holds any more.

        Args:
            node: The node that failed, or was cancelled.
            reroute: Whether its error edges are taken.
        """
        shape = self._shape
        for edge in shape.outgoing[node]:
            belongs_to_the_past = self._swallow.pop(edge, None) is not None
            taken = reroute and shape.on_error[edge]
            self._verdict[edge] = True if taken else None
            if not taken:
                self._unmark(edge)
            elif belongs_to_the_past:
                self._recent[edge] = False  # The wave of this failure has been.
            else:
                self._mark(edge)
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
            there = shape.on_error[edge] or self._machine.usable(shape.source[edge])
            if self._verdict[edge] and current and there:
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
