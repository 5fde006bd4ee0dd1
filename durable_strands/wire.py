"""Everything that crosses a process boundary, as versioned pydantic models.

Workflow input, activity arguments and results, the recorded plan, queries and the final
result are all defined here and nowhere else. On the wire each of them is a plain JSON object,
so the `temporal` command, another SDK or a user's own payload converter can read and write it.

Rules of this room:

* It imports neither strands nor temporalio: the workflow sandbox, the worker and a bare client
  all read it.
* Reading tolerates unknown fields, so that a newer writer doesn't break an older reader.
  Writing leaves out defaults, so that history stays small.
* A field is only ever added, with a default. A change of meaning needs a new `WIRE_VERSION`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

WIRE_VERSION = 1
"""Version of the wire format, recorded in each plan."""

RULES = 1
"""Version of the rules by which the workflow goes, recorded in each plan.

A run keeps to those that it began with: what it does must be what its history says. 0: a local
activity's result is taken as it comes. 1: where anything else may happen, with a signal.
"""

WORKFLOW_TYPE = "StrandsGraph"
"""Temporal workflow type of a graph run."""

PLAN_ACTIVITY = "durable_strands.plan"
"""Local activity that answers with the `GraphPlan` of a registered graph."""

EDGES_ACTIVITY = "durable_strands.edges"
"""Local activity that evaluates edge conditions."""

HOOKS_ACTIVITY = "durable_strands.hooks"
"""Local activity that runs the hooks of a graph for one event."""

JOURNAL_ACTIVITY = "durable_strands.journal"
"""Local activity that reads what an earlier run has done, a page at a time."""

SESSION_ACTIVITY = "durable_strands.session"
"""Local activity that reads the agents' memory of a session's last run, a page at a time."""

PREPARE_ACTIVITY = "durable_strands.prepare"
"""Local activity that asks a node's own functions for its input or its items."""

STATUS_QUERY = "status"
"""Query that answers with a `RunReport`."""

RESPOND = "respond"
"""Update, and signal, that answers interrupts: `{"<interrupt id>": <response>, ...}`.

A second argument may follow: an object to merge into the run's invocation state.
"""

DONE = "durable_strands.done"
"""Signal by which a local activity says that its result is there to be taken, with a token that is
in the result, too."""

DEFAULT_TASK_QUEUE = "durable-strands"
"""Task queue of a worker and of a caller that name none."""

RESERVED_PREFIX = "durable_strands."
"""No graph may have a name that starts like this: it would collide with our activity types."""

BYTES_MARK = "__bytes_encoded__"
"""Key by which Strands' session code marks base64-encoded bytes; ours travel the same way."""

DEFAULT_PAYLOAD_LIMIT = 2 * 1024 * 1024 - 64 * 1024
"""Bytes of JSON that one payload may have: what a Temporal server accepts by default
(`limit.blobSize.error`, 2 MiB), less some room for a codec and for what is wrapped around."""


class ErrorType:
    """The `type` of each Temporal `ApplicationError` by which a run fails.

    They are strings on the wire, the same for every SDK, so they never change.
    """

    INVALID_INPUT = "InvalidGraphInput"
    NOT_REGISTERED = "GraphNotRegistered"
    GRAPH_FAILED = "GraphFailed"
    NOT_PENDING = "InterruptNotPending"


Visit = tuple[str, int]
"""A visit: the path of its node, and its number. It is unique in a run."""


def activity_type(graph: str, path: str) -> str:
    """Return the activity type of a node: `"<graph>.<path>"`."""
    return f"{graph}.{path}"


def activity_id(path: str, visit: int, resume: int = 0) -> str:
    """Return the activity id of a visit: `"<path>#<visit>"`, `".<n>"` for its n-th resume."""
    return f"{path}#{visit}.{resume}" if resume else f"{path}#{visit}"


def interrupt_id(path: str, visit: int, strands_id: str) -> str:
    """Return the id of an interrupt: Strands' own, qualified by path and visit.

    Strands' ids alone collide between nodes that ask the same and between visits.
    """
    return f"{path}#{visit}:{strands_id}"


def join(within: str, node: str) -> str:
    """Return the path of a node: its id, after the path of the orchestrator that it is in."""
    return f"{within}/{node}" if within else node


def mapped(path: str) -> str:
    """Return the name of a mapped node as a whole: at its path are the visits of its items."""
    return f"{path}[]"


def digest(data: Any) -> str:
    """Return 16 hex digits that stand for some JSON: the start of its SHA-256."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


MAX_DEPTH = 100
"""Most levels of JSON in JSON of what anybody hands in. Pydantic and the JSON of other SDKs have
limits of their own, further up; what is wrapped around must stay below those."""


def is_too_deep(value: Any, limit: int = MAX_DEPTH) -> bool:
    """Say whether some JSON has more levels than may travel."""
    level = [value]
    for _ in range(limit + 1):
        below = [part for part in level if isinstance(part, (dict, list, tuple))]
        if not below:
            return False
        level = [
            item
            for part in below
            for item in (part.values() if isinstance(part, dict) else part)
            if isinstance(item, (dict, list, tuple))
        ]
        if not level:
            return False
    return True


def too_deep(what: str) -> str:
    """Say that some JSON has too many levels, and what to do about it."""
    return f"{what} has more than {MAX_DEPTH} levels of JSON in JSON. Flatten it, or pass a text."


def too_large(what: str, size: int, limit: int) -> str:
    """Say that a payload is too large, and what to do about it."""
    return (
        f"{what} has {size} bytes, more than the {limit} that one payload may have. Configure "
        "external storage on the client's data converter "
        "(temporalio.converter.ExternalStorage), or pass large things by reference."
    )


class Wire(BaseModel):
    """Base of all wire models: immutable, tolerant reader, terse writer."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def dump(self) -> dict[str, Any]:
        """Return the JSON object of this model, without the fields that have their default."""
        return self.model_dump(mode="json", exclude_defaults=True)

    @classmethod
    def load(cls, data: Any) -> Self:
        """Read a model from its JSON object.

        Raises:
            pydantic.ValidationError: `data` doesn't have this model's form.
        """
        return cls.model_validate(data)


class Ordered(Wire):
    """A model with objects whose order means something.

    Temporal's JSON converter sorts the keys of an object; reading puts them back.

    Attributes:
        order: Keys in order, by field.
    """

    order: dict[str, list[str]] = Field(default_factory=dict, repr=False)

    @model_validator(mode="before")
    @classmethod
    def _in_order(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not data.get("order"):
            return data
        ordered = dict(data)
        for field, keys in data["order"].items():
            values = data.get(field) or {}
            ordered[field] = {key: values[key] for key in keys if key in values}
        return ordered


def explain(error: ValidationError) -> str:
    """Say in one line which fields of an input are wrong, and how."""
    problems = []
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        where = ".".join(str(part) for part in item["loc"]) or "input"
        problems.append(f"{where}: {item['msg']}")
    return "; ".join(problems)


# ---------------------------------------------------------------------------------------------
# The plan: what a run records before anything else
# ---------------------------------------------------------------------------------------------

Join = Literal["all", "any"]
Semantics = Literal["dataflow", "strands"]
OnFailure = Literal["fail_fast", "prune"]
OnRevisit = Literal["keep", "reset"]
HookEvent = Literal["before_run", "before_node", "after_node", "after_run"]


class RetryPlan(Wire):
    """Retry policy of a node; times in seconds, as in Temporal's `RetryPolicy`."""

    initial_interval: float = 1.0
    backoff_coefficient: float = 2.0
    maximum_interval: float | None = None
    maximum_attempts: int = 3
    non_retryable_error_types: list[str] = Field(default_factory=list)


class NodePlan(Wire):
    """One node of a plan.

    Attributes:
        id: The node's id in its graph.
        kind: `"agent"` for anything that answers like an agent, `"multiagent"` for an
            orchestrator.
        plan: What a nested graph or swarm is made of; it runs in the same workflow. None for an
            orchestrator of another kind, which runs whole inside its activity.
        maps: Whether it has one visit for each item of a list, which its `map` makes.
        builds_input: Whether it has an input builder of its own.
        description: What a swarm tells its other agents about this one.
        join: How the node's incoming edges come together.
        on_failure: What a failure of this node does to the run.
        on_revisit: Whether an agent starts each visit afresh or keeps its conversation.
        carries_state: Whether the agent's state travels from visit to visit.
        remembers: Whether it would travel from run to run of a session.
        task_queue: Where its activity runs; None for the workflow's own queue.
        interrupt_timeout: Seconds that a human has to answer; None for ever.
        timeout: Seconds that one attempt may take, enforced by the server.
        node_timeout: Seconds that Strands' `set_node_timeout` grants; final, never retried.
        heartbeat_timeout: Seconds without a heartbeat after which the attempt counts as lost.
        retry: Retry policy of the activity.
        summary: Text for the Temporal UI; None for the default.
    """

    id: str
    kind: Literal["agent", "multiagent"] = "agent"
    plan: GraphPlan | None = None
    maps: bool = False
    builds_input: bool = False
    description: str | None = None
    join: Join = "all"
    on_failure: OnFailure = "fail_fast"
    on_revisit: OnRevisit = "keep"
    carries_state: bool = False
    remembers: bool = False
    task_queue: str | None = None
    interrupt_timeout: float | None = None
    timeout: float = 3600.0
    node_timeout: float | None = None
    heartbeat_timeout: float = 30.0
    retry: RetryPlan = Field(default_factory=RetryPlan)
    summary: str | None = None


class EdgePlan(Wire):
    """One edge of a plan.

    Attributes:
        source: Id of the node it leaves.
        target: Id of the node it enters.
        ordinal: Position among the edges between the same two nodes, from 0.
        condition: Readable name of its condition; None for an edge without one.
        on_error: Whether it is taken when its source fails, and only then.
    """

    source: str
    target: str
    ordinal: int = 0
    condition: str | None = None
    on_error: bool = False

    def __str__(self) -> str:
        """Return the edge as it is named in errors: `source -> target`."""
        suffix = f" [{self.ordinal}]" if self.ordinal else ""
        return f"{self.source} -> {self.target}{suffix}"


class SwarmRules(Wire):
    """When a swarm has had enough, under Strands' own names.

    Attributes:
        max_handoffs: Most turns; Strands counts each as a handoff.
        max_iterations: Most turns.
        repetition_window: How many of the last turns are looked at for agents that pass the
            work back and forth; 0 for none.
        repetition_minimum: How many different agents there must be among these.
    """

    max_handoffs: int
    max_iterations: int
    repetition_window: int = 0
    repetition_minimum: int = 0


class GraphPlan(Wire):
    """The topology of a graph or a swarm as one run sees it, from its start to its end.

    Attributes:
        graph: The registered name; a nested graph has that of the outermost.
        swarm: The rules of a swarm; its nodes have no edges, and its one entry point the first
            turn. None for a graph.
        version: Version of the wire format it is written in; absent means 1.
        nodes: In declaration order, which is the order of everything that follows from it.
        edges: By (source, target, ordinal) in that order.
        entry_points: Ids, in declaration order.
        hooks: Which of the graph's events have hooks.
        payload_limit: Bytes that one payload may have, None where external storage takes
            over. Part of the plan because the workflow must not ask the worker.
        fingerprint: Hash of all that the graph is; see `with_fingerprint`.
        rules: Version of the rules by which a run of it goes; see `RULES`.
    """

    version: int = 1
    graph: str
    swarm: SwarmRules | None = None
    nodes: list[NodePlan]
    edges: list[EdgePlan] = Field(default_factory=list)
    entry_points: list[str]
    semantics: Semantics = "dataflow"
    max_concurrency: int | None = None
    max_node_executions: int | None = None
    execution_timeout: float | None = None
    hooks: list[HookEvent] = Field(default_factory=list)
    payload_limit: int | None = DEFAULT_PAYLOAD_LIMIT
    fingerprint: str = ""
    rules: int = 0

    def paths(self, within: str = "") -> Iterator[tuple[str, NodePlan]]:
        """Yield every node with its path, those of nested plans after the node they are in."""
        for node in self.nodes:
            path = join(within, node.id)
            yield path, node
            if node.plan is not None:
                yield from node.plan.paths(path)

    def visits(
        self, results: dict[str, NodeReport], within: str = ""
    ) -> Iterator[tuple[Visit, NodeReport]]:
        """Yield the visits that results tell of, at any depth, those of items among them."""
        for node in self.nodes:
            report = results.get(node.id)
            if report is None:
                continue
            path = join(within, node.id)
            items = (report.results or {}).values() if node.maps else (report,)
            for item in items:
                yield (path, item.visit), item
                if node.plan is not None:
                    yield from node.plan.visits(item.results or {}, path)

    def with_fingerprint(self) -> GraphPlan:
        """Return this plan with its fingerprint: 16 hex digits of a SHA-256 over its JSON."""
        content = self.model_dump(mode="json", exclude={"fingerprint", "payload_limit", "rules"})
        return self.model_copy(update={"fingerprint": digest(content)})


class PlanRequest(Wire):
    """Argument of the plan activity."""

    graph: str


# ---------------------------------------------------------------------------------------------
# Results
# ---------------------------------------------------------------------------------------------


class NodeStatus(StrEnum):
    """Where a node stands. The names are Strands', with CANCELLED added."""

    PENDING = "pending"
    DISPATCHED = "dispatched"
    EXECUTING = "executing"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"


class RunStatus(StrEnum):
    """Where a run stands. The names are Strands', with CANCELLED added.

    INTERRUPTED says that nothing is under way but what waits for a human.
    """

    EXECUTING = "executing"
    INTERRUPTED = "interrupted"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Usage(Wire):
    """Token counts, under Strands' own keys. Cache counters are absent where unknown."""

    inputTokens: int = 0
    outputTokens: int = 0
    totalTokens: int = 0
    cacheReadInputTokens: int | None = None
    cacheWriteInputTokens: int | None = None

    def __add__(self, other: Usage) -> Usage:
        """Add two counts; a cache counter that both lack stays absent, as in Strands."""

        def total(a: int | None, b: int | None) -> int | None:
            return None if a is None and b is None else (a or 0) + (b or 0)

        return Usage(
            inputTokens=self.inputTokens + other.inputTokens,
            outputTokens=self.outputTokens + other.outputTokens,
            totalTokens=self.totalTokens + other.totalTokens,
            cacheReadInputTokens=total(self.cacheReadInputTokens, other.cacheReadInputTokens),
            cacheWriteInputTokens=total(self.cacheWriteInputTokens, other.cacheWriteInputTokens),
        )


class ErrorInfo(Wire):
    """An exception, as much of it as survives a trip: enough to raise it again by name.

    Attributes:
        type: Name of its class.
        qualname: Qualified name of a class that is nested in another.
        message: Its text.
        module: Module of its class.
        trace: Where it was raised: the innermost frames, as Python prints them.
    """

    type: str
    qualname: str | None = None
    message: str = ""
    module: str = ""
    trace: str = ""

    @classmethod
    def own(cls, type: str, message: str) -> ErrorInfo:  # noqa: A002 - as the field
        """Return the error of a class in `durable_strands.errors`."""
        return cls(type=type, message=message, module="durable_strands.errors")


class Asked(Wire):
    """What a node or a hook asks a human, as Strands has it.

    Attributes:
        strands_id: Strands' own id, by which the asker knows it.
        name: The name that the asker gave it.
        reason: What the asker says about it, any JSON.
    """

    strands_id: str
    name: str = ""
    reason: JsonValue = None


class Answer(Asked):
    """An answer on its way to the asker; any JSON is one, null included.

    Attributes:
        response: What was answered.
        given: Whether the asker got it already, and asked something else after it.
    """

    response: JsonValue = None
    given: bool = False


class InterruptInfo(Asked):
    """A question that waits for an answer, or did.

    Attributes:
        id: What an answer names; see `interrupt_id`.
        node: Path of the node that asks.
        visit: Number of the visit that asks.
    """

    id: str
    node: str
    visit: int


class CancelledInterrupt(InterruptInfo):
    """A question that nobody can answer any more.

    Attributes:
        why: What put an end to it.
    """

    why: str


class AgentText(Wire):
    """What one agent of an upstream node said."""

    text: str
    agent_name: str | None = None


class Structure(Wire):
    """What Strands' result of a graph or swarm says beyond its nodes' results.

    Attributes:
        nodes: Ids of its nodes, in declaration order.
        total_nodes: How many nodes it has.
        execution_order: Ids in order of completion; of a swarm, its `node_history`.
        edges: `(source, target)` of each edge.
        entry_points: Ids of its entry points.
        completed_nodes: How many nodes have completed.
        failed_nodes: How many nodes ever failed.
    """

    nodes: list[str] = Field(default_factory=list)
    total_nodes: int = 0
    execution_order: list[str] = Field(default_factory=list)
    edges: list[tuple[str, str]] = Field(default_factory=list)
    entry_points: list[str] = Field(default_factory=list)
    completed_nodes: int = 0
    failed_nodes: int = 0


def _added(earlier: Any, later: Any) -> Any:
    """Return an agent's metrics of two parts of a visit as one: counts added, lists joined."""
    if isinstance(earlier, dict) and isinstance(later, dict):
        both = {
            key: later[key] if key == "tool" else _added(earlier[key], later[key])
            for key in earlier.keys() & later.keys()
        }
        return {**earlier, **later, **both}
    if isinstance(earlier, list | int | float) and isinstance(later, list | int | float):
        return earlier + later  # type: ignore[operator]  # Each is of the same kind in both.
    return earlier if later is None else later


_ENDING: tuple[str, ...] = (
    "status",
    "reason",
    "error",
    "usage",
    "latency_ms",
    "execution_time",
    "execution_count",
    "visit",
)


class NodeReport(Ordered):
    """What one visit of a node gave: Strands' `NodeResult` on the wire.

    Attributes:
        status: `completed` or `failed`; `interrupted` and `cancelled` in a node's outcome.
        text: `str()` of the result: what a downstream node reads.
        structured_output: JSON of the structured output, if there is one.
        structured_output_class: `"module:qualname"` of its model class.
        message: Last message of the agent, bytes base64-encoded as in Strands' sessions.
        stop_reason: Why the agent stopped.
        state: The JSON part of the agent result's request state.
        agent_name: Name that a custom agent result carries; it heads its downstream section.
        agent_metrics: Strands' `EventLoopMetrics` of this visit, without traces.
        results: The nodes of a multi-agent result; None for an agent.
        result_type: `"GraphResult"`, `"SwarmResult"` or `"MultiAgentResult"` if `results` is set.
        structure: The rest of a `GraphResult` or a `SwarmResult`.
        reason: Why a nested graph or swarm failed, if no exception ended it.
        error: The exception of a node that raised; then all the rest is empty.
        usage: Tokens of this visit alone.
        latency_ms: Model latency of this visit alone.
        execution_time: Milliseconds that the visit took.
        execution_count: Node executions within: 1 for an agent.
        visit: Number of the visit, from 1.
    """

    status: NodeStatus
    text: str = ""
    structured_output: JsonValue = None
    structured_output_class: str | None = None
    message: dict[str, Any] | None = None
    stop_reason: str | None = None
    state: dict[str, Any] = Field(default_factory=dict)
    agent_name: str | None = None
    agent_metrics: dict[str, Any] | None = None
    results: dict[str, NodeReport] | None = None
    result_type: str | None = None
    structure: Structure | None = None
    reason: str | None = None
    error: ErrorInfo | None = None
    usage: Usage = Field(default_factory=Usage)
    latency_ms: int = 0
    execution_time: int = 0
    execution_count: int = 1
    visit: int = 1

    def after(self, earlier: NodeReport) -> NodeReport:
        """Return this report of a visit's last part, with what an earlier part used added."""
        return self.model_copy(
            update={
                "usage": earlier.usage + self.usage,
                "latency_ms": earlier.latency_ms + self.latency_ms,
                "execution_time": earlier.execution_time + self.execution_time,
                "agent_metrics": _added(earlier.agent_metrics, self.agent_metrics),
            }
        )

    def ending(self) -> NodeReport:
        """Return how it ended and what it used, without what it gave."""
        return NodeReport(**{name: getattr(self, name) for name in _ENDING})

    def ending_as(self, ending: NodeReport) -> NodeReport:
        """Return this report of what was given, with `ending` in the place of its own."""
        return self.model_copy(update={name: getattr(ending, name) for name in _ENDING})

    def agent_texts(self) -> list[AgentText]:
        """Return what the agents of this result said, nested results flattened, as Strands does.

        It is all of a result that a downstream node reads. An exception says nothing.
        """
        if self.error is not None:
            return []
        if self.results is None:
            return [AgentText(text=self.text, agent_name=self.agent_name)]
        return [text for result in self.results.values() for text in result.agent_texts()]

    def said(self) -> list[AgentText]:
        """Return what a downstream node reads: what was said, and of a failure why."""
        why = self.reason if self.error is None else f"{self.error.type}: {self.error.message}"
        texts = self.agent_texts()
        return texts if why is None else [*texts, AgentText(text=why, agent_name="Error")]


class NodeState(Wire):
    """A node in a run report.

    Attributes:
        status: Where it stands.
        visits: How often it was visited.
        depth: In how many nested graphs and swarms it lies.
    """

    status: NodeStatus
    visits: int
    depth: int = 0


class RunReport(Ordered):
    """Result of a run, answer of the query `status`, and details of a `GraphFailed` error.

    Attributes:
        graph: The registered name.
        result_type: `"GraphResult"`, or `"SwarmResult"` for a swarm.
        status: Where the run stands.
        reason: Why it failed or was cancelled; None otherwise.
        failed_node: Path of the node whose exception ended the run, if one did.
        error: The exception that ended the run, if one did: a node's or a condition's. A limit,
            or a node that returned a failed result, is no exception, as in Strands.
        execution_order: Ids in order of completion; a node that raised is not among them. Those
            inside a nested graph are in its result.
        nodes: Every node of the plan by path, in declaration order, those of a nested graph
            after the node that it is.
        interrupts: Questions that wait for an answer, in the order in which they were asked.
        cancelled_interrupts: Questions that were open when the run, or their node, ended.
        completed_nodes: How many nodes have completed.
        failed_nodes: How many nodes ever failed; one that recovered is in both counts, as in
            Strands.
        results: Latest result of each node that has one.
        edges: The plan's edges as `(source, target)`.
        entry_points: The plan's entry points.
        usage: Tokens over all visits.
        latency_ms: Model latency over all visits.
        execution_count: Node executions, those inside multi-agent nodes included.
        execution_time: Milliseconds from the run's start.
        invocation_state: The run's invocation state as the nodes left it.
        fingerprint: The plan's fingerprint.
        truncated: True if the full results didn't fit the payload limit; their texts, or then
            everything but their status, were left out. History has them all.
    """

    graph: str
    result_type: str = "GraphResult"
    status: RunStatus
    reason: str | None = None
    failed_node: str | None = None
    error: ErrorInfo | None = None
    execution_order: list[str] = Field(default_factory=list)
    nodes: dict[str, NodeState] = Field(default_factory=dict)
    interrupts: list[InterruptInfo] = Field(default_factory=list)
    cancelled_interrupts: list[CancelledInterrupt] = Field(default_factory=list)
    completed_nodes: int = 0
    failed_nodes: int = 0
    edges: list[tuple[str, str]] = Field(default_factory=list)
    entry_points: list[str] = Field(default_factory=list)
    results: dict[str, NodeReport] = Field(default_factory=dict)
    usage: Usage = Field(default_factory=Usage)
    latency_ms: int = 0
    execution_count: int = 0
    execution_time: int = 0
    invocation_state: dict[str, Any] = Field(default_factory=dict)
    fingerprint: str = ""
    truncated: bool = False


# ---------------------------------------------------------------------------------------------
# Arguments and results of workflow and activities
# ---------------------------------------------------------------------------------------------

Task = str | list[dict[str, Any]]
"""A task: text, or Strands content blocks with bytes base64-encoded."""


class RetryOf(Wire):
    """An earlier run whose finished visits a new run takes over.

    Attributes:
        workflow_id: Id of the earlier run.
        run_id: Temporal's id of it; None for the latest.
        from_node: A node to run again even if it has completed.
    """

    workflow_id: str
    run_id: str | None = None
    from_node: str | None = None


class Session(Wire):
    """A conversation over several runs.

    Attributes:
        workflow_id: The id under which all its runs go, one at a time.
        run_id: Temporal's id of the run whose agents this one's begin as; None for the first.
    """

    workflow_id: str
    run_id: str | None = None


class GraphInput(Wire):
    """Input of the workflow. Only `graph` and `task` are required.

    Attributes:
        graph: The registered name.
        task: The task.
        invocation_state: What the run begins with.
        retry_of: An earlier run of the same input, to go on from where it failed.
        session: The session that the run belongs to.
    """

    graph: str = Field(min_length=1)
    task: Task
    invocation_state: dict[str, Any] = Field(default_factory=dict)
    retry_of: RetryOf | None = None
    session: Session | None = None


class Dependency(Wire):
    """The part of an upstream node's result that goes into a downstream prompt.

    Attributes:
        source: Id of the upstream node.
        texts: What it said.
        report: All of its result, for a node with functions of its own that read it.
        nested: Of a nested graph or swarm, or a mapped node, how it ended and what it used: that
            it has ended is no event of its own in history.
    """

    source: str
    texts: list[AgentText] = Field(default_factory=list)
    report: NodeReport | None = None
    nested: NodeReport | None = None


class AgentCard(Wire):
    """What an agent of a swarm is told about another."""

    name: str
    description: str | None = None


class Handoff(Wire):
    """What an agent of a swarm hands over.

    Attributes:
        target: Id of the agent whose turn is next.
        message: What it is told.
        context: JSON of what joins the swarm's shared knowledge under the name of who hands
            over. As text, because the order of its keys is part of later prompts.
    """

    target: str
    message: str
    context: str = "{}"


class Turn(Wire):
    """What an agent of a swarm is told besides the task.

    Attributes:
        agent: Its own id.
        agents: All agents of the swarm, in declaration order.
        history: Ids of those that had a turn, in order.
        message: What the one before said when it handed over.
        shared: `(agent, JSON of what it shared)` in the order in which they began to share.
    """

    agent: str
    agents: list[AgentCard]
    history: list[str] = Field(default_factory=list)
    message: str | None = None
    shared: list[tuple[str, str]] = Field(default_factory=list)


class Item(Wire):
    """One of the items over which a node is mapped.

    Attributes:
        value: The item.
        index: Its index, from 0.
        of: How many there are.
        mapped: Number of the visit of the mapped node as a whole.
        sources: Of the first one, whose results the node consumed, without texts.
    """

    value: JsonValue
    index: int
    of: int
    mapped: int = 0
    sources: list[Dependency] = Field(default_factory=list)


class Enclosing(Wire):
    """A visit of a nested graph or swarm in which another visit takes place.

    Attributes:
        visit: Its number.
        sources: Whose results it consumed, without texts.
        index: Index of the item that it is about, if its node is mapped.
        mapped: Then, number of the visit of the mapped node as a whole.
        earlier: How the visit before it ended, if there was one.
    """

    visit: int
    sources: list[Dependency] = Field(default_factory=list)
    index: int | None = None
    mapped: int = 0
    earlier: NodeReport | None = None


_TIMES = frozenset({"execution_time", "latency_ms", "agent_metrics"})


def _timeless(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report's JSON without what measures time in it."""
    kept = {key: value for key, value in report.items() if key not in _TIMES}
    if isinstance(kept.get("results"), dict):
        kept["results"] = {name: _timeless(inner) for name, inner in kept["results"].items()}
    return kept


def _as_read(dependency: dict[str, Any]) -> dict[str, Any]:
    """Return a dependency's JSON as far as a node reads it."""
    return {
        key: _timeless(value) if key == "report" else value
        for key, value in dependency.items()
        if key != "nested"
    }


class NodeInput(Wire):
    """Argument of a node's activity.

    Attributes:
        graph: The registered name.
        node: The node's path; its activity refuses another's.
        visit: Number of this visit, from 1.
        task: The task of the graph or swarm that the node is in.
        dependencies: Results that this firing consumed, in declaration order of their nodes.
        turn: What an agent of a swarm is told besides.
        handoff: What it handed over before it asked, in a visit that goes on.
        item: What the visit is about, of a node that is mapped over a list.
        enclosing: The visits that it takes place in, the outermost first.
        invocation_state: The run's invocation state at dispatch.
        answers: All answers of a visit that asked; it goes on from its snapshot.
        snapshot: The agent's Strands snapshot, from its last visit if it carries state, or from
            when it asked.
        carries_state: Whether the outcome must bring a snapshot for the next visit.
        node_timeout: Seconds after which the attempt fails for good.
        payload_limit: Bytes that the outcome may have; None for no limit.
    """

    graph: str
    node: str
    visit: int
    task: Task
    dependencies: list[Dependency] = Field(default_factory=list)
    turn: Turn | None = None
    handoff: Handoff | None = None
    item: Item | None = None
    enclosing: list[Enclosing] = Field(default_factory=list)
    invocation_state: dict[str, Any] = Field(default_factory=dict)
    answers: list[Answer] = Field(default_factory=list)
    snapshot: dict[str, Any] | None = None
    carries_state: bool = False
    node_timeout: float | None = None
    payload_limit: int | None = None

    @staticmethod
    def seen(data: dict[str, Any], ignored: Iterable[str] = ()) -> str:
        """Return a digest of what a node gets to see of an argument's JSON object.

        How it is run (limits, timeouts) doesn't count. Two arguments with the same digest would
        have the same prompt and the same state.

        Args:
            data: The JSON object of a `NodeInput`.
            ignored: Keys of the invocation state that are left out.
        """
        state = dict(data.get("invocation_state") or {})
        for key in ignored:
            state.pop(key, None)
        seen = [data.get(field) for field in ("node", "visit", "task")]
        read = data.get("dependencies")
        seen += [
            read and [_as_read(dependency) for dependency in read],
            data.get("snapshot"),
            state,
        ]
        rest = {field: data[field] for field in ("turn", "item") if field in data}
        if "item" in rest:
            item = ("value", "index", "of")
            rest["item"] = {key: part for key, part in rest["item"].items() if key in item}
        return digest([*seen, rest] if rest else seen)


class StateChanges(Wire):
    """What a node or a condition did to its copy of the invocation state.

    Only what changed travels back: returning the whole copy would overwrite a sibling's
    writes with stale values.
    """

    changed: dict[str, Any] = Field(default_factory=dict)
    removed: list[str] = Field(default_factory=list)

    def then(self, later: StateChanges) -> StateChanges:
        """Return these changes and `later` ones as one."""
        changed = {key: value for key, value in self.changed.items() if key not in later.removed}
        removed = [key for key in self.removed if key not in later.changed]
        return StateChanges(
            changed=changed | later.changed,
            removed=list(dict.fromkeys([*removed, *later.removed])),
        )

    def apply(self, state: dict[str, Any]) -> None:
        """Merge the changes into `state`."""
        state.update(self.changed)
        for key in self.removed:
            state.pop(key, None)


class NodeOutcome(Wire):
    """Result of a node's activity.

    Attributes:
        node: The node's id, echoed; the workflow checks it.
        visit: The visit's number, echoed.
        report: What the visit gave; of a visit that asks, what it used so far.
        interrupts: What it asks, if it does.
        state_changes: Changes to the invocation state.
        snapshot: The agent's snapshot after the visit, if it carries state or asks.
        handoff: What an agent of a swarm handed over, if it did.
    """

    node: str
    visit: int
    report: NodeReport
    interrupts: list[Asked] = Field(default_factory=list)
    state_changes: StateChanges = Field(default_factory=StateChanges)
    snapshot: dict[str, Any] | None = None
    handoff: Handoff | None = None

    def changing(self, changes: StateChanges) -> NodeOutcome:
        """Return this outcome with other changes to the invocation state."""
        return self.model_copy(update={"state_changes": changes})

    def after(self, earlier: NodeOutcome) -> NodeOutcome:
        """Return this outcome of a visit's last part, with what an earlier part did added."""
        return self.model_copy(
            update={
                "report": self.report.after(earlier.report),
                "state_changes": earlier.state_changes.then(self.state_changes),
                "handoff": earlier.handoff or self.handoff,
            }
        )


class JournalRequest(Wire):
    """Argument of the journal activity.

    Attributes:
        retry_of: The run to read.
        after: How many entries have been read already.
        limit: Bytes that the page may have.
    """

    retry_of: RetryOf
    after: int = 0
    limit: int = DEFAULT_PAYLOAD_LIMIT // 2


class JournalEntry(Wire):
    """A visit that has completed.

    Attributes:
        argument: `NodeInput.seen` of the argument of its activity.
        hooked: Keys of the invocation state that hooks before it wrote, left out of that.
        outcome: Its outcome; usage, time and changes of state are those of all its parts and of
            the hooks around it.
    """

    argument: str
    hooked: list[str] = Field(default_factory=list)
    outcome: NodeOutcome


class JournalPage(Wire):
    """Some visits of a run, in order of completion; `more` says that it has others."""

    entries: list[JournalEntry] = Field(default_factory=list)
    more: bool = False


class SessionRequest(Wire):
    """Argument of the session activity.

    Attributes:
        session: The session; it has a run to read.
        after: How many snapshots have been read already.
        limit: Bytes that the page may have.
    """

    session: Session
    after: int = 0
    limit: int = DEFAULT_PAYLOAD_LIMIT // 2


class SessionPage(Wire):
    """Snapshots of a session's agents by path.

    Attributes:
        run_id: Temporal's id of the run that they are of.
        snapshots: The snapshots.
        more: Whether there are others.
    """

    run_id: str | None = None
    snapshots: dict[str, dict[str, Any]] = Field(default_factory=dict)
    more: bool = False


class StateView(Ordered):
    """What an edge condition may see: the wire form of Strands' `GraphState`.

    Attributes:
        task: The run's task.
        completed: Ids of completed nodes.
        failed: Ids of failed nodes.
        interrupted: Ids of nodes that wait for a human.
        executing: Ids of nodes in flight.
        execution_order: Ids in order of completion.
        results: Latest result of each node that has one.
        usage: Tokens so far.
        latency_ms: Model latency so far.
        execution_count: Node executions so far.
        active_since: When it last began or went on, in seconds since 1970; None if it rests.
        active_before: Milliseconds that it had been active until then.
        status: How the run ended, for a hook after it.
        current: Id of the agent whose turn it is, in a swarm.
        handoff: Id of the agent to which it has handed over.
        shared: What a swarm shares, as in `Turn`.
        message: What was said with the last handoff, until its agent has read it.
    """

    task: Task
    status: RunStatus = RunStatus.EXECUTING
    current: str | None = None
    handoff: str | None = None
    shared: list[tuple[str, str]] = Field(default_factory=list)
    message: str | None = None
    completed: list[str] = Field(default_factory=list)
    failed: list[str] = Field(default_factory=list)
    interrupted: list[str] = Field(default_factory=list)
    executing: list[str] = Field(default_factory=list)
    execution_order: list[str] = Field(default_factory=list)
    results: dict[str, NodeReport] = Field(default_factory=dict)
    usage: Usage = Field(default_factory=Usage)
    latency_ms: int = 0
    execution_count: int = 0
    active_since: float | None = None
    active_before: int = 0


class PrepareInput(Wire):
    """Argument of the prepare activity: what to make a node's items, or then its input, from.

    Attributes:
        graph: The registered name.
        node: The node's path.
        task: The task of the graph that the node is in.
        dependencies: Results that this firing consumed, whole.
        item: The item, once they are known, of a node that is mapped.
        invocation_state: The run's invocation state.
        payload_limit: Bytes that the outcome may have; None for no limit.
    """

    graph: str
    node: str
    task: Task
    dependencies: list[Dependency] = Field(default_factory=list)
    item: Item | None = None
    invocation_state: dict[str, Any] = Field(default_factory=dict)
    payload_limit: int | None = None


class PrepareOutcome(Wire):
    """Result of the prepare activity.

    Attributes:
        items: What a node is mapped over.
        blocks: The input that its builder made.
        error: The exception that the function raised.
    """

    items: list[JsonValue] | None = None
    blocks: list[dict[str, Any]] | None = None
    error: ErrorInfo | None = None


class HooksInput(Wire):
    """Argument of the hooks activity.

    Attributes:
        graph: The registered name.
        within: Path of the nested graph or swarm whose hooks they are; empty for the outermost.
        event: The event whose hooks run.
        node: Id of the node that the event is about; None for an event of the run.
        path: Its path, or `mapped` of it.
        visit: The visit that it is about.
        sources: Whose results that consumes, without texts.
        enclosing: The visits that it takes place in, the outermost first.
        state: What hooks see as the orchestrator's state.
        invocation_state: The run's invocation state.
        answers: Answers to what these hooks asked before.
    """

    graph: str
    within: str = ""
    event: HookEvent
    node: str | None = None
    path: str | None = None
    visit: int = 0
    sources: list[Dependency] = Field(default_factory=list)
    enclosing: list[Enclosing] = Field(default_factory=list)
    state: StateView
    invocation_state: dict[str, Any] = Field(default_factory=dict)
    answers: list[Answer] = Field(default_factory=list)


class HooksOutcome(Wire):
    """Result of the hooks activity.

    Attributes:
        event: The event, echoed; so are the visit, its sources and what encloses it.
        node: Path of the node that it was about, or `mapped` of it.
        interrupts: What the hooks ask a human.
        cancel: The message with which a hook cancelled the node.
        state_changes: What the hooks did to the invocation state.
        error: The exception that a hook raised.
    """

    event: HookEvent | None = None
    node: str | None = None
    visit: int = 0
    sources: list[Dependency] = Field(default_factory=list)
    enclosing: list[Enclosing] = Field(default_factory=list)
    interrupts: list[Asked] = Field(default_factory=list)
    cancel: str | None = None
    state_changes: StateChanges = Field(default_factory=StateChanges)
    error: ErrorInfo | None = None


class EdgeQuestion(Wire):
    """Edges to evaluate in order.

    Attributes:
        edges: `(source, target, ordinal)` of each.
        until_true: Stop after the first that is true.
        hidden: Completed nodes that the conditions must not see as completed, because they
            are about to run again from scratch (Strands' `reset_on_revisit`).
    """

    edges: list[tuple[str, str, int]]
    until_true: bool = False
    hidden: list[str] = Field(default_factory=list)


class EdgesInput(Wire):
    """Argument of the edges activity.

    Attributes:
        graph: The registered name.
        within: Path of the nested graph whose edges they are; empty for the outermost.
        state: What conditions see as the graph's state.
        invocation_state: The run's invocation state.
        questions: What to evaluate.
    """

    graph: str
    within: str = ""
    state: StateView
    invocation_state: dict[str, Any] = Field(default_factory=dict)
    questions: list[EdgeQuestion]


class EdgesOutcome(Wire):
    """Result of the edges activity.

    Attributes:
        answers: One list of verdicts a question; shorter than the question where
            `until_true` stopped it.
        state_changes: What the conditions did to the invocation state.
        error: The exception of a condition that raised; then `failed_edge` names its edge.
        failed_edge: The edge whose condition raised.
    """

    answers: list[list[bool]] = Field(default_factory=list)
    state_changes: StateChanges = Field(default_factory=StateChanges)
    error: ErrorInfo | None = None
    failed_edge: str | None = None
