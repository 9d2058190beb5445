"""The tables of docs/experiments.md, made of two small rows."""

from pathlib import Path

import pytest
from warmroute_loadtest import experiments
from warmroute_loadtest.experiments import Row
from warmroute_loadtest.simulator import FleetSpec, simulate
from warmroute_loadtest.traces import load_trace

ROWS = (
    Row("none", "synthetic:unique?requests=40", "--workers 2"),
    Row("hot", "synthetic:zipf?requests=60", "--workers 2 --limit 50", tuned=True),
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "ROWS", ROWS)
    monkeypatch.setattr(experiments, "POLICIES", ("cache_aware", "round_robin"))


def test_every_row_has_the_means_over_the_speeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.jsonl"
    assert experiments.main([str(tmp_path), str(path)]) == 0
    printed = capsys.readouterr().out
    trace = load_trace("synthetic:zipf?requests=60", limit=50)
    rates = [simulate(trace, "cache_aware", FleetSpec(workers=2, speed=speed)).hit_rate for speed in (0.9, 1.0, 1.1)]
    (summary,) = (line for line in printed.splitlines() if line.startswith("| hot \u2020 |"))
    assert f"{sum(rates) / 3:.1%}" in summary
    assert "### none" in printed
    assert 'warmroute simulate "synthetic:zipf?requests=60" --workers 2 --limit 50 --policy' in printed
    lines = path.read_bytes()
    assert lines.count(b"\n") == 2 * 2 * 3

    assert experiments.main([str(tmp_path), str(path)]) == 0
    assert capsys.readouterr().out == printed
    assert path.read_bytes() == lines, "what is there is not run again"


def test_without_its_folder_it_says_how_it_is_called(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert experiments.main([str(tmp_path / "none"), "x"]) == 2
    assert capsys.readouterr().err.startswith("usage: ")
