"""`warmroute mock-worker` as a command."""

import signal
import socket
import subprocess
import sys

import httpx
import pytest
from warmroute_loadtest.mock_worker.cli import main

COMMAND = [sys.executable, "-m", "warmroute_loadtest.mock_worker"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_it_whatever_it_is_doing(number: signal.Signals, code: int) -> None:
    flags = ("--tpot", "3600", "--model", "mine")
    with subprocess.Popen([*COMMAND, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        streamed = {"prompt": "a", "stream": True}
        with (
            httpx.Client(timeout=60) as client,
            client.stream("POST", f"{url}/v1/completions", json=streamed) as reply,
        ):
            assert reply.status_code == 200
            process.send_signal(number)
            said, complaint = process.communicate(timeout=30)
    assert (process.returncode, said, complaint) == (code, "", "")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--blocks", "-1"], "argument --blocks: expected a whole number from zero on, got '-1'"),
        (["--block-tokens", "0"], "argument --block-tokens: expected a whole number above zero, got '0'"),
        (["--prefill-rate", "nan"], "argument --prefill-rate: expected a number from zero on, got 'nan'"),
        (["--tpot", "inf"], "argument --tpot: expected a number from zero on, got 'inf'"),
        (["--port", "65536"], "argument --port: expected a number from 0 to 65535, got '65536'"),
        (["--fail-rate", "1.1"], "argument --fail-rate: expected a number from 0 to 1, got '1.1'"),
        (["--fail", "200"], "argument --fail: expected a status from 400 to 599, reset, hang or cut, got '200'"),
        (["--fail", "burn"], "argument --fail: expected a status from 400 to 599, reset, hang or cut, got 'burn'"),
        (["--fail", "cut"], "--fail says how, and --fail-rate is missing, which says how often"),
        (["--tpots", "1"], "unrecognized arguments: --tpots 1"),
    ],
)
def test_a_flag_that_cannot_be_is_told_in_a_line(
    flags: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(flags)
    assert capsys.readouterr().err == f"warmroute mock-worker: {told}\n"


def test_a_port_that_is_taken_is_told_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--port", str(port)]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"warmroute mock-worker: cannot listen on 127.0.0.1 port {port}: ")
    assert told.count("\n") == 1
