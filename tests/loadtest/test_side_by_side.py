"""The table of faults: what it says of what was measured, and some of its scenarios on this router."""

import sys
from pathlib import Path

import pytest
from warmroute_loadtest.markers import write_between_markers
from warmroute_loadtest.rivals.routers import SMG, WARMROUTE, Router
from warmroute_loadtest.rivals.running import StartError
from warmroute_loadtest.side_by_side.__main__ import THEMES, main
from warmroute_loadtest.side_by_side.client import Answer, tally
from warmroute_loadtest.side_by_side.clients import leaves_in_a_gap
from warmroute_loadtest.side_by_side.dead_workers import killed_with_requests_waiting
from warmroute_loadtest.side_by_side.fidelity import body_fields, no_secret_told
from warmroute_loadtest.side_by_side.http_oddities import request_smuggling
from warmroute_loadtest.side_by_side.overload import queue_bound
from warmroute_loadtest.side_by_side.scenario import Outcome, Scenario, scenario
from warmroute_loadtest.side_by_side.stage import stage
from warmroute_loadtest.side_by_side.table import Cell, days, markdown
from warmroute_loadtest.side_by_side.wrong_answers import bad_requests, dies_mid_stream

QUICK = (
    bad_requests,
    body_fields,
    dies_mid_stream,
    killed_with_requests_waiting,
    leaves_in_a_gap,
    no_secret_told,
    queue_bound,
    request_smuggling,
)


@pytest.mark.anyio
@pytest.mark.parametrize("row", QUICK, ids=lambda row: row.name)
async def test_this_router_is_right_in(row: Scenario) -> None:
    outcome = await row.run(WARMROUTE)
    assert outcome.ok, outcome.shown


@pytest.mark.anyio
async def test_a_router_that_does_not_start_shows_what_it_said() -> None:
    broken = Router("broken", "1", (sys.executable, "-c", "raise SystemExit('no such flag')"), "warning")
    with pytest.raises(StartError, match="no such flag"):
        async with stage(broken):
            pass


def test_a_scenario_has_the_name_of_its_function() -> None:
    @scenario(fault="a fault", right="what is right", source="somebody's issue")
    async def worker_on_fire(router: Router) -> Outcome:
        return Outcome(True, router.name)

    assert worker_on_fire[:4] == ("worker-on-fire", "a fault", "what is right", "somebody's issue")


def test_no_two_scenarios_share_a_name() -> None:
    names = [row.name for rows in THEMES.values() for row in rows]
    assert len(names) == len(set(names)) > 24


def test_an_unknown_scenario_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(SystemExit, match=r"no scenario is named none; there are .*killed-worker"):
        main(["--only", "none"])


def row(name: str) -> Scenario:
    async def run(router: Router) -> Outcome:
        raise NotImplementedError(router)

    return Scenario(name, f"fault of {name}", f"right for {name}", "an issue", run)


RESULTS = {
    "one": {"smg": Cell(True, "0 of 40 lost", "2026-01-02"), "warmroute": Cell(False, "a | b", "2026-01-03")},
    "two": {"warmroute": Cell(True, "fine", "2026-01-03")},
}


def test_the_table_has_a_row_for_what_was_measured_and_counts_what_is_right() -> None:
    text = markdown({"Theme": (row("one"), row("two"), row("three"))}, (SMG, WARMROUTE), RESULTS)
    assert text == "\n".join(
        [
            f"Right in 2 rows: {SMG.title} 1, {WARMROUTE.title} 1.",
            "",
            "### Theme",
            "",
            f"| fault | right | {SMG.title} | {WARMROUTE.title} |",
            "| --- | --- | --- | --- |",
            "| `one`: fault of one (an issue) | right for one | ✓ 0 of 40 lost | ✗ a \\| b |",
            "| `two`: fault of two (an issue) | right for two | not run | ✓ fine |",
        ]
    )


def test_the_days_of_the_measurements_are_told() -> None:
    assert days(RESULTS) == "2026-01-02 to 2026-01-03"
    assert days({"two": RESULTS["two"]}) == "2026-01-03"


def test_only_what_is_between_the_markers_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- side-by-side -->\nold\n<!-- /side-by-side -->\nafter\n")
    write_between_markers(page, "side-by-side", "new")
    assert page.read_text() == "before\n<!-- side-by-side -->\nnew\n<!-- /side-by-side -->\nafter\n"


def test_a_page_without_both_markers_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- side-by-side -->\nold\n")
    with pytest.raises(ValueError, match="has no <!-- side-by-side -->"):
        write_between_markers(page, "side-by-side", "new")
    assert page.read_text() == "before\n<!-- side-by-side -->\nold\n"


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (Answer("id=t1x", status=200, body=b"... id=t1x ..."), "1×200"),
        (Answer("id=t1x", status=200, body=b"... id=t2x ..."), "1×200 with another answer"),
        (Answer("id=t1x", status=200, body=b'data: {"error":{}}'), "1×200 with an error event"),
        (Answer("id=t1x", status=200, body=b"... id=t1x ...", ending="cut"), "1×200 cut"),
        (Answer("id=t1x", status=503), "1×503"),
        (Answer("id=t1x", ending="timeout"), "1×timeout"),
    ],
)
def test_how_an_answer_ended_is_told(answer: Answer, shown: str) -> None:
    assert tally([answer]) == shown
    assert answer.right == (shown == "1×200")


def test_the_commonest_ending_comes_first() -> None:
    answers = [Answer("", status=503), Answer("", status=429), Answer("", status=429)]
    assert tally(answers) == "2×429, 1×503"
