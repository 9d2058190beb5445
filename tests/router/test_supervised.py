"""One of several router processes, at its very end."""

import asyncio
import os
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from warmroute_router.processes import supervised
from warmroute_router.processes.child import Order


def test_an_order_that_comes_after_the_end_of_the_loop_is_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(supervised, "LAST_MOMENT", 0)
    loop = asyncio.new_event_loop()
    loop.close()
    lifecycle = SimpleNamespace(stop=lambda: None, end=lambda: None)
    process: Any = SimpleNamespace(lifecycle=lifecycle)
    theirs, ours = Pipe()
    for order in (Order.STOP, Order.END):
        theirs.send(order)
    theirs.close()
    with ours, pytest.raises(SystemExit):  # and no RuntimeError
        supervised._obey(ours, process, tmp_path / "shared", loop)
