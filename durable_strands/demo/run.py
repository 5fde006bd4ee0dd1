"""The show: one run of the example graph, and a worker killed in the middle of it."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from strands.multiagent.base import NodeResult, Status
from strands.multiagent.graph import GraphResult
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError

from ..client import DurableGraph, GraphRun
from ..errors import DurableStrandsError
from ..wire import STATUS_QUERY, Usage
from . import journal, models
from .accounts import Accounts, Price, Visit, total, visits_of
from .document import Document, read_document
from .graphs import GRAPH, registry
from .offline import PAUSES
from .processes import (
    WORKER_COMMAND,
    Server,
    Workers,
    connect,
    dev_server,
    temporal_binary,
)

T = TypeVar("T")

TASK = "Write a brief of the document {name}."
_RUN_TIMEOUT = timedelta(minutes=10)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FAILURES = (DurableStrandsError, OSError, RPCError)


class DemoError(DurableStrandsError):
    """The run didn't go as it must."""


@dataclass(frozen=True)
class Options:
    """What the user asked for; see `durable_strands.demo.add_arguments`."""

    file: Path
    model: str
    price: Price | None
    keep: bool
    port: int | None
    ui_port: int | None

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Options:
        """Read the command's arguments.

        Raises:
            PriceError: The price can't be read.
        """
        return cls(
            file=arguments.file or default_document(),
            model=arguments.model,
            price=None if arguments.price is None else Price.parse(arguments.price),
            keep=arguments.keep,
            port=arguments.port,
            ui_port=arguments.ui_port,
        )


def default_document() -> Path:
    """Return the project's README, or in an installed package the text that it ships."""
    project = Path(__file__).parents[2]
    readme = project / "README.md"
    if readme.exists() and (project / "pyproject.toml").exists():
        return readme
    return Path(str(files(__package__) / "sample.md"))


async def demo(arguments: argparse.Namespace) -> int:
    """Run the demo: the body of `durable-strands demo`.

    Returns:
        Exit status: 0 if all went well, 1 if something failed, 128 and the signal's number if
        it was interrupted. No child process outlives it.
    """
    loop = asyncio.get_running_loop()
    show = loop.create_task(_show(Options.of(arguments)))
    caught: list[signal.Signals] = []

    def interrupt(number: signal.Signals) -> None:
        if not caught:  # Whoever presses Ctrl-C again must not keep children from being ended.
            caught.append(number)
            show.cancel()

    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # As under nohup.
            loop.add_signal_handler(number, interrupt, number)
    try:
        return await show
    except asyncio.CancelledError:
        if not caught:
            raise  # Somebody else's doing: the event loop's own, before our handlers were there.
        print(f"\nInterrupted ({caught[0].name}): all child processes are ended.", flush=True)
        return 128 + caught[0]
    except _FAILURES as error:
        # Not left to the caller: the traceback would hold the Temporal client, which has to
        # be gone before the loop is (temporalio/sdk-python#300).
        _report(error)
        return 1


async def _show(options: Options) -> int:
    document = read_document(options.file)
    models.check_choice(options.model)
    _introduce(document, options.model)
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="durable-strands-demo-")))
        server = await stack.enter_async_context(
            dev_server(directory, options.port, options.ui_port)
        )
        client = await connect(server)
        _fact("server", f"{server.address}, UI {server.ui}")
        workers = Workers(directory, server, options.model)
        stack.push_async_callback(workers.stop)
        status = 0
        try:
            await _perform(document, client, server, workers, options)
        except _FAILURES as error:
            if not options.keep:
                raise
            _report(error)
            status = 1
        if options.keep:
            await _keep(workers, server)
        return status


async def _perform(
    document: Document, client: Client, server: Server, workers: Workers, options: Options
) -> None:
    """Run the graph and show everything about the run.

    Raises:
        DemoError: The run failed, or its accounts are wrong.
        DurableStrandsError: Something else failed.
    """
    worker = await workers.start()
    _fact("worker 1", f"pid {worker.pid}, durable-strands {' '.join(WORKER_COMMAND)}")
    run = await DurableGraph(client, GRAPH, run_timeout=_RUN_TIMEOUT).start(
        TASK.format(name=document.name), {"path": str(options.file.resolve())}
    )
    _fact("run", run.id)
    _fact("", server.page(run.id, run.run_id))
    handle = client.get_workflow_handle(run.id, run_id=run.run_id)
    result = await _unless_ends(workers, server, Watch(run, handle, workers).follow())
    if workers.killed is None:
        raise DemoError("The run ended before its worker could be killed with a node in flight.")
    accounts = Accounts(
        visits=await visits_of(handle, client.data_converter),
        entries=journal.read(workers.journal_file),
        killed=workers.killed.pid,
    )
    _conclude(result, accounts, workers, options)
    _point(server, run, options)
    problems = accounts.problems()
    if problems:
        raise DemoError("This run was not as it must be: " + "; ".join(problems))


async def _unless_ends(workers: Workers, server: Server, work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns, unless a child process ends that should be there.

    Raises:
        ProcessError: One did.
    """

    async def guard_server() -> None:
        await server.child.ended()
        raise server.child.failure()

    working = asyncio.create_task(work)
    tasks: list[asyncio.Task[Any]] = [
        working,
        asyncio.create_task(workers.guard()),
        asyncio.create_task(guard_server()),
    ]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {working}:
            task.result()
        return working.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _keep(workers: Workers, server: Server) -> None:
    """Stay until interrupted; that is then no failure."""
    print("\nServer, UI and worker stay up until Ctrl-C.", flush=True)
    try:
        await _unless_ends(workers, server, asyncio.Event().wait())
    except asyncio.CancelledError:
        print("\nAll child processes are ended.", flush=True)


# ---------------------------------------------------------------------------------------------
# While it runs
# ---------------------------------------------------------------------------------------------


@dataclass
class Watch:
    """Follows a run on the screen, and kills its worker once.

    Attributes:
        run: The run.
        handle: Its workflow.
        workers: The worker processes.
    """

    run: GraphRun
    handle: WorkflowHandle[Any, Any]
    workers: Workers
    _started: float = field(default_factory=time.monotonic, init=False)
    _spent: int = field(default=0, init=False)
    _visits: dict[str, int] = field(default_factory=dict, init=False)

    async def follow(self) -> GraphResult:
        """Tell what happens, up to the run's end.

        Returns:
            The run's result.

        Raises:
            DemoError: The run failed.
            DurableStrandsError: It ended in some other way.
        """
        print()
        retries = asyncio.create_task(self._tell_retries())
        result: GraphResult | None = None
        try:
            async for event in self.run.events():
                if event["type"] == "multiagent_node_start":
                    self._dispatched(event["node_id"])
                elif event["type"] == "multiagent_node_stop":
                    self._stopped(event["node_id"], event["node_result"])
                elif event["type"] == "multiagent_result":
                    result = event["result"]
                if self.workers.killed is None and self._spent and result is None:
                    await self._kill()
        finally:
            retries.cancel()
            await asyncio.gather(retries, return_exceptions=True)
        if result is None or result.status is not Status.COMPLETED:
            raise DemoError(f"The run failed: {(await self.run.status()).reason}")
        return result

    def _dispatched(self, node: str) -> None:
        visit = self._visits[node] = self._visits.get(node, 0) + 1
        self._tell(node, "dispatched" + (f", visit {visit}" if visit > 1 else ""))

    def _stopped(self, node: str, result: NodeResult) -> None:
        tokens = result.accumulated_usage["totalTokens"]
        self._spent += tokens
        if result.status is Status.COMPLETED:
            self._tell(node, "completed" + (f", {tokens:,} tokens" if tokens else ""))
        else:
            self._tell(node, f"{result.status.value}: {result.result}")

    async def _kill(self) -> None:
        """Kill the worker if it has a node in flight now."""
        victim = self.workers.current
        hit = journal.in_flight(journal.read(self.workers.journal_file), victim.pid)
        if not hit:
            return
        await self.workers.replace()
        silence = max(node.heartbeat_timeout for node in registry[GRAPH].plan.nodes)
        names = " and ".join(entry.node for entry in hit)
        self._tell(
            "KILL",
            f"{victim.name} (pid {victim.pid}) got SIGKILL with {names} in flight.",
            f"{self.workers.current.name} (pid {self.workers.current.pid}) starts. Nobody tells "
            "the server of the death:",
            f"- A node goes to another worker once its own was silent for {silence:.0f} seconds",
            "  (this graph's heartbeat_timeout).",
            "- The run's next step is tried with the dead worker first, whose cache has the run,",
            "  for up to 10 seconds (Temporal's timeouts of workflow tasks and sticky queues).",
        )

    async def _tell_retries(self) -> None:
        """Tell when an attempt after the first begins; history has that only at its end."""
        told: set[tuple[str, int]] = set()
        while True:
            description = await self.handle.describe()
            for pending in description.raw_description.pending_activities:
                attempt = (pending.activity_id, pending.attempt)
                started = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
                if pending.attempt > 1 and pending.state == started and attempt not in told:
                    told.add(attempt)
                    node = pending.activity_id.rpartition("#")[0]
                    reason = pending.last_failure.message
                    self._tell(node, f"attempt {pending.attempt}; the one before: {reason}")
            await asyncio.sleep(0.2)

    def _tell(self, who: str, what: str, *more: str) -> None:
        elapsed = time.monotonic() - self._started
        print(f"  {elapsed:5.1f} s  {who:<8}  {what}", flush=True)
        for line in more:
            print(f"{'':<20}{line}", flush=True)


# ---------------------------------------------------------------------------------------------
# Before and after
# ---------------------------------------------------------------------------------------------


def _introduce(document: Document, model: str) -> None:
    print("durable-strands demo: a brief of a document, by five agents, with one worker killed")
    part = "" if document.is_whole else f"the first {len(document.text):,} characters of "
    _fact("document", f"{part}{document.name}, {len(document.passages())} passages")
    _fact("model", models.describe(model))
    if model == models.OFFLINE:
        shortest, longest = min(PAUSES.values()), max(PAUSES.values())
        _fact("", f"(each answer is held back {shortest} to {longest} s, as a language model's is)")


def _conclude(result: GraphResult, accounts: Accounts, workers: Workers, options: Options) -> None:
    """Show what the run gave, and its accounts."""
    print("\nThe result of the join, the editor's brief:\n")
    for line in str(result.results["editor"].result).strip().splitlines():
        print(f"    {line}".rstrip())
    print()
    _table(accounts, workers)
    print()
    for line in _findings(accounts, options):
        print(f"- {line}")
    print(flush=True)


def _table(accounts: Accounts, workers: Workers) -> None:
    row = "{:<8} {:>6} {:>9} {:>8} {:>10}  {}"
    names = {worker.pid: worker.name.removeprefix("worker ") for worker in workers.all}

    def line(name: str, visits: list[Visit], served: str = "", note: str = "") -> str:
        attempts = sum(visit.attempts for visit in visits)
        tokens = f"{total(visits).totalTokens:,}"
        return row.format(name, len(visits), attempts, served, tokens, note).rstrip()

    print(row.format("node", "visits", "attempts", "worker", "tokens", "").rstrip())
    for node in dict.fromkeys(visit.node for visit in accounts.visits):
        visits = [visit for visit in accounts.visits if visit.node == node]
        served = dict.fromkeys(names.get(visit.pid, "?") for visit in visits)
        is_resumed = any(visit in accounts.resumed for visit in visits)
        print(line(node, visits, ", ".join(served), "resumed after the kill" if is_resumed else ""))
    print(line("total", accounts.visits))


def _findings(accounts: Accounts, options: Options) -> list[str]:
    """Say in sentences what the accounts prove."""
    visits = accounts.visits
    completed = sum(visit.completions for visit in visits)
    each = ", one completion each" if all(visit.completions == 1 for visit in visits) else ""
    began = sum(accounts.executions(visit) for visit in visits)
    ended = sum(accounts.executions(visit, ended=True) for visit in visits)
    estimated = ", counted as Strands estimates them" if options.model == models.OFFLINE else ""
    findings = [
        f"Killed worker: pid {accounts.killed}.",
        f"History: {len(visits)} visits dispatched, {completed} completed{each}.",
        f"Journal of the workers: {began} executions begun, {ended} run to their end, "
        f"{began - ended} not.",
        f"Completed before the kill and not run again: {_names(accounts.kept)}.",
        f"Cut off by the kill and resumed: {_names(accounts.resumed)}.",
    ]
    repeated = [visit for visit in visits if accounts.executions(visit, ended=True) > 1]
    if repeated:
        findings.append(
            f"Run to the end more than once: {_names(repeated)}. A result was lost on its way to "
            "the server: activities run at least once."
        )
    return [
        *findings,
        f"Tokens of this run: {_tokens(total(visits), options.price)}{estimated}.",
        f"Saved: {_tokens(total(accounts.kept), options.price)}. A start from scratch would have "
        "spent them again.",
        "Not counted: what the executions that the kill cut off had used.",
    ]


def _names(visits: list[Visit]) -> str:
    return ", ".join(map(str, visits)) or "none"


def _tokens(usage: Usage, price: Price | None) -> str:
    text = f"{usage.totalTokens:,} ({usage.inputTokens:,} in, {usage.outputTokens:,} out)"
    return text if price is None else f"{text} = {price.of(usage):.6f} at the given price"


def _point(server: Server, run: GraphRun, options: Options) -> None:
    """Say where to look at the run."""
    if not options.keep:
        print("The server and what it knew are gone now. To look around, add --keep.")
    else:
        print("To look around:")
    temporal = temporal_binary()
    if shutil.which("temporal") == temporal:
        temporal = "temporal"
    where = f"--address {server.address} --workflow-id {run.id}"
    _fact("UI", server.page(run.id, run.run_id))
    _fact("history", f"{temporal} workflow show {where}")
    _fact("state", f"{temporal} workflow query {where} --type {STATUS_QUERY}")
    _fact("report", f"TEMPORAL_ADDRESS={server.address} durable-strands show {run.id}")
    sys.stdout.flush()


def _report(error: BaseException) -> None:
    print(f"durable-strands: {error}", file=sys.stderr, flush=True)


def _fact(name: str, value: str) -> None:
    print(f"  {name:<8}  {value}", flush=True)
