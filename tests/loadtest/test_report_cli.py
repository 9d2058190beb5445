"""`warmroute report` as people call it."""

import sys
from pathlib import Path

import pytest
from warmroute_loadtest.bench.record import Answer, Run
from warmroute_loadtest.bench.report.cli import main


@pytest.fixture
def record(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    Run(
        label="cache aware",
        command="warmroute bench",
        started="2026-11-30T01:20:04+00:00",
        duration=1.0,
        version="1.2.3",
        urls=["http://127.0.0.1:3000"],
        model="toy",
        workload={"name": "chats"},
        load={"kind": "poisson", "rate": 1},
        answers=[Answer(due=0.0, late=0.0, status=200, worker="a", ttft=0.25, e2e=1.0)],
    ).write(path)
    return path


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("warmroute report: ")
    assert captured.err.endswith("\n")
    assert captured.err.count("\n") == 1
    return captured.err


def usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    return one_line(capsys)


@pytest.mark.parametrize("runs", [1, 2])
def test_a_page_is_written_and_nothing_said(record: Path, runs: int, capsys: pytest.CaptureFixture[str]) -> None:
    page = record.with_name("report.html")
    assert main([*[str(record)] * runs, "-o", str(page)]) == 0
    assert capsys.readouterr() == ("", "")
    text = page.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert text.count("250 ms") >= runs
    assert ("vs." in text.partition("</title>")[0]) == (runs == 2)


def test_wrong_flags(record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = str(record)
    assert "required: RUN.json, -o/--output" in usage_error([], capsys)
    assert "required: -o/--output" in usage_error([given], capsys)
    assert "one run or two fit side by side, not 3" in usage_error([given, given, given, "-o", "x.html"], capsys)
    nowhere = tmp_path / "no" / "report.html"
    assert f"no folder {nowhere.parent}" in usage_error([given, "-o", str(nowhere)], capsys)


def test_no_such_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "report.html"
    assert main([str(tmp_path / "none.json"), "-o", str(page)]) == 1
    assert "No such file" in one_line(capsys)
    assert not page.exists()


@pytest.mark.parametrize("content", [b"", b"[]", b'{"a": 1}', b"\xff\xfe", b'{"format": "warmroute-bench-1"}'])
def test_not_a_record(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    path, page = tmp_path / "other.json", tmp_path / "report.html"
    path.write_bytes(content)
    assert main([str(path), "-o", str(page)]) == 1
    assert f"{path} is no record of a `warmroute bench` run" in one_line(capsys)
    assert not page.exists()


@pytest.mark.parametrize("wrong", [b'"due":"soon"', b'"due":null', b'"due":[0]'], ids=bytes.decode)
def test_a_record_with_a_field_of_another_kind(
    record: Path, wrong: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    record.write_bytes(record.read_bytes().replace(b'"due":0.0', wrong))
    assert main([str(record), "-o", str(record.with_name("report.html"))]) == 1
    assert "is no record of a `warmroute bench` run: due is " in one_line(capsys)


def test_a_page_that_cannot_be_written(record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(record), "-o", str(tmp_path)]) == 1
    assert "Is a directory" in one_line(capsys)


def test_what_to_install(record: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "warmroute_loadtest.bench.report.page", raising=False)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert main([str(record), "-o", str(record.with_name("report.html"))]) == 1
    assert "pip install 'warmroute[loadtest]'" in one_line(capsys)
