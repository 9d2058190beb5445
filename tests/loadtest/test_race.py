"""The race's arithmetic, what it keeps and writes, and small runs of each part on this router."""

import os
import subprocess
import sys
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from warmroute_loadtest.bench.record import Answer, Run
from warmroute_loadtest.processes import processes
from warmroute_loadtest.race import cache, latency, memory, throughput
from warmroute_loadtest.race.__main__ import PARTS, main
from warmroute_loadtest.race.contenders import NAMES, PATHS, POLICIES, Contender, Lane, Setting, pinned
from warmroute_loadtest.race.fleet import served_total
from warmroute_loadtest.race.outcome import outcome, over_base
from warmroute_loadtest.race.page import write_docs
from warmroute_loadtest.race.results import Results, markdown_table, multiple, spread
from warmroute_loadtest.traces import Trace, TraceRequest

OURS = Setting(only=("warmroute", "direct", "round-robin"), repetitions=1, scale=0.01)


def results(file: Path | None = None) -> Results:
    kept = Results(file)
    for ours, theirs in ((300.0, 100.0), (100.0, 150.0), (200.0, 50.0)):
        kept.add("throughput", "whole", "warmroute", {"rate": ours})
        kept.add("throughput", "whole", "smg", {"rate": theirs})
    return kept


def test_medians_and_ratios_are_of_all_repetitions() -> None:
    kept = results()
    assert kept.median("throughput", "whole", "smg", "rate") == 100
    assert kept.ratio("throughput", "whole", "smg", "rate") == 2
    assert kept.ratio("throughput", "whole", "nginx", "rate") is None
    assert kept.median("throughput", "whole", "smg", "cpu") is None


def test_what_is_added_is_added_within_a_repetition() -> None:
    assert results().added("throughput", "whole", "warmroute", "smg", "rate") == [200, -50, 150]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=9))
def test_a_spread_names_the_middle_and_both_ends(values: list[float]) -> None:
    ordered = sorted(values)
    shown = [float(word.strip("()")) for word in spread(values, repr).split() if word != "to"]
    middle = (ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2
    assert shown[0] == pytest.approx(middle)
    assert shown[1:] == ([] if len(values) == 1 else [ordered[0], ordered[-1]])


def test_what_was_not_measured_is_a_dash() -> None:
    assert (spread([], repr), multiple(None), multiple(2.345)) == ("–", "–", "2.35×")


def test_a_race_that_was_broken_off_knows_what_it_has(tmp_path: Path) -> None:
    results(tmp_path / "race.json")
    again = Results(tmp_path / "race.json")
    assert again.has("throughput", "whole", "smg", 2)
    assert not again.has("throughput", "whole", "smg", 3)
    assert not again.has("throughput", "streamed", "smg", 0)
    again.forget("throughput", "smg")
    assert not again.has("throughput", "whole", "smg", 0)
    assert again.contenders("throughput") == ["warmroute"]


def test_the_page_gets_the_parts_that_were_measured(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    marked = "<!-- race: {0} -->\nold\n<!-- /race: {0} -->\n"
    page.write_text(marked.format("throughput") + marked.format("latency"))
    tables = {"throughput": lambda _: "new", "latency": lambda _: "never"}
    write_docs(tables, results(), page)
    told = page.read_text()
    assert "\n\nnew\n\n<!-- /race: throughput -->" in told
    assert told.startswith("<!-- race: throughput -->\n\nMeasured ")
    assert marked.format("latency") in told
    page.write_text("another page")
    with pytest.raises(ValueError, match="has no <!-- race: throughput -->"):
        write_docs({"throughput": lambda _: "new"}, results(), page)


def test_tables_are_markdown() -> None:
    assert markdown_table(["", "a"], [["x", "1"]]) == "|  | a |\n| --- | ---: |\n| x | 1 |"


def run(*answers: Answer) -> Run:
    return Run(
        label="",
        command="",
        started="",
        duration=2.0,
        version="",
        urls=[],
        model="mock",
        workload={},
        load={},
        answers=list(answers),
    )


def answer(ttft: float, cached: int, *, status: int = 200) -> Answer:
    return Answer(0.0, 0.001, status, ttft=ttft, prompt_tokens=100, completion_tokens=10, cached_tokens=cached)


def test_only_good_answers_are_compared_and_the_others_counted() -> None:
    measured = outcome(run(answer(1.0, 50), answer(3.0, 80), answer(9.0, 100, status=503)), [3, 1])
    assert measured == {
        "requests": 3,
        "failed": 1,
        "late_p99": 0.001,
        "hit_rate": 0.65,
        "tokens_per_s": 110,
        "ttft_mean": 2,
        "ttft_p50": 1,
        "ttft_p99": 3,
        "skew": 1.5,
    }


def test_a_run_without_a_good_answer_has_no_figures() -> None:
    assert outcome(run(answer(1.0, 1, status=503)), [0, 0]) == {"requests": 1, "failed": 1, "late_p99": 0.001}


def test_a_burst_is_compared_with_round_robin() -> None:
    kept = Results()
    kept.add("cache", "burst", "round-robin", {"tokens_per_s": 100, "hit_rate": 0.2})
    kept.add("cache", "burst", "warmroute", {"tokens_per_s": 190, "hit_rate": 0.76})
    assert "| warmroute | 1.90× | 3.80× |" in over_base(kept, "cache", "burst", ["warmroute", "round-robin"])


def test_a_block_is_new_once() -> None:
    """Blocks of 10 tokens: 25 new ones, then 5 of a tail, then 15 behind one that is known."""
    prompts = [([1, 2], 25), ([1, 2], 25), ([1, 3], 25)]
    trace = Trace("", 10, [TraceRequest(0.0, array("Q", ids), tokens, 1, None) for ids, tokens in prompts], 0)
    assert cache.new_tokens(trace) == (25 + 5 + 15) / 3


@pytest.mark.parametrize(
    "name", ["vllm:request_success_total", "sglang:num_requests_total", "sglang_num_requests_total"]
)
def test_requests_are_counted_under_either_engine_s_name(name: str) -> None:
    metrics = f'# TYPE {name} counter\n{name}{{model="a"}} 3\n{name}{{model="b"}} 4.0\nvllm:other_total 5\n'
    assert served_total(metrics) == 7


def test_no_two_contenders_and_no_two_cases_share_a_name() -> None:
    for contenders in (PATHS, POLICIES):
        assert len({each.name for each in contenders}) == len(contenders)
    assert len({each.name for each in cache.WORKLOADS}) == len(cache.WORKLOADS)
    assert {name for workload in cache.WORKLOADS for name in workload.in_turns} <= set(NAMES)


def test_who_is_not_installed_is_left_out() -> None:
    class Missing:
        name = title = "missing"
        command = ()
        installed = False

        def arguments(self, place: object) -> list[str]:
            raise NotImplementedError(place)

    setting = Setting(only=("missing", "direct"))
    assert setting.chosen([Contender("missing", Missing()), *PATHS]) == [PATHS[0]]


def test_a_router_has_a_core_for_itself() -> None:
    before = os.sched_getaffinity(0)
    with pinned() as cpus:
        assert len(cpus) == (1 if len(before) > 1 else 0)
        assert os.sched_getaffinity(0) == before - set(cpus)
    assert os.sched_getaffinity(0) == before


@pytest.mark.anyio
async def test_throughput_latency_and_memory_of_this_router() -> None:
    kept = Results()
    await throughput.race(OURS, kept)
    await latency.race(OURS, kept)
    await memory.race(OURS, kept)
    for case in throughput.CASES:
        for name in ("direct", "warmroute"):
            assert kept.median("throughput", case.name, name, "failed") == 0
    assert all(kept.median("throughput", "whole, 2 KB", name, "rate") for name in ("direct", "warmroute"))
    assert kept.median("throughput", "whole, 2 KB", "warmroute", "cpu")
    assert kept.cases("latency") == ["50 requests/s", "200 requests/s", "500 requests/s"]
    assert kept.median("latency", "500 requests/s", "warmroute", "failed") == 0
    assert kept.median("latency", "500 requests/s", "warmroute", "stream_first_p50")
    sizes = {
        figure: kept.median("memory", "bytes", "warmroute", figure) or 0.0 for figure in ("idle", "load", "blocks")
    }
    assert 10e6 < sizes["idle"] <= sizes["load"] < 1e9
    assert sizes["blocks"] > 10e6
    assert (kept.median("memory", "bytes", "warmroute", "poured") or 0) > 0
    assert kept.median("memory", "bytes", "warmroute", "sent") == 10_000 // 160 * 160
    for part in (throughput, latency, memory):
        assert "warmroute" in part.markdown(kept)


@pytest.mark.anyio
async def test_policies_meet_the_same_requests() -> None:
    workload = cache.Workload(
        "small", "zipf?prefixes=4&prefix_tokens=512&output_tokens=4", 40, 50_000, 16_384, workers=2
    )
    contenders = [each for each in POLICIES if each.name in OURS.only]
    with processes() as children:
        fleets = cache.start_fleets(children, workload, contenders)
        measured = await cache.run(workload, 0.5, fleets, 1.0, seed=1)
        again = await cache.run(workload, 0.5, fleets, 1.0, seed=1)
    assert set(measured) == {"warmroute", "round-robin"}
    for each in (*measured.values(), *again.values()):
        assert (each["requests"], each["failed"]) == (40, 0)
        assert 0 < each["ttft_p50"] <= each["ttft_p99"]
        assert 0 < each["hit_rate"] < 1
    # From empty caches each time: with prompts in the same order, round robin hits just as often again.
    assert again["round-robin"]["skew"] == measured["round-robin"]["skew"] == 1
    assert measured["warmroute"]["hit_rate"] >= measured["round-robin"]["hit_rate"]


def test_the_answers_that_were_not_200_are_told() -> None:
    kept = Results()
    kept.add("throughput", "whole, 2 KB", "warmroute", {"rate": 10.0, "failed": 3})
    assert "warmroute: 3 in whole, 2 KB" in throughput.markdown(kept)


@pytest.mark.anyio
async def test_a_refusal_is_not_throughput() -> None:
    with processes() as children:
        url = children.start("warmroute_loadtest.mock_worker", "--fail-rate", "1", "--fail", "503")
        measured = await throughput.measure(Lane("direct", url), throughput.CASES[0], 0.1)
    assert measured["rate"] == 0
    assert measured["failed"] > 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--repetitions", "0"], "race: argument --repetitions: must be at least 1"),
        (["--quick", "--write-docs"], "race: argument --write-docs: what --quick measures is not for the docs"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert told in capsys.readouterr().err


def test_the_quick_benchmark_prints_its_tables() -> None:
    command = [
        sys.executable,
        "-m",
        "warmroute_loadtest.race",
        "--quick",
        "--parts",
        "throughput",
        "--only",
        "direct",
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.startswith("throughput\n\n| requests/s")
    assert result.stdout.count("KB |") == 3 * len(throughput.CASES)


def test_every_part_has_a_table_before_anything_is_measured() -> None:
    for part in PARTS.values():
        assert isinstance(part.markdown(Results()), str)
