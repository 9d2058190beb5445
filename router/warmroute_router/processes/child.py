"""One of several router processes, as their parent sees it: started, told what to do, asked for metrics, ended."""

import asyncio
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from enum import Enum
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import NamedTuple

from prometheus_client import Metric

from ..config import RouterConfig
from ..serving.listeners import Numbers
from ..start import CannotStart


class Order(Enum):
    STOP = "stop"
    """In order: what SIGTERM is to a single process."""
    END = "end"
    """At once."""
    REPORT = "report"
    """Send the metrics."""


class Assignment(NamedTuple):
    """What a process has to know at its start. It may hold secrets, so it goes to it by its connection alone."""

    number: int
    config: RouterConfig
    listeners: Numbers
    folder: Path
    """Where the processes have what they share, and nothing else is."""

    @property
    def counts_path(self) -> Path:
        return self.folder / "counts"

    @property
    def changes_path(self) -> Path:
        return self.folder / "changes.json"


class Child:
    def __init__(self, process: asyncio.subprocess.Process, connection: Connection) -> None:
        self.connection = connection
        self._process = process
        self._sending = threading.Lock()
        self._asked = False

    @classmethod
    async def start(cls, assignment: Assignment) -> "Child":
        """Raises OSError."""
        public, admin, gossip = assignment.listeners
        with ExitStack() as undo:
            ours, theirs = Pipe()
            undo.enter_context(ours)
            with theirs:
                inherited = [number for number in (*public, admin, gossip, theirs.fileno()) if number is not None]
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", "warmroute_router.processes.supervised", str(theirs.fileno())),
                    stdin=subprocess.DEVNULL,
                    pass_fds=inherited,
                    process_group=0,  # Ctrl-C is for the parent
                )
            undo.pop_all()
        child = cls(process, ours)
        child._send(assignment)
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    async def started(self) -> int | None:
        """Wait until it serves; gives the number of its workers. None where it has ended instead.

        Raises CannotStart where it says why.
        """
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self.connection.fileno(), readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self.connection.fileno())
        try:
            answer: int | str = self.connection.recv()
        except (EOFError, OSError):
            return None
        if isinstance(answer, str):
            raise CannotStart(answer)
        return answer

    async def ended(self) -> int:
        """Wait for that; gives the exit code, or the negative number of a signal."""
        return await self._process.wait()

    def order(self, order: Order) -> None:
        self._send(order)

    def ask(self) -> None:
        """For a report, unless one is on its way."""
        if not self._asked:
            self._asked = True
            self._send(Order.REPORT)

    def report(self) -> list[Metric] | None:
        """Once the connection has it. None where the process has ended."""
        try:
            metrics: list[Metric] = self.connection.recv()
        except (EOFError, OSError):
            return None
        self._asked = False
        return metrics

    def close(self) -> None:
        """Of one that has ended."""
        self.connection.close()

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    def _send(self, message: object) -> None:
        """To one that has ended it is nothing."""
        with self._sending, suppress(OSError):
            self.connection.send(message)
