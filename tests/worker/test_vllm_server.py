"""`warmroute worker --engine vllm`, in front of a program that stands in for vLLM."""

import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support import vllm_program
from support.proc import alive
from support.vllm_program import GRACEFUL
from support.vllm_worker import COMMAND, Vllm, vllm_on_path
from support.wait import PATIENCE, until
from warmroute_worker.vllm import server
from warmroute_worker.vllm.flags import parse


@pytest.fixture
def vllm(tmp_path: Path) -> Iterator[Vllm]:
    with vllm_on_path(tmp_path) as fake:
        yield fake


def test_what_a_router_needs_is_on_and_other_flags_go_through(vllm: Vllm) -> None:
    json_flag = ["--kv-events-config", '{"endpoint": "tcp://*:5557", "topic": ""}']
    process = vllm.start("--context-length", "9", "--log-level", "debug", *json_flag, VLLM_FAILS="0")
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    *noted, port = vllm.notes()["arguments"]
    on = ["--enable-prefix-caching", "--enable-prompt-tokens-details"]
    ours = ["--max-model-len", "9", "--uvicorn-log-level", "debug"]
    assert noted == ["serve", "m", *on, *ours, *json_flag, "--host", "127.0.0.1", "--port"]
    assert int(port) > 0
    assert vllm.notes()["log_level"] == "DEBUG"


@pytest.mark.parametrize(
    ("flags", "theirs"),
    [
        ("--served-model-name a b", "--served-model-name a b"),
        ("--max-running-requests 8", "--max-num-seqs 8"),
        ("--context-length 2048", "--max-model-len 2048"),
        ("--mem-fraction-static=0.8", "--gpu-memory-utilization 0.8"),
        ("--page-size 16", "--block-size 16"),
        ("--chunked-prefill-size 512", "--max-num-batched-tokens 512"),
        ("--kv-cache-dtype bf16", "--kv-cache-dtype bfloat16"),
        ("--kv-cache-dtype fp8_e4m3", "--kv-cache-dtype fp8_e4m3"),
        ("--dtype fp32", "--dtype float32"),
        ("--dtype half", "--dtype half"),
        ("--attention-backend CUSTOM", "--attention-backend CUSTOM"),
        ("--attention-backend auto", ""),
        ("--device auto", ""),
        ("--disable-cuda-graph", "--compilation-config.cudagraph_mode NONE"),
        ("--log-level warning", "--uvicorn-log-level warning"),
        # Both take underscores, and only before a dot:
        ("--served_model_name a_b --page_size=16", "--served-model-name a_b --block-size 16"),
        ("--max_num_seqs 4 --a_b.c_d=e_f", "--max-num-seqs 4 --a-b.c_d=e_f"),
        # vLLM's own:
        ("--max-num-seqs 4 --seed -1 -tp 2", "--max-num-seqs 4 --seed -1 -tp 2"),
        ("--no-enable-prefix-caching --max-model 9", "--no-enable-prefix-caching --max-model 9"),
    ],
)
def test_flags_in_vllms_words(flags: str, theirs: str) -> None:
    assert list(parse(["--model", "m", *flags.split()]).arguments[3:]) == theirs.split()


def test_every_flag_of_the_other_engine_is_known() -> None:
    """Or vLLM would be given one that it does not know."""
    own, this = (
        set(re.findall(r"^  (--[a-z-]+)", subprocess.check_output([*COMMAND, *engine, "--help"], text=True), re.M))
        for engine in ([], ["--engine", "vllm"])
    )
    assert len(own) > 12
    assert own - this == {"--version", "--engine", "--dp-size", "--load-balance-method"}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--max-total-tokens 4096", "--mem-fraction-static"),
        ("--threads 2", "VLLM_CPU_OMP_THREADS_BIND"),
        ("--enable-deterministic-inference", "VLLM_BATCH_INVARIANT"),
        ("--attention-backend triton", "CUSTOM"),
        ("--attention-backend torch", "'torch'"),
        ("--kv-cache-dtype fp32", "auto"),
        ("--device cuda", "--device"),
        ("--log-level loud", "--log-level"),
        ("--port 65536", "65536"),
        ("--port x", "--port"),
    ],
)
def test_flags_that_cannot_be(capsys: pytest.CaptureFixture[str], flags: str, says: str) -> None:
    with pytest.raises(SystemExit) as end:
        parse(["--model", "m", *flags.split()])
    out, err = capsys.readouterr()
    assert (end.value.code, out, len(err.splitlines())) == (2, "", 1), err
    assert err.startswith("warmroute worker: argument --")
    assert says in err


def test_a_model_is_needed() -> None:
    result = subprocess.run([*COMMAND, "--engine", "vllm"], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr == "warmroute worker: the following arguments are required: --model\n"


def test_without_vllm_one_line_says_what_to_install(vllm: Vllm) -> None:
    process = vllm.start(PATH="/nowhere")
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (1, "")
    assert err == "warmroute worker: --engine vllm needs vLLM: pip install vllm, or put its `vllm` on PATH\n"


@pytest.mark.parametrize(
    ("program", "reason"), [("#!/nowhere/python\n", "No such file or directory"), ("hello\n", "Exec format error")]
)
def test_a_vllm_that_cannot_be_run(vllm: Vllm, tmp_path: Path, program: str, reason: str) -> None:
    path = tmp_path / "bin" / "vllm"
    path.write_text(program)
    process = vllm.start()
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (1, "")
    assert err == f"warmroute worker: cannot run {path}, or what its first line names: {reason}\n"


def test_vllm_of_this_interpreter_where_none_is_on_the_path(vllm: Vllm, tmp_path: Path) -> None:
    package = tmp_path / "site" / "vllm" / "entrypoints" / "cli"
    package.mkdir(parents=True)
    shutil.copy(vllm_program.__file__, package / "main.py")
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    environment = {"PATH": "/nowhere", "PYTHONPATH": str(tmp_path / "site"), "VLLM_FAILS": "5"}
    process = vllm.start(**environment)
    _, err = process.communicate(timeout=PATIENCE)
    assert "needs vLLM" in err  # a mere folder of that name is no package
    (tmp_path / "site" / "vllm" / "__init__.py").touch()
    process = vllm.start(**environment)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 5
    assert vllm.notes()["arguments"][:2] == ["serve", "m"]


def test_it_announces_itself_once_vllm_is_healthy(vllm: Vllm) -> None:
    process, line = vllm.announced("--served-model-name", "toy", VLLM_LOADS="1")
    url = line.split()[-1]
    assert httpx.get(f"{url}/health").status_code == 200  # vLLM's own answer: nothing else is there
    assert httpx.get(f"{url}/v1/models").status_code == 404
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == GRACEFUL
    assert out == ""  # vLLM's log is not among what other programs read
    assert "INFO vLLM's log is on its stdout" in err
    vllm.nothing_is_left()


def test_the_announcement(vllm: Vllm) -> None:
    for flags, name in (((), "m"), (("--served-model-name", "toy"), "toy")):
        _, line = vllm.announced(*flags)
        assert re.fullmatch(rf"warmroute worker: {name} on http://127\.0\.0\.1:\d+\n", line)


def test_a_taken_port(vllm: Vllm) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        process = vllm.start("--port", port)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert err == f"warmroute worker: cannot listen on 127.0.0.1:{port}: Address already in use\n"


def test_nobody_else_is_given_the_port_while_vllm_loads(vllm: Vllm) -> None:
    vllm.start(VLLM_LOADS="600")
    port = int(vllm.notes()["arguments"][-1])
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("loads", ["0", "600"])
def test_signals_are_passed_on(vllm: Vllm, number: signal.Signals, loads: str) -> None:
    process = vllm.start(VLLM_LOADS=loads)
    notes = vllm.notes()
    if loads == "0":
        assert process.stdout is not None
        process.stdout.readline()
    process.send_signal(number)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == GRACEFUL
    assert vllm.notes() == notes | {"signals": [number]}
    vllm.nothing_is_left()


def test_a_second_signal_is_passed_on_as_well(vllm: Vllm) -> None:
    process, _ = vllm.announced(VLLM_IGNORES="1")
    process.send_signal(signal.SIGTERM)
    until(lambda: len(vllm.notes()["signals"]) == 1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert (process.returncode, vllm.notes()["signals"]) == (GRACEFUL, [signal.SIGTERM, signal.SIGINT])


def test_vllms_exit_code_is_ours(vllm: Vllm) -> None:
    process = vllm.start(VLLM_FAILS="3")
    out, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (3, "")


def test_a_signal_that_kills_vllm_is_told_as_shells_do(vllm: Vllm) -> None:
    process, _ = vllm.announced()
    os.kill(vllm.notes()["pid"], signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGKILL
    vllm.nothing_is_left()  # not even its engine


@pytest.mark.parametrize("loads", ["0", "600"])
def test_vllm_does_not_outlive_us(vllm: Vllm, loads: str) -> None:
    process = vllm.start(VLLM_LOADS=loads)
    pid = vllm.notes()["pid"]
    process.kill()
    process.communicate(timeout=PATIENCE)
    until(lambda: not alive(pid))
    assert vllm.notes()["signals"] == [signal.SIGTERM]  # so it could end its engine in order
    vllm.nothing_is_left()


def test_with_a_certificate_it_is_asked_and_announced_by_https(
    vllm: Vllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand, since the program above has no TLS."""
    config = parse(["--model", "m", "--ssl-certfile", "cert.pem", "--ssl-keyfile=key.pem"])
    assert config.tls
    assert parse(["--model", "m", "--ssl_certfile=cert.pem"]).tls
    assert not parse(["--model", "m"]).tls
    seen = []

    class Refused:
        def __init__(self, host: str, port: int, *, timeout: float, context: ssl.SSLContext) -> None:
            seen.append((host, port, context.verify_mode))

        def request(self, method: str, path: str) -> None:
            raise ConnectionRefusedError

        def close(self) -> None:
            pass

    monkeypatch.setattr(server, "HTTPSConnection", Refused)
    assert not server._healthy("127.0.0.1", 9, tls=True)
    assert seen == [("127.0.0.1", 9, ssl.CERT_NONE)]
