"""A model that needs no network and no key, and says only what its prompt says.

It is no language model. Each role has a skill, a plain function that picks sentences or terms
out of the prompt by counting words (extractive summarisation as in Luhn, 1958). Its answers are
real work on the real text; its pause is there because a language model would take that long.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from strands.models import Model
from strands.types.content import Message, Messages
from strands.types.streaming import StreamEvent

DEFAULT_WORD_LIMIT = 120
_SENTENCE_CHARACTERS = 220
_NOTHING = "- (nothing found)"
_NOTHING_ELSE = "- (nothing else)"


# ---------------------------------------------------------------------------------------------
# The model
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """What a skill works on.

    Attributes:
        system_prompt: The agent's instructions.
        inputs: What each upstream node said, by its id.
    """

    system_prompt: str
    inputs: dict[str, str]


Skill = Callable[[Request], str]


class OfflineModel(Model):
    """An extractive model with one skill."""

    def __init__(self, skill: Skill, *, pause: float = 0.0) -> None:
        """Create a model.

        Args:
            skill: Makes the answer.
            pause: Seconds that an answer is held back.
        """
        self._config: dict[str, Any] = {"model_id": "offline", "pause": pause}
        self._skill = skill

    @classmethod
    def of_role(cls, role: str) -> OfflineModel:
        """Return the model of one of the demo's agents."""
        return cls(SKILLS[role], pause=PAUSES[role])

    def update_config(self, **model_config: Any) -> None:
        """Change the configuration."""
        self._config.update(model_config)

    def get_config(self) -> dict[str, Any]:
        """Return the configuration."""
        return self._config

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: this model answers with text."""
        raise NotImplementedError("The offline extractive model answers with text only.")

    async def stream(
        self, messages: Messages, tool_specs: Any = None, system_prompt: str | None = None, **_: Any
    ) -> AsyncIterator[StreamEvent]:
        """Answer the last message. The token counts are Strands' own estimate."""
        started = time.monotonic()
        answer = self._skill(Request(system_prompt or "", inputs_of(messages[-1])))
        await asyncio.sleep(self._config["pause"])
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": answer}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}
        read = await self.count_tokens(messages, tool_specs, system_prompt)
        reply: Message = {"role": "assistant", "content": [{"text": answer}]}
        written = await self.count_tokens([reply])
        yield {
            "metadata": {
                "usage": {
                    "inputTokens": read,
                    "outputTokens": written,
                    "totalTokens": read + written,
                },
                "metrics": {"latencyMs": round((time.monotonic() - started) * 1000)},
            }
        }


def inputs_of(message: Message) -> dict[str, str]:
    """Return what each upstream node said, from a prompt as Strands' `Graph` builds it.

    A prompt of another form is the input of nobody, under the empty name.
    """
    inputs: dict[str, list[str]] = {"": []}
    source = ""
    for block in message["content"]:
        text = block.get("text", "")
        heading = re.fullmatch(r"\nFrom (.+):", text)
        if heading:
            source = heading[1]
            inputs[source] = []
        else:
            inputs[source].append(re.sub(r"\A {2}- [^:\n]+: ", "", text) if source else text)
    return {name: "\n".join(texts).strip() for name, texts in inputs.items()}


# ---------------------------------------------------------------------------------------------
# Reading
# ---------------------------------------------------------------------------------------------

_COMMON_WORDS = """
    a about after all also an and any are as at be because been before but by can could did do
    does each for from had has have how i if in into is it its just like made make many may more
    most must no not of on one only or other our out over own per same should so some such than
    that the their them then there these they this those through to two under up use used uses
    using was we were what when where which while who will with within without would you your
"""
_CAUTION_WORDS = """
    attention cannot caution deadline depends error errors except fail failed fails failure lose
    loses lost limit limits may might must never no not only risk risks should too unless until
    unsupported warning without wrong
"""
_COMMON = frozenset(_COMMON_WORDS.split())
_CAUTION = frozenset(_CAUTION_WORDS.split())


@dataclass(frozen=True)
class Sentence:
    """A sentence of the document.

    Attributes:
        text: What it says.
        passage: Number of its passage.
    """

    text: str
    passage: str

    @property
    def words(self) -> list[str]:
        """Its words, in lower case."""
        return words_of(self.text)

    def __str__(self) -> str:
        return f"- {self.text} [{self.passage}]"


def words_of(text: str) -> list[str]:
    """Return the words of a text, in lower case, without numbers."""
    return re.findall(r"[^\W\d_](?:[\w'’-]*\w)?", text.lower())


def content_words(text: str) -> list[str]:
    """Return the words of a text that say what it is about."""
    return [word for word in words_of(text) if len(word) > 2 and word not in _COMMON]


def sentences_of(document: str) -> list[Sentence]:
    """Return the sentences of a document whose passages are numbered, code and tables left out."""
    passages = re.findall(r"^\[(\d+)\] (.*?)(?=\n\n\[\d+\] |\Z)", document, re.M | re.S)
    found = [
        Sentence(_shorten(text), number)
        for number, passage in passages
        for text in _prose(passage)
        if text
    ]
    # Shorter ones are headings mostly; but a text may be short, or its script have no spaces.
    return [sentence for sentence in found if len(sentence.words) >= 5] or found


def _prose(passage: str) -> Iterable[str]:
    """Yield the sentences of a passage, Markdown's marks taken away."""
    if passage.startswith(("```", "~~~")):
        return
    lines = [line.strip() for line in passage.splitlines()]
    lines = [line for line in lines if line and line[0] not in "#|<=~"]
    # A list item is a sentence of its own, whether it ends like one or not.
    text = re.sub(r"\n(?:[-*+]|\d+[.)]) +", "\0", "\n" + "\n".join(lines))
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text.replace("**", ""))
    for item in text.split("\0"):
        for sentence in re.split(r"(?<=[.!?])\s+(?=[^\W_a-z]|[\"'“(\[`])|(?<=[。！？])", item):
            yield " ".join(sentence.split())


def _shorten(text: str) -> str:
    if len(text) <= _SENTENCE_CHARACTERS:
        return text
    cut = text[:_SENTENCE_CHARACTERS]
    return (cut.rpartition(" ")[0] or cut).rstrip(",;:") + " …"


def _best(
    sentences: list[Sentence], score: Callable[[Sentence], float], most: int
) -> list[Sentence]:
    """Return the best sentences, best first; equal ones in the document's order, none twice."""
    unique = list({sentence.text: sentence for sentence in reversed(sentences)}.values())[::-1]
    return sorted(unique, key=score, reverse=True)[:most]


def _significance(sentences: list[Sentence]) -> Callable[[Sentence], float]:
    """Return a score: how many of the document's frequent words a sentence has for its length."""
    counts = Counter(word for sentence in sentences for word in content_words(sentence.text))

    def score(sentence: Sentence) -> float:
        words = set(content_words(sentence.text))
        return sum(counts[word] - 1 for word in words) / (len(sentence.words) + 5)

    return score


# ---------------------------------------------------------------------------------------------
# Skills
# ---------------------------------------------------------------------------------------------


def facts(request: Request) -> str:
    """List significant sentences, those with a number in them first."""
    sentences = sentences_of(request.inputs.get("reader", ""))
    significance = _significance(sentences)

    def score(sentence: Sentence) -> float:
        return significance(sentence) + (1.0 if re.search(r"\d", sentence.text) else 0.0)

    return "\n".join(map(str, _best(sentences, score, 5))) or _NOTHING


def terms(request: Request) -> str:
    """List the most frequent terms of one or two words, and where each comes first."""
    sentences = sentences_of(request.inputs.get("reader", ""))
    counts: Counter[str] = Counter()
    first: dict[str, Sentence] = {}
    for sentence in sentences:
        for term in _candidates(sentence.text):
            counts[term] += 1
            first.setdefault(term, sentence)
    chosen: list[str] = []
    # A pair of words that comes twice says more than either word.
    for term, _ in sorted(counts.items(), key=lambda item: -item[1] * (1 + item[0].count(" "))):
        if not any(_stems(term) & _stems(other) for other in chosen):
            chosen.append(term)
            if len(chosen) == 5:
                break
    return "\n".join(f"- {term}, {counts[term]}× [{first[term].passage}]" for term in chosen) or (
        _NOTHING
    )


def _stems(term: str) -> set[str]:
    """Return the words of a term, the plural taken for the singular."""
    return {word.removesuffix("s") for word in term.split()}


def _candidates(text: str) -> Iterable[str]:
    content = set(content_words(text))
    words = words_of(text)
    yield from (word for word in words if word in content)
    yield from (f"{a} {b}" for a, b in pairwise(words) if {a, b} <= content)


def risks(request: Request) -> str:
    """List sentences that ask, restrict or warn, as their words show."""
    sentences = sentences_of(request.inputs.get("reader", ""))
    significance = _significance(sentences)

    def caution(sentence: Sentence) -> int:
        return len(_CAUTION & set(sentence.words)) + sentence.text.endswith("?")

    warnings = [sentence for sentence in sentences if caution(sentence)]
    best = _best(warnings, lambda sentence: caution(sentence) + significance(sentence) / 10, 4)
    return "\n".join(map(str, best)) or _NOTHING


def editor(request: Request) -> str:
    """Put the analysts' notes together; asked for a revision, drop repetitions and shorten."""
    sections = {
        name.capitalize(): request.inputs[name].splitlines()
        for name in ("facts", "terms", "risks")
        if name in request.inputs
    }
    demand = request.inputs.get("critic")
    if demand is not None:
        _drop_repetitions(sections)
        limit = word_limit(demand)
        while count_words(_layout(sections)) > limit and any(len(s) > 1 for s in sections.values()):
            max(sections.values(), key=lambda lines: count_words("\n".join(lines[1:]))).pop()
    return _layout(sections)


def _drop_repetitions(sections: dict[str, list[str]]) -> None:
    seen: set[str] = set()
    for name, lines in sections.items():
        sections[name] = [line for line in lines if line not in seen] or [_NOTHING_ELSE]
        seen.update(set(lines) - {_NOTHING})


def _layout(sections: dict[str, list[str]]) -> str:
    return "\n\n".join("\n".join([name, *lines]) for name, lines in sections.items())


def critic(request: Request) -> str:
    """Check a brief for length, sections and repetitions; the first word is the verdict."""
    draft = request.inputs.get("editor", "")
    limit = word_limit(request.system_prompt)
    words = count_words(draft)
    lines = [line for line in draft.splitlines() if line.startswith("- ") and line != _NOTHING]
    repeated = [line for line, times in Counter(lines).items() if times > 1]
    missing = [name for name in ("Facts", "Terms", "Risks") if name not in draft.splitlines()]
    faults = []
    if words > limit:
        faults.append(f"It has {words} words; write at most {limit} words.")
    if repeated:
        faults.append("It says twice: " + "; ".join(line.removeprefix("- ") for line in repeated))
    if missing:
        faults.append("These sections are missing: " + ", ".join(missing))
    if faults:
        return "\n".join(["REVISE", *(f"- {fault}" for fault in faults)])
    return f"ACCEPT\n- {words} words of at most {limit}, all sections, nothing twice."


def word_limit(text: str) -> int:
    """Return the limit that instructions set with the words "at most N words"."""
    found = re.search(r"at most (\d+) words", text)
    return int(found[1]) if found else DEFAULT_WORD_LIMIT


def count_words(text: str) -> int:
    """Return how many words a text has, numbers included and marks not."""
    return sum(any(map(str.isalnum, word)) for word in text.split())


SKILLS: dict[str, Skill] = {
    "facts": facts,
    "terms": terms,
    "risks": risks,
    "editor": editor,
    "critic": critic,
}
"""What each agent of the demo can do."""

PAUSES = {"facts": 0.8, "terms": 2.0, "risks": 2.4, "editor": 0.8, "critic": 0.8}
"""Seconds by which each answer is held back. The first analyst is done long before the others,
so that the demo can kill its worker between them."""
