import os
import signal
import subprocess
import threading
from typing import Any

import httpx
import pytest
from warmroute_loadtest.processes import StartError, processes, url_in


def test_children_end_with_the_block() -> None:
    with processes() as children:
        process = children.spawn("warmroute_loadtest.mock_worker")
        url = url_in(children.announcement(process))
        assert httpx.get(f"{url}/health").status_code == 200
    assert process.returncode is not None


def test_children_end_when_the_block_fails() -> None:
    with pytest.raises(RuntimeError, match="on the way"), processes() as children:  # noqa: PT012
        process = children.spawn("warmroute_loadtest.mock_worker")
        raise RuntimeError("on the way")
    assert process.returncode is not None


def test_a_child_that_does_not_start_is_told() -> None:
    with processes() as children, pytest.raises(StartError, match="exit code 2"):
        children.start("warmroute_router", "--port", "none")


def test_an_interrupt_while_a_child_starts_does_not_lose_it(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []

    class Interrupted(subprocess.Popen[str]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt), processes() as children:
        children.spawn("warmroute_loadtest.mock_worker")
    assert [process.returncode for process in started] == [-signal.SIGTERM]


def test_an_interrupt_while_children_end_ends_them_all_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), processes() as children:  # noqa: PT012
        started = [children.spawn("warmroute_loadtest.mock_worker") for _ in range(2)]
        for process in started:
            children.announcement(process)
            process.send_signal(signal.SIGSTOP)  # does not hear that it should end
        threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
    assert [process.returncode for process in started] == [-signal.SIGKILL] * 2
