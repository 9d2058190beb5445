"""Workers from a file: a JSON list that is read again when it changes.

An entry is a URL, or `{"url": ..., "api_key": ...}`, or `{"url": ..., "api_key_file": ...}` with a path relative to
the list's own folder. An empty list is a list: it lets all of them go. One that is wrong anywhere changes nothing.
"""

import logging
from pathlib import Path

import orjson

from ..config import WorkerSpec
from ..file_stamp import Stamp, file_stamp
from .membership import MAX_WORKERS, Membership, checked_key, checked_url

logger = logging.getLogger(__name__)

SOURCE = "file"
MAX_BYTES = 4 * 1024 * 1024
MAX_KEY_BYTES = 64 * 1024
_FIELDS = frozenset({"url", "api_key", "api_key_file"})


class WorkersFile:
    """`load` once, `reload_if_changed` every now and then."""

    def __init__(self, path: Path, membership: Membership) -> None:
        self.healthy = True
        """Whether the fleet is what the file says just now."""
        self._path = path
        self._membership = membership
        self._stamps: dict[Path, Stamp | None] = {}
        """Of the list and of the key files that it named, as they were before they were read; None: not there."""

    def load(self) -> None:
        """Raises OSError or ValueError, with one line that says where it is wrong and shows no key."""
        self._stamps = {}
        self._membership.apply(SOURCE, self._read_list())
        self.healthy = True

    def reload_if_changed(self) -> None:
        """One `stat` for each file that it consists of. A bad edit keeps who is there, and says so once."""
        if all(_stamp(path) == stamp for path, stamp in self._stamps.items()):
            return
        try:
            self.load()
        except (OSError, ValueError) as error:
            self.healthy = False
            logger.warning("workers: %s; those known so far stay", error)
        else:
            logger.info("workers: read %s again", self._path)

    def _read_list(self) -> list[WorkerSpec]:
        try:
            entries = orjson.loads(self._read(self._path, MAX_BYTES))
        except orjson.JSONDecodeError as error:
            raise ValueError(f"{self._path} is not JSON: {error}") from None
        if not isinstance(entries, list):
            raise ValueError(f"{self._path}: expected a list of workers")
        if len(entries) > MAX_WORKERS:
            raise ValueError(f"{self._path}: more than {MAX_WORKERS} workers")
        specs: dict[str, WorkerSpec] = {}
        for index, entry in enumerate(entries):
            try:
                spec = self._spec(entry)
                if spec.url in specs:
                    raise ValueError(f"{spec.url} is there twice")
            except ValueError as error:
                raise ValueError(f"{self._path}, entry {index}: {error}") from None
            specs[spec.url] = spec
        return list(specs.values())

    def _spec(self, entry: object) -> WorkerSpec:
        if isinstance(entry, str):
            entry = {"url": entry}
        if not isinstance(entry, dict):
            raise ValueError("expected a URL or an object")
        if unknown := entry.keys() - _FIELDS:
            raise ValueError(f"unknown field {min(unknown)!r:.40}: there are {', '.join(sorted(_FIELDS))}")
        if "url" not in entry:
            raise ValueError("`url` is missing")
        return WorkerSpec(checked_url(entry["url"]), api_key=self._key(entry))

    def _key(self, entry: dict[str, object]) -> str | None:
        if "api_key_file" not in entry:
            return checked_key(entry["api_key"]) if "api_key" in entry else None
        if "api_key" in entry:
            raise ValueError("`api_key` and `api_key_file` are one too many")
        name = entry["api_key_file"]
        if not isinstance(name, str) or not name or "\0" in name:
            raise ValueError("`api_key_file` must be the path of a file")
        path = self._path.parent / name
        try:
            return checked_key(self._read(path, MAX_KEY_BYTES).decode().strip())
        except ValueError as error:  # the decoder's own would show what it stumbled over
            raise ValueError(
                f"{path}: not a key in UTF-8" if isinstance(error, UnicodeError) else str(error)
            ) from None

    def _read(self, path: Path, limit: int) -> bytes:
        self._stamps[path] = _stamp(path)  # before it is read: a change in between is seen the next time
        try:
            with path.open("rb") as file:
                content = file.read(limit + 1)
        except OSError as error:
            raise OSError(f"{path} cannot be read: {error.strerror}") from None
        if len(content) > limit:
            raise ValueError(f"{path} is larger than {limit} bytes")
        return content


def _stamp(path: Path) -> Stamp | None:
    try:
        return file_stamp(path)
    except OSError:
        return None
