"""What the admin API has changed, in a file that all router processes of one machine share.

A call reaches one of them and holds for all. The file keeps the last word on each URL, in the order in which it was
said, so a process that is started anew says it all to itself again, after what its other sources name.
"""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import orjson

from ..file_stamp import Stamp, file_stamp
from .membership import MOST_REMEMBERED, Membership

logger = logging.getLogger(__name__)


class Kind(StrEnum):
    ADDED = "added"
    DRAINED = "drained"
    REMOVED = "removed"
    KEY = "key"
    """Set, or, with None, forgotten."""


@dataclass(frozen=True, slots=True)
class Change:
    kind: Kind
    url: str
    key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class _Entry:
    number: int
    """Later ones have higher numbers."""
    change: Change


class Changes:
    def __init__(self, path: Path | None, membership: Membership) -> None:
        """None: there is but one process, which has it all in its membership."""
        self._path = path
        self.membership = membership
        self._entries: list[_Entry] = []
        """As the file had them last. They outlive it."""
        self._applied = 0
        """The number of the last one that holds here."""
        self._stamp: Stamp | None = None

    def apply(self, *changes: Change) -> None:
        """They hold here at once, and soon for all. Raises OSError where they cannot be written; then for nobody."""
        if self._path is None:
            for change in changes:
                self._tell(change)
            return
        with _locked(self._path):
            self._catch_up(self._path)
            number = max([self._applied, *(entry.number for entry in self._entries)])
            said = [_Entry(number + offset, change) for offset, change in enumerate(changes, start=1)]
            entries = _last_words([*self._entries, *said])
            _write(self._path, entries)
            self._follow(entries)

    def reload_if_changed(self) -> None:
        """What other processes wrote. Costs one `stat` where it is nothing."""
        if self._path is not None:
            self._catch_up(self._path)

    def _catch_up(self, path: Path) -> None:
        try:
            stamp = file_stamp(path)
        except OSError:
            return  # nobody has changed anything yet
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._follow(_decode(path.read_bytes()))
        except (OSError, ValueError) as error:
            logger.error("changes of the fleet by other processes cannot be read: %s", error)

    def _follow(self, entries: list[_Entry]) -> None:
        self._entries = entries
        for entry in entries:
            if entry.number > self._applied:
                self._applied = entry.number
                self._tell(entry.change)

    def _tell(self, change: Change) -> None:
        match change.kind:
            case Kind.ADDED:
                self.membership.add(change.url)
            case Kind.DRAINED:
                self.membership.drain(change.url)
            case Kind.REMOVED:
                self.membership.remove(change.url)
            case Kind.KEY:
                self.membership.set_key(change.url, change.key)


def _last_words(entries: list[_Entry]) -> list[_Entry]:
    """Without those that later ones have made void."""
    last: dict[tuple[str, bool], _Entry] = {}
    for entry in entries:
        change = entry.change
        slot = change.url, change.kind is Kind.KEY
        last.pop(slot, None)
        last[slot] = entry
        if change.kind in (Kind.DRAINED, Kind.REMOVED):
            last.pop((change.url, True), None)  # as the membership does
    kept = list(last.values())
    added = {entry.change.url for entry in kept if entry.change.kind is Kind.ADDED}
    others = [entry for entry in kept if entry.change.url not in added]
    forgotten = {entry.number for entry in others[: max(len(others) - MOST_REMEMBERED, 0)]}
    return [entry for entry in kept if entry.number not in forgotten]


def _encode(entries: list[_Entry]) -> bytes:
    return orjson.dumps([[entry.number, entry.change.kind, entry.change.url, entry.change.key] for entry in entries])


def _decode(content: bytes) -> list[_Entry]:
    """Raises ValueError."""
    try:
        return [_Entry(int(number), Change(Kind(kind), url, key)) for number, kind, url, key in orjson.loads(content)]
    except TypeError:
        raise ValueError("not a list of changes") from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Beside the file, which is another one after each change. The kernel takes the lock back from who dies."""
    lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _write(path: Path, entries: list[_Entry]) -> None:
    """As a whole or not at all, and for nobody else to read: there are keys in it."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)  # of a process that died
    try:
        with open(new, "xb", opener=lambda name, flags: os.open(name, flags | os.O_CLOEXEC, 0o600)) as file:
            file.write(_encode(entries))
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
