"""Tables in markdown, and verdicts on targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


def verdict(met: bool) -> str:
    """Return the word for a target that was met, or wasn't."""
    return "PASS" if met else "FAIL"


@dataclass
class Table:
    """A table with a heading, as it goes to the terminal and into the document.

    Attributes:
        title: Its heading.
        columns: Heads of the columns.
        note: What to know for reading it.
        rows: Cells, one list a row.
        met: Whether all its targets were met.
    """

    title: str
    columns: Sequence[str]
    note: str = ""
    rows: list[list[str]] = field(default_factory=list)
    met: bool = True

    def judge(self, met: bool) -> str:
        """Note whether a target was met, and return the word for it."""
        self.met = self.met and met
        return verdict(met)

    def __str__(self) -> str:
        """Return it as markdown, aligned so that it also reads well as plain text."""
        widths = [max(map(len, cells)) for cells in zip(self.columns, *self.rows, strict=True)]

        def line(cells: Sequence[str]) -> str:
            padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
            return f"| {' | '.join(padded)} |"

        rule = line(["-" * width for width in widths])
        text = "\n".join([line(self.columns), rule, *map(line, self.rows)])
        return f"### {self.title}\n\n{text}\n" + (f"\n{self.note}\n" if self.note else "")
