"""The report of a bench run, as figures and as a page in a real browser."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plotly.offline import get_plotlyjs
from support.browser import Browser, Page, chromium
from warmroute_loadtest.bench.record import Answer, Run
from warmroute_loadtest.bench.report import write_report
from warmroute_loadtest.bench.report.comparison import Row
from warmroute_loadtest.bench.report.figures import Figure, figures
from warmroute_loadtest.bench.report.notices import notices
from warmroute_loadtest.bench.report.series import bin_width, bins, distribution, heat_width, in_flight
from warmroute_loadtest.bench.report.shown import show
from warmroute_loadtest.bench.report.units import count, per_second, round_up, seconds, tick, times

A, B = "http://10.0.0.1:8000", "http://10.0.0.2:8000"
HOSTILE = (
    "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\"><b>bold</b> & co"
)


def run(answers: Sequence[Answer], label: str = "cache aware", **rest: Any) -> Run:
    given: dict[str, Any] = {
        "command": "warmroute bench --rate 4",
        "started": "2026-11-30T01:20:04+00:00",
        "duration": 10.0,
        "version": "1.2.3",
        "urls": ["http://127.0.0.1:3000"],
        "model": "toy",
        "workload": {"name": "chats", "sessions": 2},
        "load": {"kind": "poisson", "rate": 4},
        "itl": {"mean": 0.02, "p50": 0.015, "p90": 0.03, "p99": 0.05, "max": 0.2},
    }
    return Run(label=label, answers=list(answers), **(given | rest))


def answer(due: float, worker: str = A, ttft: float = 0.1, cached: int | None = 50, **rest: Any) -> Answer:
    given: dict[str, Any] = {
        "late": 0.0,
        "status": 200,
        "e2e": ttft + 0.5,
        "itl_mean": 0.02,
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "matched_tokens": 60,
    }
    return Answer(due=due, worker=worker, ttft=ttft, cached_tokens=cached, **(given | rest))


def failure(due: float, error: str = "no worker is up", status: int = 503) -> Answer:
    return Answer(due=due, late=0.0, status=status, error=error, worker=A)


# Ten good answers, ttft 0.1 to 1.0 s; seven at worker A; A's have 80 of 100 tokens cached, B's 10.
TEN = [
    answer(float(number), A if number < 7 else B, (number + 1) / 10, 80 if number < 7 else 10) for number in range(10)
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def opened(browser: Browser, path: Path, *runs: Run, width: int = 1200, dark: bool = False) -> Page:
    """The page of a report, which opens without a complaint or a request, and whose plots are what Plotly knows."""
    file = path / "report.html"
    write_report(file, runs)
    page = browser.open(file, width=width, dark=dark)
    assert page.errors == []
    assert page.requests == [file.as_uri()]
    known = "Plotly.validate(plot.data, plot.layout) ?? []"
    complaints = f"[...document.querySelectorAll('.plot')].flatMap(plot => {known})"
    # A grid that is not shown has a colour all the same, and a run with nothing to draw a trace.
    assert [found for found in page.evaluate(complaints) if found["code"] not in ("unused", "invisible")] == []
    return page


def drawn(page: Page, name: str) -> list[dict[str, Any]]:
    """The traces of a plot, as Plotly has drawn them."""
    data: list[dict[str, Any]] = page.evaluate(f"document.getElementById({name!r}).data")
    return data


def specs(path: Path, *runs: Run) -> dict[str, Any]:
    """Every plot of a report as it is told to Plotly: strict JSON."""
    write_report(path / "report.html", runs)
    [text] = re.findall(
        r'<script type="application/json" id="specs">(.*?)</script>', (path / "report.html").read_text("utf-8")
    )
    told: dict[str, Any] = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    return told


def card(page: Page, figure: str) -> list[str]:
    [text] = page.texts(f'.card[data-figure="{figure}"]')
    return [line for line in text.split("\n") if line]


def texts(one: Run) -> dict[str, str]:
    [shown] = show([one])
    return {figure.name: figure.text for group in figures(shown).values() for figure in group}


def titles(*runs: Run) -> list[str]:
    return [notice.title for notice in notices(show(runs))]


def test_the_figures_of_a_run() -> None:
    said = texts(run([*TEN, failure(10.0), answer(11.0, late=0.25, ttft=2.0, cached=None, matched_tokens=None)]))
    assert said == {
        "requests": "12",
        "failed": "1",
        "failed, share": "8.3%",
        "duration": "10.0 s",
        "answers per second": "1.10/s",
        "prompt tokens per second": "110/s",
        "output tokens per second": "22.0/s",
        "hit rate": "53.6%",  # (7 × 80 + 3 × 10) / 1100
        "hit rate predicted by the router": "60.0%",
        "prediction error, mean share of a prompt": "29.0%",  # (7 × 20 + 3 × 50) / 1000
        "TTFT mean": "682 ms",  # (5.5 + 2.0) / 11
        "TTFT p50": "600 ms",
        "TTFT p90": "1.00 s",
        "TTFT p99": "2.00 s",
        "TTFT max": "2.00 s",
        "E2E mean": "1.18 s",
        "E2E p50": "1.10 s",
        "E2E p90": "1.50 s",
        "E2E p99": "2.50 s",
        "E2E max": "2.50 s",
        "ITL mean": "20.0 ms",
        "ITL p50": "15.0 ms",
        "ITL p90": "30.0 ms",
        "ITL p99": "50.0 ms",
        "ITL max": "200 ms",
        "workers that answered": "2",
        "skew": "1.45 ×",  # 8 of 11, of two workers
        "sent more than 10 ms late": "8.3%",
        "latest send": "250 ms",
    }


def test_what_was_not_told_is_not_called_zero() -> None:
    untold: dict[str, Any] = {
        "prompt_tokens": None,
        "completion_tokens": None,
        "matched_tokens": None,
        "itl_mean": None,
    }
    said = texts(run([answer(0.0, cached=None, **untold)], itl={}))
    for name in (
        "hit rate",
        "hit rate predicted by the router",
        "prediction error, mean share of a prompt",
        "prompt tokens per second",
        "output tokens per second",
        "ITL p50",
    ):
        assert said[name] == "not reported"
    assert said["TTFT p50"] == "100 ms"


@pytest.mark.parametrize("answers", [[], [failure(0.0)]])
def test_without_a_good_answer_no_latency_is_told(answers: list[Answer]) -> None:
    said = texts(run(answers, itl={}))
    assert said["TTFT p99"] == said["hit rate"] == said["skew"] == "not reported"
    assert said["failed"] == str(len(answers))


@pytest.mark.parametrize(
    ("first", "second", "better", "ratio", "verdict", "arrow"),
    [
        (0.25, 0.5, "more", "2.00 ×", "better", "▲"),
        (0.5, 0.25, "more", "0.50 ×", "worse", "▼"),
        (2.0, 0.5, "less", "0.25 ×", "better", "▼"),
        (0.5, 2.0, "less", "4.00 ×", "worse", "▲"),
        (1.0, 1.015, "less", "1.01 ×", "same", "="),
        (0.0, 3.0, "less", "", "worse", "▲"),
        (0.0, 0.0, "less", "", "same", "="),
        (None, 3.0, "less", "", "", "="),
        (3.0, None, "less", "", "", "="),
        (10.0, 20.0, "", "2.00 ×", "", "▲"),
        (1.0, 0.004, "less", "0.00400 ×", "better", "▼"),
        (1.0, 1234.0, "less", "1,230 ×", "worse", "▲"),
    ],
)
def test_the_second_run_is_judged_by_the_first(
    first: float | None, second: float | None, better: Any, ratio: str, verdict: str, arrow: str
) -> None:
    row = Row("a figure", [Figure("a figure", first, better=better), Figure("a figure", second, better=better)])
    assert (row.ratio, row.verdict, row.arrow) == (ratio, verdict, arrow)


def test_a_single_run_is_not_judged() -> None:
    row = Row("a figure", [Figure("a figure", 3.0, better="more")])
    assert (row.ratio, row.verdict) == ("", "")


def test_a_good_run_has_nothing_to_be_warned_of() -> None:
    assert titles(run(TEN)) == []


def test_failures_and_late_sends_are_said_first() -> None:
    late = [replace(each, late=0.02 * number) for number, each in enumerate(TEN)]
    spoilt = run([*late, *[failure(10.0)] * 3, failure(11.0, "timed out", 0)], load={"kind": "concurrency"})
    found = notices(show([spoilt]))
    assert [(notice.title, notice.grave) for notice in found] == [
        ("Failures", True),
        ("Late sends", True),
        ("Closed loop", False),
    ]
    assert "4 of 14 requests (28.6%) got no good answer: 3 × 503: no worker is up; 1 × no answer: timed out." in (
        found[0].text
    )
    assert "64.3% of the requests were sent more than 10 ms after they were due, at worst 180 ms" in found[1].text


def test_only_the_first_reasons_of_many_are_said() -> None:
    errors = ["x" * 500, "alpha", "beta", "gamma"]
    [notice] = notices(show([run([*TEN, *(failure(0.0, error) for error in errors)])]))
    assert f"1 × 503: {'x' * 154}…; " in notice.text
    assert "gamma" not in notice.text
    assert "1 for other reasons" in notice.text


def test_two_runs_that_are_not_the_same_test() -> None:
    other = run(TEN[:5], load={"kind": "poisson", "rate": 8}, workload={"name": "chats", "sessions": 2, "turns": 3})
    found = notices(show([run(TEN), other]))
    assert [notice.title for notice in found] == ["Not the same test", "Not as many workers"]
    assert "workload (turns none → 3); load (rate 4 → 8)" in found[0].text
    assert (
        titles(run(TEN, workload={"name": "chats", "seed": 1}), run(TEN, workload={"name": "chats", "seed": 2})) == []
    )


def test_the_parameters_of_a_load_are_said_once(tmp_path: Path) -> None:
    write_report(tmp_path / "report.html", [run(TEN, load={"kind": "concurrency", "concurrency": 16}, workload={})])
    text = (tmp_path / "report.html").read_text("utf-8")
    assert "in 10.0 s · concurrency 16 · toy<" in text
    assert "<dt>Workload</dt><dd>not told</dd>" in text


def test_runs_of_one_name_are_told_apart() -> None:
    assert [one.label for one in show([run(TEN), run(TEN)])] == ["cache aware (first)", "cache aware (second)"]
    assert show([run(TEN, label=" ")])[0].label == "unnamed run"


def test_a_silence_on_cached_tokens_is_a_zero_where_others_tell_them() -> None:
    [shown] = show([run([answer(0.0, B, cached=None), answer(1.0, A, cached=60)])])
    assert {worker.worker: worker.hit_rate for worker in shown.summary.workers} == {A: 0.6, B: 0.0}
    assert [bin_.hit_rate for bin_ in bins(shown.run, 1.0)] == [0.0, 0.6]
    [silent] = show([run([answer(0.0, cached=None)])])
    assert silent.summary.workers[0].hit_rate is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 s"),
        (0.0000123, "12.3 µs"),
        (0.00098, "980 µs"),
        (0.0123, "12.3 ms"),
        (0.99949, "999 ms"),
        (0.9996, "1.00 s"),
        (9.999, "10.0 s"),
        (1234.5, "1,230 s"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert seconds(value) == text


def test_other_units() -> None:
    assert [tick(value) for value in (0.0, 0.00001, 0.02, 0.3, 1.5, 100.0)] == [
        "0",
        "10 µs",
        "20 ms",
        "300 ms",
        "1.5 s",
        "100 s",
    ]
    assert count(1234567) == "1,234,567"
    assert per_second(0.0) == "0/s"
    assert per_second(0.0123) == "0.0123/s"
    assert times(0.314159) == "0.31 ×"


@given(st.floats(1e-6, 1e9))
def test_round_widths(value: float) -> None:
    width = round_up(value)
    assert value <= width < 2.5 * value * (1 + 1e-9)
    assert re.fullmatch(r"[125](\.0+)?e[+-]\d+", f"{width:.6e}")


TIMES = st.floats(0.0, 1e4, allow_nan=False)


@given(st.lists(TIMES, max_size=1000))
def test_a_distribution_is_exact_at_its_points(values: list[float]) -> None:
    points = distribution(values)
    assert len(points) <= 201
    assert [value for value, _ in points] == sorted(value for value, _ in points)
    for value, share in points:
        assert (
            sum(each <= value for each in values) >= round(share * len(values)) > sum(each < value for each in values)
        )
    if values:
        assert points[0][0] == min(values)
        assert points[-1] == (max(values), 1.0)


@given(st.lists(st.tuples(TIMES, TIMES, st.booleans()), max_size=60))
def test_every_request_is_in_one_bin(requests: list[tuple[float, float, bool]]) -> None:
    one = run([answer(due, ttft=ttft) if good else failure(due) for due, ttft, good in requests])
    width = bin_width([one])
    binned = bins(one, width)
    assert len(binned) <= 101
    assert sum(bin_.failed for bin_ in binned) == sum(not good for _, _, good in requests)
    for bin_ in binned:
        own = [ttft for due, ttft, good in requests if good and int(due / width) == int(bin_.middle / width)]
        assert bin_.ttft_p99 == max(own, default=None)
        assert bin_.hit_rate == (0.5 if own else None)


@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=30))
def test_the_time_in_flight_is_kept(requests: list[tuple[float, float]]) -> None:
    one = run([answer(due, e2e=e2e) for due, e2e in requests])
    end = max(due + e2e for due, e2e in requests)
    width = heat_width(1, end)
    [row] = in_flight(one, [A], width, end)
    assert len(row) <= 100
    assert sum(row) * width == pytest.approx(sum(e2e for _, e2e in requests), abs=1e-6)


def test_a_page_of_one_run(browser: Browser, tmp_path: Path) -> None:
    page = opened(browser, tmp_path, run(TEN))
    assert page.texts("h1") == ["cache aware"]
    assert page.texts(".brief") == ["10 requests, none failed, in 10.0 s · poisson, rate 4 · chats · toy"]
    assert card(page, "hit rate") == ["Hit rate", "59.0%", "higher is better"]  # (7 × 80 + 3 × 10) / 1000
    assert card(page, "TTFT p50") == ["TTFT p50", "500 ms", "lower is better"]
    assert card(page, "TTFT p99")[1] == "1.00 s"
    assert card(page, "skew")[1] == "1.40 ×"
    assert page.texts(".notices li") == []
    p50, p99 = drawn(page, "ttft-over-time")
    assert p50["x"] == [0.5 + second for second in range(10)]
    assert p50["y"] == p99["y"] == [(number + 1) / 10 for number in range(10)]
    [rates] = drawn(page, "hit-rate-over-time")
    assert rates["y"] == [0.8] * 7 + [0.1] * 3
    [curve] = drawn(page, "ttft-distribution")
    assert list(zip(curve["x"], curve["y"], strict=True)) == [(n / 10, n / 10) for n in range(1, 11)]
    [load] = drawn(page, "load-per-worker")
    assert (load["y"], load["x"]) == ([A, B], [7, 3])
    [hits] = drawn(page, "hit-rate-per-worker")
    assert hits["x"] == [0.8, 0.1]
    [heat] = drawn(page, "in-flight-1")
    assert heat["y"] == [A, B]
    assert [len(row) for row in heat["z"]] == [len(heat["x"])] * 2

    assert len(page.texts("#ttft-over-time .scatterlayer .trace path.js-line")) == 2
    assert len(page.texts("#hit-rate-over-time .scatterlayer .trace path.point")) == 10
    assert page.evaluate("document.querySelectorAll('#load-per-worker .barlayer .point path').length") == 2
    assert page.evaluate("document.querySelector('#in-flight-1 .heatmaplayer image').width.baseVal.value") > 500
    labels = page.evaluate("[...document.querySelectorAll('#load-per-worker .ytick text')].map(e => e.textContent)")
    assert labels == ["10.0.0.1:8000", "10.0.0.2:8000"]
    ticks = page.evaluate("[...document.querySelectorAll('#ttft-over-time .ytick text')].map(e => e.textContent)")
    assert ticks == ["0", "200 ms", "400 ms", "600 ms", "800 ms", "1 s"]


def test_two_runs_side_by_side(browser: Browser, tmp_path: Path) -> None:
    first = run([answer(float(n), A if n % 2 else B, 0.9, 20) for n in range(10)], label="round robin", itl={})
    page = opened(browser, tmp_path, first, run(TEN))
    assert page.texts("h1 .run") == ["round robin", "cache aware"]
    assert page.evaluate("document.title") == "round robin vs. cache aware – warmroute bench"
    assert card(page, "hit rate")[1:] == [
        "round robin:",
        "20.0%",
        "cache aware:",
        "59.0%",
        "▲ 2.95 × better",
        "higher is better",
    ]
    assert card(page, "TTFT p50")[2:6] == ["900 ms", "cache aware:", "500 ms", "▼ 0.56 × better"]
    assert card(page, "TTFT p99")[5] == "▲ 1.11 × worse"
    assert card(page, "skew")[5] == "▲ 1.40 × worse"
    colors = page.evaluate(
        "['better', 'worse'].map(name => getComputedStyle(document.querySelector(`.verdict.${name}`)).color)"
    )
    assert len(set(colors)) == 2
    table = [row.split("\t") for row in page.texts("#figures tr")]
    assert ["hit rate", "20.0%", "59.0%", "2.95 ×", "better"] in table
    assert ["ITL p50", "not reported", "15.0 ms", "", ""] in table
    names = [trace["name"] for trace in drawn(page, "ttft-over-time")]
    assert names == ["round robin p50", "round robin p99", "cache aware p50", "cache aware p99"]
    loads = drawn(page, "load-per-worker")
    assert [(trace["name"], trace["x"]) for trace in loads] == [("round robin", [5, 5]), ("cache aware", [7, 3])]
    heats = [drawn(page, f"in-flight-{number}")[0] for number in (1, 2)]
    assert heats[0]["zmax"] == heats[1]["zmax"]
    assert heats[0]["x"] == heats[1]["x"]


def test_fleets_without_a_common_name_are_compared_by_rank(tmp_path: Path) -> None:
    elsewhere = [replace(each, worker=each.worker.replace("8000", "9000")) for each in TEN]
    loads = specs(tmp_path, run(TEN), run(elsewhere, label="elsewhere"))["load-per-worker"]["data"]
    assert [(trace["x"], trace["y"]) for trace in loads] == [([1, 2], [7, 3])] * 2
    assert loads[1]["text"] == [f"{A.replace('8000', '9000')}: 7", f"{B.replace('8000', '9000')}: 3"]


def test_two_hundred_workers_and_a_hundred_thousand_requests(browser: Browser, tmp_path: Path) -> None:
    names = [f"http://worker-{number}:8000" for number in range(200)]
    many = [
        answer(number / 500, names[number * number % 211 % 200], 0.05 + number % 997 / 1000, number % 100)
        for number in range(100_000)
    ]
    one = run(many, duration=201.0)
    page = opened(browser, tmp_path, one, replace(one, label="again"))
    assert (tmp_path / "report.html").stat().st_size - len(get_plotlyjs()) < 400_000
    for name, most in (("ttft-over-time", 101), ("hit-rate-over-time", 101), ("e2e-distribution", 201)):
        assert all(50 < len(trace["x"]) <= most for trace in drawn(page, name))
    profile, _ = drawn(page, "load-per-worker")
    assert len(profile["y"]) == len({number * number % 211 % 200 for number in range(211)})
    assert profile["y"] == sorted(profile["y"], reverse=True)
    assert sum(profile["y"]) == 100_000
    [heat] = drawn(page, "in-flight-1")
    assert len(heat["z"]) * len(heat["z"][0]) <= 6_000
    assert len(page.texts(".workers tbody tr")) == 2 * len(profile["y"])


def test_only_the_busiest_of_very_many_workers_have_a_row_in_the_map(tmp_path: Path) -> None:
    answers = [answer(number / 100, f"worker-{number % 300}") for number in range(450)]
    [heat] = specs(tmp_path, run(answers))["in-flight-1"]["data"]
    assert len(heat["y"]) == len(heat["z"]) == 200
    assert {f"worker-{number}" for number in range(150)} < set(heat["y"])
    assert "The 200 busiest of 300." in (tmp_path / "report.html").read_text("utf-8")


def test_labels_and_errors_cannot_break_out(browser: Browser, tmp_path: Path) -> None:
    answers = [answer(0.0, worker=HOSTILE), answer(1.0, worker="<b>bold</b>"), failure(1.0, HOSTILE)]
    page = opened(
        browser, tmp_path, run(answers, HOSTILE, command=HOSTILE, urls=[HOSTILE], workload={HOSTILE: HOSTILE})
    )
    assert page.texts("h1") == [HOSTILE]
    assert page.evaluate("document.title") == f"{HOSTILE} – warmroute bench"
    assert page.evaluate("document.querySelectorAll('main img, main b, main script').length") == 0
    assert f"503: {HOSTILE}" in page.texts(".reasons tbody th")
    labels = page.evaluate("[...document.querySelectorAll('#load-per-worker .ytick text')].map(e => e.textContent)")
    assert "<b>bold</b>" in labels


def test_a_run_of_nothing_says_so(browser: Browser, tmp_path: Path) -> None:
    page = opened(browser, tmp_path, run([], itl={}))
    assert page.texts(".notices .grave strong") == ["No requests."]
    assert set(page.texts(".missing")) == {"No request had a good answer."}
    assert card(page, "hit rate")[1] == "not reported"


def test_a_run_of_failures_beside_a_good_one(browser: Browser, tmp_path: Path) -> None:
    page = opened(browser, tmp_path, run([failure(0.0), failure(10.0)], "bad", itl={}), run(TEN, "good"))
    assert page.texts(".notices .grave strong") == ["bad: Failures.", "Not as many workers."]
    assert card(page, "TTFT p50")[1:6] == ["bad:", "not reported", "good:", "500 ms", "no ratio"]
    bad, good = drawn(page, "failures-over-time")
    assert (bad["y"], good["y"]) == ([1, *[0] * 9, 1], [0] * 10)
    assert page.texts(".reasons tbody tr") == ["503: no worker is up\t2"]
    assert drawn(page, "hit-rate-over-time")[0]["y"] == [None] * 11


def test_no_streams_and_no_cached_tokens(browser: Browser, tmp_path: Path) -> None:
    page = opened(browser, tmp_path, run([answer(n, cached=None, itl_mean=None) for n in range(5)], itl={}))
    assert page.texts(".missing") == [
        "Not reported: no answer told its cached tokens.",
        "No answer had this.",
        "Not reported: no answer told its cached tokens.",
    ]
    assert page.texts(".notices li strong") == ["Hit rate not reported."]


def test_a_single_request(tmp_path: Path) -> None:
    plots = specs(tmp_path, run([answer(0.0)]))
    assert plots["ttft-distribution"]["data"][0]["mode"] == "markers"
    assert plots["ttft-over-time"]["data"][0]["y"] == [0.1]


def test_it_fits_a_phone(browser: Browser, tmp_path: Path) -> None:
    page = opened(browser, tmp_path, run(TEN), run(TEN, label="a" * 80), width=390)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    widths = page.evaluate(
        "[...document.querySelectorAll('.plot .main-svg')].map(e => e.getBoundingClientRect().right)"
    )
    assert widths
    assert max(widths) < 390


def test_it_follows_the_theme(browser: Browser, tmp_path: Path) -> None:
    page = opened(browser, tmp_path, run(TEN), dark=True)
    axis = "getComputedStyle(document.querySelector('#ttft-over-time .ytick text')).fill"
    words = "getComputedStyle(document.querySelector('.eyebrow')).color"
    drawn_dark, written_dark = page.evaluate(f"[{axis}, {words}]")
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
    drawn_light, written_light = page.evaluate(
        f"new Promise(done => requestAnimationFrame(() => done([{axis}, {words}])))"
    )
    assert written_dark != written_light
    assert (drawn_dark, drawn_light) == (written_dark, written_light)


@pytest.mark.parametrize("spread", [1.0, 1.2, 1.3, 2.0, 3.0, 4.0, 5.0, 10.0, 100.0, 10_000.0])
def test_every_axis_of_latencies_has_marks(tmp_path: Path, spread: float) -> None:
    answers = [answer(number, ttft=0.0034 * spread**share) for number, share in enumerate((0.0, 0.4, 1.0))]
    plots = specs(tmp_path, run(answers))
    for axis in (plots["ttft-distribution"]["layout"]["xaxis"], plots["ttft-over-time"]["layout"]["yaxis"]):
        low, high = (10**end if axis.get("type") == "log" else end for end in axis["range"])
        assert low <= 0.0034 <= 0.0034 * spread <= high
        assert 2 <= sum(low <= mark <= high for mark in axis["tickvals"]) <= 7


def test_times_of_nothing(tmp_path: Path) -> None:
    plots = specs(tmp_path, run([answer(0.0, ttft=0.0, e2e=0.0)], duration=0.0))
    assert plots["ttft-over-time"]["data"][0]["y"] == [0.0]
    assert "in-flight-1" not in plots
