"""The dashboard. `python -m warmroute_loadtest.monitoring.board` writes it down for Grafana."""

import json
from pathlib import Path
from typing import Any

from .cache import CACHE
from .expressions import ROUTER
from .health import HEALTH
from .insides import ENGINES, OTHERS, TREE
from .panels import DATASOURCE, laid_out
from .traffic import DECISIONS, LATENCY, LOAD, QUEUE

FILE = Path(__file__).parents[4] / "helm/warmroute/dashboards/warmroute.json"
DOCS = "https://github.com/warmroute/warmroute/blob/main/docs/monitoring.md"
SECTIONS = (CACHE, LATENCY, LOAD, HEALTH, QUEUE, DECISIONS, ENGINES, TREE, OTHERS)


def dashboard() -> dict[str, Any]:
    return {
        "id": None,
        "uid": "warmroute",
        "title": "warmroute",
        "description": "Hit rates of the workers behind warmroute, why they are what they are, and how all does.",
        "tags": ["warmroute", "llm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,  # one cursor in all panels
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [{"title": "How to read this", "type": "link", "url": DOCS, "targetBlank": True}],
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                _variable("job", "Routers", "label_values(warmroute_info, job)", all_value=".+"),
                # Not only those that are listed just now: a model's series stay in the range of time that is shown.
                _variable("model", "Model", _labels_of("model", ROUTER), all_value=".+"),
                _variable("worker", "Worker", _labels_of("worker", '{job=~"$job", model=~"$model"}')),
            ]
        },
        "panels": laid_out(SECTIONS),
    }


def _labels_of(label: str, chosen: str) -> str:
    return f"label_values(warmroute_worker_serves{chosen}, {label})"


def _variable(name: str, label: str, query: str, all_value: str | None = None) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "multi": True,
        "includeAll": True,
        "allValue": all_value,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "refresh": 2,  # with the range of time, so that workers that are gone can still be looked at
        "sort": 1,
    }


def text() -> str:
    return json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n"
