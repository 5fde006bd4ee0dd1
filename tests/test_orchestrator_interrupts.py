"""Orchestrators of the user's own that ask a human, from within one activity."""

from __future__ import annotations

from typing import Any

import pytest
from strands.interrupt import Interrupt
from strands.multiagent.base import MultiAgentBase, MultiAgentResult, NodeResult, Status
from strands.multiagent.graph import Graph
from temporalio.client import Client

from .support import agent_result, build, serve


class Clerk(MultiAgentBase):
    """Asks for a stamp, and says what it got; keeps nothing itself."""

    def __init__(self, *questions: str) -> None:
        super().__init__()
        self.questions = questions

    async def invoke_async(
        self, task: Any, invocation_state: dict[str, Any] | None = None, **kwargs: Any
    ) -> MultiAgentResult:
        if "interruptResponse" not in task[0]:
            asked = [Interrupt(f"id-{name}", name, "please") for name in self.questions]
            return MultiAgentResult(status=Status.INTERRUPTED, interrupts=asked)
        answers = [block["interruptResponse"] for block in task]
        said = ", ".join(
            sorted(f"{answer['interruptId']}={answer['response']}" for answer in answers)
        )
        result = NodeResult(result=agent_result(said), status=Status.COMPLETED)
        return MultiAgentResult(status=Status.COMPLETED, results={"desk": result})


def office(*questions: str) -> Graph:
    return build({"clerk": Clerk(*questions), "next": lambda text: text}, [("clerk", "next")])


async def test_it_gets_the_answers_as_its_task(client: Client) -> None:
    async with serve(client, lambda: office("stamp", "date")) as graph:
        asked = await graph.invoke_async("T")
        assert asked.status is Status.INTERRUPTED
        assert [interrupt.name for interrupt in asked.interrupts] == ["stamp", "date"]

        answers: Any = [
            {"interruptResponse": {"interruptId": interrupt.id, "response": interrupt.name.upper()}}
            for interrupt in asked.interrupts
        ]
        result = await graph.invoke_async(answers)

    assert result.status is Status.COMPLETED
    assert "id-date=DATE, id-stamp=STAMP" in str(result.results["next"])


async def test_asking_without_a_question_is_an_error(client: Client) -> None:
    async with serve(client, office) as graph:
        with pytest.raises(NotImplementedError, match="nothing that could be answered"):
            await graph.invoke_async("T")
