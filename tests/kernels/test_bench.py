import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from warmroute_kernels.bench import cli, ours, report
from warmroute_kernels.bench.cases import LLAMA, Cascade, Case, Decode, Extend, Store, all_cases, tiny_cases
from warmroute_kernels.bench.machine import Machine
from warmroute_kernels.bench.measure import Row, measured
from warmroute_kernels.bench.ours import CASCADE, OURS, PLAIN
from warmroute_kernels.bench.peers import Peer
from warmroute_kernels.bench.peers.flashinfer import _pages
from warmroute_kernels.bench.problem import Contender, Problem, problem_of
from warmroute_kernels.bench.targets import verdicts
from warmroute_kernels.bench.text import aligned, markdown, write_between_markers
from warmroute_kernels.bench.timing import Time
from warmroute_kernels.bench.truth import truth_of

CPU = torch.device("cpu")
H200 = Machine("a GPU", "600.1", "2.13", "3.8", "2026-11-30", copy_bandwidth=4e12, matrix_rate=8e14)


def test_every_kind_of_case_runs_and_is_right_without_a_gpu() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "warmroute_kernels.bench", "--dry-run"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wrong" not in done.stdout
    for kernel in ("paged_decode", "extend", "cascade", "store_kv"):
        assert done.stdout.count(f"\n{kernel} ") == sum(_rows(case) for case in tiny_cases() if case.kernel == kernel)
    assert "not measured" in done.stdout
    assert "failed: " not in [line for line in done.stdout.splitlines() if "SDPA" in line]


def _rows(case: Case) -> int:
    """Ours; plain decode beside cascade; SDPA where it can."""
    return 1 + isinstance(case, Cascade) + (isinstance(case, Decode | Extend) and not case.fp8)


def test_without_a_gpu_one_line_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main([]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "no GPU" in said.err


def test_the_grid_is_that_of_the_issue() -> None:
    cases = all_cases()
    assert len(set(cases)) == len(cases)
    assert {case.kernel for case in cases} == {case.kernel for case in tiny_cases()}
    for fp8 in (False, True):
        for batch in (1, 8, 64):
            for page_size in (1, 16, 64):
                for length in (1024, 32768):
                    assert Decode(LLAMA, batch, length, page_size, fp8) in cases
    assert Extend(LLAMA, 8192, 0, 16, fp8=False) in cases
    assert Extend(LLAMA, 8192, 32768, 16, fp8=False) in cases
    assert Cascade(LLAMA, 64, 1, 16384, 256, 16) in cases
    assert {case.batch for case in cases if isinstance(case, Cascade)} == {64}
    assert LLAMA == (32, 8, 128)


def test_members_of_a_group_share_their_pages_and_nobody_else_does() -> None:
    case = next(case for case in tiny_cases() if isinstance(case, Cascade) and case.groups == 2)
    table = problem_of(case, CPU).page_table.tolist()
    pages = case.shared // case.page_size
    assert table[0][:pages] == table[1][:pages]
    assert table[2][:pages] == table[3][:pages]
    alone = [*table[0][:pages], *table[2][:pages], *(page for row in table for page in row[pages:])]
    assert len(set(alone)) == len(alone)


def test_new_tokens_are_the_last_ones_in_the_pages() -> None:
    case = Extend(LLAMA._replace(heads=2, kv_heads=1, head_dim=16), new=5, prefix=6, page_size=4, fp8=False)
    problem = problem_of(case, CPU)
    k, v = problem.new_kv()
    for token in range(5):
        page, offset = divmod(6 + token, 4)
        assert torch.equal(k[token], problem.kv.k[problem.page_table[0, page], offset])
        assert torch.equal(v[token], problem.kv.v[problem.page_table[0, page], offset])


ATTENTION = [case for case in tiny_cases() if not isinstance(case, Store)]


@pytest.mark.parametrize("case", ATTENTION, ids=lambda case: case.name)
def test_a_result_that_is_five_percent_off_is_not_right(case: Case) -> None:
    problem = problem_of(case, CPU)
    truth = truth_of(problem)
    exact = torch.zeros(problem.q.shape, dtype=torch.float64)
    exact[:, truth.chosen] = truth.values
    assert truth.error_of(exact) == 0
    assert truth.error_of(exact * 1.05) == pytest.approx(0.05)
    assert truth.tolerance < 0.05
    exact[0, -1, 0] = torch.nan
    assert not truth.error_of(exact) <= truth.tolerance


def test_storing_is_exact_in_bfloat16_and_an_ulp_off_in_fp8() -> None:
    bf16, fp8 = (truth_of(problem_of(case, CPU)) for case in tiny_cases() if isinstance(case, Store))
    assert (bf16.tolerance, fp8.tolerance) == (0, 2**-3)
    assert bf16.values.shape[1] == len(bf16.chosen) == 4  # K and V of two heads each


def _timer_that_must_not_run(run: object) -> Time:
    raise AssertionError("what is wrong is not timed")


def test_a_kernel_that_is_wrong_is_told_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(problem: Problem) -> list[Contender]:
        return [Contender(OURS, lambda: None, lambda: torch.zeros_like(problem.q))]

    monkeypatch.setattr(ours, "contenders", wrong)
    (row,) = measured([_tiny_decode()], CPU, _timer_that_must_not_run, peers=())
    assert row.note == "wrong: relative error 1, at most 0.016 is allowed"
    assert row.time == Time(None, None)


def test_a_peer_that_fails_or_is_wrong_costs_its_own_row_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def right(problem: Problem) -> list[Contender]:
        truth = truth_of(problem)
        out = torch.zeros(problem.q.shape, dtype=torch.float64)
        out[:, truth.chosen] = truth.values
        return [Contender(OURS, lambda: None, lambda: out)]

    def broken(problem: Problem) -> Contender:
        raise TypeError("unexpected keyword\nand more")

    monkeypatch.setattr(ours, "contenders", right)
    peers = (
        Peer("nobody", "there_is_no_such_package", broken),
        Peer("declines", "torch", lambda problem: None),
        Peer("broken", "torch", broken),
    )
    found = list(measured([_tiny_decode()], CPU, lambda run: Time(2e-3, 1e-3), peers))
    assert [row.contender for row in found] == [OURS, "broken"]
    assert [row.note for row in found] == ["", "failed: TypeError: unexpected keyword"]
    assert found[0].time == Time(2e-3, 1e-3)


def test_a_kernel_of_ours_that_fails_costs_its_own_row_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made, run or timed; a GPU that is too small for a case is told, and is no fault."""

    def raising(error: Exception) -> Callable[..., Any]:
        def run(*_: object) -> Any:
            raise error

        return run

    def found(*contenders: Contender) -> list[tuple[str, str, bool]]:
        monkeypatch.setattr(ours, "contenders", lambda _: list(contenders))
        rows = measured([_tiny_decode()], CPU, raising(RuntimeError("not timed")), peers=())
        return [(row.contender, row.note, row.faulty) for row in rows]

    def right() -> Tensor:
        truth = truth_of(problem)
        out = torch.zeros(problem.q.shape, dtype=torch.float64)
        out[:, truth.chosen] = truth.values
        return out

    problem = problem_of(_tiny_decode(), CPU)
    broken = Contender(CASCADE, raising(RuntimeError("illegal access\nand more")), right)
    large = Contender(PLAIN, raising(torch.OutOfMemoryError("20 GB")), right)
    slow = Contender(OURS, lambda: None, right)
    assert found(broken, large, slow) == [
        (CASCADE, "failed: RuntimeError: illegal access", True),
        (PLAIN, "out of memory", False),
        (OURS, "failed: RuntimeError: not timed", True),
    ]
    monkeypatch.setattr(ours, "contenders", raising(ValueError("no plan")))
    (row,) = measured([_tiny_decode()], CPU, raising(RuntimeError()), peers=())
    assert (row.note, row.faulty) == ("failed: ValueError: no plan", True)


def test_the_json_is_kept_after_each_row_and_a_failure_is_told_at_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept: list[int] = []
    path = tmp_path / "rows.json"

    def rows(*_: object) -> Iterator[Row]:
        yield Row(_tiny_decode(), OURS, Time(None, None), None, "failed: RuntimeError: illegal access")
        kept.append(len(json.loads(path.read_text())["rows"]))
        yield _row(_tiny_decode(), 1e-3)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cli, "machine_of", lambda *_: H200)
    monkeypatch.setattr(cli, "measured", rows)
    assert cli.main(["--json", str(path)]) == 1
    assert kept == [1]
    assert len(json.loads(path.read_text())["rows"]) == 2
    assert "failed: RuntimeError: illegal access" in capsys.readouterr().out


def _tiny_decode() -> Decode:
    return next(case for case in tiny_cases() if isinstance(case, Decode) and not case.fp8)


def _row(case: Case, graph: float, contender: str = OURS, *, chosen: bool = True) -> Row:
    return Row(case, contender, Time(2 * graph, graph), 0.0, "", chosen)


def _sharing(case: Cascade, gain: float) -> list[Row]:
    return [_row(case, 1e-3, CASCADE), _row(case, gain * 1e-3, PLAIN, chosen=False)]


def test_rates_are_what_was_moved_by_the_time() -> None:
    case = Decode(LLAMA, 64, 32768, 16, fp8=False)
    row = _row(case, 2.2e-3)
    # 8.59 GB in 2.2 ms are 3905 GB/s: 98 % of 4 TB/s. 34.4 GFLOP in 2.2 ms are 15.6 TFLOP/s: 2 % of 800.
    assert report._line(row, H200)[3:11] == (
        *("4,400.0", "1,953", "7.8"),
        *("2,200.0", "3,905", "98 %", "15.6", "2 %"),
    )
    told = json.loads(report.as_json([row], H200))
    (kept,) = told["rows"]
    assert told["machine"]["gpu"] == "a GPU"
    assert kept["shape"] == {
        "model": {"heads": 32, "kv_heads": 8, "head_dim": 128},
        "batch": 64,
        "length": 32768,
        "page_size": 16,
        "fp8": False,
    }
    assert kept["graph"] == {"s": 2.2e-3, "bytes/s": kept["bytes"] / 2.2e-3, "flop/s": kept["flops"] / 2.2e-3}
    assert kept["launched"]["s"] == 4.4e-3
    assert "Not installed" in report.text([row], H200)


def _all_measured(share: float, fp8_gain: float, teraflops: float, gain: float, worst_gain: float) -> list[Row]:
    """As if each case had exactly reached these; of cascade the last one only `worst_gain`."""
    rows = []
    for case in all_cases():
        if isinstance(case, Decode):
            bf16 = replace(case, fp8=False).cost.bytes / (share * 4e12)
            rows.append(_row(case, bf16 / fp8_gain if case.fp8 else bf16))
        elif isinstance(case, Extend):
            rows.append(_row(case, case.cost.flops / (teraflops * 1e12)))
        elif isinstance(case, Cascade):
            rows += _sharing(case, gain)
    last = rows[-1].case
    assert isinstance(last, Cascade)
    return [*rows[:-2], *_sharing(last, worst_gain)]


def test_targets_that_are_reached() -> None:
    found = verdicts(_all_measured(0.81, 1.8, 410, 5.5, 1.0), H200)
    assert [each.word for each in found] == ["reached"] * 6
    assert [each.reached for each in found] == pytest.approx([0.81, 1.8, 410, 410, 5.5, 1.0])
    assert [each.wanted for each in found] == [0.8, 1.7, 400, 400, 5, 1]


def test_targets_that_are_missed_and_by_which_case() -> None:
    found = verdicts(_all_measured(0.79, 1.6, 390, 4.9, 0.99), H200)
    assert [each.word for each in found] == ["missed"] * 6
    assert found[-1].worst == "32 × 2 sequences, 16k shared, 256 own"


def test_the_worst_case_decides_and_what_is_not_asked_for_does_not() -> None:
    rows = _all_measured(0.9, 1.8, 410, 5.5, 1.2)
    slow = Decode(LLAMA, 64, 8192, 1, fp8=False)
    short = Decode(LLAMA, 64, 1024, 16, fp8=False)
    for case in (slow, short):
        at = next(index for index, row in enumerate(rows) if row.case == case)
        rows[at] = _row(case, case.cost.bytes / (0.5 * 4e12))
    found = verdicts(rows, H200)[0]
    assert (found.word, found.worst) == ("missed", slow.name)
    assert found.reached == pytest.approx(0.5)


def test_where_the_cost_rule_chooses_plain_decode_it_is_as_fast_as_that() -> None:
    case = next(case for case in all_cases() if isinstance(case, Cascade))
    slower, plain = _sharing(case, 0.7)
    found = verdicts([slower._replace(chosen=False), plain._replace(chosen=True)], H200)[-1]
    assert (found.reached, found.word) == (1.0, "reached")
    assert verdicts([slower, plain], H200)[-1].reached == pytest.approx(0.7)


def test_a_target_is_not_reached_by_what_was_not_measured() -> None:
    rows = [row._replace(time=Time(1.0, None)) for row in _all_measured(0.9, 1.8, 410, 5.5, 1.2)]
    assert {each.word for each in verdicts(rows, H200)} == {"not measured"}
    assert {each.word for each in verdicts([], H200)} == {"not measured"}
    one = _all_measured(0.9, 1.8, 410, 5.5, 1.2)
    at = next(index for index, row in enumerate(one) if row.case == Decode(LLAMA, 64, 4096, 1, fp8=False))
    one[at] = one[at]._replace(time=Time(1.0, None))
    assert [each.word for each in verdicts(one, H200)] == ["not measured"] * 2 + ["reached"] * 4


def test_tables() -> None:
    rows = [("a", "1.5", ""), ("long", "10", "why")]
    assert aligned(("who", "ms", ""), rows) == "who    ms\n----  ---  ---\na     1.5\nlong   10  why"
    lines = markdown(("who", "ms", ""), rows).splitlines()
    assert lines == ["| who | ms |  |", "| --- | --: | --- |", "| a | 1.5 |  |", "| long | 10 | why |"]


def test_a_page_without_the_markers_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- it -->\nold\n<!-- /it -->\nafter\n")
    write_between_markers(page, "it", "new")
    assert page.read_text() == "before\n<!-- it -->\nnew\n<!-- /it -->\nafter\n"
    with pytest.raises(ValueError, match="has no <!-- other -->"):
        write_between_markers(page, "other", "new")
    assert page.read_text() == "before\n<!-- it -->\nnew\n<!-- /it -->\nafter\n"


def test_pages_as_flashinfer_wants_them() -> None:
    table = torch.tensor([[7, 2, 0], [4, 0, 0]], dtype=torch.int32)
    begins, pages, last = _pages(table, [9, 4], page_size=4)
    assert (begins.tolist(), pages.tolist(), last.tolist()) == ([0, 3, 4], [7, 2, 0, 4], [1, 4])
    assert {each.dtype for each in (begins, pages, last)} == {torch.int32}
