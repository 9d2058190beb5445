"""What `--dp-size N` starts its children with, and how it says that it cannot."""

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from warmroute_worker.data_parallel import _environments, _front, _split
from warmroute_worker.errors import WorkerError
from warmroute_worker.modes import Mode, read_mode

COMMAND = [sys.executable, "-m", "warmroute_worker"]
TWO = Mode("warmroute", 2, "cache_aware")
PATIENCE = 60.0


def run(*flags: str, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    done = subprocess.run(
        [*COMMAND, *flags],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        env=os.environ | (environment or {}),
    )
    return done.returncode, done.stdout, done.stderr


def test_the_mode_is_taken_from_among_other_flags() -> None:
    assert read_mode(["--model", "m", "-q"]) == (Mode("warmroute", 1, "cache_aware"), ["--model", "m", "-q"])
    flags = "--model m --dp-size 3 --load-balance-method round_robin --engine vllm --seed -1"
    assert read_mode(flags.split()) == (Mode("vllm", 3, "round_robin"), ["--model", "m", "--seed", "-1"])


def test_one_port_is_the_routers() -> None:
    assert _front(["--model", "m", "--host", "::", "--port=9", "--x"]) == (("::", 9, None), ["--model", "m", "--x"])
    assert _front(["--log-level", "error"]) == (("127.0.0.1", 30001, "error"), [])


def test_flags_for_the_router() -> None:
    flags = "--model m --router-peers a:1 b:2 --page-size 1 --router-queue-size=9 --router-max-concurrent-requests -1"
    assert _split(flags.split()) == (
        ["--model", "m", "--page-size", "1"],
        ["--peers", "a:1", "b:2", "--queue-size=9", "--max-concurrent-requests", "-1"],
    )


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 4 of them, as nvidia-smi tells."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf '0\\n1\\n2\\n3\\n'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def gpus_of(mode: Mode, device: str = "auto") -> list[str | None]:
    return [environment.get("CUDA_VISIBLE_DEVICES") for environment in _environments(mode, device)]


@pytest.mark.usefixtures("gpus")
def test_each_worker_has_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpus_of(TWO) == [
        "0,1",
        "2,3",
    ]  # an engine that does not split its model takes its first
    assert gpus_of(TWO._replace(dp_size=4, engine="vllm")) == ["0", "1", "2", "3"]
    assert gpus_of(TWO, device="cpu") == [None, None]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b,GPU-a")
    assert gpus_of(TWO) == ["GPU-b", "GPU-a"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus_of(TWO) == [None, None]


@pytest.mark.usefixtures("gpus")
def test_too_few_gpus() -> None:
    with pytest.raises(WorkerError, match="5 needs a GPU for each worker: there are 4"):
        _environments(TWO._replace(dp_size=5), "auto")


def test_without_gpus_each_worker_has_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert _environments(TWO, "auto") == [{"OMP_NUM_THREADS": "4"}] * 2
    assert _environments(TWO._replace(dp_size=99), "auto") == [{"OMP_NUM_THREADS": "1"}] * 99
    assert _environments(TWO._replace(engine="vllm"), "auto") == [{}] * 2
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert _environments(TWO, "auto") == [{}] * 2


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--dp-size 0", "--dp-size"),
        ("--dp-size two", "--dp-size"),
        ("--dp-size 2 --load-balance-method random", "--load-balance-method"),
        ("--engine sglang", "--engine"),
        ("--dp-size 2 --page-size 0", "--page-size"),
        ("--dp-size 2 --port x", "--port"),
        ("--dp-size 2 --nonsense", "--nonsense"),
        ("--dp-size 2 --engine vllm --threads 1", "--threads"),
    ],
)
def test_a_wrong_flag_is_told_once(flags: str, says: str) -> None:
    code, out, err = run("--model", "m", *flags.split())
    assert (code, out, len(err.splitlines())) == (2, "", 1), err
    assert err.startswith("warmroute worker: ")
    assert says in err


def test_without_the_router_one_line_says_what_to_install() -> None:
    code = (
        "import importlib.util as u, sys; find = u.find_spec;"
        "u.find_spec = lambda name, *a: None if name == 'warmroute_router' else find(name, *a);"
        "from warmroute_worker.cli import main; sys.exit(main(['--model', 'm', '--dp-size', '2']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "warmroute worker: --dp-size needs the router: pip install warmroute\n"


def test_nothing_of_the_router_is_imported() -> None:
    code = (
        "import sys, warmroute_worker.data_parallel, warmroute_worker.cli;"
        "print([name for name in sys.modules if name.startswith(('warmroute_router', 'torch'))])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_workers_that_cannot_start_end_all(tmp_path: Path) -> None:
    code, out, err = run("--model", str(tmp_path), "--dp-size", "2", "--port", "0", "--router-prometheus-port", "0")
    assert (code, out) == (1, "")
    assert "config.json" in err
    assert err.splitlines()[-1].endswith("ended with exit code 1: all end")


def test_a_taken_port(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, out, err = run("--model", str(tmp_path), "--dp-size", "2", "--port", port)
    assert (code, out) == (1, "")
    assert err == f"warmroute worker: cannot listen on 127.0.0.1:{port}: Address already in use\n"
