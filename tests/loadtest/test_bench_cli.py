"""`warmroute bench` as people call it."""

import asyncio
import json
import signal
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator
from math import inf
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.peer import Peer, PeerConnection, response
from support.router import until
from warmroute_loadtest import traces
from warmroute_loadtest.bench import cli
from warmroute_loadtest.bench.cli import main
from warmroute_loadtest.bench.flags import load_of, parsed, workload_of
from warmroute_loadtest.bench.load import Concurrency, Load, OwnTimes, Ramp, Rate
from warmroute_loadtest.bench.record import Run
from warmroute_loadtest.bench.workload import Workload
from warmroute_loadtest.processes import processes, url_in
from warmroute_loadtest.traces.synthetic import WORKLOADS, generated_shared_prefix, rag

URL = ("--url", "localhost:8000")
SLICE = str(Path(traces.__file__).parent / "data" / "mooncake_slice.jsonl")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Of a mock worker."""
    with processes() as children:
        yield url_in(children.start("warmroute_loadtest.mock_worker", "--blocks", "1000"))


def flags(*arguments: str) -> Namespace:
    return parsed([*URL, *arguments], None)


def said(*arguments: str) -> tuple[Load, Workload]:
    args = flags(*arguments)
    load = load_of(args)
    return load, workload_of(args, load)


def usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    return one_line(capsys)


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("warmroute bench: ")
    assert captured.err.endswith("\n")
    assert captured.err.count("\n") == 1
    return captured.err


def test_the_table_and_the_json(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run.json"
    workload = ("--workload", "rag?documents=2&document_tokens=256&output_tokens=8", "--requests", "30")
    arguments = ["--url", url, *workload, "--concurrency", "2", "--api-key", "sk-secret", "--json", str(out)]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    run = Run.read(out)
    assert (run.model, run.urls, len(run.answers)) == ("mock", [url], 30)
    assert run.label == "rag, 2 at a time"
    assert run.label in captured.out
    assert url in captured.out
    assert run.load == {"kind": "concurrency", "concurrency": 2}
    assert (run.workload["name"], run.workload["documents"], run.workload["requests"]) == ("rag", 2, 30)
    assert run.workload.keys() == {"name", "requests", "documents", "system_tokens", "document_tokens"} | {
        "question_tokens",
        "output_tokens",
        "rate",
        "seed",
    }
    assert run.command.startswith(f"warmroute bench --url {url} --workload 'rag?documents=2")
    assert "sk-secret" not in out.read_text()
    assert all(answer.good and answer.worker == url for answer in run.answers)
    assert {answer.completion_tokens for answer in run.answers} <= set(range(4, 13))


def test_the_html_report(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[tuple[Path, list[Run]]] = []
    report: Any = ModuleType("report")
    report.write_report = lambda path, runs: written.append((path, list(runs)))
    monkeypatch.setitem(sys.modules, "warmroute_loadtest.bench.report", report)
    arguments = ["--url", url, "--workload", "unique", "--requests", "3", "--rate", "inf", "--label", "three"]
    assert main([*arguments, "--html", str(tmp_path / "report.html")]) == 0
    ((path, (run,)),) = written
    assert path == tmp_path / "report.html"
    assert (run.label, len(run.answers)) == ("three", 3)
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    capsys.readouterr()
    assert main([*arguments, "--html", str(tmp_path / "report.html")]) == 1
    assert "--html needs jinja2 and plotly" in one_line(capsys)


@pytest.mark.parametrize(
    ("arguments", "load"),
    [
        ([], OwnTimes()),
        (["--trace-times"], OwnTimes()),
        (["--speed", "4"], OwnTimes(4.0)),
        (["--rate", "20"], Rate(20.0)),
        (["--rate", "20", "--arrivals", "constant"], Rate(20.0, "constant")),
        (["--rate", "inf"], Rate(inf)),
        (["--ramp", "1:20.5", "--duration", "60"], Ramp(1.0, 20.5, 60.0)),
        (["--concurrency", "8"], Concurrency(8)),
    ],
)
def test_what_the_flags_of_a_load_say(arguments: list[str], load: Load) -> None:
    assert said("--trace", SLICE, *arguments)[0] == load


def test_a_workload_is_as_large_as_the_run_needs() -> None:
    def size(*arguments: str) -> int:
        return len(said(*arguments)[1].trace.requests)

    assert size("--workload", "rag") == 1000
    assert size("--workload", "rag", "--requests", "1500") == 1500
    assert size("--workload", "rag?requests=70", "--rate", "5") == 70
    assert size("--workload", "rag", "--rate", "50", "--arrivals", "constant", "--duration", "60") == 3000
    assert size("--workload", "rag", "--ramp", "0:10", "--arrivals", "constant", "--duration", "60") == 300
    assert size("--workload", "rag", "--rate", "inf", "--duration", "60") == 1000
    assert (
        size("--workload", "multi_turn?turns=2", "--rate", "5", "--arrivals", "constant", "--duration", "10") == 100
    )
    assert size("--workload", "multi_turn", "--requests", "10") == 10
    assert size("--trace", SLICE) == 400
    assert size("--trace", SLICE, "--limit", "7") == 7


@pytest.mark.parametrize("name", [*WORKLOADS, "generated-shared-prefix"])
def test_every_workload_has_a_name(name: str) -> None:
    workload = said("--workload", name, "--seed", "3")[1]
    assert workload.trace.requests == WORKLOADS[name.replace("-", "_")](seed=3).requests
    assert workload.chats == (name == "multi_turn")


def test_other_tools_flags() -> None:
    load, workload = said("--workload", "generated_shared_prefix", "--gsp-num-groups", "3", "--gsp-output-len", "9")
    assert load == OwnTimes()
    assert workload.trace.requests == generated_shared_prefix(groups=3, output_tokens=9).requests
    assert workload.record() == {
        "name": "generated_shared_prefix",
        "groups": 3,
        "prompts_per_group": 16,
        "system_tokens": 2048,
        "question_tokens": 128,
        "output_tokens": 9,
        "rate": 10.0,
        "seed": 0,
    }
    flags = ("prefix-len", "1000"), ("suffix-len", "64"), ("num-prefixes", "2"), ("output-len", "5")
    spelt = [part for flag, value in flags for part in (f"--prefix-repetition-{flag}", value)]
    (request, *_), skipped = said("--workload", "prefix_repetition", *spelt)[1].trace[2:]
    assert (request.input_tokens, request.output_tokens, skipped) == (1064, 5, 0)


def test_the_simulators_spelling() -> None:
    workload = said("--workload", "rag?documents=7&requests=5&rate=2.5")[1]
    assert workload.trace.requests == rag(documents=7, requests=5, rate=2.5).requests


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workload", "rag"], "the following arguments are required: --url"),
        ([*URL], "one of the arguments --workload --trace is required"),
        ([*URL, "--workload", "rag", "--trace", SLICE], "not allowed with argument"),
        (["--url", "ftp://x", "--workload", "rag"], "the scheme must be http or https"),
        (["--url", "http://me:secret@x", "--workload", "rag"], "a URL with a user or a password is not supported"),
        ([*URL, "--workload", "rag", "--rate", "0"], "expected a number above zero, got '0'"),
        ([*URL, "--workload", "rag", "--rate", "5", "--concurrency", "5"], "not allowed with argument"),
        ([*URL, "--workload", "rag", "--ramp", "5"], "expected two rates as in 1:20, got '5'"),
        ([*URL, "--workload", "rag", "--ramp", "0:0"], "expected two rates as in 1:20, got '0:0'"),
        ([*URL, "--workload", "rag", "--ramp", "1:2"], "--ramp needs --duration"),
        ([*URL, "--workload", "rag", "--grace", "2"], "--grace counts from the end of --duration"),
        ([*URL, "--workload", "rag", "--rate", "2", "--speed", "2"], "--speed is for the trace's own times"),
        ([*URL, "--workload", "rag", "--arrivals", "poisson"], "--arrivals needs a --rate or a --ramp"),
        ([*URL, "--workload", "rag", "--gsp-num-groups", "2"], "belongs to --workload generated_shared_prefix"),
        (
            [*URL, "--trace", SLICE, "--prefix-repetition-num-prefixes", "2"],
            "belongs to --workload prefix_repetition",
        ),
        ([*URL, "--workload", "rag", "--requests", "0"], "expected a whole number above zero, got '0'"),
        ([*URL, "--workload", "rag", "--json", "/nowhere/x.json"], "no folder /nowhere"),
        ([*URL, "--workload", "rag", "--html", "/nowhere/x.html"], "no folder /nowhere"),
        ([*URL, "--workload", "rag", "--api-key", "sk-1\nx: y"], "has a character that no header can hold"),
        ([*URL, "--workload", "rag", "--req", "4"], "unrecognized arguments: --req 4"),
    ],
)
def test_wrong_flags(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in usage_error(arguments, capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workload", "ragg"], "unknown workload 'ragg': use multi_turn"),
        (["--workload", "rag?pages=1"], "rag has no parameter 'pages'"),
        (["--trace", "/nowhere.jsonl"], "/nowhere.jsonl: No such file"),
        (["--workload", "rag"], "cannot connect to http://127.0.0.1:9: connection refused"),
    ],
)
def test_what_cannot_be_run(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "http://127.0.0.1:9", *arguments]) == 1
    assert message in one_line(capsys)


def test_a_run_without_a_good_answer_has_failed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--workload", "unique?input_tokens=100000", "--requests", "3", "--rate", "inf"]
    assert main(["--url", url, *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.err == "warmroute bench: no request had a good answer\n"
    assert "tokens are asked for, and there is room for" in captured.out


@pytest.fixture
async def half_dead() -> AsyncIterator[Peer]:
    """Answers two requests, and then no more."""

    async def answer(connection: PeerConnection) -> None:
        if len(peer.seen) > 2:
            await connection.closed_by_router()
        await connection.send(response(b'{"choices": [{"message": {"content": "a"}}]}'))

    async with Peer(answer).listening() as peer:
        yield peer


@pytest.mark.anyio
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_ctrl_c_ends_the_load_and_tells_what_there_is(
    half_dead: Peer, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "run.json"
    arguments = ("--url", half_dead.url, "--model", "m", "--no-stream", "--workload", "unique", "--json", str(out))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", "import sys; from warmroute_loadtest.bench.cli import main; sys.exit(main())"),
        *(*arguments, "--rate", "100", "--arrivals", "constant"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    await until(lambda: len(half_dead.seen) >= 6)
    process.send_signal(number)
    told, errors = await process.communicate()
    assert (process.returncode, errors) == (130, b"")
    assert b"interrupted" in told
    kept = json.loads(out.read_text())["answers"]
    assert len(kept) >= 6
    assert [answer["status"] for answer in kept].count(200) == 2
    assert {answer["error"] for answer in kept if answer["status"] != 200} == {"interrupted"}
