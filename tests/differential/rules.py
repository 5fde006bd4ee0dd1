"""The one place that says where durable-strands differs from Strands on purpose.

Each rule brings what Strands did to what durable-strands must do, and counts how often that
changed anything. All else must be equal. Rules are of two kinds: some spare Strands a fault as
it runs, since it would not go on otherwise; the others rewrite its trace.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from strands.hooks import BeforeNodeCallEvent
from strands.interrupt import Interrupt
from strands.multiagent.base import Status
from strands.multiagent.graph import Graph, GraphNode

from durable_strands.codec import INTERNAL_KEYS, TOOL_KEYS

from .stage import Call, Spent, Trace

if TYPE_CHECKING:
    from .durable import OnWorker
    from .in_process import InProcess

RULES = {
    "an asked node holds its slot": "Strands checks the limits again before it resumes. Where "
    "the batch that asked has reached max_node_executions, the answer is consumed, the node "
    "never runs, and the graph is locked.",
    "an interrupt's id is its node's own": "In Strands two nodes that ask with the same id are "
    "both released by one answer.",
    "invocation state survives a question": "Strands forgets it: it takes what the call with the "
    "answers passes, {} if nothing. Here the run keeps it, and merges what is passed.",
    "a batch's inputs are built as it starts": "Strands builds a node's input after its hooks, so "
    "one whose hook waits for a human reads what siblings of its batch have said since.",
    "hooks see a batch that has started": "With reset_on_revisit, Strands takes nodes out of "
    "completed_nodes one after the other, as they start; the first one's hooks see the others. "
    "Here all are taken out at once, when the last batch has ended.",
    "a batch starts side by side": "In Strands the hooks of a node run before the next one of its "
    "batch starts. Here each node's hooks and start are its own.",
    "a reset forgets whatever came before": "With reset_on_revisit, Strands resets nodes that "
    "count as completed. One whose last visit returned FAILED keeps its conversation.",
    "a question is asked once": "After a partial answer, Strands runs nodes that still wait for "
    "theirs again, hooks included, only to be asked the same.",
    "a node gets its answers together": "So in Strands an executor that asked two things gets "
    "their answers one by one. Here it goes on once, with both.",
    "hooks of a node are called once a visit": "Strands calls BeforeNodeCall hooks again when a "
    "node goes on that had passed them, and then asked something itself.",
    "hooks of a run are called once": "Strands calls BeforeInvocation and AfterInvocation hooks "
    "for each call with answers anew.",
    "usage is the visit's own": "Strands adds up an agent's lifetime counters at every visit, and "
    "forgets what a visit had used that asked something and then failed.",
    "Strands' own keys stay in the node": "Agents leave live objects in the invocation state.",
    "inner events stay in the node": "Strands forwards what an agent streams as node_stream.",
    "a handoff is the node's own": "Strands tells of a handoff from a whole batch to the next. "
    "Here each node has its own, from those whose results it reads.",
    "an ended run asks nothing": "In Strands a graph that failed with an open question stays "
    "locked by it. Here the question is cancelled.",
    "an end cuts off what it meets": "Strands starts all nodes of a batch before it hears that a "
    "hook has cancelled or raised, or that a condition has raised for the input of one, which it "
    "takes for a failure of that node. Here conditions come first and end the run; and which of "
    "the batch got as far as their executor before a hook ended it is chance.",
    "a hook that raises fails its node": "In Strands a BeforeNodeCall hook that raises fails the "
    "run, but its node is left as if it were running.",
    "a failed run keeps its reason": "In Strands, a hook that raises after the last node hides "
    "that the run has failed for a reason of its own, a limit or a node that returned FAILED.",
    "a model's exception is its own": "Strands raises it wrapped as EventLoopException.",
}
"""The name of each rule, and Strands' behaviour that it allows for."""


class Rules:
    """The rules, with how often each was used.

    Attributes:
        used: Uses by rule.
    """

    def __init__(self) -> None:
        self.used: Counter[str] = Counter()
        self._ids: Counter[str] = Counter()

    def use(self, name: str, times: int = 1) -> None:
        """Count a rule's use."""
        assert name in RULES, name
        self.used[name] += times

    # -- what Strands is spared ----------------------------------------------------------------

    def holds_slots(self, graph: Graph) -> bool:
        """Say whether Strands would refuse to resume, having reached its limit."""
        limit = graph.max_node_executions
        assert limit is not None
        reached = len(graph.state.execution_order) >= limit
        if reached:
            self.use("an asked node holds its slot")
        return reached

    def interrupt(self, node: str, name: str) -> Interrupt:
        """Return a stub's question under an id that no other node's has."""
        short = name.removeprefix(f"{node} ")
        self.use("an interrupt's id is its node's own")
        return Interrupt(f"{node}:{short}", name, reason={"from": node})

    def state_kept(self, state: dict[str, Any], brought: dict[str, Any]) -> dict[str, Any]:
        """Return the state to pass along with answers."""
        if state.keys() - brought.keys():
            self.use("invocation state survives a question")
        return {**state, **brought}

    def build_inputs_early(self, graph: Graph) -> None:
        """Have the input of a node whose hooks ask built at once."""
        invoke, build = graph.hooks.invoke_callbacks_async, graph._build_node_input
        early: dict[str, Any] = {}

        async def invoking(event: Any) -> Any:
            event, interrupts = await invoke(event)
            node = getattr(event, "node_id", "")
            asked_itself = (
                node in graph._interrupt_state.context
                and not (graph._interrupt_state.context[node]["from_hook"])
            )
            if interrupts and node not in early and not asked_itself:
                early[node] = build(graph.nodes[node])
            return event, interrupts

        def building(node: GraphNode) -> Any:
            if node.node_id not in early:
                return build(node)
            self.use("a batch's inputs are built as it starts")
            return early.pop(node.node_id)

        graph.hooks.invoke_callbacks_async = invoking  # type: ignore[method-assign]
        graph._build_node_input = building  # type: ignore[method-assign]

    def reset_whoever_revisits(self, graph: Graph) -> None:
        """Reset agents for each visit with reset_on_revisit, whatever came of the last one."""
        invoke = graph.hooks.invoke_callbacks_async

        async def invoking(event: Any) -> Any:
            name = getattr(event, "node_id", None)
            resumes = graph._interrupt_state.activated and name in graph._interrupt_state.context
            if isinstance(event, BeforeNodeCallEvent) and graph.reset_on_revisit and not resumes:
                node = graph.nodes[event.node_id]
                if getattr(node.executor, "messages", []) != node._initial_messages:
                    self.use("a reset forgets whatever came before")
                    node.reset_executor_state()
                    node.execution_status = Status.EXECUTING
            return await invoke(event)

        graph.hooks.invoke_callbacks_async = invoking  # type: ignore[method-assign]

    # -- what is rewritten ---------------------------------------------------------------------

    def inner_event(self) -> None:
        """Take note of an event that is left out."""
        self.use("inner events stay in the node")

    def plain_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the invocation state as it is at the end."""
        own = (INTERNAL_KEYS | TOOL_KEYS) & state.keys()
        self.used["Strands' own keys stay in the node"] += len(own)
        return {key: value for key, value in state.items() if key not in own}

    def answers_together(self, node: str, given: Any, whole: dict[str, Any]) -> Any:
        """Return the answers that an executor gets when it goes on."""
        if not isinstance(given, dict):
            return given
        own = f"{node} "
        together = {
            name.removeprefix(own): answer for name, answer in whole.items() if name.startswith(own)
        }
        if given != together:
            self.use("a node gets its answers together")
        return together

    def apply(self, stage: InProcess, call: Call) -> None:
        """Rewrite what Strands did in one call."""
        self._own_handoffs(call)
        if stage.released is not None:
            self._asked_once(stage, call)
        self._hooks_of_a_run_once(call, first=stage.released is None)
        self._own_usage(stage, call)
        if call.outcome["status"] == Status.FAILED.value and call.outcome["interrupted"]:
            self.use("an ended run asks nothing", call.outcome["interrupted"])
            stage.locked_by = call.outcome["interrupted"]
            call.outcome["interrupted"] = 0

    def level(self, strands: InProcess, ours: OnWorker) -> None:
        """Level what only both traces together can tell."""
        slots = {node.id: slot for slot, node in enumerate(strands.scenario.plan.nodes)}
        cancelled = len({node for node, _ in ours.trace.calls[-1].outcome.pop("cancelled", [])})
        for one, other in zip(strands.trace.calls, ours.trace.calls, strict=False):
            if one.hooks == other.hooks:
                continue
            hooks = one.hooks, other.hooks
            one.hooks, other.hooks = _begun(one.hooks), _begun(other.hooks)
            if hooks != (one.hooks, other.hooks):
                self.use("hooks see a batch that has started")
        if not self._cut_off(strands.trace, ours.trace):
            assert cancelled == strands.locked_by, "open questions weren't cancelled"
            _check_handoffs(ours, _handoffs(strands.trace))
        self._restarted(strands, ours)
        self._first_reason(strands.trace.calls[-1], ours.trace.calls[-1])
        for one, other in zip(strands.trace.calls, ours.trace.calls, strict=False):
            if one.events != other.events:
                one.events = _side_by_side(one.events, slots)
                other.events = _side_by_side(other.events, slots)
                self.use("a batch starts side by side")

    def _restarted(self, strands: InProcess, ours: OnWorker) -> None:
        """Leave out how many nodes had completed, if a hook raised after the last of a batch."""
        one, other = strands.trace.calls[-1].outcome, ours.trace.calls[-1].outcome
        resets = strands.graph.reset_on_revisit
        if resets and one["error"] and "hook after" in one["error"][1] and one != other:
            self.use("hooks see a batch that has started")
            del one["completed"], other["completed"]
            for trace in (strands.trace, ours.trace):
                call = trace.calls[-1]
                last = [hook for hook in call.hooks if hook[2] is not None][-1]
                call.hooks = [
                    (*hook[:4], None, *hook[5:]) if hook[3:4] == last[3:4] else hook
                    for hook in call.hooks
                ]

    def _first_reason(self, one: Call, other: Call) -> None:
        """Let a run return FAILED that has failed already when a hook raises."""
        error, ends = one.outcome["error"], other.outcome
        if error is None or "hook after" not in error[1]:
            return
        if ends.get("status") == Status.FAILED.value and ends["error"] is None:
            self.use("a failed run keeps its reason")
            one.outcome["error"] = None
            other.events = [event for event in other.events if event[0] != "result"]

    def _cut_off(self, strands: Trace, ours: Trace) -> bool:
        """Leave out how far a batch got in which a hook or a condition ended the run."""
        end = Early.of(strands)
        if end is None or strands == ours:
            return False
        begun = end.begun(strands) | end.begun(ours)
        for trace in (strands, ours):
            end.forget(trace, begun)
        self.use("an end cuts off what it meets")
        one, other = strands.calls[-1].outcome, ours.calls[-1].outcome
        if end.node is None and one["failed"] != other["failed"]:
            self.use("a hook that raises fails its node")
        if one.get("failed") != other.get("failed"):
            for outcome in (one, other):
                del outcome["failed"]
                for node in begun - {end.node}:
                    outcome["results"].pop(node, None)
        return True

    def _asked_once(self, stage: InProcess, call: Call) -> None:
        """Leave out what nodes did that still wait, and hooks that a node had passed."""
        waits = stage.unreleased
        kept = without(call.events, waits)
        self.used["a question is asked once"] += len(call.events) - len(kept)
        call.events = kept
        call.hooks = [hook for hook in call.hooks if hook[2] not in waits]
        passed = {(name, node) for node in stage.passed_hooks for name in ("first", "second")}
        kept = []
        for hook in call.hooks:
            if hook[0] == "before_node" and (hook[1], hook[2]) in passed:
                passed.discard((hook[1], hook[2]))
                self.use("hooks of a node are called once a visit")
            else:
                kept.append(hook)
        call.hooks = kept

    def _hooks_of_a_run_once(self, call: Call, *, first: bool) -> None:
        interrupted = call.outcome["status"] == Status.INTERRUPTED.value
        drop = [*([] if first else ["before_run"]), *(["after_run"] if interrupted else [])]
        self._drop(call, "hooks of a run are called once", lambda hook: hook[0] in drop)

    def _own_usage(self, stage: InProcess, call: Call) -> None:
        outcome = call.outcome
        for node, said in outcome["results"].items():
            right = (*said[:-1], stage.spent.get(node, Spent()))
            if said != right:
                self.use("usage is the visit's own")
            outcome["results"][node] = right
        if outcome["spent"] != stage.total:
            self.use("usage is the visit's own")
        outcome["spent"] = stage.total

    def _own_handoffs(self, call: Call) -> None:
        handoffs = [event for event in call.events if event[0] == "handoff"]
        self.used["a handoff is the node's own"] += len(handoffs)
        call.events = [event for event in call.events if event[0] != "handoff"]

    def _drop(self, call: Call, rule: str, matches: Any) -> None:
        kept = [hook for hook in call.hooks if not matches(hook)]
        self.used[rule] += len(call.hooks) - len(kept)
        call.hooks = kept


def without(items: Iterable[Any], nodes: set[str]) -> list[Any]:
    """Return the items whose node is not one of those."""
    return [item for item in items if item[1] not in nodes]


def _begun(hooks: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Let all hooks between two endings see the completed nodes that the last of them sees."""
    level: list[tuple[Any, ...]] = []
    order: Any = None
    completed: Any = None
    for hook in reversed(hooks):
        if len(hook) > 3:
            if hook[3] != order:
                order, completed = hook[3:5]
            hook = (*hook[:4], completed, *hook[5:])
        level.append(hook)
    return level[::-1]


def _side_by_side(events: list[tuple[Any, ...]], slots: dict[str, int]) -> list[tuple[Any, ...]]:
    """Sort what happens as the nodes of a batch start by node."""
    level: list[tuple[Any, ...]] = []
    block: list[tuple[Any, ...]] = []
    for event in [*events, ("end",)]:
        by_hook = event[0] == "interrupt" and not event[2][0][0].startswith(f"{event[1]} ")
        if event[0] == "start" or by_hook:
            block.append(event)
            continue
        level += sorted(block, key=lambda event: slots[event[1]])
        block = []
        level.append(event)
    return level[:-1]


@dataclass(frozen=True)
class Early:
    """The end of a run in the middle of the start of a batch.

    Attributes:
        node: Who was cancelled, or whose input a condition raised for.
        by_condition: Whether it was a condition.
        cancelled: Who was cancelled, too, before that was heard of.
    """

    node: str | None
    by_condition: bool
    cancelled: frozenset[str] = frozenset()

    @classmethod
    def of(cls, trace: Trace) -> Self | None:
        """Return the end of a run, None if it ended otherwise."""
        call = trace.calls[-1]
        error = call.outcome["error"]
        if error is None or "hook after" in error[1]:
            return None
        cancelled = frozenset(event[1] for event in call.events if event[0] == "cancel")
        stops = [event for event in call.events if event[0] == "stop"]
        if stops and isinstance(stops[-1][3], tuple):
            node, by_condition = stops[-1][1], error[0] == "ConditionRaisedError"
            if by_condition or node in cancelled:
                return cls(node, by_condition, cancelled - {node})
            return None
        return cls(None, by_condition=False)

    def _tail(self, events: list[tuple[Any, ...]]) -> int:
        """Return where the events of the batch's start begin."""
        for position in range(len(events), 0, -1):
            kind, node, *rest = events[position - 1]
            by_executor = kind == "interrupt" and rest[0][0][0].startswith(f"{node} ")
            by_hook = kind == "stop" and (node == self.node or self._was_cancelled(events, node))
            if (kind == "stop" and not by_hook) or by_executor:
                return position
        return 0

    def _was_cancelled(self, events: list[tuple[Any, ...]], node: str) -> bool:
        return any(event[:2] == ("cancel", node) for event in events)

    def _tail_of_hooks(self, call: Call) -> int:
        """Return where the hooks of the batch's start begin."""
        before = call.events[: self._tail(call.events)]
        ended = 2 * sum(event[0] == "stop" for event in before)
        for position, hook in enumerate(call.hooks):
            if not ended and hook[0] in ("before_node", "after_node"):
                return position
            ended -= hook[0] == "after_node"
        return len(call.hooks)

    def begun(self, trace: Trace) -> set[str]:
        """Return the nodes of the batch that was starting."""
        call = trace.calls[-1]
        by_events = {event[1] for event in call.events[self._tail(call.events) :]}
        by_hooks = {hook[2] for hook in call.hooks[self._tail_of_hooks(call) :] if hook[2]}
        by_inputs = {visit.partition("#")[0] for visit in self._cut_off(trace)}
        return by_events | by_hooks | by_inputs

    def _cut_off(self, trace: Trace) -> list[str]:
        """Return the visits that were given something, but came to no end."""
        ended = Counter(
            event[1]
            for call in trace.calls
            for event in call.events
            if event[0] == "stop" and not (call is trace.calls[-1] and event[1] == self.node)
        )
        return [
            visit
            for visit in trace.inputs
            if int(visit.partition("#")[2]) > ended[visit.partition("#")[0]]
        ]

    def forget(self, trace: Trace, begun: set[str]) -> None:
        """Leave out what nodes did as they began, but for the one that was cancelled."""
        call = trace.calls[-1]
        kept = set() if self.by_condition else {self.node}
        tail, tail_of_hooks = self._tail(call.events), self._tail_of_hooks(call)
        cut_off = self._cut_off(trace)
        call.events[tail:] = [
            event
            for event in call.events[tail:]
            if event[1] in kept and event[0] in ("cancel", "stop")
        ]
        call.hooks[tail_of_hooks:] = [
            hook for hook in call.hooks[tail_of_hooks:] if hook[2] is None or hook[2] in kept
        ]
        for visit in cut_off:
            del trace.inputs[visit]
        for key in list(trace.state):
            kind, _, about = key.partition(" ")
            about = about.rpartition(" ")[2]
            target = about.partition(">")[2].partition("[")[0]
            if (kind == "hook" and about in begun - kept) or (kind == "asked" and target in begun):
                del trace.state[key]
        if self.by_condition:
            for what in ("failed", "completed"):
                call.outcome.pop(what)
            call.outcome["results"].pop(self.node, None)


def _check_handoffs(ours: OnWorker, read: list[tuple[list[str], list[str]]]) -> None:
    """Check that ours are those of the visits that read something, or that hooks kept from it."""
    stopped = {
        event[1]
        for call in ours.trace.calls
        for event in call.events
        if event[0] in ("cancel", "interrupt")
    }
    more = list(ours.handoffs)
    for handoff in read:
        assert handoff in more, f"there is no handoff {handoff}"
        more.remove(handoff)
    assert {targets[0] for _, targets in more} <= stopped, f"handoffs {more} are too many"


def _handoffs(trace: Trace) -> list[tuple[list[str], list[str]]]:
    """Return each node's own handoff, sorted: from those whose results it was given to read."""
    handoffs = []
    for visit, (first, *_) in trace.inputs.items():
        texts = first[0] if isinstance(first[0], list) else [block[0] for block in first[1][1]]
        sources = [found[1] for text in texts if (found := re.fullmatch(r"\nFrom (.+):", text))]
        if sources:
            handoffs.append((sources, [visit.partition("#")[0]]))
    return sorted(handoffs)
