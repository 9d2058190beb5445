"""Counts and a token bucket in one file, between real processes."""

import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from warmroute_router.admission.shared_counts import SharedCounts, draw_token

CHILD = """
import sys
from pathlib import Path
from warmroute_router.admission.shared_counts import SharedCounts

counts = SharedCounts(Path(sys.argv[1]), int(sys.argv[2]))
print("ready", flush=True)
for line in sys.stdin:
    {answer}
    print(result, flush=True)
counts.close()
"""
SET = "result = counts.set(*map(int, line.split()))"
TAKE = "result = sum(counts.take_token(1.0, 5000.0, 7.0) == 0.0 for _ in range(int(line)))"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "counts"


@pytest.fixture
def parent(path: Path) -> Iterator[SharedCounts]:
    counts = SharedCounts.create(path, 3)
    yield counts
    counts.close()


def child(path: Path, slot: int, answer: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD.format(answer=answer), str(path), str(slot)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert read(process) == "ready"
    return process


def write(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def read(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_the_file_is_for_its_owner_alone_and_never_one_that_was_there(path: Path, parent: SharedCounts) -> None:
    assert path.stat().st_mode & 0o777 == 0o600
    assert (parent.processes, parent.total()) == (3, 0)
    with pytest.raises(FileExistsError):
        SharedCounts.create(path, 3)


def test_each_process_counts_for_itself_and_sees_the_sum_of_all(path: Path, parent: SharedCounts) -> None:
    own = SharedCounts(path, 2)
    own.set(5, 0)
    with child(path, 0, SET) as first, child(path, 1, SET) as second:
        write(first, "40 0")
        write(second, "300 0")
        assert (read(first), read(second)) == ("None", "None")
        assert own.total() == parent.total() == 345
        write(first, "39 0")
        assert read(first) == "None"
        assert own.total() == 344
        second.kill()
        second.wait()
        assert own.total() == 344, "its requests count until somebody says that it is gone"
        parent.reset(1)
        assert own.total() == 44
        first.communicate()
    own.close()


def test_two_processes_that_hurry_take_no_token_twice(path: Path, parent: SharedCounts) -> None:
    with child(path, 0, TAKE) as first, child(path, 1, TAKE) as second:
        write(first, "4000")
        write(second, "4000")
        taken = [int(read(first)), int(read(second))]
        for process in (first, second):
            process.communicate()
    assert sum(taken) == 5000
    assert min(taken) >= 1000
    assert parent.take_token(1.0, 5000.0, 7.0) == 1.0
    assert parent.take_token(1.0, 5000.0, 9.0) == 0.0, "time fills it, whoever emptied it"


def test_a_process_dies_without_taking_the_bucket_with_it(path: Path, parent: SharedCounts) -> None:
    with child(path, 0, "import fcntl; result = fcntl.lockf(counts._file, fcntl.LOCK_EX)") as holder:
        write(holder, "")
        assert read(holder) == "None"
        holder.kill()
    assert parent.take_token(1.0, 1.0, 0.0) == 0.0


def test_one_is_behind_that_waits_with_fewer_in_flight(path: Path, parent: SharedCounts) -> None:
    own, other = SharedCounts(path, 0), SharedCounts(path, 1)
    own.set(2, 9)
    for in_flight, waiting, behind in ((1, 0, False), (1, 1, True), (2, 1, False), (3, 5, False), (0, 1, True)):
        other.set(in_flight, waiting)
        assert own.others_are_behind() is behind
    own.close()
    other.close()


def test_a_bucket_is_full_at_first_and_holds_no_more_than_a_burst() -> None:
    level, time, wait = draw_token(0.0, -math.inf, 2.0, 2.0, 100.0)
    assert (level, time, wait) == (1.0, 100.0, 0.0)
    level, time, wait = draw_token(level, time, 2.0, 2.0, 100.0)
    assert (level, wait) == (0.0, 0.0)
    level, time, wait = draw_token(level, time, 2.0, 2.0, 100.25)
    assert (level, wait) == (0.5, 0.25)
    level, time, wait = draw_token(level, time, 2.0, 2.0, 100.0)
    assert (level, time, wait) == (0.5, 100.25, 0.25), "a clock read before another's does not turn it back"
    assert draw_token(level, time, 2.0, 2.0, 1000.0).level == 1.0
