"""Token-level events, past history: from the worker through a sink to whoever listens.

What an agent says while it speaks is worth nothing once its result is there, so it costs no
history. A worker with a sink publishes it, a caller with the same sink gets it among the events
of `DurableGraph.stream_async`; without a sink nobody does any work. A sink may be slow, full or
broken: then listeners miss events, and the run goes on as if nothing were.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from strands.types.session import decode_bytes_values, encode_bytes_values
from temporalio import activity

from .codec import INTERNAL_KEYS, TOOL_KEYS, is_json

if TYPE_CHECKING:
    from redis.asyncio import Redis

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NodeStream:
    """Something that the stream of a node's executor yielded; its result is never among it.

    Attributes:
        workflow_id: Id of the run's workflow.
        run_id: Temporal's id of this execution of the workflow.
        path: The node's path in the graph.
        visit: Number of the visit, from 1.
        attempt: Number of the attempt, from 1. What failed attempts said stays said.
        activity_id: Id of the activity: of the visit, or of one of its resumes.
        event: Strands' event. None after the attempt's last.
    """

    workflow_id: str
    run_id: str
    path: str
    visit: int
    attempt: int
    activity_id: str
    event: dict[str, Any] | None

    def to_json(self) -> str:
        """Return this as JSON, for sinks that leave the process.

        An event's live objects (the agent, traces, a nested result) stay behind.
        """
        event = None if self.event is None else _json_part(self.event)
        return json.dumps({**vars(self), "event": event})

    @classmethod
    def from_json(cls, data: str | bytes) -> NodeStream:
        """Return what `to_json` was made of."""
        fields = json.loads(data)
        return cls(**{**fields, "event": decode_bytes_values(fields["event"])})


@runtime_checkable
class StreamSink(Protocol):
    """Where a worker publishes. Give it to `GraphPlugin(registry, sink=...)`."""

    async def publish(self, item: NodeStream) -> None:
        """Pass an item on. Items of one node come one after the other, in order.

        It may take its time and may raise: the node doesn't wait for it.
        """


@runtime_checkable
class StreamSource(Protocol):
    """Where a caller listens. Give it to `DurableGraph(client, name, sink=...)`."""

    def subscribe(self, workflow_id: str) -> AbstractAsyncContextManager[AsyncIterator[NodeStream]]:
        """Return a context manager around an iterator of what a run's nodes say.

        Nothing may be lost that is published after the context manager was entered. The
        iterator has no end; leaving the context ends it.
        """


# ---------------------------------------------------------------------------------------------
# Sinks
# ---------------------------------------------------------------------------------------------


class LocalSink:
    """A sink for a worker and callers in one process.

    Its subscribers get the live event dictionaries, as from Strands' own `Graph`.

    Example:
        ```python
        sink = LocalSink()
        worker = Worker(client, task_queue=queue, plugins=[GraphPlugin(registry, sink=sink)])
        graph = DurableGraph(client, "brief", sink=sink)
        ```
    """

    def __init__(self, *, max_waiting: int = 10_000) -> None:
        """Begin without subscribers.

        Args:
            max_waiting: Items kept for a subscriber that is slow to take them; it misses what
                comes while there are as many.
        """
        self._max_waiting = max_waiting
        self._subscribers: dict[str, list[asyncio.Queue[NodeStream]]] = {}
        self._warned = False

    async def publish(self, item: NodeStream) -> None:
        """Hand an item to the run's subscribers; never waits."""
        for queue in self._subscribers.get(item.workflow_id, ()):
            # An end is never lost: listeners wait for it.
            if item.event is None or queue.qsize() < self._max_waiting:
                queue.put_nowait(item)
            elif not self._warned:
                self._warned = True
                logger.warning(
                    "workflow_id=<%s>, waiting=<%d> | subscriber is too slow and misses events",
                    item.workflow_id,
                    self._max_waiting,
                )

    @asynccontextmanager
    async def subscribe(self, workflow_id: str) -> AsyncIterator[AsyncIterator[NodeStream]]:
        """Listen to a run's nodes from now on."""
        queue: asyncio.Queue[NodeStream] = asyncio.Queue()
        subscribers = self._subscribers.setdefault(workflow_id, [])
        subscribers.append(queue)

        async def items() -> AsyncGenerator[NodeStream]:
            while True:
                yield await queue.get()

        try:
            async with contextlib.aclosing(items()) as iterator:
                yield iterator
        finally:
            subscribers.remove(queue)
            if not subscribers:
                del self._subscribers[workflow_id]


class RedisSink:
    """A sink across processes: one Redis stream per run, of the latest items, that expires.

    Needs the package `redis` (`pip install durable-strands[redis]`); Valkey does as well.

    Example:
        ```python
        sink = RedisSink(Redis.from_url("redis://localhost"))  # of redis.asyncio
        ```
    """

    def __init__(
        self,
        redis: Redis,
        *,
        prefix: str = "durable-strands:",
        max_items: int = 10_000,
        expire_seconds: int = 3600,
    ) -> None:
        """Use a connected client, which stays the caller's to close.

        Args:
            redis: The client.
            prefix: Beginning of the keys; a workflow id follows.
            max_items: About how many items of a run are kept.
            expire_seconds: Time after its last item at which a run's stream is deleted.
        """
        self._redis = redis
        self._prefix = prefix
        self._max_items = max_items
        self._expire_seconds = expire_seconds

    async def publish(self, item: NodeStream) -> None:
        """Append an item to the run's stream."""
        key = self._prefix + item.workflow_id
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.xadd(key, {"item": item.to_json()}, maxlen=self._max_items, approximate=True)
            pipe.expire(key, self._expire_seconds)
            await pipe.execute()

    @asynccontextmanager
    async def subscribe(self, workflow_id: str) -> AsyncIterator[AsyncIterator[NodeStream]]:
        """Listen to a run's nodes from now on."""
        key = self._prefix + workflow_id
        latest: Any = await self._redis.xrevrange(key, count=1)
        position = latest[0][0] if latest else "0"

        async def items() -> AsyncGenerator[NodeStream]:
            after = position
            while True:
                reply = await self._redis.xread({key: after}, block=1000)
                for entry_id, fields in _entries(reply):
                    after = entry_id
                    yield NodeStream.from_json(fields.get(b"item") or fields["item"])

        async with contextlib.aclosing(items()) as iterator:
            yield iterator


def _entries(reply: Any) -> list[tuple[Any, Any]]:
    """Return the entries of one stream in a reply to XREAD, which has a form per protocol."""
    if isinstance(reply, dict):
        return [entry for pages in reply.values() for page in pages for entry in page]
    return [entry for _, page in reply or () for entry in page]


# ---------------------------------------------------------------------------------------------
# The worker's side
# ---------------------------------------------------------------------------------------------

_BACKLOG = 1000
"""Events of one attempt that may wait for a slow sink; more are dropped."""

_FLUSH_SECONDS = 1.0
"""Longest that the end of an attempt waits for its sink to take the rest."""


class Publisher:
    """Publishes one attempt's events in the background, so that its sink can't hold it up."""

    def __init__(self, sink: StreamSink, path: str, visit: int) -> None:
        """Publish for the activity that is running."""
        info = activity.info()
        self._sink = sink
        self._about: dict[str, Any] = {
            "workflow_id": info.workflow_id or "",
            "run_id": info.workflow_run_id or "",
            "path": path,
            "visit": visit,
            "attempt": info.attempt,
            "activity_id": info.activity_id,
        }
        self._waiting: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._work())
        self._warned = False

    async def publish(self, event: dict[str, Any]) -> None:
        """Take an event of the executor's stream, or drop it if the sink can't keep up."""
        if self._waiting.qsize() >= _BACKLOG:
            # An executor that never waits leaves the sink no time: give it some once.
            await asyncio.sleep(0)
        if self._waiting.qsize() >= _BACKLOG:
            self._warn("it is too slow: events are dropped", None)
        else:
            self._waiting.put_nowait(event)

    async def close(self) -> None:
        """Give the sink a moment to take the rest."""
        self._waiting.put_nowait(None)
        await asyncio.wait([self._task], timeout=_FLUSH_SECONDS)
        if not self._task.done():
            self._warn("it is too slow: the end of an attempt was dropped", None)
            self._task.cancel()

    async def _work(self) -> None:
        event: dict[str, Any] | None = {}
        while event is not None:
            event = await self._waiting.get()
            try:
                await self._sink.publish(NodeStream(**self._about, event=event))
            except Exception as error:
                self._warn("it raised", error)

    def _warn(self, what: str, error: Exception | None) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "sink=<%s>, activity_id=<%s>, problem=<%s> | stream sink doesn't take events",
                type(self._sink).__name__,
                self._about["activity_id"],
                what,
                exc_info=error,
            )


_publisher: ContextVar[Publisher | None] = ContextVar("durable_strands_publisher", default=None)


@asynccontextmanager
async def publishing(sink: StreamSink | None, path: str, visit: int) -> AsyncIterator[None]:
    """Publish what `say` gets in the running activity; without a sink do nothing."""
    if sink is None:
        yield
        return
    publisher = Publisher(sink, path, visit)
    _publisher.set(publisher)
    try:
        yield
    finally:
        await publisher.close()


async def say(event: dict[str, Any]) -> None:
    """Publish an event of the executor's stream, if there is a sink."""
    publisher = _publisher.get()
    if publisher is not None:
        await publisher.publish(event)


# ---------------------------------------------------------------------------------------------
# The caller's side
# ---------------------------------------------------------------------------------------------

_GRACE = 1.0
"""Longest that the end of a visit waits for what the sink still has of it."""


Tell = Callable[[dict[str, Any]], dict[str, Any]]
"""Makes of what a node said the event that the run's own consumer gets."""


@dataclass
class _Said:
    """What arrived of one activity."""

    held: deque[dict[str, Any]] = field(default_factory=deque)
    ends: set[int] = field(default_factory=set)
    tell: Tell | None = None


class Live:
    """Merges what a sink brings into the events that history tells.

    The two come by different ways, so each is held to the other: what a visit says is held back
    until its start was yielded, and its stop until what it said is there.

    Attributes:
        workflow_id: The run that is listened to.
    """

    def __init__(self, workflow_id: str) -> None:
        """Begin with nothing."""
        self.workflow_id = workflow_id
        self._said: defaultdict[str, _Said] = defaultdict(_Said)
        self._ready: deque[dict[str, Any]] = deque()
        self._news = asyncio.Event()
        self._deaf = False

    async def listen(self, items: AsyncIterator[NodeStream]) -> None:
        """Take what the sink brings, as long as it does."""
        try:
            async for item in items:
                said = self._said[item.activity_id]
                if item.event is None:
                    said.ends.add(item.attempt)
                elif said.tell is None:
                    said.held.append(item.event)
                else:
                    self._ready.append(said.tell(item.event))
                self._news.set()
        except Exception as error:
            logger.warning(
                "workflow_id=<%s>, error=<%s> | stream sink is lost, its events are missing",
                self.workflow_id,
                error,
            )
        self._deaf = True
        self._news.set()

    def started(self, activity_id: str, tell: Tell) -> None:
        """Let out what an activity says, told by `tell`: the start of its node was yielded."""
        said = self._said[activity_id]
        said.tell = tell
        self._ready.extend(tell(event) for event in said.held)
        said.held.clear()
        self._news.set()

    async def ended(self, activity_id: str, attempt: int) -> None:
        """Wait until all that an attempt said is there, but not for ever."""
        said = self._said[activity_id]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                while attempt not in said.ends and not self._deaf:
                    await self._wait()
        if not any(said.ends for said in self._said.values()) and not self._deaf:
            self._deaf = True
            logger.warning(
                "workflow_id=<%s> | nothing comes from the stream sink; does the worker publish "
                "to the same one?",
                self.workflow_id,
            )

    async def _wait(self) -> None:
        # Two may wait for the same news, so nobody may clear what the other hasn't seen.
        news = self._news
        await news.wait()
        if news is self._news:
            self._news = asyncio.Event()

    async def merge(self, history: AsyncIterator[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
        """Yield what history tells, and between it what the nodes say."""
        following = asyncio.ensure_future(_next(history))
        try:
            while True:
                if not self._ready and not following.done():
                    news = asyncio.ensure_future(self._wait())
                    try:
                        await asyncio.wait({following, news}, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        news.cancel()
                while self._ready:
                    yield self._ready.popleft()
                if following.done():
                    event = following.result()
                    if event is None:
                        return
                    yield event
                    following = asyncio.ensure_future(_next(history))
        finally:
            following.cancel()
            await asyncio.wait([following])


async def _next(events: AsyncIterator[dict[str, Any]]) -> dict[str, Any] | None:
    return await anext(events, None)


@asynccontextmanager
async def listening(source: StreamSource, workflow_id: str) -> AsyncIterator[Live]:
    """Listen to a run, and yield what merges it into history."""
    live = Live(workflow_id)
    async with source.subscribe(workflow_id) as items:
        task = asyncio.create_task(live.listen(items))
        try:
            yield live
        finally:
            task.cancel()
            await asyncio.wait([task])


# ---------------------------------------------------------------------------------------------
# What of an event is JSON
# ---------------------------------------------------------------------------------------------

_NOT_JSON = object()


def _json_part(event: dict[str, Any]) -> dict[str, Any]:
    """Return the part of an event that is JSON, bytes encoded as in Strands' sessions.

    Strands mixes the whole invocation state into some events: what is its own stays behind.
    """
    own = INTERNAL_KEYS | TOOL_KEYS if INTERNAL_KEYS & event.keys() else frozenset[str]()
    kept = {key: value for key, value in event.items() if key not in own}
    part: dict[str, Any] = _json_value(encode_bytes_values(kept))
    return part


def _json_value(value: Any) -> Any:
    if is_json(value):
        return value
    if isinstance(value, dict):
        parts = {key: _json_value(item) for key, item in value.items() if isinstance(key, str)}
        return {key: part for key, part in parts.items() if part is not _NOT_JSON}
    if isinstance(value, (list, tuple)):
        items = (_json_value(item) for item in value)
        return [item for item in items if item is not _NOT_JSON]
    return _NOT_JSON
