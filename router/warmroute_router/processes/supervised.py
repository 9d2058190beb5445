"""One of several router processes: `python -m warmroute_router.processes.supervised FD`, started by `child.Child`.

It does what its parent says, over a connection that the two alone have: signals are for the parent. When the
connection ends, the parent has been killed, and this process follows it.
"""

import asyncio
import os
import shutil
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import uvloop

from ..admission.shared_counts import SharedCounts
from ..serve import Process, set_up_logging
from ..serving.allocator import keep_freed_memory
from ..serving.listeners import Listeners
from ..serving.signals import ignore_signals
from ..start import CannotStart, starting
from .child import Assignment, Order

LAST_MOMENT = 5.0
"""Seconds that a process without a parent may take to end by itself."""


def main() -> int:
    ignore_signals()
    keep_freed_memory()
    parent = Connection(int(sys.argv[1]))
    try:
        assignment: Assignment = parent.recv()
    except EOFError:
        return 0
    set_up_logging(assignment.config.log_level, f"[process {assignment.number}] ")
    try:
        with starting():
            process = _build(assignment)
    except CannotStart as error:
        _tell(parent, str(error))
        return 1
    return 0 if uvloop.run(_serve(process, parent, assignment.folder)) else 1


def _build(assignment: Assignment) -> Process:
    listeners = Listeners.of(assignment.listeners)
    shared = SharedCounts(assignment.counts_path, assignment.number)
    return Process(assignment.config, listeners, shared=shared, changes_path=assignment.changes_path)


async def _serve(process: Process, parent: Connection, folder: Path) -> bool:
    arguments = (parent, process, folder, asyncio.get_running_loop())
    threading.Thread(target=_obey, args=arguments, daemon=True).start()
    return await process.lifecycle.run(lambda: _tell(parent, process.workers))


def _tell(parent: Connection, message: object) -> None:
    """To one that has been killed it is nothing: `_obey` sees that."""
    with suppress(OSError):
        parent.send(message)


def _obey(parent: Connection, process: Process, folder: Path, loop: asyncio.AbstractEventLoop) -> None:
    """Runs in a thread of its own, so that a scrape keeps no request waiting for long."""
    try:
        while True:
            order: Order = parent.recv()
            if order is Order.REPORT:
                parent.send(list(process.registry.collect()))
            else:
                _end(process, loop, at_once=order is Order.END)
    except (EOFError, OSError):
        shutil.rmtree(folder, ignore_errors=True)  # as the parent would have done
        _end(process, loop, at_once=True)
        time.sleep(LAST_MOMENT)
        os._exit(1)


def _end(process: Process, loop: asyncio.AbstractEventLoop, *, at_once: bool) -> None:
    lifecycle = process.lifecycle
    with suppress(RuntimeError):  # where the loop has ended already
        loop.call_soon_threadsafe(lifecycle.end if at_once else lifecycle.stop)


if __name__ == "__main__":
    sys.exit(main())
