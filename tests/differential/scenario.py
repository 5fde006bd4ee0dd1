"""Random graphs with everything in them that a graph's users write: executors, conditions, hooks.

A scenario is a `World`: each of its answers is a pure function of the seed and of what was
asked, so that the graph behaves the same wherever it runs.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from strands import Agent, ToolContext, tool
from strands.agent import AgentResult
from strands.hooks import (
    AfterMultiAgentInvocationEvent,
    AfterNodeCallEvent,
    BeforeMultiAgentInvocationEvent,
    BeforeNodeCallEvent,
)
from strands.interrupt import Interrupt
from strands.multiagent.base import MultiAgentBase, MultiAgentResult, NodeResult, Status
from strands.multiagent.graph import Graph, GraphBuilder, GraphEdge, GraphState
from strands.telemetry.metrics import EventLoopMetrics
from strands.types.event_loop import Metrics, Usage

from durable_strands.wire import EdgePlan

from ..oracles.strands_graph import Id, pinned
from ..oracles.world import Ending, View, World, random_plan
from ..support import ScriptedModel
from .stage import Spent, here, stage_of

Kind = Literal["stub", "agent", "orchestrator"]
Style = Literal["none", "one", "pair", "twice"]
"""How often something asks: never, once, two things at once, one thing after the other."""


class OddError(Exception):
    """An exception that is no builtin."""


ERRORS: tuple[type[Exception], ...] = (ValueError, RuntimeError, KeyError, OddError)
ANSWERS: tuple[Any, ...] = ("yes", "yes", "yes", "no", False, "", 0, {"so": ["be", "it"]})


@dataclass(frozen=True)
class Gate:
    """What the two BeforeNodeCall hooks and the AfterNodeCall hook of a visit do.

    Attributes:
        style: What is asked; a pair is asked by both hooks, all else by the first.
        cancels: The second hook cancels the node.
        raises: Before or after the node, a hook raises.
    """

    style: Style = "none"
    cancels: bool | str = False
    raises: Literal["", "before", "after"] = ""


class Scenario(World):
    """One random graph with its behaviour.

    Attributes:
        name: Name of the graph.
        kinds: What each node is.
        hooked: Whether there are hooks.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed, random_plan(seed, "strands"), raising=True)
        self.name = f"g{seed}"
        dice = self._dice("scenario")
        self.kinds: dict[str, Kind] = {
            node.id: dice.choices(("stub", "agent", "orchestrator"), (50, 35, 15))[0]
            for node in self.plan.nodes
        }
        self.hooked = dice.random() < 0.6
        self._gated = self.hooked and dice.random() < 0.7
        self._curious = dice.random() < 0.6

    # -- what the caller does ------------------------------------------------------------------

    @property
    def task(self) -> Any:
        """What the graph is asked to do: a text or content blocks."""
        return self._dice("task").choice(["task", "task", [{"text": "see"}, {"text": "this"}]])

    def brings(self, call: int) -> dict[str, Any]:
        """Return the invocation state that the caller passes with its n-th call."""
        dice = self._dice("brings", call)
        return {"given": f"call {call}"} if dice.random() < 0.7 else {}

    def answers(self, call: int, open_questions: list[tuple[str, str]]) -> dict[Any, Any]:
        """Choose which questions to answer, and what; in the order in which to answer them."""
        dice = self._dice("answers", call)
        chosen = list(open_questions)
        dice.shuffle(chosen)
        if dice.random() < 0.5:
            chosen = chosen[: dice.randint(1, len(chosen))]
        return {
            question: self._dice("answer", question, call).choice(ANSWERS) for question in chosen
        }

    # -- what nodes and hooks do ---------------------------------------------------------------

    def style(self, node: str, visit: int) -> Style:
        """Say what the executor of a visit asks."""
        dice = self._dice("style", node, visit)
        if not self._curious or dice.random() < 0.7 or self.kinds[node] == "orchestrator":
            return "none"
        styles: tuple[Style, ...] = ("one", "one", "pair", "twice")
        return dice.choice(styles)

    def gate(self, node: str, visit: int) -> Gate:
        """Say what the hooks around a visit do."""
        dice = self._dice("gate", node, visit)
        roll = dice.random()
        if not self._gated or roll > 0.28:
            return Gate()
        styles: tuple[Style, ...] = ("one", "one", "pair", "twice")
        style = dice.choice(styles) if dice.random() < 0.8 else "none"
        if roll < 0.03:
            return Gate(style, cancels="not now" if dice.random() < 0.5 else True)
        if roll < 0.05:
            # Of a pair, Strands would let the second hook go on, and raise, with its answer alone.
            style = "one" if style == "pair" else style
            return Gate(style, raises="before" if dice.random() < 0.5 else "after")
        return Gate(style)

    def error(self, *who: object) -> Exception:
        """Return the exception that somebody raises."""
        return self._dice("error", who).choice(ERRORS)(f"{who[0]} broke")

    def writes(self, node: str, visit: int) -> bool:
        """Say whether a visit writes a key that others write, too."""
        return self._dice("writes", node, visit).random() < 0.5

    def usage(self, node: str, visit: int) -> Spent:
        """Return what a visit of a stub uses."""
        dice = self._dice("usage", node, visit)
        return Spent(dice.randint(1, 50), dice.randint(1, 9), dice.randint(1, 9))

    def verdict(self, edge: EdgePlan, state: GraphState, shared: Mapping[str, Any]) -> bool:
        """Evaluate a condition on one of the things that conditions look at."""
        # In Strands, keys are `Id`s, which are not found by their text.
        results = {str(node): result for node, result in state.results.items()}
        dice = self._dice("looks", str(edge))
        looks = dice.choice(["world", "world", "world", "result", "count", "shared", "given"])
        if looks == "result":
            heard = [str(result.result) for _, result in sorted(results.items())]
            return self._dice(str(edge), heard).random() < 0.6
        if looks == "count":
            return state.execution_count < dice.randint(1, 12)
        if looks == "shared":
            return self._dice(str(edge), shared.get("shared")).random() < 0.6
        if looks == "given":
            return self._dice(str(edge), shared.get("given")).random() < 0.7
        view = View(
            completed=frozenset(str(node.node_id) for node in state.completed_nodes),
            execution_order=tuple(str(node.node_id) for node in state.execution_order),
        )
        return self.condition(edge, view)

    # -- the graph -----------------------------------------------------------------------------

    def strands_graph(self) -> Graph:
        """Build the graph for Strands, made deterministic as the oracle makes it."""
        ids = {node.id: Id(node.id, slot) for slot, node in enumerate(self.plan.nodes)}
        builder, edges = self._builder(ids)
        return pinned(builder, edges)

    def graph(self) -> Graph:
        """Build the graph as any user does."""
        builder, _ = self._builder({node.id: node.id for node in self.plan.nodes})
        return builder.build()

    def _builder(self, ids: Mapping[str, str]) -> tuple[GraphBuilder, list[GraphEdge]]:
        builder = GraphBuilder()
        for node in self.plan.nodes:
            builder.add_node(self._executor(node.id), ids[node.id])
        index = {node.id: slot for slot, node in enumerate(self.plan.nodes)}
        edges = [
            builder.add_edge(ids[edge.source], ids[edge.target], self._condition(edge))
            for edge in sorted(
                self.plan.edges,
                key=lambda edge: (index[edge.source], index[edge.target], edge.ordinal),
            )
        ]
        for name in self.plan.entry_points:
            builder.set_entry_point(ids[name])
        assert self.plan.max_node_executions is not None, "every random plan has a limit"
        builder.set_max_node_executions(self.plan.max_node_executions)
        builder.reset_on_revisit(any(node.on_revisit == "reset" for node in self.plan.nodes))
        if self.hooked:
            builder.set_hook_providers([Hooks(self, "first"), Hooks(self, "second")])
        return builder, edges

    def _executor(self, node: str) -> Any:
        kind = self.kinds[node]
        if kind == "stub":
            return Stub(self, node)
        if kind == "orchestrator":
            return Orchestrator(self, node)
        model = ScenarioModel(self, node)
        model.agent = Agent(name=node, model=model, tools=[consult], callback_handler=None)
        return model.agent

    def _condition(self, edge: EdgePlan) -> Callable[..., bool] | None:
        if edge.condition is None:
            return None
        # Parallel edges are told apart by what their functions are bound to.
        name, ordinal = f"{edge.source}>{edge.target}[{edge.ordinal}]", edge.ordinal

        def legacy(state: GraphState) -> bool:
            assert ordinal == edge.ordinal
            return self.verdict(edge, state, {})

        def condition(state: GraphState, *, invocation_state: dict[str, Any]) -> bool:
            assert ordinal == edge.ordinal
            # The final state tells how often each condition was evaluated.
            key = f"asked {name}"
            invocation_state[key] = invocation_state.get(key, 0) + 1
            return self.verdict(edge, state, invocation_state)

        # The same kind for parallel edges, which keep their order so.
        dice = self._dice("legacy", edge.source, edge.target)
        return legacy if dice.random() < 0.4 else condition


# ---------------------------------------------------------------------------------------------
# Executors
# ---------------------------------------------------------------------------------------------


def questions(style: Style, node: str, answered: Mapping[str, Any]) -> list[str]:
    """Return the names of what is to be asked now."""
    if style == "none":
        return []
    names = [f"{node} may I"] if style == "one" else [f"{node} may I", f"{node} how"]
    missing = [name for name in names if name not in answered]
    return missing[:1] if style == "twice" else missing


class Stub:
    """The least that Strands accepts as an agent. It may ask, fail and raise."""

    def __init__(self, scenario: Scenario, node: str) -> None:
        self._scenario = scenario
        self._node = node
        self.cancel_signal = threading.Event()

    async def stream_async(
        self, prompt: Any = None, *, invocation_state: Any = None, **kwargs: Any
    ) -> AsyncIterator[dict[str, Any]]:
        scenario, node, stage = self._scenario, self._node, stage_of(self._scenario.name)
        visit = stage.visit(node)
        stage.came(node, visit, prompt, invocation_state)
        await stage.gate(node)
        answered = stage.answered(node, visit)
        asks = questions(scenario.style(node, visit), node, answered)
        if asks:
            invocation_state[f"node {node}"] = f"visit {visit} asks"
            yield {"result": self._result("?", "interrupt", Spent(), stage.interrupts(node, asks))}
            return
        ending: Ending = scenario.ending(node, visit)
        if ending == "raised":
            raise scenario.error(node, visit)
        invocation_state[f"node {node}"] = f"visit {visit} {ending}"
        if scenario.writes(node, visit):
            invocation_state["shared"] = f"{node}#{visit}"
        # Strands counts "cancelled" as FAILED only if the signal is set when the result comes.
        self.cancel_signal.clear()
        if ending == "failed":
            self.cancel_signal.set()
        said = f"{node}#{visit} heard {json.dumps(answered)}"
        spent = scenario.usage(node, visit)
        stage.spend(node, spent)
        yield {
            "result": self._result(said, "cancelled" if ending == "failed" else "end_turn", spent)
        }

    def _result(
        self, text: str, stop_reason: Any, spent: Spent, interrupts: list[Interrupt] | None = None
    ) -> AgentResult:
        return AgentResult(
            stop_reason=stop_reason,
            message={"role": "assistant", "content": [{"text": text}]},
            metrics=metrics(spent),
            state={},
            interrupts=interrupts,
        )

    async def invoke_async(self, prompt: Any = None, **kwargs: Any) -> AgentResult:
        """Refuse: a graph streams. The method is here because Strands looks for its name."""
        raise NotImplementedError

    def __call__(self, prompt: Any = None, **kwargs: Any) -> AgentResult:
        """Refuse, as `invoke_async` does."""
        raise NotImplementedError


class Orchestrator(MultiAgentBase):
    """An orchestrator of one's own: two agents' results at once. It doesn't ask."""

    def __init__(self, scenario: Scenario, node: str) -> None:
        super().__init__()
        self.id = node
        self._scenario = scenario
        self._node = node

    async def stream_async(
        self, task: Any, invocation_state: dict[str, Any] | None = None, **kwargs: Any
    ) -> AsyncIterator[dict[str, Any]]:
        scenario, node, stage = self._scenario, self._node, stage_of(self._scenario.name)
        visit = stage.visit(node)
        assert invocation_state is not None
        stage.came(node, visit, task, invocation_state)
        await stage.gate(node)
        ending = scenario.ending(node, visit)
        if ending == "raised":
            raise scenario.error(node, visit)
        invocation_state[f"node {node}"] = f"visit {visit} {ending}"
        spent = scenario.usage(node, visit)
        stage.spend(node, spent)
        results = {
            part: NodeResult(
                result=AgentResult(
                    stop_reason="end_turn",
                    message={"role": "assistant", "content": [{"text": f"{node}#{visit} {part}"}]},
                    metrics=EventLoopMetrics(),
                    state={},
                ),
                status=Status.COMPLETED,
                execution_count=1,
            )
            for part in ("left", "right")
        }
        yield {
            "result": MultiAgentResult(
                status=Status.FAILED if ending == "failed" else Status.COMPLETED,
                results=results,
                accumulated_usage=metrics(spent).accumulated_usage,
                accumulated_metrics=metrics(spent).accumulated_metrics,
                execution_count=2,
            )
        }

    async def invoke_async(
        self, task: Any, invocation_state: dict[str, Any] | None = None, **kwargs: Any
    ) -> MultiAgentResult:
        """Refuse: a graph streams."""
        raise NotImplementedError


class ScenarioModel(ScriptedModel):
    """The model of a real agent: it consults humans by a tool, then says what it has heard.

    Its text has a digest of the whole conversation, so that all that reads it notices when the
    conversation isn't what it should be.

    Attributes:
        agent: The agent whose model it is.
    """

    agent: Agent

    def __init__(self, scenario: Scenario, node: str) -> None:
        super().__init__("")
        self._scenario = scenario
        self._node = node

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        scenario, node, stage = self._scenario, self._node, stage_of(self._scenario.name)
        visit = stage.visit(node)
        told = [_told(message) for message in messages]
        asked = any("toolResult" in block for block in messages[-1]["content"])
        # After an answer it sees, in Strands, what siblings have written since it went on.
        stage.model_called(node, visit, told, {} if asked else kwargs["invocation_state"])
        await stage.gate(node)
        style = scenario.style(node, visit)
        if style != "none" and not asked:
            for event in _tool_uses(node, visit, 2 if style == "pair" else 1, style):
                yield event
            stage.spend(node, Spent(10, 5, 7))
            return
        ending = scenario.ending(node, visit)
        if ending == "raised":
            raise scenario.error(node, visit)
        if ending == "failed":
            # Not the `agent` of the invocation state: in Strands that may be another node's.
            self.agent.cancel()
        kwargs["invocation_state"][f"node {node}"] = f"visit {visit} {ending}"
        if scenario.writes(node, visit):
            kwargs["invocation_state"]["shared"] = f"{node}#{visit}"
        digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8]
        self.reply = f"{node}#{visit}, {len(told)} messages, {digest}"
        async for event in super().stream(messages):
            yield event
        stage.spend(node, Spent(10, 5, 7))  # Not if it was cut off, as `cancel` does.


def _told(message: Any) -> Any:
    """Return what a message says; the order of tools' results is the tools' own affair."""
    blocks = [
        [block.get("text"), block.get("toolUse"), block.get("toolResult")]
        for block in message["content"]
    ]
    return [message["role"], sorted(blocks, key=lambda block: json.dumps(block[2]))]


def _tool_uses(node: str, visit: int, count: int, style: Style) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [{"messageStart": {"role": "assistant"}}]
    for name in ("may I", "how")[:count]:
        use = {"toolUseId": f"{node}-{visit}-{name}".replace(" ", "-"), "name": "consult"}
        wants = {"node": node, "question": f"{node} {name}", "twice": style == "twice"}
        events += [
            {"contentBlockStart": {"start": {"toolUse": use}}},
            {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(wants)}}}},
            {"contentBlockStop": {}},
        ]
    usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
    return [
        *events,
        {"messageStop": {"stopReason": "tool_use"}},
        {"metadata": {"usage": usage, "metrics": {"latencyMs": 7}}},
    ]


@tool(context=True)
async def consult(node: str, question: str, twice: bool, tool_context: ToolContext) -> str:
    """Ask a human.

    Args:
        node: Who asks.
        question: What.
        twice: Whether to ask back.
        tool_context: Strands' own.
    """
    stage = here()
    await stage.gate(node)
    heard = [tool_context.interrupt(question, reason={"asks": node})]
    if twice:
        heard.append(tool_context.interrupt(f"{node} how", reason={"asks": node, "again": True}))
    stage.tool_done(node, question, heard)
    return f"{question}: {json.dumps(heard)}"


def metrics(spent: Spent) -> EventLoopMetrics:
    return EventLoopMetrics(
        accumulated_usage=Usage(
            inputTokens=spent.read, outputTokens=spent.wrote, totalTokens=spent.read + spent.wrote
        ),
        accumulated_metrics=Metrics(latencyMs=spent.latency),
    )


# ---------------------------------------------------------------------------------------------
# Hooks
# ---------------------------------------------------------------------------------------------


class Hooks:
    """Hooks for all events of a graph. There are two of these, to see their order."""

    def __init__(self, scenario: Scenario, name: str) -> None:
        self._scenario = scenario
        self._name = name

    def register_hooks(self, registry: Any, **kwargs: Any) -> None:
        registry.add_callback(BeforeMultiAgentInvocationEvent, self.before_run)
        registry.add_callback(AfterMultiAgentInvocationEvent, self.after_run)
        registry.add_callback(BeforeNodeCallEvent, self.before_node)
        registry.add_callback(AfterNodeCallEvent, self.after_node)

    def before_run(self, event: BeforeMultiAgentInvocationEvent) -> None:
        stage_of(self._scenario.name).hook_called("before_run", self._name, None, None)

    def after_run(self, event: AfterMultiAgentInvocationEvent) -> None:
        stage = stage_of(self._scenario.name)
        stage.hook_called("after_run", self._name, None, event.source.state)  # type: ignore[attr-defined]

    def before_node(self, event: BeforeNodeCallEvent) -> None:
        node, state = str(event.node_id), event.source.state  # type: ignore[attr-defined]
        stage = stage_of(self._scenario.name)
        stage.hook_called("before_node", self._name, node, state)
        assert event.invocation_state is not None
        visit = 1 + [str(done.node_id) for done in state.execution_order].count(node)
        event.invocation_state[f"hook {self._name} {node}"] = visit
        gate = self._scenario.gate(node, visit)
        answer = None
        if self._name == "first" and gate.style != "none":
            answer = event.interrupt("first asks", reason=f"may {node} run?")
            if gate.style == "twice":
                answer = event.interrupt("first asks again", reason={"really": node})
        if self._name == "second":
            if gate.style == "pair":
                answer = event.interrupt("second asks", reason=[node])
            if gate.raises == "before":
                raise self._scenario.error(f"hook before {node}")
            if gate.cancels:
                event.cancel_node = gate.cancels
        if answer == "no":
            event.cancel_node = f"{node} rejected"

    def after_node(self, event: AfterNodeCallEvent) -> None:
        node, state = str(event.node_id), event.source.state  # type: ignore[attr-defined]
        stage = stage_of(self._scenario.name)
        stage.hook_called("after_node", self._name, node, state)
        assert event.invocation_state is not None
        visit = [str(done.node_id) for done in state.execution_order].count(node)
        event.invocation_state[f"hook after {self._name} {node}"] = visit
        gate = self._scenario.gate(node, visit)
        if self._name == "second" and visit and gate.raises == "after":
            raise self._scenario.error(f"hook after {node}")
