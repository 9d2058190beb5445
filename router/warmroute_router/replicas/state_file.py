"""`--state-file`: the snapshot of a lone router for itself, after a restart. Written now and then, and at the end.

a line that says what it is, then the snapshot's chunks, each behind its length
"""

import asyncio
import logging
import os
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ..routing import Routing
from .snapshot import Loading, snapshot

logger = logging.getLogger(__name__)

SAVE_INTERVAL = 60.0
"""Seconds: what a router that is killed may lose."""

_TITLE = b"warmroute state 1\n"
_LENGTH = struct.Struct("<I")
_MAX_CHUNK = 64 * 1024 * 1024


class StateFile:
    def __init__(self, path: Path, routing: Routing) -> None:
        self._path = path
        self._routing = routing
        self._saving: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._load()
        self._saving = asyncio.create_task(self._keep_saving())

    async def stop(self) -> None:
        assert self._saving is not None, "not started"
        self._saving.cancel()
        await asyncio.gather(self._saving, return_exceptions=True)
        await self._save()

    def _load(self) -> None:
        """Begin with what the file has. Where it is damaged, with what comes before; where there is none, cold."""
        try:
            with self._path.open("rb") as file:
                loading = Loading(self._routing, age=time.time() - self._path.stat().st_mtime)
                for chunk in _chunks(file):
                    loading.feed(chunk)
        except FileNotFoundError:
            logger.info("no state file %s yet: starting cold", self._path)
        except (OSError, ValueError) as error:
            logger.warning("state file %s: %s", self._path, error)
        else:
            logger.info("state file %s: %d blocks", self._path, self._routing.tree.blocks)

    async def _keep_saving(self) -> None:
        while True:
            await asyncio.sleep(SAVE_INTERVAL)
            await self._save()

    async def _save(self) -> None:
        """Between requests. Where it cannot be written, routing goes on."""
        try:
            with _Replacing(self._path) as file:
                for data in self._bytes():
                    file.write(data)
                    await asyncio.sleep(0)
        except OSError as error:
            logger.warning("state file %s: %s", self._path, error)

    def _bytes(self) -> Iterator[bytes]:
        yield _TITLE
        for chunk in snapshot(self._routing):
            yield _LENGTH.pack(len(chunk)) + chunk


class _Replacing:
    """A new file that takes the place of the old one only once it is whole."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> BinaryIO:
        # Nobody else need know what was asked, not even by its hashes: `mkstemp` makes it readable by its owner only.
        handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
        self._new = Path(name)
        self._file = os.fdopen(handle, "wb")
        return self._file

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._file.close()
            if kind is None:
                self._new.replace(self._path)
        finally:
            self._new.unlink(missing_ok=True)


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    """Raises ValueError where the file is of another kind, or cut off."""
    if file.read(len(_TITLE)) != _TITLE:
        raise ValueError("not a state file of this version")
    while head := file.read(_LENGTH.size):
        length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else _MAX_CHUNK + 1
        chunk = file.read(length) if length <= _MAX_CHUNK else b""
        if len(chunk) != length:
            raise ValueError("cut off")
        yield chunk
