"""The command `durable-strands`."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import math
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from . import wire
from .client import DurableGraph
from .demo import add_arguments as add_demo_arguments
from .drawing import mermaid
from .errors import DurableStrandsError, GraphFailedError
from .worker.process import ConfigurationError, connect, load_registry, load_sink, serve

Arguments = argparse.Namespace


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        Exit status: 0 done, 1 it failed (a message is on standard error), 2 wrong usage.
    """
    arguments = _parser().parse_args(argv)
    logging.basicConfig(
        level=logging.DEBUG if arguments.verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    command: Callable[[Arguments], Awaitable[int]] = arguments.command
    try:
        status = asyncio.run(_run(command, arguments))
    except (DurableStrandsError, OSError) as error:
        print(f"durable-strands: {error}", file=sys.stderr)
        status = 1
    except RPCError as error:
        print(f"durable-strands: {_explain(error, arguments)}", file=sys.stderr)
        status = 1
    except WorkflowAlreadyStartedError:
        print(f"durable-strands: A run {arguments.id!r} is going on already.", file=sys.stderr)
        status = 1
    except KeyboardInterrupt:
        status = 130
    return status


async def _run(command: Callable[[Arguments], Awaitable[int]], arguments: Arguments) -> int:
    try:
        return await command(arguments)
    finally:
        # A process whose Temporal client lives to the interpreter's end may crash there
        # (temporalio/sdk-python#300): let go of it while the loop still runs.
        gc.collect()


def _explain(error: RPCError, arguments: Arguments) -> str:
    if error.status is RPCStatusCode.NOT_FOUND and arguments.command is not _start:
        return f"There is no run {getattr(arguments, 'id', '?')!r} in this namespace."
    return f"The Temporal server says: {error.message} ({error.status.name})."


# -- commands ----------------------------------------------------------------------------------


async def _worker(arguments: Arguments) -> int:
    await serve(
        load_registry(arguments.registry),
        arguments.task_queue,
        drain=timedelta(seconds=arguments.drain),
        max_concurrent_activities=arguments.max_concurrent_activities,
        sink=load_sink(arguments.sink) if arguments.sink is not None else None,
    )
    return 0


async def _start(arguments: Arguments) -> int:
    graph = DurableGraph(
        await connect(),
        arguments.graph,
        task_queue=arguments.task_queue,
        session=arguments.session,
    )
    run = await graph.start(
        _task(arguments), _json_object(arguments.state, "--state"), workflow_id=arguments.id
    )
    print(run.id)
    if not arguments.wait:
        return 0
    try:
        await run.result()
    except GraphFailedError:
        pass  # The report below says so.
    except DurableStrandsError:
        raise
    except Exception as error:
        if not isinstance(error.__cause__, GraphFailedError):
            raise
    report = await run.status()
    print(json.dumps(report.dump(), indent=2))
    return 0 if report.status is wire.RunStatus.COMPLETED else 1


async def _show(arguments: Arguments) -> int:
    graph = DurableGraph(await connect(), "")
    run = graph.attach(arguments.id)
    if arguments.watch:
        async for event in run.events():
            line = event_line(event)
            if line:
                print(line, flush=True)
    report = await run.status()
    print(json.dumps(report.dump(), indent=2) if arguments.json else report_text(report))
    return 0


async def _respond(arguments: Arguments) -> int:
    graph = DurableGraph(await connect(), "")
    run = graph.attach(arguments.id)
    if arguments.answers is None:
        for info in await run.interrupts():
            print(json.dumps(info.model_dump(include={"id", "node", "visit", "name", "reason"})))
        return 0
    released = await run.respond(_json_object(arguments.answers, "ANSWERS"))
    print("released: " + (", ".join(released) or "none, more answers are needed"))
    return 0


async def _retry(arguments: Arguments) -> int:
    graph = DurableGraph(await connect(), "")
    run = await graph.attach(arguments.id).retry(from_node=arguments.from_node)
    print(run.id)
    return 0


async def _graphs(arguments: Arguments) -> int:
    registry = load_registry(arguments.registry)
    if arguments.name is None:
        for graph in registry:
            plan = graph.plan
            print(f"{plan.graph}  {len(plan.nodes)} nodes, {len(plan.edges)} edges")
        return 0
    print(mermaid(registry[arguments.name].plan))
    return 0


async def _demo(arguments: Arguments) -> int:
    from .demo.run import demo  # Only here: no other command should need what the demo needs.

    return await demo(arguments)


# -- texts -------------------------------------------------------------------------------------


def event_line(event: dict[str, Any]) -> str | None:
    """Return a line for an event of a run, or None for one that needs no line."""
    kind = event["type"].removeprefix("multiagent_")
    within = ""
    while kind == "node_stream":  # What happens in a nested graph or swarm.
        within = wire.join(within, event["node_id"])
        event = event["event"]
        kind = event.get("type", "").removeprefix("multiagent_")
    path = wire.join(within, event.get("node_id", ""))
    if kind == "node_start":
        return f"started    {path}"
    if kind == "node_stop":
        result = event["node_result"]
        return f"{result.status.value:<10} {path}  {result.execution_time} ms"
    if kind == "node_interrupt":
        asked = ", ".join(interrupt.name for interrupt in event["interrupts"])
        return f"asks       {path}  {asked}"
    if kind == "node_cancel":
        return f"cancelled  {path}  {event['message']}"
    if kind == "handoff" and event.get("message"):
        return f"hands over {wire.join(within, event['from_node_ids'][0])}  {event['message']}"
    return None


def report_text(report: wire.RunReport) -> str:
    """Return a run's report as text."""
    lines = [f"{report.graph}: {report.status.value}"]
    if report.reason:
        lines.append(f"reason: {report.reason}")
    width = max((len(node) for node in report.nodes), default=0)
    for node, state in report.nodes.items():
        lines.append(f"  {node:<{width}}  {state.status.value:<10} visits {state.visits}")
    lines += [
        f"  waits for an answer: {info.id}  {info.name}  {json.dumps(info.reason)}"
        for info in report.interrupts
    ]
    lines.append(f"tokens: {report.usage.totalTokens}, plan: {report.fingerprint}")
    return "\n".join(lines)


# -- arguments ---------------------------------------------------------------------------------


def _task(arguments: Arguments) -> Any:
    if arguments.task is not None:
        return arguments.task
    if arguments.task_file == "-":
        return sys.stdin.read()
    return Path(arguments.task_file).read_text()


def _json_object(text: str | None, option: str) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{option} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigurationError(f"{option} must be a JSON object, not {text}")
    return value


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number from 1, not {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds from 0, not {text!r}")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="durable-strands",
        description="Strands multi-agent graphs that survive anything. The connection comes "
        "from Temporal's standard environment (TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, ...).",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="log more")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[Arguments], Awaitable[int]], text: str) -> Any:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(command=run)
        return command

    def add_queue(command: Any) -> None:
        command.add_argument(
            "--task-queue",
            default=os.environ.get("DURABLE_STRANDS_TASK_QUEUE", wire.DEFAULT_TASK_QUEUE),
            help="task queue (default: $DURABLE_STRANDS_TASK_QUEUE or %(default)s)",
        )

    worker = add("worker", _worker, "serve the graphs of a registry")
    worker.add_argument("registry", metavar="MODULE:REGISTRY")
    add_queue(worker)
    worker.add_argument(
        "--drain",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="how long running nodes may go on after SIGTERM (default: %(default)s)",
    )
    worker.add_argument("--max-concurrent-activities", type=_positive, metavar="N")
    worker.add_argument(
        "--sink", metavar="MODULE:SINK", help="where token-level events go, a StreamSink"
    )

    start = add("start", _start, "start a run of a graph")
    start.add_argument("graph")
    task = start.add_mutually_exclusive_group(required=True)
    task.add_argument("--task", help="the task's text")
    task.add_argument("--task-file", metavar="FILE", help="a file with it; - for standard input")
    start.add_argument("--state", metavar="JSON", help="invocation state, a JSON object")
    start.add_argument("--id", help="workflow id (default: made from the graph's name)")
    start.add_argument("--session", help="conversation whose agents' memory the run goes on with")
    start.add_argument("--wait", action="store_true", help="wait, and print the report as JSON")
    add_queue(start)

    show = add("show", _show, "show how a run stands")
    show.add_argument("id", metavar="ID")
    show.add_argument("--watch", action="store_true", help="follow it to its end")
    show.add_argument("--json", action="store_true", help="print the report as JSON")

    respond = add("respond", _respond, "answer a run's questions, or list them")
    respond.add_argument("id", metavar="ID")
    respond.add_argument(
        "answers", nargs="?", metavar="ANSWERS", help='JSON: {"<interrupt id>": <response>, ...}'
    )

    retry = add("retry", _retry, "start a new run that goes on from where one failed")
    retry.add_argument("id", metavar="ID")
    retry.add_argument(
        "--from", dest="from_node", metavar="NODE", help="run this node again in any case"
    )

    graphs = add("graphs", _graphs, "list the graphs of a registry, or draw one with Mermaid")
    graphs.add_argument("registry", metavar="MODULE:REGISTRY")
    graphs.add_argument("name", nargs="?", metavar="GRAPH")

    demo = add("demo", _demo, "run an example on a server of its own, and kill its worker")
    add_demo_arguments(demo)
    return parser


if __name__ == "__main__":
    sys.exit(main())
