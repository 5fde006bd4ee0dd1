"""A worker as a process of its own: configuration, connection, and an orderly end."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import sys
from datetime import timedelta
from typing import Any

from temporalio.client import Client
from temporalio.envconfig import ClientConfig
from temporalio.worker import Worker

from ..activities.registry import GraphRegistry
from ..errors import DurableStrandsError
from ..sinks import StreamSink
from .plugin import GraphPlugin

logger = logging.getLogger(__name__)

DEFAULT_ADDRESS = "localhost:7233"

STICKY_TIMEOUT = timedelta(seconds=3)
"""How long a run's next step waits for the worker that has the run in its cache.

Half of what a lost worker costs its runs is this wait; the SDK's default is 10 seconds. A worker
that is alive but busy for so long loses only its cache's help for one step.
"""


class ConfigurationError(DurableStrandsError):
    """A command's settings are wrong; the message says which, and what to do."""


def load_registry(target: str) -> GraphRegistry:
    """Import the registry that `MODULE:NAME` names, from the working directory or installed.

    Raises:
        ConfigurationError: There is no such module or name, or it is no registry.
        InvalidGraphError: A graph in it is wrong.
    """
    found = _load(target, "registry")
    if not isinstance(found, GraphRegistry):
        raise ConfigurationError(
            f"{target} is {_what(found)}; it must be a durable_strands.GraphRegistry."
        )
    return found


def load_sink(target: str) -> StreamSink:
    """Import the stream sink that `MODULE:NAME` names; see `load_registry`.

    Raises:
        ConfigurationError: There is no such module or name, or it is no sink.
    """
    found = _load(target, "sink")
    if not isinstance(found, StreamSink):
        raise ConfigurationError(f"{target} is {_what(found)}; it must be a StreamSink.")
    return found


def _load(target: str, what: str) -> Any:
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise ConfigurationError(
            f"{target!r} doesn't name a {what}. Write MODULE:NAME, for example "
            f"mypackage.graphs:{what}."
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # The module is there; something that it imports is not.
        raise ConfigurationError(
            f"There is no module {module_name!r}. Run the command where the module can be "
            "imported from, or install its package."
        ) from error
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _what(found: object) -> str:
    return "missing" if found is None else f"a {type(found).__name__}"


async def connect(*plugins: GraphPlugin) -> Client:
    """Connect as Temporal's standard environment says.

    The variables (`TEMPORAL_ADDRESS`, `TEMPORAL_NAMESPACE`, `TEMPORAL_API_KEY`,
    `TEMPORAL_TLS_...`, `TEMPORAL_PROFILE`) and the configuration file are those of the
    `temporal` command; see `temporalio.envconfig`.

    Raises:
        ConfigurationError: They are wrong, or nothing answers at that address.
    """
    try:
        settings: dict[str, Any] = {**ClientConfig.load_client_connect_config()}
    except Exception as error:
        raise ConfigurationError(f"Temporal's configuration is wrong: {error}") from error
    settings.setdefault("target_host", DEFAULT_ADDRESS)
    try:
        return await Client.connect(**settings, plugins=list(plugins))
    except RuntimeError as error:
        raise ConfigurationError(
            f"No Temporal server answers at {settings['target_host']}: {error}. Set "
            "TEMPORAL_ADDRESS, or start one with `temporal server start-dev`."
        ) from error


async def serve(
    registry: GraphRegistry,
    task_queue: str,
    *,
    drain: timedelta = timedelta(seconds=30),
    max_concurrent_activities: int | None = None,
    sink: StreamSink | None = None,
) -> None:
    """Serve a registry's graphs until the process is told to stop.

    On SIGTERM or SIGINT the worker takes no more work and lets running nodes end. Those that
    take longer than `drain` are cancelled and go to another worker.

    Args:
        registry: The graphs.
        task_queue: Where to take work from.
        drain: How long running nodes may go on after the signal.
        max_concurrent_activities: Most nodes at once in this process; None for the SDK's 100.
        sink: Where the nodes' token-level events go.
    """
    if not registry.names:
        raise ConfigurationError("The registry has no graphs. Register one before serving it.")
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    client = await connect(GraphPlugin(registry, sink=sink))
    worker = Worker(
        client,
        task_queue=task_queue,
        graceful_shutdown_timeout=drain,
        max_concurrent_activities=max_concurrent_activities,
        sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
    )
    running = asyncio.create_task(worker.run())
    stopping = asyncio.create_task(stop.wait())
    logger.info(
        "graphs=<%s>, task_queue=<%s>, namespace=<%s> | worker started",
        ", ".join(registry.names),
        task_queue,
        client.namespace,
    )
    await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not running.done():
        logger.info("drain=<%s> | worker stops", drain)
        await worker.shutdown()
    await running
