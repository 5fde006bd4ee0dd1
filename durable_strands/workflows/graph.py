"""The workflow `StrandsGraph`: its input, its messages, and its end.

The way of the data: input -> plan (a local activity, the first thing recorded) ->
`Orchestration`, which runs it -> report.

Nothing here may raise a plain exception for something that a user did: that would fail the
workflow task, again and again, instead of the workflow.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from .. import wire
    from .calls import local
    from .interrupts import Interrupts
    from .journal import Journal
    from .orchestration import Orchestration
    from .place import Place
    from .report import fitting_report
    from .run import Run


@workflow.defn(name=wire.WORKFLOW_TYPE)
class StrandsGraph:
    """A run of a registered Strands graph.

    Input, result and messages are documented in `durable_strands.wire`. The methods take any
    number of arguments of any type: what is wrong with them is a clear failure of the run or
    the call, never a failing workflow task.
    """

    def __init__(self) -> None:
        """Start out with nothing known; `run` reads the input."""
        self._run: Run | None = None
        self._root: Orchestration | None = None
        self._refusal: str | None = None

    @workflow.run
    async def run(self, *args: Any) -> dict[str, Any]:
        """Run the graph to its end.

        Args:
            *args: One `wire.GraphInput` as a JSON object.

        Returns:
            A `wire.RunReport` as a JSON object.

        Raises:
            ApplicationError: Of type `InvalidGraphInput`, `GraphNotRegistered`, or
                `GraphFailed` with the partial report in its details.
        """
        try:
            request = _read_input(args)
            plan = await _record_plan(request.graph)
            if plan.swarm is not None and request.session is not None:
                raise ApplicationError(
                    f"{plan.graph!r} is a swarm: each turn of its agents begins as they were "
                    "built, so a session would remember nothing. Start it without one.",
                    type=wire.ErrorType.INVALID_INPUT,
                    non_retryable=True,
                )
            journal = await _read_journal(plan, request.retry_of)
            snapshots = await _read_session(request.session)
        except ApplicationError as refusal:
            self._refusal = refusal.message
            raise
        self._run = Run(plan, request, journal)
        self._run.snapshots.update({(path, None): agent for path, agent in snapshots.items()})
        self._root = Orchestration(self._run, plan, _place_of(plan, request))
        self._run.show = self._root.show
        await self._root.drive()
        state = self._root.state
        report = fitting_report(state, workflow.now(), plan.payload_limit)
        if state.status is wire.RunStatus.COMPLETED:
            return report
        raise ApplicationError(
            f"Graph {plan.graph!r} failed: {state.reason}",
            report,
            type=wire.ErrorType.GRAPH_FAILED,
            non_retryable=True,
        )

    @workflow.query(
        name=wire.STATUS_QUERY, description="The run's report so far, as JSON (RunReport)."
    )
    def status(self, *_args: Any) -> dict[str, Any]:
        """Answer with the report so far; any arguments are ignored."""
        if self._root is not None:
            # An answer to a query is one gRPC message, whatever storage there is.
            limit = wire.DEFAULT_PAYLOAD_LIMIT
            return fitting_report(self._root.state, workflow.now(), limit)
        if self._refusal is None:
            return wire.RunReport(graph="", status=wire.RunStatus.EXECUTING).dump()
        return wire.RunReport(graph="", status=wire.RunStatus.FAILED, reason=self._refusal).dump()

    @workflow.update(
        name=wire.RESPOND,
        description='Answer interrupts: {"<interrupt id>": <response>, ...}. All or nothing.',
    )
    def respond(self, *args: Any) -> dict[str, Any]:
        """Answer interrupts.

        Returns:
            `{"released": [...]}`: the nodes that go on now, having all their answers.
        """
        assert self._run is not None, "before there is a run, no answer is accepted"
        return {"released": self._run.respond(args[0], args[1] if len(args) > 1 else {})}

    @respond.validator
    def check_response(self, *args: Any) -> None:
        """Refuse answers that are malformed, unknown or settled; history records nothing then.

        Raises:
            ApplicationError: Of type `InterruptNotPending`, saying which and why.
        """
        problem = self._problem(args)
        if problem is not None:
            raise ApplicationError(problem, type=wire.ErrorType.NOT_PENDING, non_retryable=True)

    @workflow.signal(
        name=wire.RESPOND,
        description="As the update, for tools that can't send one; a refused answer is logged.",
    )
    def respond_signal(self, *args: Any) -> None:
        """Answer interrupts, or log why not: a signal has nobody to tell."""
        problem = self._problem(args)
        if problem is None:
            self.respond(*args)
        else:
            workflow.logger.warning("problem=<%s> | answers ignored", problem)

    @workflow.signal(name=wire.DONE, description="For the run's own local activities.")
    def local_done(self, *args: Any) -> None:
        """Learn that a local activity is done; anything else is ignored."""
        if self._run is not None and args and isinstance(args[0], str):
            self._run.local.done(args[0])

    def _problem(self, args: tuple[Any, ...]) -> str | None:
        if len(args) not in (1, 2):
            return (
                f"{wire.RESPOND!r} takes the answers and perhaps a state, not {len(args)} things."
            )
        if len(args) == 2 and not isinstance(args[1], dict):
            return "The invocation state to merge, the second argument, must be a JSON object."
        if len(args) == 2 and wire.is_too_deep(args[1]):
            return wire.too_deep("The invocation state to merge")
        interrupts = Interrupts() if self._run is None else self._run.interrupts
        return interrupts.problem(args[0])


def _place_of(plan: wire.GraphPlan, request: wire.GraphInput) -> Place:
    result_type = "GraphResult" if plan.swarm is None else "SwarmResult"
    return Place(task=request.task, result_type=result_type)


async def _record_plan(graph: str) -> wire.GraphPlan:
    request = wire.PlanRequest(graph=graph)
    data = await local(wire.PLAN_ACTIVITY, request.dump(), f"plan of {graph}")
    return wire.GraphPlan.load(data)


async def _read_journal(plan: wire.GraphPlan, retry_of: wire.RetryOf | None) -> Journal:
    """Read what an earlier run has done, page by page, each a marker in history."""
    if retry_of is None:
        return Journal()
    if retry_of.from_node is not None and retry_of.from_node not in dict(plan.paths()):
        raise ApplicationError(
            f"Graph {plan.graph!r} has no node {retry_of.from_node!r} to run again.",
            type=wire.ErrorType.INVALID_INPUT,
            non_retryable=True,
        )
    entries: list[wire.JournalEntry] = []
    more = True
    while more:
        request = wire.JournalRequest(retry_of=retry_of, after=len(entries))
        summary = f"journal of {retry_of.workflow_id}"
        page = wire.JournalPage.load(await local(wire.JOURNAL_ACTIVITY, request.dump(), summary))
        entries += page.entries
        more = page.more
        if more:  # A page may be half of what one workflow task can bring home.
            await workflow.sleep(0.001, summary="next workflow task: this one is full")
    return Journal(entries)


async def _read_session(session: wire.Session | None) -> dict[str, dict[str, Any]]:
    """Read the agents' snapshots from the last run of a session, page by page."""
    snapshots: dict[str, dict[str, Any]] = {}
    more = session is not None and session.run_id is not None
    while more:
        assert session is not None, "there is one to read"
        request = wire.SessionRequest(session=session, after=len(snapshots))
        summary = f"session of {session.workflow_id}"
        page = wire.SessionPage.load(await local(wire.SESSION_ACTIVITY, request.dump(), summary))
        snapshots.update(page.snapshots)
        more = page.more
        if more:
            await workflow.sleep(0.001, summary="next workflow task: this one is full")
    return snapshots


def _read_input(args: tuple[Any, ...]) -> wire.GraphInput:
    """Check the workflow's arguments.

    Raises:
        ApplicationError: Of type `InvalidGraphInput`, naming what is wrong.
    """
    usage = 'The input is one JSON object: {"graph": "<name>", "task": "<text>"}.'
    problem = None
    if len(args) != 1:
        problem = f"{wire.WORKFLOW_TYPE} takes one argument, not {len(args)}."
    elif not isinstance(args[0], dict):
        problem = f"The argument is a {type(args[0]).__name__}."
    elif wire.is_too_deep(args[0], wire.MAX_DEPTH + 2):
        problem = wire.too_deep("The task or the invocation state")
    else:
        try:
            return wire.GraphInput.load(args[0])
        except ValidationError as error:
            problem = wire.explain(error) + "."
    raise ApplicationError(
        f"{problem} {usage}", type=wire.ErrorType.INVALID_INPUT, non_retryable=True
    )
