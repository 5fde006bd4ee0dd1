"""Two kinds of node that Strands lacks: a plain function, and a question to a human.

Both are executors like any agent (Strands' `AgentBase`). They work in a Strands `Graph` that
runs in process as well as in one that durable-strands runs.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Self, cast, overload

from pydantic import BaseModel
from strands.agent import AgentResult
from strands.interrupt import Interrupt
from strands.telemetry.metrics import EventLoopMetrics
from strands.types._snapshot import SNAPSHOT_SCHEMA_VERSION, Snapshot
from strands.types.content import ContentBlock

from .codec import is_json
from .context import current
from .errors import InvalidGraphError


class Prompt(str):
    """A node's input as text: its text blocks, joined by newlines.

    Attributes:
        blocks: The content blocks as they came, images and documents among them.
    """

    blocks: list[ContentBlock]

    @classmethod
    def of(cls, prompt: Any) -> Self:
        """Return any input that Strands gives an agent: text, content blocks, messages, None."""
        blocks: list[Any] = []
        for item in [{"text": prompt}] if isinstance(prompt, str) else prompt or []:
            blocks += item["content"] if "content" in item and "role" in item else [item]
        made = cls("\n".join(block["text"] for block in blocks if "text" in block))
        made.blocks = blocks
        return made


class _Node(ABC):
    """What makes `invoke_async` alone an executor of a Strands graph.

    Attributes:
        name: What it is called, in a graph that isn't told otherwise and in errors.
        description: What it does.
    """

    def __init__(self, name: str, description: str | None) -> None:
        self.name = name
        self.description = description

    @abstractmethod
    async def invoke_async(
        self, prompt: Any = None, *, invocation_state: dict[str, Any] | None = None, **kwargs: Any
    ) -> AgentResult:
        """Run on an input, as Strands calls an agent."""

    def __call__(self, prompt: Any = None, **kwargs: Any) -> AgentResult:
        """Run on an input and wait for it, as `invoke_async` does."""

        def run() -> AgentResult:
            return asyncio.run(self.invoke_async(prompt, **kwargs))

        # In a thread of its own: the caller's may have a loop that runs.
        with ThreadPoolExecutor(max_workers=1) as thread:
            return thread.submit(copy_context().run, run).result()

    async def stream_async(
        self, prompt: Any = None, **kwargs: Any
    ) -> AsyncIterator[dict[str, AgentResult]]:
        """Run on an input, and yield the result as the one event there is."""
        yield {"result": await self.invoke_async(prompt, **kwargs)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


# ---------------------------------------------------------------------------------------------
# Functions
# ---------------------------------------------------------------------------------------------


class FunctionNode(_Node):
    """A plain function as a node; see `function_node`.

    Attributes:
        function: The function.
    """

    def __init__(
        self, function: Callable[..., Any], name: str | None = None, description: str | None = None
    ) -> None:
        """Make a node of a function; use `function_node` instead."""
        if not callable(function):
            raise InvalidGraphError(
                f"A function node needs a function, not a {type(function).__name__}."
            )
        named = name or _name_of(function)
        super().__init__(named, description or inspect.getdoc(function))
        self.function = function
        self._call = _Call(function, "prompt", f"Function node {named!r}")

    async def invoke_async(
        self, prompt: Any = None, *, invocation_state: dict[str, Any] | None = None, **kwargs: Any
    ) -> AgentResult:
        """Call the function, and make an agent's result of what it returns.

        Args:
            prompt: The node's input.
            invocation_state: The run's state; the function may write to it.
            **kwargs: Ignored.

        Raises:
            TypeError: The function returned something that no result can be made of.
            Exception: What the function raised.
        """
        del kwargs
        state = {} if invocation_state is None else invocation_state
        return self._result(await self._call(Prompt.of(prompt), state))

    def _result(self, value: Any) -> AgentResult:
        if isinstance(value, AgentResult):
            return value
        if value is None or isinstance(value, str):
            return _result([{"text": str(value or "")}])
        if isinstance(value, BaseModel):
            return _result([{"text": value.model_dump_json()}], structured_output=value)
        if _is_content(value):
            return _result(value)
        if not is_json(value):
            raise TypeError(
                f"Node {self.name!r} returned a {type(value).__name__}. A node function returns "
                "text, a JSON value, a pydantic model, content blocks, an AgentResult or None."
            )
        text = json.dumps(value, ensure_ascii=False)
        # As it comes out on the other side of a process border: tuples are lists there.
        return _result([{"text": text}], state={"value": json.loads(text)})


@overload
def function_node(
    function: Callable[..., Any], *, name: str | None = None, description: str | None = None
) -> FunctionNode: ...
@overload
def function_node(
    function: None = None, *, name: str | None = None, description: str | None = None
) -> Callable[[Callable[..., Any]], FunctionNode]: ...
def function_node(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
) -> FunctionNode | Callable[[Callable[..., Any]], FunctionNode]:
    """Make a plain function a node of a graph; also as a decorator.

    The function is called with what it asks for by the names of its parameters:

    * `prompt`: the node's input, a `Prompt`: text, with the content blocks as `prompt.blocks`;
    * `invocation_state`: the run's state, a dict. What the function writes there is kept;
    * a single required parameter of any other name gets the prompt.

    Parameters with a default that have another name keep it. A function that isn't async runs
    in a thread, where `current_node()` works; a node that is cancelled doesn't stop its thread.

    What it returns becomes the node's result:

    * text: that text; None: no text;
    * a pydantic model: the result's `structured_output`, with its JSON as text;
    * a list of content blocks: the result's message;
    * any other JSON value: its JSON as text, and the value in the result's `state["value"]`;
    * an `AgentResult`: itself.

    What it raises is the node's failure; retries are those of the node's options. A graph
    wants a node of its own for each place, as it does with agents: `function_node(f)` may be
    called as often as needed.

    Args:
        function: A sync or async function, or anything else that can be called.
        name: What the node is called in a graph that isn't told otherwise, and in errors.
            Default: the function's own name.
        description: What it does. Default: the function's docstring.

    Raises:
        InvalidGraphError: The function wants something that a node can't give; names it.

    Example:
        ```python
        @function_node
        def total(prompt: str, invocation_state: dict) -> dict:
            return {"sum": sum(invocation_state["amounts"])}


        builder.add_node(total)
        ```
    """
    if function is None:
        return functools.partial(FunctionNode, name=name, description=description)
    return FunctionNode(function, name, description)


# ---------------------------------------------------------------------------------------------
# Humans
# ---------------------------------------------------------------------------------------------

Question = str | Callable[..., Any]
Check = Callable[..., Any]


class HumanGate(_Node):
    """A question to a human as a node; see `human_gate`."""

    def __init__(
        self,
        question: Question | None = None,
        name: str = "human",
        check: Check | None = None,
        description: str | None = None,
    ) -> None:
        """Make a gate; use `human_gate` instead."""
        if not isinstance(name, str) or not name:
            raise InvalidGraphError(f"A human gate's name is a text, not {name!r}.")
        if not (question is None or isinstance(question, str) or callable(question)):
            raise InvalidGraphError(
                f"Human gate {name!r}: the question is a text or a function of the prompt, not a "
                f"{type(question).__name__}."
            )
        if not (check is None or callable(check)):
            raise InvalidGraphError(
                f"Human gate {name!r}: check is a function, not a {type(check).__name__}."
            )
        super().__init__(name, description)
        self._question = question
        who = f"Human gate {name!r}"
        self._make = _Call(question, "prompt", f"{who}: question") if callable(question) else None
        self._check = None if check is None else _Call(check, "answer", f"{who}: check")
        self._asked: Interrupt | None = None
        self._token = uuid.uuid4().hex[:8]

    async def invoke_async(
        self, prompt: Any = None, *, invocation_state: dict[str, Any] | None = None, **kwargs: Any
    ) -> AgentResult:
        """Ask; or, given the answer, make it the result.

        Args:
            prompt: The node's input, or the answer in Strands' form: `interruptResponse` blocks.
            invocation_state: The run's state.
            **kwargs: Ignored.

        Raises:
            TypeError: `check` returned something else than text or None.
        """
        del kwargs
        state = {} if invocation_state is None else invocation_state
        answer = _answer_in(prompt)
        if answer is not None:
            return await self._answered(answer["interruptId"], answer["response"], state)
        if self._asked is None or prompt != []:
            reason = await self._reason(Prompt.of(prompt), state)
            self._asked = Interrupt(self._first_id(), self.name, reason)
        # Else Strands goes on with answers to other nodes, and none to this one: it asks still.
        return self._ask(self._asked)

    async def _answered(self, asked: str, response: Any, state: dict[str, Any]) -> AgentResult:
        problem = None if self._check is None else await self._check(response, state)
        if problem is not None and not isinstance(problem, str):
            raise TypeError(
                f"Human gate {self.name!r}: check returned a {type(problem).__name__}. It returns "
                "None for a good answer, or a text that says what is wrong with it."
            )
        if problem:
            reason = self._question if self._asked is None else self._asked.reason
            said = reason if isinstance(reason, dict) else {"question": reason}
            # Another id, so that a second answer to the first question isn't one to this.
            again = Interrupt(_next_id(asked), self.name, {**said, "problem": problem})
            return self._ask(again)
        self._asked = None
        if isinstance(response, str):
            text = response
        elif is_json(response):
            text = json.dumps(response, ensure_ascii=False)
        else:
            raise TypeError(
                f"Human gate {self.name!r} was answered with a {type(response).__name__}, which "
                "is not JSON."
            )
        return _result([{"text": text}], state={"answer": response})

    async def _reason(self, prompt: Prompt, state: dict[str, Any]) -> Any:
        if self._make is not None:
            return await self._make(prompt, state)
        return {"question": self._question, "prompt": str(prompt)}

    def _first_id(self) -> str:
        """Return the id of a visit's first question.

        In a durable graph ids are qualified by the node's path. Strands' own graph doesn't do
        that: two gates that ask the same there must not be released by one answer.
        """
        return self.name if current.get(None) is not None else f"{self.name}:{self._token}"

    def _ask(self, interrupt: Interrupt) -> AgentResult:
        self._asked = interrupt
        return _result([], stop_reason="interrupt", interrupts=[interrupt])

    def take_snapshot(self, **kwargs: Any) -> Snapshot:
        """Return the question that is open, as an agent returns its state.

        With it, another instance in another process can ask again.
        """
        del kwargs
        asked = None if self._asked is None else self._asked.to_dict()
        return Snapshot("agent", SNAPSHOT_SCHEMA_VERSION, data={"asked": asked}, app_data={})

    def load_snapshot(self, snapshot: Snapshot) -> None:
        """Take over the question that another instance asked."""
        asked = snapshot.data.get("asked")
        self._asked = None if asked is None else Interrupt(**asked)


def human_gate(
    question: Question | None = None,
    *,
    name: str = "human",
    check: Check | None = None,
    description: str | None = None,
) -> HumanGate:
    """Return a node that asks a human, and whose result is the answer; no model is called.

    The node asks through an interrupt, as tools and hooks do. Its `reason` is
    `{"question": question, "prompt": <the node's input>}`. The answer becomes the result: its
    text (JSON, if it is no text), and as it is in the result's `state["answer"]`, where
    conditions of edges find it. Any JSON is an answer: null, false and the empty text too.

    Args:
        question: What to ask; or a function that returns the whole `reason`, any JSON. It gets
            the input as `prompt` and, if it has such a parameter, `invocation_state`.
        name: The interrupt's name, and what the node is called in a graph that isn't told
            otherwise.
        check: A function of the answer (and of `invocation_state`, if it has such a parameter)
            that returns None if the answer will do, or a text that says what is wrong with it.
            Then the node asks again, with that text as `reason["problem"]`.
        description: What the node is for.

    Raises:
        InvalidGraphError: An argument is wrong.

    Example:
        ```python
        builder.add_node(human_gate("May this be published?"), "approve")
        builder.add_edge("approve", "publish", condition=approved)


        def approved(state: GraphState) -> bool:
            return state.results["approve"].result.state["answer"] == "yes"
        ```
    """
    return HumanGate(question, name, check, description)


def _answer_in(prompt: Any) -> Mapping[str, Any] | None:
    """Return the answer that a prompt consists of, None if it is another prompt."""
    last = prompt[-1] if isinstance(prompt, list) and prompt else None
    if isinstance(last, Mapping) and "interruptResponse" in last:
        return cast(Mapping[str, Any], last["interruptResponse"])
    return None


def _next_id(asked: str) -> str:
    """Return the id of the question after one: `human`, `human:2`, `human:3`, ..."""
    before, _, number = asked.rpartition(":")
    if before and number.isdecimal() and len(number) < 8:  # A gate's token has eight digits.
        return f"{before}:{int(number) + 1}"
    return f"{asked}:2"


# ---------------------------------------------------------------------------------------------
# What both need
# ---------------------------------------------------------------------------------------------


class _Call:
    """A user's function, and how it is called: with what it asks for by name."""

    def __init__(self, function: Callable[..., Any], subject: str, who: str) -> None:
        """Find out what the function wants.

        Args:
            function: The function.
            subject: Name of the parameter that gets the value at hand.
            who: Begins the error's text.
        """
        try:
            self._signature = inspect.signature(function)
        except (TypeError, ValueError) as error:
            raise InvalidGraphError(
                f"{who}: {_name_of(function)} doesn't say what parameters it has. Wrap it in a "
                "function."
            ) from error
        self._function = function
        called = getattr(type(function), "__call__", None)  # noqa: B004 - not whether it has one
        self._is_async = any(map(inspect.iscoroutinefunction, (function, called)))
        parameters = self._signature.parameters
        self._wants_state = "invocation_state" in parameters
        wanted = [
            parameter
            for parameter in parameters.values()
            if parameter.name not in (subject, "invocation_state")
            and parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        self._subject = subject if subject in parameters else None
        if self._subject is None and len(wanted) == 1 and wanted[0].kind != wanted[0].KEYWORD_ONLY:
            self._subject = wanted.pop().name
        if wanted:
            names = ", ".join(repr(parameter.name) for parameter in wanted)
            raise InvalidGraphError(
                f"{who}: nothing can be given for the parameter(s) {names}. The function may ask "
                f"for {subject!r} and 'invocation_state'; anything else needs a default."
            )

    async def __call__(self, value: Any, invocation_state: dict[str, Any]) -> Any:
        """Call the function, in a thread if it isn't async."""
        arguments = self._signature.bind_partial()
        if self._subject is not None:
            arguments.arguments[self._subject] = value
        if self._wants_state:
            arguments.arguments["invocation_state"] = invocation_state
        arguments.apply_defaults()
        if self._is_async:
            return await self._function(*arguments.args, **arguments.kwargs)
        result = await asyncio.to_thread(self._in_thread, arguments)
        return await result if inspect.isawaitable(result) else result

    def _in_thread(self, arguments: inspect.BoundArguments) -> Any:
        try:
            return self._function(*arguments.args, **arguments.kwargs)
        except StopIteration as error:
            # A future can't hold one: whoever waits for it would wait for ever.
            raise RuntimeError("the function raised StopIteration") from error


def _name_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


_BLOCK_KEYS = frozenset(ContentBlock.__annotations__)


def _is_content(value: Any) -> bool:
    """Say whether a value is a list of Strands content blocks, rather than any JSON list."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(block, Mapping) and len(block) == 1 for block in value)
        and all(
            key in _BLOCK_KEYS and isinstance(content, str if key == "text" else Mapping)
            for block in value
            for key, content in block.items()
        )
    )


def _result(
    content: list[Any],
    *,
    stop_reason: Any = "end_turn",
    state: dict[str, Any] | None = None,
    **fields: Any,
) -> AgentResult:
    return AgentResult(
        stop_reason=stop_reason,
        message={"role": "assistant", "content": content},
        metrics=EventLoopMetrics(),
        state=state or {},
        **fields,
    )
