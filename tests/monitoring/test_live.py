"""Every expression of dashboard and rules, asked of a real Prometheus that scrapes real routers under load."""

import asyncio
import re
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from support.browser import chromium
from support.monitored import Monitored, monitored
from support.promql import fault, unfiltered
from warmroute_loadtest.monitoring.board import FILE as DASHBOARD
from warmroute_loadtest.monitoring.dashboard import Variables, load, panels
from warmroute_loadtest.monitoring.picture import draw, page
from warmroute_loadtest.monitoring.prometheus import Prometheus, binaries
from warmroute_loadtest.monitoring.story import Event, Story

pytestmark = pytest.mark.anyio

PATIENCE = 80.0
"""Seconds for all of it to have data; only matters in failure."""
_LEGEND_LABEL = re.compile(r"\{\{ *(\w+) *\}\}")
_ANNOTATION_LABEL = re.compile(r"\$labels\.(\w+)")


class Expression(NamedTuple):
    where: str
    text: str
    labels: frozenset[str]
    """That its legend, or its annotations, name."""


@pytest.fixture(scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Monitored]:
    async with monitored(tmp_path_factory.mktemp("prometheus")) as house:
        yield house


@pytest.fixture(scope="module")
async def variables(house: Monitored) -> Variables:
    """As soon as all of them have values."""
    dashboard, variables = load(DASHBOARD), Variables()
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await variables.resolve(dashboard, house.prometheus)
            except LookupError:
                await asyncio.sleep(0.5)
            else:
                return variables


async def test_every_expression_selects_live_data(house: Monitored, variables: Variables) -> None:
    left = [*_of_dashboard(variables), *await _of_rules(house.prometheus)]
    assert len(left) > 80
    faults = await _faults_that_stay(house.prometheus, left)
    assert not faults, "\n".join(f"{where}: {why}" for where, why in faults.items())


async def _faults_that_stay(prometheus: Prometheus, left: list[Expression]) -> dict[str, str]:
    """Each has to be right once: a server that has just come has no rates yet."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while True:
        found = [(each, await fault(prometheus, each.text, each.labels)) for each in left]
        left = [each for each, why in found if why]
        if not left or asyncio.get_running_loop().time() > deadline:
            return {each.where: why for each, why in found if why}
        await asyncio.sleep(1)


async def _is_found(prometheus: Prometheus, expression: str, why: str, labels: frozenset[str] = frozenset()) -> None:
    """At some time: a scrape that came too late leaves nothing to select."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while why not in (found := str(await fault(prometheus, expression, labels))):
        assert asyncio.get_running_loop().time() < deadline, found
        await asyncio.sleep(1)


def _of_dashboard(variables: Variables) -> Iterator[Expression]:
    for panel in panels(load(DASHBOARD)):
        for target in panel.targets:
            labels = frozenset(_LEGEND_LABEL.findall(target.legend))
            yield Expression(f"panel {panel.title}, {target.letter}", variables.replace(target.expression), labels)


async def _of_rules(prometheus: Prometheus) -> list[Expression]:
    found = []
    for rule in await prometheus.rules():
        if rule["type"] == "alerting":
            labels = frozenset(_ANNOTATION_LABEL.findall("".join(rule["annotations"].values())))
            found.append(Expression(f"alert {rule['name']}", unfiltered(rule["query"]), labels))
        else:
            found.append(Expression(f"record {rule['name']}", rule["query"], frozenset()))
            found.append(Expression(f"recorded {rule['name']}", rule["name"], frozenset()))
    return found


@pytest.mark.parametrize(
    ("expression", "labels", "why"),
    [
        ("sum(rate(warmroute_promt_tokens_total[10s]))", (), "warmroute_promt_tokens_total selects nothing"),
        ('warmroute_worker_up{worker="nobody"}', (), 'warmroute_worker_up{worker="nobody"} selects nothing'),
        ('sum(warmroute_peers{jobs=~".+"})', (), 'warmroute_peers{jobs=~".+"} selects nothing'),
        ("warmroute_info or warmroute_gone", (), "warmroute_gone selects nothing"),
        ("warmroute_worker_up and on (policy, worker) warmroute_info", (), "yields nothing"),
        ("warmroute_info offset 2d", (), "warmroute_info offset 2d selects nothing"),
        ("warmroute_worker_up > 1", (), "yields nothing"),
        ("0 * warmroute_worker_up / 0", (), "yields NaN"),
        ("sum(warmroute_worker_up)", ("worker",), "has no label worker"),
        ("sum by (worker) (warmroute_worker_up", (), "unclosed left parenthesis"),
    ],
)
async def test_a_broken_expression_is_found(
    house: Monitored, variables: Variables, expression: str, labels: tuple[str, ...], why: str
) -> None:
    del variables  # once they have values there are data
    await _is_found(house.prometheus, expression, why, frozenset(labels))


async def test_an_alert_whose_sides_do_not_match_is_found(house: Monitored, variables: Variables) -> None:
    del variables
    alert = 'warmroute_worker_up == 0 unless on ({}) warmroute_workers{{state="ready"}} == 9'
    good, bad = (unfiltered(alert.format(labels)) for labels in ("job, instance", "job, state"))
    assert good == 'warmroute_worker_up == bool 0 and on (job, instance) warmroute_workers{state="ready"} == bool 9'
    assert await _faults_that_stay(house.prometheus, [Expression("good", good, frozenset())]) == {}
    await _is_found(house.prometheus, bad, "yields nothing")


async def test_the_picture_has_all_panels(house: Monitored, variables: Variables, tmp_path: Path) -> None:
    del variables
    now = time.time()
    story = Story(now - 5, now, [Event(now - 2, "something <happens>")])
    drawn = await draw(house.prometheus, story)
    (tmp_path / "page.html").write_text(page(drawn, story), encoding="utf-8")
    plots = [each for each in drawn if each.lines and each.panel.kind not in ("row", "stat")]
    assert len(plots) > 15
    with chromium() as browser:
        shown = browser.open(tmp_path / "page.html")
        assert shown.errors == []
        assert shown.texts("h2") == [each.panel.title for each in drawn if each.panel.kind != "row"]
        assert len(shown.texts(".plot .main-svg:first-child")) == len(plots)
        assert "something <happens> at 3 s" in shown.texts("header")[0]


async def test_promtool_finds_nothing_in_a_scrape(house: Monitored) -> None:
    async with httpx.AsyncClient(trust_env=False) as http:
        for router in house.routers:
            scraped = (await http.get(router.metrics_url)).content
            assert b"warmroute_info" in scraped
            assert _check_metrics(scraped) == (0, "")
    assert _check_metrics(b"# TYPE foo_ms counter\nfoo_ms 1\n")[0] != 0


def _check_metrics(scraped: bytes) -> tuple[int, str]:
    done = subprocess.run(
        [binaries() / "promtool", "check", "metrics"], input=scraped, capture_output=True, check=False
    )
    return done.returncode, (done.stdout + done.stderr).decode()
