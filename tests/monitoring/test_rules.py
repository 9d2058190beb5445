"""The rule files by themselves: what promtool says of them, and what each alert must have."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.monitored import CHART, RULES
from warmroute_loadtest.monitoring.prometheus import ROOT, binaries

CASES = sorted(Path(__file__).parent.glob("*.test.yaml"))
SAYS_ALL = ("WarmrouteWorkerDown", "WarmrouteRouterDown", "WarmrouteNoRouter")
"""Alerts whose value tells no more than that they fire."""
RUNBOOK = "https://github.com/warmroute/warmroute/blob/main/docs/monitoring.md#"


def _alerts() -> list[dict[str, Any]]:
    loaded = [yaml.safe_load(path.read_text()) for path in RULES]
    return [rule for file in loaded for group in file["groups"] for rule in group["rules"] if "alert" in rule]


ALERTS = {alert["alert"]: alert for alert in _alerts()}


def test_all_rule_files_are_looked_at() -> None:
    assert sorted((CHART / "rules").iterdir()) == sorted(RULES)


@pytest.mark.parametrize("arguments", [("check", "rules", *RULES), ("test", "rules", *CASES)], ids=["check", "test"])
def test_promtool_is_content(arguments: tuple[str | Path, ...]) -> None:
    done = subprocess.run([binaries() / "promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("SUCCESS") == len(arguments) - 2


def test_each_alert_is_tested_firing_and_not() -> None:
    tests = [
        each
        for path in CASES
        for case in yaml.safe_load(path.read_text())["tests"]
        for each in case["alert_rule_test"]
    ]
    assert {test["alertname"] for test in tests if test["exp_alerts"]} == set(ALERTS)
    assert {test["alertname"] for test in tests if not test["exp_alerts"]} == set(ALERTS)


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_what_it_is_and_what_to_do(name: str) -> None:
    alert = ALERTS[name]
    assert alert["labels"] == {"severity": alert["labels"]["severity"]}
    assert alert["labels"]["severity"] in ("info", "warning", "critical")
    assert alert["for"]
    annotations = alert["annotations"]
    assert set(annotations) == {"summary", "description", "runbook_url"}
    assert "$value" in annotations["description"] or name in SAYS_ALL
    page, _, anchor = annotations["runbook_url"].partition("#")
    assert page + "#" == RUNBOOK
    assert anchor in _anchors()


def _anchors() -> list[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", (ROOT / "docs/monitoring.md").read_text(), flags=re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
