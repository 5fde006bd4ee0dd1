"""Interrupts between Strands and the wire: what is asked, and how an answer is given back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from strands.interrupt import Interrupt
from strands.types.content import ContentBlock

from .. import wire
from ..codec import is_json

_GIVEN = object()


class NullAnswer(Interrupt):
    """An interrupt that was answered with null.

    Strands takes an interrupt whose `response` is None for one without an answer, and asks
    again. Its `interrupt()` reads the attribute twice, first to see whether there is an answer
    and then to return it: the first reading gives something, the second the null.
    """

    def __init__(self, id: str, name: str, reason: Any) -> None:  # noqa: A002 - Strands' name
        """Be the interrupt `id`, answered."""
        self._seen = False
        super().__init__(id, name, reason)

    @property
    def response(self) -> Any:
        """Give something, then null, in turns."""
        self._seen = not self._seen
        return _GIVEN if self._seen else None

    @response.setter
    def response(self, value: Any) -> None:
        """Stay as it is: Strands writes the null itself."""

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form, without taking part in the turns."""
        return {"id": self.id, "name": self.name, "reason": self.reason, "response": None}


def answered(answer: wire.Answer) -> Interrupt:
    """Return the Strands interrupt of an answer."""
    if answer.response is None:
        return NullAnswer(answer.strands_id, answer.name, answer.reason)
    return Interrupt(answer.strands_id, answer.name, answer.reason, answer.response)


def asked(interrupts: Iterable[Interrupt], who: str) -> list[wire.Asked]:
    """Return interrupts as they travel.

    Raises:
        TypeError: The reason of one is not JSON.
    """
    questions = []
    for interrupt in interrupts:
        if not is_json(interrupt.reason):
            raise TypeError(
                f"The reason of interrupt {interrupt.name!r} of {who} is a "
                f"{type(interrupt.reason).__name__}, which is not JSON: nobody could be shown it."
            )
        questions.append(
            wire.Asked(strands_id=interrupt.id, name=interrupt.name, reason=interrupt.reason)
        )
    return questions


def resume_input(executor: Any, answers: list[wire.Answer]) -> list[ContentBlock]:
    """Return the prompt by which an executor that asked goes on.

    It holds the answers that are new. Of those given before, the agent's snapshot has all but
    the nulls, which look to Strands like no answer.
    """
    state = getattr(executor, "_interrupt_state", None)
    for answer in answers:
        if state is not None and answer.response is None and answer.strands_id in state.interrupts:
            state.interrupts[answer.strands_id] = answered(answer)
    return [
        cast(
            ContentBlock,
            {
                "interruptResponse": {
                    "interruptId": answer.strands_id,
                    "response": answer.response,
                }
            },
        )
        for answer in answers
        if not answer.given
    ]
