"""A Containerfile read, and its steps done in a folder, since there is no container engine here."""

import os
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[2]
USER = "65532"

# Without root's rights, as the images run. Who is not root here is somebody else already.
UNPRIVILEGED = (
    ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs", "--bounding-set=-all")
    if os.geteuid() == 0
    else ()
)


class Instruction(NamedTuple):
    name: str
    value: str


class Stage(list[Instruction]):
    def all(self, name: str) -> list[str]:
        return [value for each, value in self if each == name]

    def last(self, name: str) -> str:
        return self.all(name)[-1]

    def copied(self) -> list[list[str]]:
        """The words of each COPY from the repository: sources, and then the target."""
        return [value.split() for value in self.all("COPY") if not value.startswith("--from=")]


def read_stages(file: Path) -> list[Stage]:
    """From each FROM to the next, with what ARGs before the first say put in."""
    lines = [line for line in file.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n\s*", "", "\n".join(lines))
    instructions = [Instruction(*line.split(maxsplit=1)) for line in text.splitlines()]
    starts = [index for index, (name, _) in enumerate(instructions) if name == "FROM"]
    arguments = dict(value.split("=", 1) for _, value in instructions[: starts[0]])
    for start in starts:
        base = re.sub(r"\$\{(\w+)\}", lambda match: arguments[match[1]], instructions[start].value)
        instructions[start] = Instruction("FROM", base)
    return [Stage(instructions[start:end]) for start, end in pairwise([*starts, len(instructions)])]


def is_sent(path: Path) -> bool:
    """Whether a file of the repository is in what the engine sees of it: the last pattern that fits decides."""
    relative, sent = path.relative_to(REPOSITORY), True
    names = [str(each) for each in (relative, *relative.parents)]
    for line in (REPOSITORY / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        if pattern.startswith("**/"):
            fits = any(fnmatch(part, pattern[3:]) for part in relative.parts)
        else:
            fits = any(fnmatch(name, pattern) for name in names)
        if pattern and not pattern.startswith("#") and fits:
            sent = line.startswith("!")
    return sent


class Built:
    """What the steps make. The folders that they write to are those of the image, moved below `root`."""

    def __init__(self, file: Path, root: Path) -> None:
        self.root = root / "image"
        self._shims = root / "shims"
        self._make_shims()
        for stage in read_stages(file):
            self.env = {"PATH": f"{self._shims}:{os.environ['PATH']}", "HOME": "/nonexistent"}
            self._keep([value.split()[1] for value in stage.all("COPY") if value.startswith("--from=")])
            for instruction in stage:
                self._do(*instruction)
        for path in (self.root, *self.root.rglob("*")):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & ~0o222)

    def moved(self, text: str) -> str:
        return re.sub(r"(?<![\w.])/(?=(src|opt|etc/warmroute)\b)", f"{self.root}/", text)

    def command(self, *words: str) -> list[str]:
        """As its user, without rights."""
        return [*UNPRIVILEGED, *(self.moved(word) for word in words)]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*words), env=self.env, cwd="/", text=True, capture_output=True, timeout=60)

    def _keep(self, folders: list[str]) -> None:
        """Of the stage before, what this one copies; it stays where it is."""
        kept = [Path(self.moved(folder)) for folder in folders]
        for path in self.root.glob("*"):
            if not any(each.is_relative_to(path) for each in kept):
                shutil.rmtree(path)

    def _do(self, name: str, value: str) -> None:
        if name == "ENV":
            variable, text = value.split("=", 1)
            self.env[variable] = self.moved(text).replace("$PATH", self.env["PATH"])
        elif name == "WORKDIR":
            self._folder = Path(self.moved(value))
            self._folder.mkdir(parents=True)
        elif name == "COPY" and not value.startswith("--from="):
            *sources, target = value.split()
            for source in sources:
                self._copy(REPOSITORY / source, self._folder / (target if target != "./" else source))
        elif name == "RUN":
            (self.root / "etc").mkdir(parents=True, exist_ok=True)
            # Where pip finds packages is a matter of the machine, as in a build.
            clean = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
            environment = {**clean, "PATH": self.env["PATH"]}
            subprocess.run(["sh", "-euc", self.moved(value)], env=environment, cwd="/", check=True)

    def _copy(self, source: Path, target: Path) -> None:
        for path in (path for path in (source, *source.rglob("*")) if path.is_file() and is_sent(path)):
            to = target / path.relative_to(source) if path != source else target
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, to)

    def _make_shims(self) -> None:
        """`python` and `pip`, as the base image has them."""
        self._shims.mkdir(parents=True)
        for name, command in (
            ("python", _python()),
            ("pip", f"{sys.executable} -m pip --disable-pip-version-check -q"),
        ):
            (self._shims / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            (self._shims / name).chmod(0o755)


def _python() -> str:
    """One that whoever has no rights can run too: root's own may be in its home."""
    own = os.path.realpath(sys.executable)
    for path in (own, "/usr/local/bin/python3", "/usr/bin/python3"):
        check = [*UNPRIVILEGED, path, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        if subprocess.run(check, capture_output=True).returncode == 0:
            return path
    raise AssertionError(f"user {USER} can run no Python 3.11 here: {own} is closed to it, and /usr/bin has none")
