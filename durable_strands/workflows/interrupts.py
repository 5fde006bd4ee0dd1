"""The ledger of a run's questions to humans: what is open, what is settled, and how.

Pure. An id that was ever asked is kept, so that an answer to an unknown question, to an
answered one and to a cancelled one are refused in different words.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..wire import (
    Answer,
    Asked,
    CancelledInterrupt,
    InterruptInfo,
    Visit,
    interrupt_id,
    is_too_deep,
    too_deep,
)


class Interrupts:
    """Open and settled interrupts of a run.

    Attributes:
        pending: Open questions by id, in the order in which they were asked.
        cancelled: Questions that ended without an answer.
    """

    def __init__(self) -> None:
        """Begin without any question."""
        self.pending: dict[str, InterruptInfo] = {}
        self.cancelled: list[CancelledInterrupt] = []
        self._settled: dict[str, str] = {}

    def ask(self, visit: Visit, questions: Iterable[Asked]) -> None:
        """Open the questions of a visit."""
        path, number = visit
        for asked in questions:
            name = interrupt_id(path, number, asked.strands_id)
            self._settled.pop(name, None)  # The same visit may ask the same again.
            self.pending[name] = InterruptInfo(
                id=name, node=path, visit=number, **asked.model_dump()
            )

    def of(self, visit: Visit) -> list[InterruptInfo]:
        """Return the open questions of a visit."""
        return [info for info in self.pending.values() if (info.node, info.visit) == visit]

    def problem(self, answers: Any) -> str | None:
        """Say what is wrong with a set of answers, None if nothing is.

        It is all or nothing: one wrong id and none of them counts.
        """
        if not isinstance(answers, dict) or not answers:
            return (
                'Answers are one JSON object that isn\'t empty: {"<interrupt id>": <response>}, '
                f"not {_brief(answers)}."
            )
        for name, response in answers.items():
            if name not in self.pending:
                return self._refusal(str(name))
            if is_too_deep(response):
                return too_deep(f"The response to {_brief(name)}")
        return None

    def answer(self, answers: dict[str, Any]) -> dict[Visit, list[Answer]]:
        """Settle questions, and return the answers by visit; they must have no `problem`."""
        by_visit: dict[Visit, list[Answer]] = {}
        for name in [name for name in self.pending if name in answers]:  # As they were asked.
            info, response = self.pending.pop(name), answers[name]
            self._settled[name] = "has been answered already"
            by_visit.setdefault((info.node, info.visit), []).append(
                Answer(
                    strands_id=info.strands_id,
                    name=info.name,
                    reason=info.reason,
                    response=response,
                )
            )
        return by_visit

    def cancel(self, why: str, visit: Visit | None = None) -> None:
        """Close the open questions of a visit, or of the whole run, without an answer."""
        for name, info in list(self.pending.items()):
            if visit is None or (info.node, info.visit) == visit:
                del self.pending[name]
                self._settled[name] = f"was cancelled: {why}"
                self.cancelled.append(CancelledInterrupt(why=why, **info.model_dump()))

    def _refusal(self, name: str) -> str:
        settled = self._settled.get(name)
        if settled is not None:
            return f"Interrupt {_brief(name)} {settled}."
        open_ids = ", ".join(map(repr, self.pending)) or "none"
        return f"There is no interrupt {_brief(name)}; pending: {open_ids}."


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."
