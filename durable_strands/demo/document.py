"""Reads a text file, and splits it into passages that can be cited."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import DurableStrandsError

MOST_CHARACTERS = 24_000
"""How much of a document is read: about 6,000 tokens, which three agents each pay for."""

_PASSAGE_CHARACTERS = 1_200
_FENCES = ("```", "~~~")
_BREAK = re.compile(r"(?<=[.!?。！？])\s|\n")


class DocumentError(DurableStrandsError):
    """A file is no text that a brief could be made of."""


@dataclass(frozen=True)
class Document:
    """A text.

    Attributes:
        name: Name of its file.
        text: What it says, or the beginning of that.
        is_whole: Whether `text` is all of it.
    """

    name: str
    text: str
    is_whole: bool

    def passages(self) -> list[str]:
        """Return the text's paragraphs; long ones are split, fenced code is kept together."""
        paragraphs: list[list[str]] = [[]]
        in_code = False
        for line in self.text.splitlines():
            is_fence = line.lstrip().startswith(_FENCES)
            if not in_code and (is_fence or not line.strip()):
                paragraphs.append([])
            if in_code or line.strip():
                paragraphs[-1].append(line)
            if is_fence and in_code:
                paragraphs.append([])
            in_code ^= is_fence
        passages = []
        for lines in filter(None, paragraphs):
            text = "\n".join(lines).strip()
            passages += [text] if text.startswith(_FENCES) else _split(text)
        return passages


def read_document(path: Path) -> Document:
    """Read a text file, or the beginning of a large one.

    Raises:
        DocumentError: It is missing, empty, or not UTF-8 text.
        OSError: It can't be read.
    """
    if not path.exists():
        raise DocumentError(f"There is no file {str(path)!r}.")
    if not path.is_file():
        raise DocumentError(f"{str(path)!r} is not a regular file. Give a text file.")
    with path.open("rb") as file:
        data = file.read(MOST_CHARACTERS * 4)  # No character has more than 4 bytes.
        is_whole = not file.read(1)
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(data, final=is_whole)
    except UnicodeDecodeError as error:
        raise DocumentError(
            f"{str(path)!r} is not UTF-8 text ({error.reason} at byte {error.start}). If it is "
            "text, convert it first, for example with `iconv -t UTF-8`."
        ) from error
    if "\0" in text:
        raise DocumentError(f"{str(path)!r} is not text: it has NUL bytes.")
    if not text.strip():
        raise DocumentError(f"{str(path)!r} has no text in it.")
    is_whole = is_whole and len(text) <= MOST_CHARACTERS
    return Document(name=path.name, text=text[:MOST_CHARACTERS], is_whole=is_whole)


def _split(paragraph: str) -> list[str]:
    """Split a long paragraph where a sentence or a line ends, or anywhere if none does."""
    parts = []
    while len(paragraph) > _PASSAGE_CHARACTERS:
        breaks = [match.start() for match in _BREAK.finditer(paragraph, 1, _PASSAGE_CHARACTERS)]
        end = breaks[-1] if breaks else _PASSAGE_CHARACTERS
        parts.append(paragraph[:end].strip())
        paragraph = paragraph[end:].strip()
    return [*parts, paragraph]
