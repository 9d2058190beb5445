"""`warmroute simulate` as people call it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from warmroute_loadtest.simulator import SIM_POLICIES, FleetSpec, Result, cli, simulate
from warmroute_loadtest.simulator.cli import main
from warmroute_loadtest.simulator.fleet import Progress
from warmroute_loadtest.traces import Trace

FIELDS = [
    "policy",
    "requests",
    "hit_rate",
    "ceiling",
    "ttft_mean",
    "ttft_p50",
    "ttft_p90",
    "ttft_p99",
    "skew",
    "prediction_error",
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three requests of Mooncake's kind; the third is the first one again."""
    path = tmp_path / "small.jsonl"
    lines = [
        {"timestamp": 1000 * second, "input_length": 1024, "output_length": 1, "hash_ids": ids}
        for second, ids in enumerate(([1, 2], [3, 4], [1, 2]))
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    return one_line(capsys)


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("warmroute simulate: ")
    assert captured.err.endswith("\n")
    assert captured.err.count("\n") == 1
    return captured.err


def test_the_table_and_the_json(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "figures.json"
    flags = ["--workers", "2", "--policy", "round_robin,cache_aware", "--prefill-rate", "1024", "--tpot", "0.25"]
    assert main([str(trace), *flags, "--slo", "1", "--json", str(out)]) == 0
    captured = capsys.readouterr()
    rows = {line.split()[0]: line.split() for line in captured.out.splitlines() if line.strip()}
    assert rows["round_robin"][1:7] == ["33.3%", "100.0%", "0.92", "1.25", "1.25", "1.25"]
    assert "ceiling 33.3%" in captured.out
    assert captured.err == ""
    [record] = json.loads(out.read_bytes())
    assert record["trace"] == "small.jsonl"
    assert [list(result) for result in record["results"]] == [FIELDS, FIELDS]
    assert [result["policy"] for result in record["results"]] == ["round_robin", "cache_aware"]
    assert record["results"][0]["ttft_mean"] == pytest.approx((1.25 + 1.25 + 0.25) / 3)


def test_each_trace_has_its_table(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "figures.json"
    assert main([str(trace), str(trace), "--limit", "2", "--block-tokens", "1024", "--json", str(out)]) == 0
    assert capsys.readouterr().out.count("small.jsonl: 2 requests") == 2
    assert [len(record["results"]) for record in json.loads(out.read_bytes())] == [2, 2]


@pytest.mark.parametrize("flag", ["--workers", "--blocks", "--block-tokens", "--limit", "--routers"])
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many"])
def test_a_count_is_a_whole_number_above_zero(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"argument {flag}: expected a whole number" in usage_error(["x", f"{flag}={value}"], capsys)


@pytest.mark.parametrize(
    "flag",
    [
        "--prefill-rate",
        "--tpot",
        "--speed",
        "--slo",
        "--sessions-per-s",
        "--gossip-delay",
        "--restart-router-at",
        "--restart-worker-at",
    ],
)
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "fast"])
def test_a_rate_is_a_number_above_zero(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"argument {flag}: expected a number" in usage_error(["x", f"{flag}={value}"], capsys)


@pytest.mark.parametrize("given", ["best", "cache_aware,best", ""])
def test_an_unknown_policy_names_the_choices(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    message = usage_error(["x", "--policy", given], capsys)
    assert f"no policy {given.split(',')[-1]!r}" in message
    assert all(name in message for name in SIM_POLICIES)


def test_a_missing_folder_is_told_before_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no folder" in usage_error(["x", "--json", str(tmp_path / "none" / "x.json")], capsys)


def test_an_unknown_format_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert "argument --format: invalid choice" in usage_error(["x", "--format", "poem"], capsys)


def test_a_trace_that_cannot_be_read_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.jsonl")]) == 1
    assert "none.jsonl" in one_line(capsys)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--blocks", "2"], "a request needs 3 blocks of 512 tokens, and a worker has 2"),
        (["--block-tokens", "500"], "has blocks of 512 tokens"),
    ],
)
def test_a_trace_that_cannot_run_is_told_in_one_line(
    trace: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(trace), *flags]) == 1
    assert message in one_line(capsys)


def test_how_to_restart_without_when_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--restart-router-at is missing" in usage_error(["x", "--restart-cold"], capsys)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([], None),
        (["--routers", "3"], "3 routers"),
        (["--routers", "2", "--no-gossip"], "2 routers that do not talk"),
        (["--restart-router-at", "1.5"], "a router restarts warm at 1.5 s"),
        (["--restart-router-at", "1", "--restart-cold"], "a router restarts cold at 1 s"),
        (
            ["--routers", "2", "--restart-router-at", "99", "--restart-worker-at", "99"],
            "2 routers; a router restarts warm at 99 s; a worker restarts at 99 s",
        ),
    ],
)
def test_replicas_and_restarts_are_passed_on_and_told(
    trace: Path, flags: list[str], told: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(trace), *flags]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[-1] == told if told else "ceiling" in lines[-1]


def test_a_lone_worker_that_restarts_is_told_in_one_line(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(trace), "--workers", "1", "--restart-worker-at", "1"]) == 1
    assert "a lone worker cannot restart" in one_line(capsys)


def test_every_flag_reaches_the_fleet(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[FleetSpec] = []

    def note(trace: Trace, policy: str, spec: FleetSpec, progress: Progress) -> Result:
        seen.append(spec)
        return simulate(trace, policy, spec, progress)

    monkeypatch.setattr(cli, "simulate", note)
    flags = "--routers 2 --no-gossip --gossip-delay 0.5 --restart-router-at 1 --restart-cold --restart-worker-at 2"
    for given in ([], flags.split()):
        assert main([str(trace), "--policy", "random", *given]) == 0
    assert seen == [
        FleetSpec(),
        FleetSpec(
            routers=2,
            gossip=False,
            gossip_delay=0.5,
            restart_router_at=1.0,
            warm_restart=False,
            restart_worker_at=2.0,
        ),
    ]


def test_how_often_sessions_start(tmp_path: Path) -> None:
    """Questions that nobody has timed, on a slow worker: they wait for each other, or come one by one."""
    path, out = tmp_path / "chats.jsonl", tmp_path / "figures.json"
    chat = [{"from": "human", "value": "why? " * 400}, {"from": "gpt", "value": "so."}]
    path.write_text("".join(json.dumps({"id": str(number), "conversations": chat}) + "\n" for number in range(9)))

    def ttft(rate: str) -> float:
        flags = ["--workers", "1", "--policy", "round_robin", "--sessions-per-s", rate, "--json", str(out)]
        assert main([str(path), *flags, "--prefill-rate", "100"]) == 0
        return float(json.loads(out.read_bytes())[0]["results"][0]["ttft_mean"])

    assert ttft("1000") > ttft("0.01")


def test_the_seed_is_passed_on(trace: Path, tmp_path: Path) -> None:
    def figures(seed: int) -> bytes:
        out = tmp_path / "figures.json"
        assert main([str(trace), "--policy", "random", "--seed", str(seed), "--json", str(out)]) == 0
        return out.read_bytes()

    assert figures(1) == figures(1)
    assert len({figures(seed) for seed in range(12)}) > 1


@pytest.mark.parametrize(("terminal", "long_run", "shown"), [(True, 1, True), (True, 100, False), (False, 1, False)])
def test_only_a_person_who_waits_sees_a_bar(
    trace: Path,
    terminal: bool,
    long_run: int,
    shown: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cli, "LONG_RUN", long_run)
    is_terminal: Callable[[], bool] = lambda: terminal  # noqa: E731
    monkeypatch.setattr(sys.stderr, "isatty", is_terminal)
    assert main([str(trace)]) == 0
    assert bool(capsys.readouterr().err) is shown


def test_no_figure_is_cut_short(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert main([str(trace), "--policy", ",".join(SIM_POLICIES)]) == 0
    out = capsys.readouterr().out
    assert "…" not in out
    assert all(any(line.startswith(f"{name} ") for line in out.splitlines()) for name in SIM_POLICIES)
