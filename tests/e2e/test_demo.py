"""`warmroute demo`: what it writes, and that nothing of it stays behind."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.proc import children
from support.wait import until

PATIENCE = 240
"""Seconds; only matters in failure."""
COMMAND = [str(Path(sys.executable).with_name("warmroute")), "demo"]


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def started(*command: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Where the test fails, its workers do not stay and slow down all that come after it."""
    process = subprocess.Popen(command, text=True, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=PATIENCE)


_SMALL = """
from warmroute_loadtest import demo, play
play.PROMPTS, play.CONVERSATIONS_PER_PROMPT, play.TURNS, play.ANSWER_TOKENS = 2, 1, 2, 4
raise SystemExit(demo.main())
"""
SMALL = [sys.executable, "-u", "-c", _SMALL]
"""Two houses with one chat of two turns each: all of it fits, so cache aware computes every token once."""


def test_a_small_one_prints_its_table_writes_its_figures_and_stays(tmp_path: Path) -> None:
    flags = ("--keep", "--json", str(tmp_path / "figures.json"))
    with started(*SMALL, *flags, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        output = ""
        while not (line := process.stdout.readline()).startswith("curl "):
            assert line, "it has ended"
            output += line
        assert "cache_aware" in output
        assert re.search(r"Working set: [\d,]+ tokens", output)
        assert "The pools do not fit it as they should" in output, "so small a working set fits one worker"
        assert_good_figures(json.loads((tmp_path / "figures.json").read_text()))

        url = next(word for word in line.split() if word.startswith("http://"))
        body = line[line.index("-d '") + 4 : line.rindex("'")]
        reply = httpx.post(url, content=body, timeout=PATIENCE)
        assert "Paris" in reply.json()["choices"][0]["message"]["content"]
        started_by_it = children(process.pid)
        assert len(started_by_it) == 3  # two workers and the router
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert not any(running(child) for child in started_by_it)


def assert_good_figures(figures: dict[str, dict[str, float]]) -> None:
    assert set(figures) == {"round_robin", "cache_aware"}
    for policy in figures.values():
        assert set(policy) == {"hit_rate", "ttft_mean", "ttft_p95", "requests"}
        assert policy["requests"] == 4
        assert 0 < policy["ttft_mean"] <= policy["ttft_p95"]
    # The second turn of each chat finds the whole first one.
    assert figures["cache_aware"]["hit_rate"] > 0.45
    assert figures["cache_aware"]["hit_rate"] >= figures["round_robin"]["hit_rate"]


@pytest.mark.parametrize(
    ("number", "count"),
    [(signal.SIGINT, 2), (signal.SIGTERM, 3)],
    ids=["SIGINT while the workers load", "SIGTERM while the router starts"],
)
def test_all_its_processes_end_with_it(number: signal.Signals, count: int) -> None:
    with started(*SMALL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        until(lambda: len(children(process.pid)) == count, PATIENCE)
        started_by_it = children(process.pid)
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert not any(running(child) for child in started_by_it)


def test_a_file_that_cannot_be_written_is_told_before_the_work() -> None:
    command = [*COMMAND, "--json", "/no/such/folder/figures.json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith("warmroute demo: ")
