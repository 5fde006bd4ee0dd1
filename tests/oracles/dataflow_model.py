"""A slow and obvious model of the "dataflow" semantics, to judge the real scheduler by.

It is a second implementation, written from the words of the design (section 4) and of the
rules that refine it, and from nothing else. The comments quote those words at the place where
each of them is carried out. Nothing is precomputed and nothing is remembered that could be
worked out again: paths are searched for each time that somebody asks, and each undecided node
is looked at again after each event.

What the design leaves open is fixed here as follows:

* A run is a sequence of events: its start, then one ending of a visit after another. Each
  ending is processed completely before the next.
* A visit is *fired*, then *dispatched*, then it ends. Its number and its inputs are fixed when
  it is fired; from then to its end its node counts as "in flight" for the rule of one visit
  at a time. Between firing and dispatch it waits in a queue, first in, first out.
* The alive nodes of an event are the same before and after its firings, since a node that
  fires goes from undecided to queued. It makes no difference when in an event they are listed.

The refined rules speak of these:

* C(n): n's *cycle*, the strongly connected component of the plan's graph that n is in.
* An edge is *cyclic* if both ends are in the same component (self loops included).
* A cyclic edge is a *back edge* if its source is not declared before its target (a self loop
  is a back edge); all other edges are *forward*.
* An edge is *recent* from the completion of a visit of its source, whatever the verdict, until
  its target fires.
* A *knot*, called S in the rules, is what is left of a cycle's undecided nodes when they wait
  only for each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from durable_strands.wire import EdgePlan, GraphPlan, NodePlan
from tests.oracles.world import ConditionRaisedError, Ending, Result, Trace, View, World


@dataclass(eq=False)
class _Edge:
    """An edge and all that a run knows of it.

    Attributes:
        plan: The edge of the plan.
        marked: Its source's latest visit said yes, and its target hasn't fired since.
        recent: A visit of its source completed, and its target hasn't fired since.
        verdict: What was last said of it; None where nothing was, or its source failed since.
        swallow: It is in the swallow set of its target: its next yes goes by unheard.
    """

    plan: EdgePlan
    marked: bool = False
    recent: bool = False
    verdict: bool | None = None
    swallow: bool = False


@dataclass(frozen=True)
class _Visit:
    """A fired visit."""

    node: str
    number: int
    inputs: tuple[Result, ...]


class _RunFailedError(Exception):
    """The run ends here and now, FAILED."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Run:
    """One run of a plan in a world."""

    def __init__(self, plan: GraphPlan, world: World) -> None:
        self.plan = plan
        self.world = world
        self.trace = Trace()
        self.edges = [_Edge(edge) for edge in plan.edges]
        self.queue: list[_Visit] = []
        self.in_flight: list[_Visit] = []
        self.fired: list[_Visit] = []
        self.results: dict[str, Result] = {}
        self.completed: set[str] = set()
        self.failed: set[str] = set()
        self.endings = 0

    # -----------------------------------------------------------------------------------------
    # The graph
    # -----------------------------------------------------------------------------------------

    def node_plan(self, node: str) -> NodePlan:
        """Return the plan of a node."""
        return next(plan for plan in self.plan.nodes if plan.id == node)

    def edges_into(self, node: str) -> list[_Edge]:
        """Return the edges that enter a node, in plan order."""
        return [edge for edge in self.edges if edge.plan.target == node]

    def edges_out_of(self, node: str) -> list[_Edge]:
        """Return the edges that leave a node, in plan order."""
        return [edge for edge in self.edges if edge.plan.source == node]

    def path_exists(self, start: str, end: str, along: list[_Edge]) -> bool:
        """Say whether a path leads from `start` to `end`; the empty path is one.

        Args:
            start: Where the path begins.
            end: Where the path ends.
            along: The edges that the path may take.
        """
        found = [start]
        for node in found:  # grows while it is gone through
            for edge in along:
                if edge.plan.source == node and edge.plan.target not in found:
                    found.append(edge.plan.target)
        return end in found

    def cycle_of(self, node: str) -> list[str]:
        """Return C(node), in declaration order."""
        # "n's cycle = strongly connected component of the plan's graph"
        return [
            other.id
            for other in self.plan.nodes
            if self.path_exists(node, other.id, along=self.edges)
            and self.path_exists(other.id, node, along=self.edges)
        ]

    def is_cyclic(self, edge: _Edge) -> bool:
        """Say whether an edge is cyclic."""
        # "An edge is "cyclic" if both ends are in the same component (self loops included)."
        return edge.plan.source in self.cycle_of(edge.plan.target)

    def is_back_edge(self, edge: _Edge) -> bool:
        """Say whether an edge is a back edge."""
        # "A cyclic edge is a "back edge" if its source is not declared before its target (self
        # loop: back edge)"
        order = [node.id for node in self.plan.nodes]
        source_is_before_target = order.index(edge.plan.source) < order.index(edge.plan.target)
        return self.is_cyclic(edge) and not source_is_before_target

    def is_forward(self, edge: _Edge) -> bool:
        """Say whether an edge is forward."""
        # "all other edges are "forward""
        return not self.is_back_edge(edge)

    def edges_within(self, cycle: list[str]) -> list[_Edge]:
        """Return the edges with both ends in a cycle, in plan order."""
        return [
            edge for edge in self.edges if edge.plan.source in cycle and edge.plan.target in cycle
        ]

    # -----------------------------------------------------------------------------------------
    # Where nodes stand
    # -----------------------------------------------------------------------------------------

    def is_busy(self, node: str) -> bool:
        """Say whether a visit of the node is queued or in flight."""
        return any(visit.node == node for visit in self.queue + self.in_flight)

    def is_undecided(self, node: str) -> bool:
        """Say whether the node has a mark that no firing has consumed."""
        # "A node with a marked edge is *undecided* until it fires"
        return any(edge.marked for edge in self.edges_into(node))

    def undecided(self) -> list[str]:
        """Return the undecided nodes in declaration order."""
        return [node.id for node in self.plan.nodes if self.is_undecided(node.id)]

    def alive(self) -> list[str]:
        """Return the nodes that may still make something happen, in declaration order."""
        # "Alive: nodes in flight, queued [...], and undecided nodes."
        return [
            node.id
            for node in self.plan.nodes
            if self.is_busy(node.id) or self.is_undecided(node.id)
        ]

    def can_take(self, node: str, edge: _Edge) -> bool:
        """Say whether an alive node can still bring an edge to its target."""
        # "reaches the source of such an edge without passing through the node itself": so the
        # target itself never does, and its edge to itself is never waited for.
        itself = edge.plan.target
        around = [
            other for other in self.edges if itself not in (other.plan.source, other.plan.target)
        ]
        return itself not in (node, edge.plan.source) and self.path_exists(
            node, edge.plan.source, along=around
        )

    def waits_for(self, node: str, alive: list[str]) -> list[str]:
        """Return the alive nodes that can take an unmarked edge into a node."""
        return [
            other
            for other in alive
            if any(not edge.marked and self.can_take(other, edge) for edge in self.edges_into(node))
        ]

    def can_be_taken_forward(self, edge: _Edge, alive: list[str]) -> bool:
        """Say whether something alive can still bring an edge to its target in this wave."""
        source = edge.plan.source
        # "if e is not cyclic: some alive node reaches s (a == s counts)"
        if not self.is_cyclic(edge):
            return any(self.path_exists(node, source, along=self.edges) for node in alive)
        # "If e is cyclic and a back edge: never."
        if self.is_back_edge(edge):
            return False
        # "If e is cyclic and forward: some alive node reaches s on a path all of whose cyclic
        # edges of C(n) are forward (edges before the path enters C(n) are unrestricted)."
        within = self.edges_within(self.cycle_of(edge.plan.target))
        allowed = [other for other in self.edges if other not in within or self.is_forward(other)]
        return any(self.path_exists(node, source, along=allowed) for node in alive)

    # -----------------------------------------------------------------------------------------
    # Firing and dispatch
    # -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Fire all entry points: without inputs, consuming and swallowing nothing."""
        for node in self.plan.nodes:
            if node.id in self.plan.entry_points:
                self.enqueue(node.id, ())

    def enqueue(self, node: str, inputs: tuple[Result, ...]) -> None:
        """Put a visit of the node into the queue."""
        # "Each firing is a visit, numbered from 1."
        number = 1 + sum(visit.node == node for visit in self.fired)
        visit = _Visit(node, number, inputs)
        self.fired.append(visit)
        self.queue.append(visit)

    def fire(self, node: str, alive: list[str]) -> None:
        """Fire an undecided node.

        Args:
            node: The node.
            alive: The alive nodes of this event.
        """
        inputs = self.inputs_of(node)
        if self.node_plan(node).join == "any":
            # "The branches of that wave still to come [...] are each swallowed once": "At a
            # firing by mark(s), an unmarked edge e = s->n joins the swallow set if something
            # alive can take it "forward""
            for edge in self.edges_into(node):
                if not edge.marked and self.can_be_taken_forward(edge, alive):
                    edge.swallow = True
        for edge in self.edges_into(node):
            edge.marked = False  # "firing consumes its marks"
            edge.recent = False  # "recent [...] until its target fires"
        self.enqueue(node, inputs)

    def inputs_of(self, node: str) -> tuple[Result, ...]:
        """Return the results that the node would consume if it fired now."""
        inputs = []
        for source in self.plan.nodes:  # "in declaration order", each source once
            # "each source s [...] with an edge s->n whose present verdict is True, provided the
            # source has a result now and the edge is either recent or not cyclic". So "a stale
            # result from inside the loop stays out even if re-asked".
            consumed = any(
                edge.verdict is True and (edge.recent or not self.is_cyclic(edge))
                for edge in self.edges_into(node)
                if edge.plan.source == source.id
            )
            if consumed and source.id in self.results:
                inputs.append(self.results[source.id])
        return tuple(inputs)

    def fire_what_is_ready(self) -> None:
        """Fire what an event lets fire: by their joins first, then out of knots."""
        alive = self.alive()
        # "forgotten [...] when nothing alive can take them forward any more"
        for edge in self.edges:
            if edge.swallow and not self.can_be_taken_forward(edge, alive):
                edge.swallow = False
        # The normal pass: undecided nodes in declaration order against the alive nodes.
        for node in self.undecided():
            # "One visit of a node at a time: an undecided node that is itself in flight waits
            # for its own end."
            if not self.is_busy(node) and self.join_is_satisfied(node, alive):
                self.fire(node, alive)
        # "collect the free nodes of all cycles, then fire them in declaration order, after
        # those of the normal pass"
        for node in self.free_nodes():
            self.fire(node, alive)

    def free_nodes(self) -> list[str]:
        """Return the nodes that all knots of all cycles let go, in declaration order."""
        # "for each cycle C (only components with a cyclic edge matter)": in any other component,
        # the one node waits only for what lies outside, so it is anchored and none is free.
        return [
            node.id
            for node in self.plan.nodes
            if node.id in self.free_nodes_of(self.cycle_of(node.id))
        ]

    def free_nodes_of(self, cycle: list[str]) -> list[str]:
        """Return the nodes that the knot of one cycle lets go, in declaration order."""
        knot = self.knot_of(cycle)
        forward = [edge for edge in self.edges_within(cycle) if self.is_forward(edge)]
        # "A member n of S is free if no unmarked FORWARD edge s->n has s in S or s reachable
        # from a member of S along forward edges within C."
        return [
            node
            for node in knot
            if not any(
                self.path_exists(member, edge.plan.source, along=forward)  # s = member too
                for edge in self.edges_into(node)
                if not edge.marked and self.is_forward(edge)
                for member in knot
            )
        ]

    def knot_of(self, cycle: list[str]) -> list[str]:
        """Return S: the undecided nodes of a cycle that wait only for each other."""
        alive = self.alive()
        # "let W = undecided nodes of C that are not busy (busy = queued or in flight, including
        # those just fired)"
        waiting = [node for node in cycle if self.is_undecided(node) and not self.is_busy(node)]
        # "n in W is "anchored" if some alive node a (a is not n) that can take an unmarked edge
        # into n [...] is busy, or lies outside C, or is itself an anchored member of W (least
        # fixed point)". It begins with none and goes round until a round adds none; `waits_for`
        # never has the node itself.
        anchored: list[str] = []
        grown = True
        while grown:
            grown = False
            for node in waiting:
                if node not in anchored and any(
                    self.is_busy(other) or other not in cycle or other in anchored
                    for other in self.waits_for(node, alive)
                ):
                    anchored.append(node)
                    grown = True
        # "S = W minus the anchored: they wait only for each other."
        return [node for node in waiting if node not in anchored]

    def join_is_satisfied(self, node: str, alive: list[str]) -> bool:
        """Say whether an undecided node has all that its join waits for."""
        if self.node_plan(node).join == "any":
            return True  # "the first mark fires it"
        # "an undecided node fires when no *unmarked* edge into it can still be taken"
        return not self.waits_for(node, alive)

    def dispatch(self) -> None:
        """Dispatch from the queue what may run now.

        Raises:
            _RunFailedError: One more dispatch would be more than the plan allows.
        """
        cap = self.plan.max_concurrency
        limit = self.plan.max_node_executions
        # "`max_concurrency` caps nodes in flight, first ready first served"
        while self.queue and (cap is None or len(self.in_flight) < cap):
            # "`max_node_executions` counts dispatches exactly. [...] Each ends the run FAILED
            # with its reason"
            if limit is not None and len(self.trace.dispatches) >= limit:
                self.drain()
                raise _RunFailedError("max_node_executions")
            visit = self.queue.pop(0)
            self.in_flight.append(visit)
            self.trace.dispatches.append((visit.node, visit.number, visit.inputs))

    def drain(self) -> None:
        """Drop the queue and let what is in flight end, one by one, without consequences."""
        self.queue.clear()
        while self.in_flight:
            visit, ending = self.next_ending()
            self.record(visit, ending)

    # -----------------------------------------------------------------------------------------
    # Endings
    # -----------------------------------------------------------------------------------------

    def next_ending(self) -> tuple[_Visit, Ending]:
        """Ask the world which visit ends next and how; it is no longer in flight then."""
        node = self.world.next_to_end(self.endings, [visit.node for visit in self.in_flight])
        self.endings += 1
        visit = next(visit for visit in self.in_flight if visit.node == node)
        self.in_flight.remove(visit)
        return visit, self.world.ending(visit.node, visit.number)

    def record(self, visit: _Visit, ending: Ending) -> None:
        """Record how a visit ended."""
        node = visit.node
        if ending != "raised":
            self.trace.order.append(node)
        if ending == "completed":
            self.results[node] = (node, visit.number)
            self.completed.add(node)
        else:
            self.results.pop(node, None)
            self.completed.discard(node)
            self.failed.add(node)  # for good, even if the node completes later

    def process_next_ending(self) -> None:
        """Process one ending, with all that follows from it.

        Raises:
            _RunFailedError: The run ends with it.
        """
        visit, ending = self.next_ending()
        node = visit.node
        self.record(visit, ending)
        if ending == "raised" and self.node_plan(node).on_failure == "fail_fast":
            # "`fail_fast` (default): the first node to fail ends the run."
            raise _RunFailedError(f"raised:{node}")
        if ending == "completed":
            self.judge_edges(node)
        else:
            # "`prune`: the branch dies, the rest goes on"; "A node that *returns* FAILED [...]
            # prunes its branch in both policies"
            for edge in self.edges_out_of(node):
                edge.marked = False
                # "A failed/raised visit of the source makes its outgoing edges not recent."
                edge.recent = False
                edge.verdict = None
                edge.swallow = False
        self.fire_what_is_ready()
        # "A node is dispatched the moment its join is satisfied; it does not wait for siblings."
        self.dispatch()

    def judge_edges(self, node: str) -> None:
        """Ask the conditions that a completed node raises, then apply all verdicts together.

        Raises:
            _RunFailedError: A condition raised.
        """
        # "When a node completes, the conditions of its outgoing edges are evaluated"
        outgoing = self.edges_out_of(node)
        conditional = [edge for edge in outgoing if edge.plan.condition is not None]
        # "the other conditional edges into the same targets whose last verdict was false and
        # whose source has a result are asked once more"
        targets = [edge.plan.target for edge in conditional]
        asked_again = [
            edge
            for edge in self.edges
            if edge.plan.target in targets
            and edge.plan.source != node
            and edge.plan.condition is not None
            and edge.verdict is False
            and edge.plan.source in self.results
        ]
        # "Edges without conditions cost no activity and no event."
        own_verdicts = [
            True if edge.plan.condition is None else self.ask(edge) for edge in outgoing
        ]
        second_verdicts = [self.ask(edge) for edge in asked_again]
        for edge, verdict in zip(outgoing, own_verdicts, strict=True):
            # "A true edge (or one without a condition) is *marked*; a false one is unmarked."
            # "[branches still to come] are each swallowed once, when they arrive": with a no
            # the branch has come to its end, and there is nothing left to swallow.
            swallowed = verdict and edge.swallow
            edge.swallow = False
            edge.marked = verdict and not swallowed
            # "recent from the completion of a visit of its source (whatever the verdict)"; "A
            # swallowed arrival leaves the edge not recent."
            edge.recent = not swallowed
            edge.verdict = verdict
        for edge, verdict in zip(asked_again, second_verdicts, strict=True):
            # "a yes lets that source join the input, it doesn't trigger": it "just sets the
            # verdict to True"
            if verdict:
                edge.verdict = True

    def ask(self, edge: _Edge) -> bool:
        """Evaluate the condition of an edge.

        Raises:
            _RunFailedError: The condition raised.
        """
        view = View(frozenset(self.completed), tuple(self.trace.order))
        try:
            verdict = self.world.condition(edge.plan, view)
        except ConditionRaisedError:
            # "one that raises fails the graph with the edge's name"
            self.trace.asked.append((str(edge.plan), None))
            raise _RunFailedError(f"condition:{edge.plan}") from None
        self.trace.asked.append((str(edge.plan), verdict))
        return verdict


def run_model(plan: GraphPlan, world: World) -> Trace:
    """Simulate one whole run of a plan under the dataflow semantics.

    Args:
        plan: The plan; its `semantics` is not looked at.
        world: Says which visit ends next, how visits end, and what conditions say.

    Returns:
        Everything about the run that has one right value.
    """
    run = _Run(plan, world)
    trace = run.trace
    try:
        run.start()
        run.dispatch()
        while run.in_flight:
            run.process_next_ending()
        assert not run.queue, "fired visits were left undispatched"
        # Knots see to it that this cannot occur when the run would end.
        assert not run.undecided(), "nothing is in flight and undecided nodes remain"
        trace.status = "failed" if run.failed else "completed"
    except _RunFailedError as end:
        trace.status = "failed"
        trace.reason = end.reason
    trace.completed = [node.id for node in plan.nodes if node.id in run.completed]
    trace.failed = [node.id for node in plan.nodes if node.id in run.failed]
    return trace
