"""The Helm chart, rendered by a real helm. Each rendering is done once."""

import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm/warmroute"
VALUES_FILES = sorted((CHART / "ci").glob("*-values.yaml"))
"""A grid of what people run."""

Resource = dict[str, Any]
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class HelmError(Exception):
    """What helm says where it refuses."""


def helm(*arguments: str | Path, stdin: str | None = None) -> str:
    command = [_path_of("helm"), *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HelmError(done.stderr + done.stdout)
    return done.stdout


def render(
    values: Resource | None = None, *files: Path, release: str = "release", chart: Path = CHART
) -> list[Resource]:
    """What would be made in a cluster. `values` beat those of the files."""
    return list(yaml.load_all(_rendered(yaml.safe_dump(values or {}), files, release, chart), _LOADER))


@cache
def _rendered(values: str, files: tuple[Path, ...], release: str, chart: Path) -> str:
    flags = [part for file in files for part in ("--values", str(file))]
    return helm("template", release, chart, "--namespace", "llm", *flags, "--values", "-", stdin=values)


@cache
def _path_of(script: str) -> str:
    """What a script prints that fetches a tool where there is none."""
    done = subprocess.run([ROOT / "scripts" / script], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def crd_schemas() -> str:
    return _path_of("crd-schemas")


def of_kind(resources: list[Resource], *kinds: str) -> list[Resource]:
    return [resource for resource in resources if resource["kind"] in kinds]


def the(resources: list[Resource], kind: str, suffix: str = "") -> Resource:
    """The only one of its kind, or the only one whose name ends like that."""
    (found,) = (each for each in of_kind(resources, kind) if each["metadata"]["name"].endswith(suffix))
    return found


def pods(resources: list[Resource]) -> Iterator[tuple[str, Resource]]:
    """What each pod would be: the name of whoever makes it, and its own `metadata` and `spec`."""
    for resource in resources:
        if resource["kind"] == "Pod":
            yield resource["metadata"]["name"], resource
        elif "template" in resource.get("spec", {}):
            yield resource["metadata"]["name"], resource["spec"]["template"]


def container(pod: Resource) -> Resource:
    """The only one."""
    (found,) = pod["spec"]["containers"]
    return dict(found)


def selects(selector: dict[str, str], pod: Resource) -> bool:
    labels: dict[str, str] = pod["metadata"]["labels"]
    return selector.items() <= labels.items()
