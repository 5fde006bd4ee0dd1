"""The rule of Strands' swarms, as a policy. See `scheduler` for the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Generic

from ..wire import SwarmRules
from .commands import Ending, R

if TYPE_CHECKING:
    from .scheduler import Scheduler


class Turns(Generic[R]):
    """One turn after the other: each names who is next, and who names nobody ends the swarm.

    It reproduces `strands.multiagent.swarm.Swarm`: its limits are checked before each turn; a
    turn that fails, or that a hook cancels, ends the swarm as failed.
    """

    exact_limit: ClassVar[bool] = False
    failure_withdraws: ClassVar[bool] = True

    def __init__(self, machine: Scheduler[R]) -> None:
        self._machine = machine

    def start(self, entry_points: Sequence[int]) -> None:
        """Give the first turn."""
        self._turn(entry_points[0])

    def ended(self, node: int, ending: Ending) -> None:
        """Give the next turn, if the one that ended names somebody."""
        machine = self._machine
        if ending is Ending.CANCELLED:
            name = machine.plan.nodes[node].id
            machine.stop(f"node {name!r} was cancelled by a hook", drain=False)
        elif ending is Ending.COMPLETED and machine.handoff is not None:
            self._turn(machine.topology.index[machine.handoff])

    def idle(self) -> None:
        """Do nothing: nobody has been named."""

    def expired(self) -> None:
        """End the swarm at once."""
        self._machine.stop(self._machine.timeout_reason, drain=False)

    def _turn(self, node: int) -> None:
        reason = self._limit()
        if reason is None:
            self._machine.fire(node, ())
        else:
            self._machine.stop(reason, drain=False)

    def _limit(self) -> str | None:
        """Return why there is no further turn, in Strands' words; None if there may be one."""
        rules = self._machine.plan.swarm
        assert isinstance(rules, SwarmRules), "the plan of a swarm has its rules"
        history = self._machine.order
        if len(history) >= rules.max_handoffs:
            return f"Max handoffs reached: {rules.max_handoffs}"
        if len(history) >= rules.max_iterations:
            return f"Max iterations reached: {rules.max_iterations}"
        window = rules.repetition_window
        if window and len(history) >= window:
            unique = len(dict.fromkeys(history[-window:]))
            if unique < rules.repetition_minimum:
                return (
                    f"Repetitive handoff: {unique} unique nodes out of {window} recent iterations"
                )
        return None
