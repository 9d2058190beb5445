"""`warmroute worker --engine vllm` with a program on its PATH that stands in for vLLM."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from . import vllm_program
from .proc import alive
from .wait import until

COMMAND = [sys.executable, "-P", "-m", "warmroute_worker"]


class Vllm:
    """How it is started, and what each run of the program has noted."""

    def __init__(self, folder: Path) -> None:
        program = folder / "bin" / "vllm"
        program.parent.mkdir()
        program.write_text(f"#!{sys.executable}\n" + Path(vllm_program.__file__).read_text())
        program.chmod(0o755)
        self._notes = folder / "notes"
        self._notes.mkdir()
        self._folder = folder / "current"
        self._folder.mkdir()
        (self._folder / "subprocess.py").write_text("raise SystemExit('imported from the current folder')")
        self._environment = os.environ | {"PATH": f"{program.parent}:/usr/bin:/bin", "VLLM_NOTES": str(self._notes)}
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *flags: str, **environment: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [*COMMAND, "--engine", "vllm", "--model", "m", "--port", "0", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self._folder,
            env=self._environment | environment,
        )
        self.started.append(process)
        return process

    def announced(self, *flags: str, **environment: str) -> "tuple[subprocess.Popen[str], str]":
        """Once it is up; and its line."""
        process = self.start(*flags, **environment)
        assert process.stdout is not None
        return process, process.stdout.readline()

    def all_notes(self) -> list[dict[str, Any]]:
        return [json.loads(file.read_text()) for file in sorted(self._notes.glob("*.json"))]

    def notes(self) -> dict[str, Any]:
        """Of the only one, once there are any."""
        until(lambda: bool(self.all_notes()))
        (noted,) = self.all_notes()
        return noted

    def nothing_is_left(self) -> None:
        assert self.all_notes()
        until(lambda: not any(alive(notes[who]) for notes in self.all_notes() for who in ("pid", "engine")))


@contextmanager
def vllm_on_path(folder: Path) -> Iterator[Vllm]:
    fake = Vllm(folder)
    yield fake
    for process in fake.started:
        process.kill()
    for notes in fake.all_notes():  # where a test has failed
        for pid in (notes["pid"], notes["engine"]):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    for process in fake.started:
        process.communicate()
