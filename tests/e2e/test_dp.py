"""`warmroute worker --dp-size N`: real workers and the real router, started by one command and ended with it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from support.proc import alive, children
from support.toy import save_toy

COMMAND = [sys.executable, "-m", "warmroute_worker", "--dp-size", "2"]
PATIENCE = 60.0


class Started:
    def __init__(self, *flags: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "--router-prometheus-port", "0", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.announcement = self.process.stdout.readline()
        self.url = next(word.rstrip(",") for word in self.announcement.split() if word.startswith("http://"))
        self.workers, self.router = self._children()

    def _children(self) -> tuple[list[int], int]:
        commands = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in children(self.process.pid)}
        workers = sorted(pid for pid, command in commands.items() if "warmroute_worker" in command)
        (router,) = (pid for pid, command in commands.items() if "warmroute_router" in command)
        return workers, router

    def ask(self, text: str) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 2, "temperature": 0}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=PATIENCE).raise_for_status()

    def end(self, number: signal.Signals | None = None) -> tuple[int, str]:
        """Wait for it; its exit code, and what it said on stderr. Nothing may be left behind."""
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=PATIENCE)
        assert out == ""
        assert not any(alive(pid) for pid in (*self.workers, self.router))
        return self.process.returncode, err


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_toy(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def start(toy: Path) -> Iterator[Callable[..., Started]]:
    made: list[Started] = []

    def make(*flags: str) -> Started:
        made.append(Started("--model", str(toy), "--port", "0", "--log-level", "warning", *flags))
        return made[-1]

    yield make
    for each in made:
        each.process.kill()
        each.process.communicate()


def test_chats_through_one_port(start: Callable[..., Started]) -> None:
    started = start("--served-model-name", "toy")
    pattern = (
        r"warmroute worker: toy on http://127\.0\.0\.1:\d+, policy cache_aware, 2 workers; metrics on http://\S+\n"
    )
    assert re.fullmatch(pattern, started.announcement)
    # Texts of which neither begins as the other does: the second goes to the worker that has none yet.
    texts = ["Once upon a time there was a little house. " * 3, "A recipe for bread begins with flour. " * 3]
    first = [started.ask(text) for text in texts]
    again = [started.ask(text) for text in texts]
    where = [reply.headers["x-warmroute-worker"] for reply in first]
    assert len(set(where)) == 2
    assert [reply.headers["x-warmroute-worker"] for reply in again] == where
    for cold, warm in zip(first, again, strict=True):
        assert cold.json()["usage"]["prompt_tokens_details"]["cached_tokens"] < 30  # the template's begin, at most
        usage = warm.json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1  # the last is computed
    listed = httpx.get(f"{started.url}/workers").json()["workers"]
    assert {worker["url"] for worker in listed} == set(where)
    # Ctrl-C reaches the command alone: by itself a worker would break off what the router lets end.
    assert len({os.getpgid(pid) for pid in (started.process.pid, *started.workers, started.router)}) == 4
    assert started.end(signal.SIGINT) == (0, "")


def test_round_robin_and_a_signal_that_lets_answers_end(start: Callable[..., Started]) -> None:
    started = start("--load-balance-method", "round_robin")
    replies = [started.ask("hello") for _ in range(4)]
    assert {reply.headers["x-warmroute-policy"] for reply in replies} == {"round_robin"}
    where = [reply.headers["x-warmroute-worker"] for reply in replies]
    assert where[0] != where[1]
    assert where[:2] == where[2:]
    body = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 150, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{started.url}/v1/chat/completions", json=body, timeout=PATIENCE) as reply:
        pieces = reply.iter_text()
        text = next(pieces)
        started.process.send_signal(signal.SIGTERM)
        text += "".join(pieces)
    assert text.endswith("data: [DONE]\n\n")
    assert '"finish_reason":"length"' in text.replace(" ", "")
    assert started.end() == (0, "")
