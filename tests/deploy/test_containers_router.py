"""The steps of the router's Containerfile, done for real in a folder; what comes out runs as the image's user."""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.containerfile import REPOSITORY, Built, read_stages
from warmroute_loadtest.processes import url_in
from warmroute_router import __version__

FILE = REPOSITORY / "containers" / "Containerfile.router"
MOST_BYTES = 150e6


@pytest.fixture(scope="module")
def image() -> Iterator[Built]:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)  # pytest's own folders are closed to others
        yield Built(FILE, Path(name))


def test_is_small(image: Built) -> None:
    size = sum(path.lstat().st_size for path in image.root.rglob("*"))
    print(f"{size / 1e6:.1f} MB installed")
    assert 10e6 < size < MOST_BYTES


def test_has_the_router_and_what_it_needs_alone(image: Built) -> None:
    names = {path.name.partition("-")[0] for path in image.root.glob("opt/warmroute/lib/*/site-packages/*.dist-info")}
    assert {"warmroute", "uvloop", "httptools", "orjson"} < names
    assert not names & {"torch", "numpy", "uvicorn", "pydantic", "pip", "setuptools", "plotly", "rich"}
    assert [path.name for path in image.root.iterdir() if path.name not in ("opt", "etc")] == []


def test_the_command_runs(image: Built) -> None:
    assert image.run("warmroute", "--version").stdout == f"warmroute {__version__}\n"
    assert "--worker-urls" in image.run("warmroute", "serve", "--help").stdout


def test_its_user_is_not_root_and_can_change_nothing(image: Built) -> None:
    assert image.run("id", "-u").stdout.strip() not in ("", "0")
    assert image.run("touch", "/opt/warmroute/anything").returncode != 0


def test_serves_and_tells_its_health(image: Built) -> None:
    stage = read_stages(FILE)[-1]
    command = image.command(*json.loads(stage.last("ENTRYPOINT")), *json.loads(stage.last("CMD")))
    router = subprocess.Popen(
        [*command, "--port", "0", "--prometheus-port", "0"],
        env=image.env,
        cwd="/",
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert router.stdout is not None
        url = httpx.URL(url_in(router.stdout.readline())).copy_with(host="127.0.0.1")
        check = json.loads(stage.last("HEALTHCHECK").partition("CMD ")[2])
        check[-1] = check[-1].replace("30000", str(url.port))
        assert httpx.get(f"{url}/health/live").status_code == 200
        assert httpx.get(f"{url}/health/ready").status_code == 503  # it has no workers
        assert image.run(*check).returncode == 0
        router.terminate()
        assert router.wait(30) == 0
        assert image.run(*check).returncode != 0
    finally:
        router.kill()
        router.communicate()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_no_package_has_to_be_compiled(machine: str, tmp_path: Path) -> None:
    """Not for the Python of the image either, which need not be the one of the tests."""
    python = re.search(r"python:([\d.]+)-", read_stages(FILE)[0].last("FROM"))
    assert python is not None
    needs = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["dependencies"]
    platforms = [f"--platform=manylinux{version}_{machine}" for version in ("2014", "_2_17", "_2_28")]
    options = [
        "--dry-run",
        "--only-binary=:all:",
        f"--python-version={python[1]}",
        f"--target={tmp_path}",
        *platforms,
    ]
    found = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", *options, *needs], capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
