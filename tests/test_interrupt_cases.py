"""Questions, failures and retries while workers are killed.

tests/test_interrupts.py has the same cases on a worker that stays. Here each run loses its
worker at the telling moment, another process goes on with it, and the history that came of it
replays in fresh processes under three hash seeds.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
import pytest_asyncio
from strands.multiagent.base import Status
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from durable_strands import (
    GraphFailedError,
    GraphPlugin,
    GraphRun,
    InterruptNotPendingError,
    InvalidGraphInputError,
    RunClosedError,
    TopologyMismatchError,
)
from durable_strands.cli import main

from .interrupt_graphs import ELSEWHERE, registry
from .replayer import Replayers
from .restart import Case, Outcome, Server
from .support import asked_by, eventually, scheduled

Ended = Callable[[Case], Awaitable[Outcome]]


@pytest.fixture(scope="session")
def only_server(
    env: WorkflowEnvironment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A worker process for all tests, killed and replaced by each."""
    server = Server(
        env.client,
        f"test-{uuid.uuid4()}",
        tmp_path_factory.mktemp("interrupts"),
        target="tests.interrupt_graphs:registry",
    )
    yield server
    server.stop()


@pytest_asyncio.fixture
async def server(only_server: Server) -> AsyncIterator[Server]:
    await only_server.revive()
    yield only_server
    print(only_server.output)


@pytest_asyncio.fixture(scope="session")
async def replayers() -> AsyncIterator[Replayers]:
    replayers = Replayers()
    yield replayers
    await replayers.stop()


@pytest.fixture
def ended(client: Client, replayers: Replayers) -> Ended:
    """Return what a run left behind, when it has ended; its history must fit any hash seed."""

    async def end(case: Case) -> Outcome:
        outcome = await case.outcome()
        await replayers.replay(client, case.run.id)
        return outcome

    return end


async def asking(
    server: Server, graph: str, *nodes: str, hold: Sequence[str] = (), **start: Any
) -> tuple[Case, dict[str, str]]:
    """Start a run; return it with the ids of its questions, by node, once all of them are open."""
    case = await server.start(graph, hold=hold, **start)
    ids = await asked_by(case.run, *nodes)
    begun = [visit for visit in hold if "#" in visit and " " not in visit]
    await case.stage.reached(*begun)
    await case.quiet()
    return case, ids


def completed(outcome: Outcome, order: str) -> None:
    assert outcome.error is None
    assert outcome.result is not None
    assert outcome.result.status is Status.COMPLETED
    assert outcome.report.execution_order == order.split()
    assert outcome.report.interrupts == []


def failed(outcome: Outcome, message: str) -> None:
    assert type(outcome.error) is ValueError
    assert str(outcome.error) == message
    assert isinstance(outcome.error.__cause__, GraphFailedError)
    assert outcome.report.status == "failed"
    assert outcome.report.interrupts == []


# -- the cases ---------------------------------------------------------------------------------


async def test_the_skipped_node_stays_skipped_after_the_answer(
    server: Server, ended: Ended
) -> None:
    """Case 4: the answer comes to another process, and without the invocation state."""
    case, ids = await asking(server, "skip", "c", state={"skip": True})
    await server.crash()
    assert await asked_by(case.run, "c") == ids
    assert await case.run.respond({ids["c"]: "yes"}) == ["c"]
    outcome = await ended(case)
    completed(outcome, "a c")
    assert outcome.visits == {"a": 1, "b": 0, "c": 1}
    assert outcome.begun == {"a#1": 1, "c#1": 1}
    assert outcome.prompts["c#1"] == (
        "Original Task: T\nInputs from previous nodes:\nFrom a:  - Agent: a#1\n"
    )


async def test_an_answer_reaches_a_nested_graph_midway_after_a_restart(
    server: Server, ended: Ended
) -> None:
    """Case 10: in Strands the first inner node runs again, with the answer as its task."""
    case, ids = await asking(server, "nested", "nest/in1")
    await server.crash()
    assert await asked_by(case.run, "nest/in1") == ids
    assert await case.run.respond({ids["nest/in1"]: "yes"}) == ["nest/in1"]
    outcome = await ended(case)
    completed(outcome, "nest tail")
    assert outcome.begun == {"nest/in0#1": 1, "nest/in1#1": 1, "tail#1": 1}
    assert outcome.visits == {"nest": 1, "nest/in0": 1, "nest/in1": 1, "tail": 1}
    assert "Original Task:T" in outcome.prompts["nest/in1#1"]


async def test_a_failure_cancels_the_approval_beside_it(server: Server, ended: Ended) -> None:
    """Case 6: bad fails in another process than the one that asked."""
    case, ids = await asking(server, "beside", "a", hold=["bad#1", "broken bad#1"])
    await server.crash()
    case.stage.release("bad#1")
    outcome = await ended(case)
    failed(outcome, "bad#1 broke")
    [cancelled] = outcome.report.cancelled_interrupts
    assert (cancelled.node, cancelled.id) == ("a", ids["a"])
    assert "bad#1 broke" in cancelled.why
    assert outcome.statuses == {"a": "cancelled", "bad": "failed", "c": "pending"}
    assert outcome.begun == {"bad#1": 2}
    with pytest.raises(RunClosedError):
        await case.run.respond({ids["a"]: "yes"})

    second, ids = await asking(server, "beside", "a")
    await second.run.respond({ids["a"]: "yes"})
    outcome = await second.outcome()
    assert outcome.error is None
    assert sorted(outcome.begun) == ["a#1", "bad#1", "c#1"]


async def test_nobody_is_asked_after_a_failure(server: Server, ended: Ended) -> None:
    """Case 6, the mirror: bad fails before a comes to ask."""
    case = await server.start("mirror", hold=["slow#1", "bad#1", "broken bad#1"])
    await case.stage.reached("slow#1", "bad#1")
    await case.quiet()
    await server.crash()
    case.stage.release("bad#1")
    outcome = await ended(case)
    failed(outcome, "bad#1 broke")
    assert case.stage.counts("called") == {}
    assert outcome.report.cancelled_interrupts == []
    assert outcome.statuses == {"slow": "cancelled", "a": "pending", "bad": "failed"}


async def test_a_node_may_fail_after_its_answer(server: Server, ended: Ended) -> None:
    """Case 7: the worker is lost once while it waits and once while it goes on."""
    case, ids = await asking(server, "alone", "a", hold=["broken a#1"])
    await server.crash()
    case.stage.hold("a#1")
    await case.run.respond({ids["a"]: "yes"})
    await case.stage.reached("a#1")
    await case.quiet()
    await server.crash()
    case.stage.release("a#1")
    outcome = await ended(case)
    failed(outcome, "a#1 broke")
    assert outcome.report.cancelled_interrupts == []
    assert outcome.begun == {"a#1": 2}

    second, ids = await asking(server, "alone", "a")
    await second.run.respond({ids["a"]: "yes"})
    completed(await second.outcome(), "a")


async def test_a_rejection_ends_its_branch_only(server: Server, ended: Ended) -> None:
    """Case 8: the worker is lost while one branch waits and the other runs."""
    case, ids = await asking(server, "rejection", "b", hold=["d#1"])
    await server.crash()
    assert await case.run.respond({ids["b"]: "no"}) == ["b"]
    case.stage.release("d#1")
    outcome = await ended(case)
    completed(outcome, "a d e")
    assert outcome.statuses == {
        "a": "completed",
        "b": "cancelled",
        "c": "pending",
        "d": "completed",
        "e": "completed",
    }
    assert outcome.begun == {"a#1": 1, "d#1": 2, "e#1": 1}


@pytest.mark.parametrize("first", ["a", "b"])
async def test_one_answer_releases_one_node(server: Server, ended: Ended, first: str) -> None:
    """Case 9: the worker is lost between the two answers, while the first node runs."""
    second = "b" if first == "a" else "a"
    case, ids = await asking(server, "two", "a", "b")
    case.stage.hold(f"{first}#1")
    assert await case.run.respond({ids[first]: "yes"}) == [first]
    await case.stage.reached(f"{first}#1")
    await case.quiet()
    await server.crash()
    assert await asked_by(case.run, second) == {second: ids[second]}
    case.stage.release(f"{first}#1")
    await case.recorded(f"{first}#1.1")  # The part of the visit after its question.
    assert (await case.run.status()).nodes["j"].visits == 0
    assert await case.run.respond({ids[second]: "yes"}) == [second]
    outcome = await ended(case)
    completed(outcome, f"{first} {second} j")
    assert outcome.visits == {"a": 1, "b": 1, "j": 1}
    assert outcome.begun == {f"{first}#1": 2, f"{second}#1": 1, "j#1": 1}
    assert outcome.prompts["j#1"].count("From ") == 2
    # Asked once, and called once more with the answer.
    assert case.stage.counts("called") == {"a": 2, "b": 2}
    assert case.stage.counts("answered") == {"a": 1, "b": 1}


async def test_a_renamed_node_is_a_topology_error(
    client: Client, server: Server, ended: Ended
) -> None:
    """Case 12: a deployment renames the node that waits for its approval."""
    case, ids = await asking(server, "approval", "b")
    await server.kill()
    deployed = Server(
        client, server.queue, server.directory, target="tests.interrupt_graphs:renamed"
    )
    await deployed.revive()
    try:
        await case.run.respond({ids["b"]: "yes"})
        outcome = await ended(case)
    finally:
        await deployed.kill()
    assert type(outcome.error) is TopologyMismatchError
    assert "approval.b for workflow" in str(outcome.error)
    assert "available activities: approval.a, approval.b2, approval.c" in str(outcome.error)
    assert (outcome.report.reason or "").startswith("node 'b' raised TopologyMismatchError")
    assert outcome.report.status == "failed"
    assert outcome.report.execution_order == ["a"]
    assert outcome.begun == {"a#1": 1}


async def test_waiting_for_a_human_is_no_active_time(server: Server, ended: Ended) -> None:
    """Case 13: no worker, and nobody who answers, for longer than the execution timeout."""
    began = time.monotonic()
    case, ids = await asking(server, "active_time", "a")
    await server.kill()
    await asyncio.sleep(max(0, began + 5.2 - time.monotonic()))
    await server.revive()
    await case.run.respond({ids["a"]: "yes"})
    outcome = await ended(case)
    completed(outcome, "a b")
    assert outcome.result is not None
    assert outcome.result.execution_time < 5000


async def test_an_asked_node_holds_its_execution(server: Server, ended: Ended) -> None:
    """Case 14: the limit is met by the dispatch that asks."""
    case, ids = await asking(server, "one_execution", "a")
    await server.crash()
    await case.run.respond({ids["a"]: "yes"})
    completed(await ended(case), "a")


async def test_what_is_answered_stays_answered(server: Server, ended: Ended) -> None:
    """Case 20: another process refuses what the first one would have refused."""
    case, ids = await asking(server, "two", "a", "b")
    case.stage.hold("a#1")
    await case.run.respond({ids["a"]: "yes"}, update_id="once")
    await case.stage.reached("a#1")
    await case.quiet()
    await server.crash()
    assert await case.run.respond({ids["a"]: "yes"}, update_id="once") == ["a"]
    with pytest.raises(InterruptNotPendingError, match="answered already"):
        await case.run.respond({ids["a"]: "again"})
    with pytest.raises(InterruptNotPendingError, match="There is no interrupt 'nope'"):
        await case.run.respond({ids["b"]: "yes", "nope": "yes"})
    assert await asked_by(case.run, "b") == {"b": ids["b"]}
    case.stage.release("a#1")
    await case.run.respond({ids["b"]: "yes"})
    outcome = await ended(case)
    assert outcome.error is None
    assert [(line["visit"], line["answer"]) for line in case.stage.lines("answered")] == [
        ("a", "yes"),
        ("b", "yes"),
    ]


async def test_any_json_is_an_answer(server: Server, ended: Ended) -> None:
    """Case 20: the worker is lost before the answers and again after they were taken."""
    answers = {"n": None, "f": False, "e": "", "big": {"list": list(range(3000)), "x": [{}, 0]}}
    case, ids = await asking(server, "four", *answers)
    await server.crash()
    visits = [f"{node}#1" for node in answers]
    case.stage.hold(*visits)
    await case.run.respond({ids[node]: answer for node, answer in answers.items()})
    await case.stage.reached(*visits)
    await case.quiet()
    await server.crash()
    case.stage.release(*visits)
    outcome = await ended(case)
    assert outcome.error is None
    assert {line["visit"]: line["answer"] for line in case.stage.lines("answered")} == answers
    assert case.stage.counts("answered") == dict.fromkeys(answers, 1)


async def test_a_slow_sibling_holds_neither_question_nor_answer(
    server: Server, ended: Ended
) -> None:
    """Case 22: the worker is lost while b runs and a waits; a and what follows outrun b."""
    case, ids = await asking(server, "siblings", "a", hold=["b#1"])
    await server.crash()
    await case.run.respond({ids["a"]: "yes"})
    await case.recorded("after#1")
    assert (await case.run.status()).nodes["b"].status == "executing"
    case.stage.release("b#1")
    outcome = await ended(case)
    completed(outcome, "a after b")
    assert outcome.begun == {"a#1": 1, "b#1": 2, "after#1": 1}


# -- a worker lost at every stage --------------------------------------------------------------


@contextlib.asynccontextmanager
async def nodes_worker(client: Client) -> AsyncIterator[None]:
    """Serve the nodes that have a task queue of their own, in this process."""
    async with Worker(client, task_queue=ELSEWHERE, plugins=[GraphPlugin(registry)]):
        yield


async def test_lost_before_a_node_starts(client: Client, server: Server, ended: Ended) -> None:
    """No worker serves the node; then one runs it while none serves the run."""
    case = await server.start("elsewhere")
    await case.has(EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED)
    await case.quiet()
    await server.kill()
    async with nodes_worker(client):
        await case.recorded("a#1")
        assert case.stage.counts("begin") == {"a#1": 1}
        await server.revive()
        outcome = await ended(case)
    completed(outcome, "a b")
    assert outcome.begun == {"a#1": 1, "b#1": 1}


async def test_lost_while_a_node_runs(server: Server, ended: Ended) -> None:
    case = await server.start("chain", hold=["b#1"])
    await case.stage.reached("b#1")
    await case.quiet()
    await server.crash()
    case.stage.release("b#1")
    outcome = await ended(case)
    completed(outcome, "a b c")
    assert outcome.begun == {"a#1": 1, "b#1": 2, "c#1": 1}


async def test_lost_between_a_result_and_the_next_dispatch(
    client: Client, server: Server, ended: Ended
) -> None:
    """The result comes to the server while no worker serves the run."""
    async with nodes_worker(client):
        case = await server.start("elsewhere", hold=["a#1"])
        await case.stage.reached("a#1")
        await case.quiet()
        await server.kill()
        case.stage.release("a#1")
        await case.recorded("a#1")
        assert await scheduled(client, case.run.id) == ["elsewhere.a"]
        await server.revive()
        outcome = await ended(case)
    completed(outcome, "a b")
    assert outcome.begun == {"a#1": 1, "b#1": 1}


async def test_lost_while_it_waits_for_a_human(server: Server, ended: Ended) -> None:
    """Twice, with the same question; no hook is called for the restarts."""
    case, ids = await asking(server, "approval", "b")
    for _ in range(2):
        await server.crash()
        assert await asked_by(case.run, "b") == ids
    await case.run.respond({ids["b"]: "yes"})
    outcome = await ended(case)
    completed(outcome, "a b c")
    assert outcome.begun == {"a#1": 1, "b#1": 1, "c#1": 1}
    assert case.stage.counts("called") == {"b": 2}


async def test_an_update_waits_for_a_worker(server: Server, ended: Ended) -> None:
    case, ids = await asking(server, "approval", "b")
    await server.kill()
    answer = asyncio.create_task(case.run.respond({ids["b"]: "yes"}))
    await asyncio.sleep(0.5)
    assert not answer.done()
    await server.revive()
    assert await answer == ["b"]
    completed(await ended(case), "a b c")


async def test_a_signal_waits_for_a_worker(client: Client, server: Server, ended: Ended) -> None:
    case, ids = await asking(server, "approval", "b")
    await server.kill()
    await client.get_workflow_handle(case.run.id).signal("respond", {ids["b"]: "yes"})
    await server.revive()
    completed(await ended(case), "a b c")


async def test_lost_while_the_answered_node_runs(server: Server, ended: Ended) -> None:
    case, ids = await asking(server, "approval", "b")
    case.stage.hold("b#1")
    await case.run.respond({ids["b"]: "yes"})
    await case.stage.reached("b#1")
    await case.quiet()
    await server.crash()
    case.stage.release("b#1")
    outcome = await ended(case)
    completed(outcome, "a b c")
    assert outcome.begun == {"a#1": 1, "b#1": 2, "c#1": 1}
    assert case.stage.counts("answered") == {"b": 1}


# -- retries of a run --------------------------------------------------------------------------


def again(server: Server, case: Case, run: GraphRun) -> Case:
    """Return a retry as a case of its own, on the stage of the run that it retries."""
    return Case(server.client, run, case.stage)


async def broken(server: Server, ended: Ended, graph: str, visit: str) -> Case:
    """Return a run that failed in a visit. What made it fail is mended."""
    case = await server.start(graph, hold=[f"broken {visit}"])
    failed(await ended(case), f"{visit} broke")
    case.stage.release(f"broken {visit}")
    return case


async def test_a_retry_runs_nothing_again_that_completed(server: Server, ended: Ended) -> None:
    """Case 11: a worker knows nothing of what one before it did, and needn't."""
    case = await broken(server, ended, "chain", "b#1")
    await server.crash()
    retry = again(server, case, await case.run.retry())
    outcome = await ended(retry)
    completed(outcome, "a b c")
    assert outcome.begun == {"a#1": 1, "b#1": 2, "c#1": 1}
    assert outcome.events == ["+b#1", "-b#1", "+c#1", "-c#1"]
    assert outcome.visits == {"a": 1, "b": 1, "c": 1}
    assert outcome.result is not None
    assert outcome.result.failed_nodes == 0
    assert str(outcome.result.results["a"]) == "a#1\n"
    assert outcome.prompts["b#1"].endswith("a#1\n")
    assert (await case.run.status()).status == "failed"


async def test_a_retry_survives_its_worker(server: Server, ended: Ended) -> None:
    case = await broken(server, ended, "chain", "b#1")
    case.stage.hold("b#1")
    retry = again(server, case, await case.run.retry())
    await case.stage.reached("b#1", times=2)
    await retry.quiet()
    await server.crash()
    case.stage.release("b#1")
    outcome = await ended(retry)
    completed(outcome, "a b c")
    assert outcome.begun == {"a#1": 1, "b#1": 3, "c#1": 1}


async def command(
    client: Client,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *arguments: str,
) -> tuple[int, str, str]:
    """Run the command; return its exit status, and what it said on either channel."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", client.service_client.config.target_host)
    capsys.readouterr()
    status = await asyncio.to_thread(main, arguments)
    said = capsys.readouterr()
    return status, said.out.strip(), said.err


async def test_the_command_retries(
    client: Client,
    server: Server,
    ended: Ended,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = await broken(server, ended, "chain", "b#1")
    await server.crash()
    status, said, _ = await command(client, capsys, monkeypatch, "retry", case.run.id)
    assert status == 0
    assert said.startswith(f"{case.run.id}-retry-")
    retry = again(server, case, GraphRun(client, said))
    outcome = await ended(retry)
    completed(outcome, "a b c")
    assert outcome.begun == {"a#1": 1, "b#1": 2, "c#1": 1}

    status, _, wrong = await command(client, capsys, monkeypatch, "retry", said)
    assert status == 1
    assert "say from which node" in wrong

    status, from_c, _ = await command(client, capsys, monkeypatch, "retry", said, "--from", "c")
    assert status == 0
    outcome = await ended(again(server, case, GraphRun(client, from_c)))
    completed(outcome, "a b c")
    assert outcome.begun == {"a#1": 1, "b#1": 2, "c#1": 2}


async def test_a_retry_from_a_node_runs_it_and_what_comes_out_differently(
    server: Server, ended: Ended
) -> None:
    case = await server.start("chain")
    completed(await ended(case), "a b c")
    with pytest.raises(InvalidGraphInputError, match="from which node"):
        await case.run.retry()

    same = again(server, case, await case.run.retry(from_node="b"))
    outcome = await ended(same)
    completed(outcome, "a b c")
    assert outcome.scheduled == ["b#1"], "b says the same again, so c has nothing new to do"

    await server.crash()
    case.stage.hold("changed b#1")
    other = again(server, case, await case.run.retry(from_node="b"))
    outcome = await ended(other)
    completed(outcome, "a b c")
    assert outcome.scheduled == ["b#1", "c#1"]
    assert outcome.prompts["c#1"].endswith("b#1 changed\n")


async def test_a_retry_from_a_node_that_is_not_there_is_refused(server: Server) -> None:
    case = await server.start("chain")
    await case.run.result()
    with pytest.raises(InvalidGraphInputError, match="nonsense"):
        await (await case.run.retry(from_node="nonsense")).result()


async def test_a_retry_of_a_retry_knows_both_runs(server: Server, ended: Ended) -> None:
    case = await broken(server, ended, "chain", "b#1")
    case.stage.hold("broken c#1")
    first = again(server, case, await case.run.retry())
    failed(await ended(first), "c#1 broke")
    case.stage.release("broken c#1")
    await server.crash()
    second = again(server, case, await first.run.retry())
    outcome = await ended(second)
    completed(outcome, "a b c")
    assert outcome.scheduled == ["c#1"]
    assert outcome.begun == {"a#1": 1, "b#1": 2, "c#1": 2}


async def test_a_retry_in_a_loop_knows_the_visits_apart(server: Server, ended: Ended) -> None:
    case = await broken(server, ended, "loop", "a#2")
    await server.crash()
    outcome = await ended(again(server, case, await case.run.retry()))
    completed(outcome, "a b a b end")
    assert outcome.scheduled == ["a#2", "b#2", "end#1"]
    assert outcome.begun == {"a#1": 1, "b#1": 1, "a#2": 2, "b#2": 1, "end#1": 1}


async def test_a_retry_asks_nothing_that_is_done(server: Server, ended: Ended) -> None:
    case, ids = await asking(server, "approval", "b", hold=["broken c#1"])
    await case.run.respond({ids["b"]: "yes"})
    failed(await ended(case), "c#1 broke")
    case.stage.release("broken c#1")
    await server.crash()
    outcome = await ended(again(server, case, await case.run.retry()))
    completed(outcome, "a b c")
    assert outcome.scheduled == ["c#1"]
    assert case.stage.counts("called") == {"b": 2}


async def test_a_retry_asks_again_what_nobody_answered(server: Server, ended: Ended) -> None:
    case, ids = await asking(server, "beside", "a", hold=["bad#1", "broken bad#1"])
    case.stage.release("bad#1")
    failed(await ended(case), "bad#1 broke")
    case.stage.release("broken bad#1")
    await server.crash()
    retry = again(server, case, await case.run.retry())
    assert await asked_by(retry.run, "a") == ids
    await retry.run.respond({ids["a"]: "yes"})
    outcome = await ended(retry)
    assert outcome.error is None
    assert outcome.visits == {"a": 1, "bad": 1, "c": 1}
    assert outcome.begun == {"bad#1": 2, "a#1": 1, "c#1": 1}


@pytest.mark.parametrize("how", ["cancelled", "terminated"])
async def test_a_run_is_retried_only_after_its_end(
    client: Client, server: Server, ended: Ended, how: str
) -> None:
    case, ids = await asking(server, "approval", "b")
    with pytest.raises(InvalidGraphInputError, match="hasn't ended"):
        await case.run.retry()
    handle = client.get_workflow_handle(case.run.id)
    await (handle.cancel() if how == "cancelled" else handle.terminate())
    with pytest.raises(RunClosedError, match=how):
        await case.run.result()
    retry = again(server, case, await case.run.retry())
    assert await asked_by(retry.run, "b") == ids
    await retry.run.respond({ids["b"]: "yes"})
    outcome = await ended(retry)
    completed(outcome, "a b c")
    assert outcome.begun == {"a#1": 1, "b#1": 1, "c#1": 1}


async def test_a_retry_knows_visits_before_which_a_hook_wrote(server: Server, ended: Ended) -> None:
    case = await broken(server, ended, "writing", "c#1")
    outcome = await ended(again(server, case, await case.run.retry()))
    completed(outcome, "a b c")
    assert outcome.begun == {"a#1": 1, "b#1": 1, "c#1": 2}


async def test_a_retry_knows_nothing_of_an_answer_that_was_refused(
    client: Client, server: Server, ended: Ended
) -> None:
    case, ids = await asking(server, "approval", "b", hold=["broken c#1"])
    handle = client.get_workflow_handle(case.run.id)
    for wrong in (f"{ids['b']}?", "b#1:other"):
        await handle.signal("respond", args=[{ids["b"]: "no", wrong: "yes"}, {"by": "Mallory"}])
    await case.run.respond({ids["b"]: "yes"})
    failed(await ended(case), "c#1 broke")
    case.stage.release("broken c#1")
    retry = again(server, case, await case.run.retry())
    outcome = await ended(retry)
    completed(outcome, "a b c")
    assert outcome.begun == {"a#1": 1, "b#1": 1, "c#1": 2}
    assert "by" not in outcome.report.invocation_state


async def test_a_retry_knows_the_state_that_came_with_an_answer(
    server: Server, ended: Ended
) -> None:
    case, ids = await asking(server, "approval", "b", hold=["broken c#1"])
    await case.run.respond({ids["b"]: "yes"}, {"by": "Ann"})
    failed(await ended(case), "c#1 broke")
    case.stage.release("broken c#1")
    retry = again(server, case, await case.run.retry())

    async def idle() -> bool:
        return (await retry.run.status()).status != "executing"

    await eventually(idle)
    assert await retry.run.interrupts() == []
    outcome = await ended(retry)
    completed(outcome, "a b c")
    assert outcome.begun == {"a#1": 1, "b#1": 1, "c#1": 2}
    assert outcome.report.invocation_state["by"] == "Ann"
