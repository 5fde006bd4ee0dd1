"""What users of Strands graphs reported, each case on a real server.

Every case runs twice: on a worker that stays, and on one that is killed at a telling moment and
replaced by another process. Both must give the same, and no completed visit may run again.
"""

from __future__ import annotations

import asyncio
import copy
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
import pytest_asyncio
from strands.multiagent.base import Status
from strands.multiagent.graph import Graph, GraphResult, GraphState
from strands.multiagent.swarm import SwarmResult
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.testing import WorkflowEnvironment

from durable_strands import GraphFailedError, NodeTimeoutError, RunClosedError

from .case_graphs import FAN, Verdict, registry, uses_a_tool
from .restart import Case, Outcome, Server, steady_server
from .support import asked_by, build, serve


@pytest.fixture(scope="session")
def mortal(env: WorkflowEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A worker process for all tests, started by the first, killed and replaced by each."""
    server = Server(
        env.client,
        f"test-{uuid.uuid4()}",
        tmp_path_factory.mktemp("mortal"),
        target="tests.case_graphs:registry",
    )
    yield server
    server.stop()


@pytest_asyncio.fixture
async def mortal_server(mortal: Server) -> AsyncIterator[Server]:
    await mortal.revive()
    yield mortal
    print(mortal.output)


@pytest_asyncio.fixture(params=["steady", "killed"])
async def server(
    request: pytest.FixtureRequest, client: Client, mortal: Server, tmp_path: Any
) -> AsyncIterator[Server]:
    if request.param == "steady":
        async with steady_server(client, registry, tmp_path) as steady:
            yield steady
    else:
        await mortal.revive()
        yield mortal
        print(mortal.output)


async def halfway(
    server: Server,
    graph: str,
    *,
    held: str | Sequence[str],
    after: Sequence[str] = (),
    task: Any = "T",
    state: dict[str, Any] | None = None,
) -> Case:
    """Start a run, crash the worker while `held` runs and `after` is recorded, then let it go."""
    holds = [held] if isinstance(held, str) else list(held)
    case = await server.start(graph, task, state, hold=holds)
    await case.stage.reached(*holds)
    if after:
        await case.recorded(*after)
    await case.quiet()
    await server.crash()
    case.stage.release(*holds)
    return case


def completed(outcome: Outcome, order: str, *, again: Sequence[str] = ()) -> GraphResult:
    """Check a run that completed, in full, and return its result.

    Args:
        outcome: What it left behind.
        order: Nodes in order of completion; those joined by a comma in any order.
        again: Visits that had to run once more, since the worker was killed in them. All
            others ran exactly once.
    """
    assert outcome.error is None
    result = outcome.result
    assert result is not None
    assert result.status is Status.COMPLETED
    in_order(outcome, order)
    nodes = [node for group in order.split() for node in group.split(",")]
    counts = Counter(nodes)
    visits = [f"{node}#{visit + 1}" for node in counts for visit in range(counts[node])]
    assert outcome.visits == {node: counts[node] for node in outcome.report.nodes}
    assert sorted(outcome.scheduled) == sorted(visits)
    assert outcome.begun == {visit: 2 if visit in again else 1 for visit in visits}
    assert outcome.report.reason is None
    assert result.execution_count == len(nodes)
    assert result.completed_nodes == len(counts)
    assert result.failed_nodes == 0
    assert set(result.results) == set(counts)
    return result


def in_order(outcome: Outcome, order: str) -> None:
    remaining = list(outcome.report.execution_order)
    for group in order.split():
        expected = sorted(group.split(","))
        assert sorted(remaining[: len(expected)]) == expected, outcome.report.execution_order
        del remaining[: len(expected)]
    assert not remaining


def failed(outcome: Outcome, kind: type[Exception], message: str) -> GraphResult:
    """Check that the caller got a node's own exception, and return the partial result."""
    assert type(outcome.error) is kind
    assert str(outcome.error) == message
    cause = outcome.error.__cause__
    assert isinstance(cause, GraphFailedError)
    assert isinstance(cause.result, GraphResult)
    assert cause.result.status is Status.FAILED
    assert outcome.result is None
    return cause.result


def prompt(**inputs: str) -> str:
    """Return the prompt that Strands builds of the task "T" and what stubs answered."""
    said = "".join(f"\nFrom {node}:  - Agent: {text}\n" for node, text in inputs.items())
    return f"Original Task: T\nInputs from previous nodes:{said}"


# -- 1: an even fan-in -------------------------------------------------------------------------


async def test_a_restart_before_an_even_join_loses_no_branch(server: Server) -> None:
    case = await halfway(server, "even_fan_in", held="right#1", after=["left#1"])
    outcome = await case.outcome()
    completed(outcome, "left right join", again=server.lost("right#1"))
    assert outcome.prompts["join#1"] == prompt(left="left#1", right="right#1")


# -- 2, 3, 5: joins ----------------------------------------------------------------------------


async def test_a_join_at_uneven_depth_runs_once(server: Server) -> None:
    case = await halfway(server, "uneven_diamond", held="r1#1", after=["l#1"])
    outcome = await case.outcome()
    completed(outcome, "s l r1 r2 j k", again=server.lost("r1#1"))
    assert outcome.prompts["j#1"] == prompt(l="l#1", r2="r2#1")
    assert outcome.prompts["k#1"] == prompt(j="j#1")


async def test_a_direct_and_an_indirect_edge_run_the_join_once(server: Server) -> None:
    case = await halfway(server, "direct_and_indirect_all", held="a#1", after=["x#1"])
    outcome = await case.outcome()
    completed(outcome, "x a z", again=server.lost("a#1"))
    assert outcome.prompts["z#1"] == prompt(x="x#1", a="a#1")


async def test_an_any_join_takes_the_first_and_absorbs_the_second(server: Server) -> None:
    case = await halfway(server, "direct_and_indirect_any", held="a#1", after=["z#1"])
    outcome = await case.outcome()
    completed(outcome, "x z a", again=server.lost("a#1"))
    assert outcome.prompts["z#1"] == prompt(x="x#1")


async def test_strands_semantics_fire_the_join_for_each_batch(server: Server) -> None:
    case = await halfway(server, "direct_and_indirect_strands", held="z#1", after=["a#1"])
    outcome = await case.outcome()
    completed(outcome, "x a z z", again=server.lost("z#1"))
    assert outcome.prompts["z#1"] == prompt(x="x#1")
    assert outcome.prompts["z#2"] == prompt(x="x#1", a="a#1")


@pytest.mark.parametrize("join", ["all", "any", "strands"])
async def test_a_wait_for_all_written_by_hand_fires_once_with_both(
    server: Server, join: str
) -> None:
    case = await halfway(server, f"wait_for_all_{join}", held="b#1", after=["a#1"])
    outcome = await case.outcome()
    completed(outcome, "a b z", again=server.lost("b#1"))
    assert outcome.prompts["z#1"] == prompt(a="a#1", b="b#1")


# -- 11: retries -------------------------------------------------------------------------------


async def test_a_retry_that_succeeds_is_no_failure(server: Server) -> None:
    case = await server.start("retry", hold=["b#1@2"])
    await case.stage.reached("b#1", times=2)
    await case.quiet()
    await server.crash()
    case.stage.release("b#1@2")
    outcome = await case.outcome()

    attempts = [line["attempt"] for line in case.stage.lines("begin") if line["visit"] == "b#1"]
    assert attempts == ([1, 2, 3] if server.mortal else [1, 2])
    assert outcome.begun == {"a#1": 1, "b#1": len(attempts), "c#1": 1}
    outcome.begun["b#1"] = 1
    completed(outcome, "a b c")
    assert outcome.prompts["c#1"] == prompt(b=f"b after {len(attempts)} attempts")


async def test_a_node_with_one_attempt_fails_the_run_with_its_own_error(server: Server) -> None:
    case = await halfway(server, "no_retry", held="a#1")
    outcome = await case.outcome()
    result = failed(outcome, ConnectionError, "the line was dropped")
    assert outcome.report.reason == "node 'b' raised ConnectionError: the line was dropped"
    assert [node.node_id for node in result.execution_order] == ["a"]
    assert outcome.visits == {"a": 1, "b": 1, "c": 0}
    assert outcome.statuses == {"a": "completed", "b": "failed", "c": "pending"}
    assert outcome.begun == {"a#1": 2 if server.mortal else 1, "b#1": 1}
    assert outcome.scheduled == ["a#1", "b#1"]
    assert str(result.results["a"]) == "a#1\n"
    assert isinstance(result.results["b"].result, ConnectionError)
    assert (result.completed_nodes, result.failed_nodes) == (1, 1)


async def test_a_worker_lost_with_the_only_attempt_fails_the_run(mortal_server: Server) -> None:
    case = await halfway(mortal_server, "lost_once", held="b#1", after=["a#1"])
    outcome = await case.outcome()
    assert type(outcome.error) is NodeTimeoutError
    assert "its worker was lost" in str(outcome.error)
    assert outcome.statuses == {"a": "completed", "b": "failed", "c": "pending"}
    assert outcome.begun == {"a#1": 1, "b#1": 1}


# -- 13: limits --------------------------------------------------------------------------------


async def test_max_node_executions_is_exact_within_a_fan_out(server: Server) -> None:
    case = await halfway(server, "two_executions", held="a#1")
    outcome = await case.outcome()
    assert outcome.error is None
    assert outcome.result is not None
    assert outcome.result.status is Status.FAILED
    assert outcome.report.reason == "Max node executions reached: 2"
    in_order(outcome, "x a")
    assert outcome.scheduled == ["x#1", "a#1"]
    assert outcome.visits == {"x": 1, "a": 1, "b": 0, "c": 0, "d": 0}
    assert outcome.begun == {"x#1": 1, "a#1": 2 if server.mortal else 1}
    assert outcome.result.execution_count == 2


async def test_an_execution_timeout_cancels_what_runs(server: Server) -> None:
    case = await server.start("execution_timeout", hold=["a#1"])
    await case.stage.reached("a#1")
    if server.mortal:
        await server.kill()
        await case.has(EventType.EVENT_TYPE_TIMER_FIRED)
        await server.revive()
    else:
        await case.stage.reached("a#1", event="cancelled")
    outcome = await case.outcome()
    assert outcome.error is None
    assert outcome.result is not None
    assert outcome.result.status is Status.FAILED
    assert outcome.report.reason == "Execution timed out: 0.3s"
    assert outcome.statuses == {"a": "cancelled", "b": "pending"}
    assert outcome.report.execution_order == []
    assert "b#1" not in outcome.begun


async def test_a_node_timeout_is_final(server: Server) -> None:
    case = await server.start("node_timeout", hold=["b#1"])
    outcome = await case.outcome()
    failed(outcome, NodeTimeoutError, "Node 'b' execution timed out after 0.2s")
    assert outcome.begun == {"a#1": 1, "b#1": 1}
    assert case.stage.counts("cancelled") == {"b#1": 1}
    assert outcome.statuses == {"a": "completed", "b": "failed"}


# -- 15: a cancelled child ---------------------------------------------------------------------


async def test_an_agent_that_cancels_itself_prunes_only_its_branch(server: Server) -> None:
    case = await halfway(server, "cancelled_child", held="other#1", after=["a#1"])
    outcome = await case.outcome()
    assert outcome.error is None
    result = outcome.result
    assert result is not None
    assert result.status is Status.FAILED
    assert outcome.report.reason == "failed nodes: a"
    in_order(outcome, "a other od")
    assert outcome.visits == {"a": 1, "other": 1, "down": 0, "od": 1}
    assert result.results["a"].status is Status.FAILED
    assert result.results["a"].result.stop_reason == "cancelled"  # type: ignore[union-attr]
    assert outcome.begun == {"other#1": 2 if server.mortal else 1, "od#1": 1}
    assert (result.completed_nodes, result.failed_nodes) == (2, 1)


# -- 16, 23, 24, 25: runs side by side ---------------------------------------------------------


async def test_runs_on_one_worker_see_nothing_of_each_other(server: Server) -> None:
    one = await server.start("agents", "ONE", hold=["b#1"])
    await one.stage.reached("b#1")
    two = await server.start("agents", "TWO", hold=["a#1"])
    await two.stage.reached("a#1")
    await one.quiet()
    await two.quiet()
    await server.crash()
    two.stage.release("a#1")
    second = await two.outcome()
    one.stage.release("b#1")
    first = await one.outcome()
    third = await (await server.start("agents", "THREE")).outcome()

    completed(first, "a b", again=server.lost("b#1"))
    completed(second, "a b", again=server.lost("a#1"))
    completed(third, "a b")
    for task, outcome in {"ONE": first, "TWO": second, "THREE": third}.items():
        assert outcome.prompts == {
            "a#1": task,
            "b#1": prompt(a=f"<{task}>").replace("Task: T", f"Task: {task}"),
        }
        assert outcome.report.usage.totalTokens == 30
    for case in (one, two):
        assert {line["messages"] for line in case.stage.lines("begin")} == {1}


async def test_the_callers_dict_is_left_alone(server: Server) -> None:
    stage = server.stage("b#1")
    state = {"who": {"name": "Ann"}, "removed": True, **stage.state}
    before = copy.deepcopy(state)
    case = Case(server.client, await server.graph("scribblers").start("T", state), stage)
    await stage.reached("b#1")
    await case.quiet()
    await server.crash()
    stage.release("b#1")
    outcome = await case.outcome()

    completed(outcome, "a b c", again=server.lost("b#1"))
    assert state == before
    # The run's own: what a node changed is there, and nothing that Strands' event loop put in.
    assert outcome.report.invocation_state == {
        "who": {"name": "Bob"},
        "added": [1],
        **stage.state,
    }


async def test_two_calls_at_once_of_one_object_are_two_runs(server: Server) -> None:
    stage = server.stage("b#1")
    graph = server.graph("agents")
    both = asyncio.gather(
        graph.invoke_async("ONE", stage.state), graph.invoke_async("TWO", stage.state)
    )
    await stage.reached("b#1", times=2)
    await server.crash()
    stage.release("b#1")
    for task, result in zip(["ONE", "TWO"], await both, strict=True):
        assert result.status is Status.COMPLETED
        assert str(result.results["a"]) == f"<{task}>\n"
        assert [node.node_id for node in result.execution_order] == ["a", "b"]
    assert stage.counts("begin") == {"a#1": 2, "b#1": 4 if server.mortal else 2}


async def open_and_close_a_stream(server: Server) -> Case:
    """Begin to stream a run, read its first event, and close the stream while `a` runs."""
    stage = server.stage("a#1")
    graph = server.graph("steps", id=f"stream-{uuid.uuid4()}")
    stream = graph.stream_async("T", stage.state)
    assert (await anext(stream))["type"] == "multiagent_node_start"
    await stream.aclose()  # type: ignore[attr-defined]
    await stage.reached("a#1")
    found: list[str] = []
    while not found:
        listed = server.client.list_workflows(f"WorkflowId STARTS_WITH '{graph.id}'")
        found = [execution.id async for execution in listed]
    return Case(server.client, graph.attach(found[0]), stage)


async def test_closing_a_stream_leaves_the_run_alone(server: Server) -> None:
    case = await open_and_close_a_stream(server)
    assert not await case.run.is_closed()
    await server.crash()
    case.stage.release("a#1")
    completed(await case.outcome(), "a b", again=server.lost("a#1"))


async def test_cancelling_a_run_is_explicit(server: Server) -> None:
    case = await open_and_close_a_stream(server)
    if server.mortal:
        await server.kill()
    await case.run.cancel()
    if server.mortal:
        await server.revive()
    outcome = await case.outcome()
    assert type(outcome.error) is RunClosedError
    assert "was cancelled" in str(outcome.error)
    assert outcome.statuses == {"a": "cancelled", "b": "pending"}
    assert outcome.report.status == "cancelled"
    described = await server.client.get_workflow_handle(case.run.id).describe()
    assert described.status is WorkflowExecutionStatus.CANCELED
    if not server.mortal:
        await case.stage.reached("a#1", event="cancelled")


# -- 17: hash seeds ----------------------------------------------------------------------------


@pytest.mark.parametrize("graph", ["fan", "fan_strands"])
async def test_after_a_restart_each_node_keeps_its_own_result(server: Server, graph: str) -> None:
    """Each worker process has another hash seed."""
    case = await halfway(
        server, graph, held=["n2#1", "n5#1"], after=["n0#1", "n1#1", "n3#1", "n4#1"]
    )
    outcome = await case.outcome()
    result = completed(outcome, ",".join(FAN) + " join", again=server.lost("n2#1", "n5#1"))
    assert {node: str(result.results[node]) for node in FAN} == {
        node: f"{node}#1\n" for node in FAN
    }
    assert outcome.prompts["join#1"] == prompt(**{node: f"{node}#1" for node in FAN})


# -- 18: no barrier ----------------------------------------------------------------------------


async def test_a_fast_branch_does_not_wait_for_a_slow_one(server: Server) -> None:
    case = await halfway(server, "no_barrier", held="slow#1", after=["fast2#1"])
    completed(await case.outcome(), "fast fast2 slow", again=server.lost("slow#1"))


async def test_a_join_under_max_concurrency_1_runs_once(server: Server) -> None:
    case = await halfway(server, "one_at_a_time", held="right#1", after=["left#1"])
    outcome = await case.outcome()
    completed(outcome, "left right join", again=server.lost("right#1"))
    assert outcome.events == ["+left#1", "-left#1", "+right#1", "-right#1", "+join#1", "-join#1"]
    assert outcome.prompts["join#1"] == prompt(left="left#1", right="right#1")


# -- 19: conditions ----------------------------------------------------------------------------


async def test_an_async_condition_is_awaited_and_its_value_counts(server: Server) -> None:
    case = await server.start("async_condition", hold=["a->b"])
    await case.stage.reached("a->b", event="condition")
    await server.crash()
    case.stage.release("a->b")
    outcome = await case.outcome()
    completed(outcome, "a c")
    assert case.stage.counts("condition") == {"a->b": 2 if server.mortal else 1}


async def test_a_condition_that_raises_fails_the_run_once_and_names_its_edge(
    server: Server,
) -> None:
    case = await halfway(server, "bad_condition", held="a#1")
    outcome = await case.outcome()
    result = failed(outcome, LookupError, "no such review")
    assert (
        outcome.report.reason == "the condition of edge a -> b raised LookupError: no such review"
    )
    assert case.stage.counts("condition") == {"a->b": 1}
    assert outcome.visits == {"a": 1, "b": 0, "c": 0}
    assert outcome.scheduled == ["a#1"]
    assert str(result.results["a"]) == "a#1\n"
    assert [node.node_id for node in result.execution_order] == ["a"]


# -- knots -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("graph", "held", "order", "prompts"),
    [
        pytest.param(
            "loop_of_two",
            ["w#1", "v#1"],
            "r w,v r",
            {
                "w#1": prompt(r="r#1"),
                "v#1": prompt(r="r#1"),
                "r#2": prompt(w="w#1", v="v#1"),
            },
            id="a loop over two nodes side by side",
        ),
        pytest.param(
            "out_beside_a_loop",
            ["r#2"],
            "p,w r w r out",
            {"w#2": prompt(r="r#1"), "out#1": prompt(p="p#1", r="r#2")},
            id="a join of a branch and the end of a loop",
        ),
        pytest.param(
            "planner_and_reviewer",
            ["w#2"],
            "planner w r w r",
            {
                "w#1": prompt(planner="planner#1"),
                "w#2": prompt(planner="planner#1", r="r#1"),
                "r#2": prompt(w="w#2"),
            },
            id="a revision sees the plan and the review",
        ),
        pytest.param(
            "two_that_wait_for_each_other",
            ["b#1"],
            "e a b a b",
            {
                "a#1": prompt(e="e#1"),
                "b#1": prompt(e="e#1", a="a#1"),
                "a#2": prompt(e="e#1", b="b#1"),
                "b#2": prompt(e="e#1", a="a#2"),
            },
            id="two that wait for each other",
        ),
    ],
)
async def test_a_knot_of_joins_unties_itself(
    server: Server, graph: str, held: list[str], order: str, prompts: dict[str, str]
) -> None:
    case = await halfway(server, graph, held=held)
    outcome = await case.outcome()
    completed(outcome, order, again=server.lost(*held))
    assert {visit: outcome.prompts[visit] for visit in prompts} == prompts


@pytest.mark.parametrize("graph", ["feedback", "feedback_r_first"])
async def test_both_passes_of_a_conditional_feedback_loop_run_side_by_side(
    server: Server, graph: str
) -> None:
    first, second = ["w#1", "v#1"], ["w#2", "v#2"]
    case = await server.start(graph, hold=[*first, *second])
    await case.stage.reached(*first)
    case.stage.release(*first)
    await case.stage.reached(*second)
    await case.quiet()
    await server.crash()
    case.stage.release(*second)
    outcome = await case.outcome()
    completed(outcome, "planner w,v r w,v r", again=server.lost(*second))
    in_declaration_order = ["w#1", "v#1", "w#2", "v#2"]
    for visit in in_declaration_order:
        inputs = {"planner": "planner#1"}
        if visit.endswith("2"):
            inputs["r"] = "r#1"
        assert outcome.prompts[visit] == prompt(**inputs)
    assert outcome.prompts["r#1"] == prompt(w="w#1", v="v#1")
    assert outcome.prompts["r#2"] == prompt(w="w#2", v="v#2")


# -- agents ------------------------------------------------------------------------------------


async def test_structured_output_reaches_the_next_prompt_and_the_caller(server: Server) -> None:
    case = await halfway(server, "structured", held="reader#1")
    outcome = await case.outcome()
    assert outcome.result is not None
    in_order(outcome, "judge reader")
    assert outcome.prompts["reader#1"] == (
        "Original Task: T\nInputs from previous nodes:"
        '\nFrom judge:  - Agent: {"passed":true,"points":[3,4]}'
    )
    judged = outcome.result.results["judge"].result
    assert judged.structured_output == Verdict(passed=True, points=[3, 4])  # type: ignore[union-attr]
    assert str(judged) == '{"passed":true,"points":[3,4]}'
    assert outcome.report.results["judge"].structured_output == {"passed": True, "points": [3, 4]}


@pytest.mark.parametrize(
    ("graph", "messages"), [("conversation", [1, 3, 5]), ("conversation_reset", [1, 1, 1])]
)
async def test_a_conversation_is_kept_over_visits_unless_reset(
    server: Server, graph: str, messages: list[int]
) -> None:
    case = await halfway(server, graph, held="writer#3")
    outcome = await case.outcome()
    result = completed(outcome, "writer writer writer end", again=server.lost("writer#3"))
    seen = [line["messages"] for line in case.stage.lines("begin") if "messages" in line]
    assert seen == ([*messages, messages[-1]] if server.mortal else messages)
    # Each visit counts what it used itself, however long the conversation.
    assert result.results["writer"].accumulated_usage == {
        "inputTokens": 10,
        "outputTokens": 5,
        "totalTokens": 15,
    }
    assert result.accumulated_usage["totalTokens"] == 45
    assert outcome.report.usage.totalTokens == 45
    assert outcome.report.latency_ms == 21


async def test_image_bytes_reach_the_models_of_all_nodes_intact(server: Server) -> None:
    png = bytes(range(256)) + b"\x89PNG\r\n\x1a\n"
    task = [
        {"text": "look"},
        {"image": {"format": "png", "source": {"bytes": png}}},
    ]
    case = await halfway(server, "seeing", held="second#1", task=task)
    outcome = await case.outcome()
    completed(outcome, "first second", again=server.lost("second#1"))
    assert all(line["images"] == [png.hex()] for line in case.stage.lines("begin"))
    assert outcome.prompts == {
        "first#1": "look",
        "second#1": (
            "Original Task:look\nInputs from previous nodes:\nFrom first:  - Agent: <look>\n"
        ),
    }


async def test_bytes_survive_a_question_and_a_restart(server: Server) -> None:
    """Case 21: the very bytes of the task are before the model when its question is answered."""
    png, pdf = bytes(range(256)) + b"\x89PNG\r\n\x1a\n", b"%PDF\x00\xff"
    task = [
        {"text": "look"},
        {"image": {"format": "png", "source": {"bytes": png}}},
        {"document": {"format": "pdf", "name": "report", "source": {"bytes": pdf}}},
    ]
    case = await server.start("binary", task)
    ids = await asked_by(case.run, "asker")
    await case.quiet()
    await server.crash()
    await case.run.respond({ids["asker"]: "a cat"})
    outcome = await case.outcome()
    assert outcome.result is not None, outcome.error
    assert outcome.result.status is Status.COMPLETED
    assert outcome.visits == {"asker": 1, "second": 1}
    seen = [line["sources"] for line in case.stage.lines("begin") if "sources" in line]
    assert seen == [[png.hex(), pdf.hex()]] * 2  # Once before the question, once after.
    images = [line["images"] for line in case.stage.lines("begin") if "images" in line]
    assert images == [[png.hex()]]


async def test_an_agent_that_used_a_tool_leaves_nothing_in_the_state(client: Client) -> None:
    seen: dict[str, Any] = {}

    def look(state: GraphState, *, invocation_state: dict[str, Any]) -> bool:
        seen.update(invocation_state)
        return True

    def tools() -> Graph:
        return build({"a": uses_a_tool(), "b": "after"}, [("a", "b", look)])

    async with serve(client, tools) as graph:
        run = await graph.start("T", {"mine": 1})
        assert (await run.result()).status is Status.COMPLETED
        assert seen == {"mine": 1}
        assert (await run.status()).invocation_state == {"mine": 1}


# -- graphs and swarms within a graph, and executors that run whole --------------------------------


async def whole(server: Server, kind: str, scheduled: str) -> tuple[Outcome, GraphResult]:
    case = await halfway(server, f"whole_{kind}", held="after#1")
    outcome = await case.outcome()
    assert outcome.error is None
    assert outcome.result is not None
    assert outcome.result.status is Status.COMPLETED
    in_order(outcome, "whole after")
    assert outcome.scheduled == scheduled.split()
    return outcome, outcome.result


async def test_a_nested_graph_after_a_restart(server: Server) -> None:
    outcome, result = await whole(server, "graph", "whole/in0#1 whole/in1#1 after#1")
    inner = result.results["whole"].result
    assert isinstance(inner, GraphResult)
    assert inner.status is Status.COMPLETED
    assert list(inner.results) == ["in0", "in1"]
    assert str(inner.results["in0"]) == "<T>\n"
    assert result.execution_count == 3
    assert result.accumulated_usage["totalTokens"] == 30
    said = prompt(in0="<T>").replace("Task: T", "Task:T")  # It got blocks, not a text.
    assert outcome.prompts["after#1"] == (
        "Original Task: T\nInputs from previous nodes:"
        f"\nFrom whole:  - Agent: <T>\n  - Agent: <{said}>\n"
    )
    assert outcome.begun["whole/in0#1"] == outcome.begun["whole/in1#1"] == 1


async def test_a_nested_swarm_after_a_restart(server: Server) -> None:
    outcome, result = await whole(server, "swarm", "whole/lead#1 whole/expert#1 after#1")
    inner = result.results["whole"].result
    assert isinstance(inner, SwarmResult)
    assert inner.status is Status.COMPLETED
    assert list(inner.results) == ["lead", "expert"]
    assert str(inner.results["expert"]) == "expertise\n"
    assert outcome.prompts["after#1"].endswith("  - Agent: done\n  - Agent: expertise\n")
    assert result.execution_count == 3


async def test_a_custom_executor_needs_no_more_than_agent_base(server: Server) -> None:
    outcome, _ = await whole(server, "custom", "whole#1 after#1")
    assert outcome.prompts["after#1"] == prompt(whole="read 1 characters")


async def test_a_nested_result_is_read_in_order_of_completion_as_in_strands(
    client: Client,
) -> None:
    def inner() -> Graph:
        return build({"zeta": "first", "alpha": "second"}, [("zeta", "alpha")])

    def outer(said: list[str]) -> Graph:
        return build({"whole": inner(), "after": said.append}, [("whole", "after")])

    ours: list[str] = []
    theirs: list[str] = []
    await outer(theirs).invoke_async("T")
    async with serve(client, lambda: outer(ours)) as graph:
        await graph.invoke_async("T")
    assert ours == theirs
    assert ours[0].endswith("  - Agent: first\n  - Agent: second\n")


async def test_a_result_has_its_nodes_in_order(client: Client) -> None:
    async with serve(client, lambda: build({"z": "1", "a": "2"}, [("z", "a")])) as graph:
        run = await graph.start("T")
        assert list((await run.result()).results) == ["z", "a"]
        assert list((await run.status()).nodes) == ["z", "a"]


# -- results -----------------------------------------------------------------------------------


async def test_the_repr_of_a_deep_result_is_small(client: Client) -> None:
    """Strands' own grows threefold per layer, and `asyncio.run` takes it of what it returns."""
    layers = [[f"l{layer}n{node}" for node in range(3)] for layer in range(14)]
    edges = [
        (source, target)
        for before, after in pairwise(layers)
        for source in before
        for target in after
    ]
    names = [node for layer in layers for node in layer]
    async with serve(client, lambda: build(dict.fromkeys(names, "said"), edges)) as graph:
        result = await graph.invoke_async("T")
        assert result.status is Status.COMPLETED
        assert len(result.execution_order) == 42
        assert len(repr(result)) < 100_000
        assert not any(node.dependencies for node in result.execution_order)
