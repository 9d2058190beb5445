"""How `--dp-size N` ends, and with what: workers that stand in for vLLM, and the real router."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.proc import alive, children
from support.vllm_program import GRACEFUL
from support.vllm_worker import Vllm, vllm_on_path
from support.wait import PATIENCE, until

FLAGS = ("--dp-size", "2", "--router-prometheus-port", "0", "--log-level", "warning")


@pytest.fixture
def vllm(tmp_path: Path) -> Iterator[Vllm]:
    with vllm_on_path(tmp_path) as fake:
        yield fake


def started_of(process: "subprocess.Popen[str]") -> dict[int, str]:
    """The command's own children, with how they were called."""
    return {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in children(process.pid)}


def one(commands: dict[int, str], module: str) -> int:
    return next(pid for pid, command in commands.items() if module in command)


def ended(vllm: Vllm, process: "subprocess.Popen[str]", commands: dict[int, str]) -> tuple[int, str]:
    """Exit code, and the last line on stderr. Nothing may be left behind."""
    out, err = process.communicate(timeout=PATIENCE)
    assert out == ""
    assert not any(alive(pid) for pid in commands)
    vllm.nothing_is_left()
    return process.returncode, err.splitlines()[-1] if err else ""


def test_several_vllms(vllm: Vllm) -> None:
    process, line = vllm.announced(*FLAGS, "--context-length", "9", "--seed", "-1", CUDA_VISIBLE_DEVICES="3,1")
    assert re.match(r"warmroute worker: m on http://127\.0\.0\.1:\d+, policy cache_aware, 2 workers; ", line)
    notes = vllm.all_notes()
    assert sorted(each["gpus"] for each in notes) == ["1", "3"]
    for each in notes:
        flags = each["arguments"][4:-1]
        given = "--max-model-len 9 --uvicorn-log-level warning --seed -1 --host 127.0.0.1 --port"
        assert flags == given.split()
    url = line.split()[4].rstrip(",")
    ports = {each["arguments"][-1] for each in notes}
    workers = httpx.get(f"{url}/workers").json()["workers"]
    assert {worker["url"].rpartition(":")[2] for worker in workers} == ports
    commands = started_of(process)
    process.send_signal(signal.SIGTERM)
    assert ended(vllm, process, commands)[0] == 0
    assert [each["signals"] for each in vllm.all_notes()] == [[signal.SIGTERM]] * 2


@pytest.mark.parametrize("who", ["warmroute_worker", "warmroute_router"])
def test_when_one_is_killed_all_end(vllm: Vllm, who: str) -> None:
    process, _ = vllm.announced(*FLAGS)
    commands = started_of(process)
    pid = one(commands, who)
    os.kill(pid, signal.SIGKILL)
    code, last = ended(vllm, process, commands)
    name = r"worker \d" if who == "warmroute_worker" else "the router"
    assert code == 1
    assert re.fullmatch(rf"warmroute worker: {name} \(pid {pid}\) was killed by SIGKILL: all end", last)


def test_when_vllm_ends_all_end(vllm: Vllm) -> None:
    process, _ = vllm.announced(*FLAGS)
    commands = started_of(process)
    os.kill(vllm.all_notes()[0]["pid"], signal.SIGTERM)
    code, last = ended(vllm, process, commands)
    assert code == 1
    assert last.endswith(f" ended with exit code {GRACEFUL}: all end")


def test_a_worker_that_ends_while_others_load_ends_all(vllm: Vllm) -> None:
    process = vllm.start(*FLAGS, VLLM_LOADS="600")
    until(lambda: len(vllm.all_notes()) == 2)
    commands = started_of(process)
    os.kill(vllm.all_notes()[1]["pid"], signal.SIGTERM)
    code, last = ended(vllm, process, commands)
    assert code == GRACEFUL
    assert last.endswith(f" ended with exit code {GRACEFUL}: all end")


def test_a_signal_while_they_load(vllm: Vllm) -> None:
    process = vllm.start(*FLAGS, VLLM_LOADS="600")
    until(lambda: len(vllm.all_notes()) == 2)
    commands = started_of(process)
    process.send_signal(signal.SIGINT)
    assert ended(vllm, process, commands)[0] == 0


def test_a_second_signal_ends_all_at_once(vllm: Vllm) -> None:
    """Whatever vLLM makes of signals."""
    process, _ = vllm.announced(*FLAGS, VLLM_IGNORES="99")
    commands = started_of(process)
    process.send_signal(signal.SIGTERM)
    until(lambda: [each["signals"] for each in vllm.all_notes()] == [[signal.SIGTERM]] * 2)
    process.send_signal(signal.SIGTERM)
    assert ended(vllm, process, commands)[0] == 0
    assert [each["signals"] for each in vllm.all_notes()] == [[signal.SIGTERM]] * 2


def test_nothing_outlives_the_command(vllm: Vllm) -> None:
    process, line = vllm.announced(*FLAGS, "--router-processes", "2")
    assert ", 2 workers" in line
    commands = started_of(process)
    process.kill()
    until(lambda: not any(alive(pid) for pid in commands))
    vllm.nothing_is_left()


def test_a_flag_that_the_router_does_not_know(vllm: Vllm) -> None:
    """Is told before a model is loaded."""
    process = vllm.start(*FLAGS, "--router-nonsense")
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (2, "")
    assert err == "warmroute serve: unrecognized arguments: --nonsense\n"
    assert not vllm.all_notes()
