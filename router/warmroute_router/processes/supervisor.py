"""`--processes N`: a parent that binds the ports, keeps N router processes running behind them, and sums metrics.

The processes are replicas that gossip with each other. All listeners stay open here, so that connections that wait
for a process which died are taken by its successor. The parent itself touches no request.
"""

import asyncio
import logging
import secrets
import signal
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from prometheus_client import CollectorRegistry

from ..admission.shared_counts import SharedCounts
from ..cli import announce
from ..config import Address, GossipConfig, RouterConfig
from ..serving.listeners import Listeners
from ..serving.metrics_server import metrics_served
from ..serving.signals import obeying_signals
from ..start import CannotStart, announcement, starting
from .child import Assignment, Child, Order
from .reports import Reports

logger = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds before a process that has died soon is started again; they double each time."""
SOON = 5.0
"""Seconds after its start."""
PATIENCE = 5.0
"""Seconds beyond their time after which processes that should have ended are killed."""

_LOCAL = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class ChildFailed(Exception):  # noqa: N818
    """A process has ended instead of starting."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def supervise(config: RouterConfig, listeners: Sequence[Listeners]) -> int:
    """Until the router is stopped; gives the exit code. Raises CannotStart."""
    assert config.gossip is None or config.gossip.dns is None, "flags see to that"
    reports = Reports()
    registry = CollectorRegistry()
    registry.register(reports)
    with ExitStack() as stack:
        with starting():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warmroute-")))
            assigned = assignments(config, listeners, folder)
            counts = SharedCounts.create(assigned[0].counts_path, config.processes)
            stack.callback(counts.close)
            metrics_url = stack.enter_context(
                metrics_served(config.prometheus_host, config.prometheus_port, registry)
            )

        def started(workers: int) -> None:
            announce(announcement(config, listeners, workers, metrics_url))

        supervisor = Supervisor(assigned, listeners, counts, reports, started)
        return asyncio.run(supervisor.run(config.shutdown_delay + config.shutdown_grace))


def assignments(config: RouterConfig, listeners: Sequence[Listeners], folder: Path) -> list[Assignment]:
    """All processes do the same, but only one can have the state file."""
    return [
        Assignment(
            number=number,
            config=replace(
                config,
                state_file=config.state_file if number == 0 else None,
                gossip=gossip,
            ),
            listeners=own.numbers,
            folder=folder,
        )
        for number, (own, gossip) in enumerate(zip(listeners, _gossip(config, listeners), strict=True))
    ]


def _gossip(config: RouterConfig, listeners: Sequence[Listeners]) -> list[GossipConfig]:
    """Each has the others for peers, and whoever the router has for peers elsewhere."""
    key = config.gossip.key if config.gossip is not None else secrets.token_hex(32)
    elsewhere = config.gossip.peers if config.gossip is not None else ()
    here = [_address(each) for each in listeners]
    return [
        GossipConfig(
            host=own[0],
            port=own[1],
            peers=tuple(dict.fromkeys(peer for peer in (*here, *elsewhere) if peer != own)),
            dns=None,
            key=key,
        )
        for own in here
    ]


def _address(listeners: Listeners) -> Address:
    assert listeners.gossip is not None, "processes have replicas"
    host, port = listeners.gossip.getsockname()[:2]
    return _LOCAL.get(host, host), port


class Supervisor:
    def __init__(
        self,
        assignments: Sequence[Assignment],
        listeners: Sequence[Listeners],
        counts: SharedCounts,
        reports: Reports,
        announce: Callable[[int], None],
    ) -> None:
        """announce: called once all processes serve, with the number of workers."""
        self._assignments = assignments
        self._listeners = listeners
        self._counts = counts
        self._reports = reports
        self._announce = announce
        self._children: dict[int, Child] = {}
        self._served: set[int] = set()
        """Processes that have started well at least once."""
        self._stopping = asyncio.Event()
        self._time_to_stop = 0.0

    async def run(self, time_to_stop: float) -> int:
        """time_to_stop: seconds that the processes may take for it."""
        self._time_to_stop = time_to_stop
        with obeying_signals(self._stop):
            keeping = [asyncio.create_task(self._keep(assignment)) for assignment in self._assignments]
            try:
                await asyncio.gather(*keeping)
            except ChildFailed as failure:
                return failure.code
            finally:  # where one could not start, the others shall not either
                self._stopping.set()
                for child in self._children.values():
                    child.kill()
                await asyncio.gather(*keeping, return_exceptions=True)
        return 0

    async def _keep(self, assignment: Assignment) -> None:
        """Keep one process running until the router stops."""
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            began = loop.time()
            try:
                end = await self._run_one(assignment)
            except (OSError, CannotStart) as error:
                if assignment.number not in self._served:
                    raise CannotStart(str(error)) from error
                end = f"cannot start: {error}"
            if self._stopping.is_set():
                return
            logger.warning("process %d %s; starting another", assignment.number, end)
            if loop.time() - began > SOON:
                pause = FIRST_PAUSE
            else:
                await self._unless_stopping(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _run_one(self, assignment: Assignment) -> str:
        """Until it ends; says how. Raises CannotStart, and OSError where the system does not start processes."""
        number = assignment.number
        child = self._children[number] = await Child.start(assignment)
        try:
            if self._stopping.is_set():  # while it was being started
                child.order(Order.STOP)
            workers = await child.started()
            if workers is not None:
                await self._has_started(number, child, workers)
            code = await child.ended()
        finally:
            await self._clean_up(number, child)
        if code > 0 and number not in self._served:
            raise ChildFailed(code)
        return f"(pid {child.pid}) {_end(code)}"

    async def _has_started(self, number: int, child: Child, workers: int) -> None:
        await asyncio.to_thread(self._reports.add, number, child)  # which may wait for a scrape
        if number not in self._served:
            self._served.add(number)
            if len(self._served) == len(self._assignments):
                self._announce(workers)

    async def _clean_up(self, number: int, child: Child) -> None:
        child.kill()  # it may have said that it cannot start, and not have ended yet
        await child.ended()
        del self._children[number]
        await asyncio.to_thread(self._reports.remove, number)
        child.close()
        self._counts.reset(number)

    def _stop(self) -> None:
        """Passes it on. Who has been told twice ends at once."""
        again = self._stopping.is_set()
        self._stopping.set()
        for listeners in self._listeners:
            for listener in listeners.all:  # or connections would wait here for processes that do not come back
                listener.close()
        for child in self._children.values():
            child.order(Order.END if again else Order.STOP)
        loop = asyncio.get_running_loop()
        loop.call_later(PATIENCE + (0.0 if again else self._time_to_stop), self._kill)

    def _kill(self) -> None:
        for number, child in self._children.items():
            logger.warning("process %d (pid %d) did not end in time: it is killed", number, child.pid)
            child.kill()

    async def _unless_stopping(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass


def _end(code: int) -> str:
    return f"ended with exit code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
