"""The dashboard by itself: what Grafana needs, and what people who look at it do."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from support.promql import selectors, unfiltered
from warmroute_loadtest.monitoring import board
from warmroute_loadtest.monitoring.board import FILE as DASHBOARD
from warmroute_loadtest.monitoring.dashboard import Panel, Variables, load, panels

PANELS = list(panels(load(DASHBOARD)))
DRAWN = [panel for panel in PANELS if panel.kind != "row"]


def test_it_is_what_its_program_writes() -> None:
    rewrite = "python -m warmroute_loadtest.monitoring.board"
    assert DASHBOARD.read_text(encoding="utf-8") == board.text(), f"run {rewrite}"


def test_it_can_be_provisioned_and_imported() -> None:
    dashboard = load(DASHBOARD)
    assert dashboard["id"] is None
    assert dashboard["uid"] == "warmroute"
    assert dashboard["schemaVersion"] >= 39
    ids = [panel.raw["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids)
    sources = {json.dumps(each) for each in _data_sources(dashboard)}
    assert sources == {'{"type": "prometheus", "uid": "${datasource}"}'}
    variables = dashboard["templating"]["list"]
    assert [variable["name"] for variable in variables] == ["datasource", "job", "model", "worker"]
    assert all(variable["includeAll"] and variable["multi"] for variable in variables[1:])


def _data_sources(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        if "datasource" in node:
            yield node["datasource"]
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            yield from _data_sources(each)


def test_hit_rates_come_first() -> None:
    first = PANELS[0]
    assert first.title == "Hit rate of each worker"
    assert [target.legend for target in first.targets] == ["{{worker}} real", "{{worker}} predicted"]
    assert PANELS[1].title == "Three losses"


@pytest.mark.parametrize("panel", DRAWN, ids=[panel.title for panel in DRAWN])
def test_a_panel_can_be_read(panel: Panel) -> None:
    assert len(panel.raw["description"]) > 10
    assert panel.raw["fieldConfig"]["defaults"]["unit"]
    assert panel.targets
    assert all(target.legend for target in panel.targets)
    for target in panel.targets:
        every = list(selectors(target.expression))
        assert every
        assert all('job=~"$job"' in selector for selector in every), "a variable that does nothing"


def test_what_may_be_below_zero_is_not_cut_off() -> None:
    """The engine may have had more than was predicted."""
    losses = next(panel for panel in PANELS if panel.title == "Three losses")
    assert "Below 0" in losses.raw["description"]
    assert "min" not in losses.raw["fieldConfig"]["defaults"]
    hits = next(panel for panel in PANELS if panel.title == "Hit rate of each worker")
    assert hits.raw["fieldConfig"]["defaults"]["min"] == 0


def test_panels_fill_the_grid_and_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel.raw["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel.title
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_variables_stand_for_everything() -> None:
    variables = Variables({"worker": "(a|b)"})
    assert variables.replace('up{worker=~"$worker"}[$__rate_interval]') == 'up{worker=~"(a|b)"}[10s]'
    with pytest.raises(KeyError):
        variables.replace("$nobody")


def test_comparisons_become_values() -> None:
    assert unfiltered('a{b!="=="} > 3 and b != bool 2 unless c') == 'a{b!="=="} > bool 3 and b != bool 2 and c'
    assert re.sub(r"\s", "", unfiltered("absent(warmroute_info)")) == "(warmroute_info)"


def test_every_series_of_an_expression_is_found() -> None:
    expression = (
        'sum by (job) (rate(warmroute_a_total{x="}"}[5m] offset 1d)) / on (job) up unless a:warmroute_b:c > 1'
    )
    assert list(selectors(expression)) == ['warmroute_a_total{x="}"} offset 1d', "up", "a:warmroute_b:c"]
