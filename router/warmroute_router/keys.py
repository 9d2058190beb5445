"""The keys that clients may show: those of the flags, and those of a file, which may change while the router runs."""

import logging
import re
import secrets
from hashlib import blake2b
from pathlib import Path

from .config import KeyConfig
from .file_stamp import Stamp, file_stamp
from .types import Headers

logger = logging.getLogger(__name__)

MAX_KEYS = 10_000
"""In one file."""
MAX_FILE_SIZE = 1024 * 1024
_KEY = re.compile(rb"[!-~]+")
"""What a header can carry without quoting."""


class KeyRing:
    """`load` once, `reload_if_changed` every now and then, `admits` for every request."""

    def __init__(self, config: KeyConfig) -> None:
        # A key is looked up by its digest under a secret that only this process has. The look-up may take longer or
        # shorter with what it compares, but nobody outside can tell from a digest's bytes anything about a key's.
        self._secret = secrets.token_bytes(32)
        self._given = frozenset(self._digest(key.encode()) for key in config.keys)
        self._admitted = self._given
        self._file = config.file
        self._stamp: Stamp | None = None
        self._complaint = ""

    def __repr__(self) -> str:
        return f"KeyRing({len(self._admitted)} keys)"

    def admits(self, headers: Headers) -> bool:
        """By `Authorization: Bearer KEY`, or by `x-api-key: KEY` as Anthropic's clients do.

        Who shows both must be known by both: who a client is must not depend on which of them one looks at.
        The names of `headers` are lower case, as ASGI has them.
        """
        admitted = False
        for name, value in headers:
            if name == b"authorization":
                scheme, _, key = value.partition(b" ")
                if scheme.lower() != b"bearer":
                    return False
            elif name == b"x-api-key":
                key = value
            else:
                continue
            if self._digest(key.strip()) not in self._admitted:
                return False
            admitted = True
        return admitted

    def load(self) -> None:
        """Read the file, if there is one. Raises OSError or ValueError with one line that says where it is wrong."""
        if self._file is None:
            return
        self._stamp = file_stamp(self._file)  # before it is read: a change in between is seen the next time
        self._admitted = self._given | {self._digest(key) for key in read_keys(self._file)}

    def reload_if_changed(self) -> None:
        """Costs one `stat` while the file is as it was. One that cannot be used changes nothing but the log."""
        if self._file is None:
            return
        try:
            if file_stamp(self._file) == self._stamp:
                return
            self.load()
        except (OSError, ValueError) as error:
            self._complain(error)
            return
        self._complaint = ""
        logger.info("keys: read %s again, %d keys in all", self._file, len(self._admitted))

    def _complain(self, error: OSError | ValueError) -> None:
        """Once for each thing that is wrong, however often it is looked at."""
        if isinstance(error, OSError):
            self._stamp = None  # the file may become readable without changing
        if str(error) != self._complaint:
            self._complaint = str(error)
            logger.warning("keys: %s; the ones known so far stay", error)

    def _digest(self, key: bytes) -> bytes:
        return blake2b(key, digest_size=16, key=self._secret).digest()


def read_keys(file: Path) -> set[bytes]:
    """One a line; blank lines, and those that begin with `#`, do not count. No message shows what is in a line."""
    try:
        with file.open("rb") as opened:
            text = opened.read(MAX_FILE_SIZE + 1)
    except OSError as error:
        raise OSError(f"{file} cannot be read: {error.strerror}") from None
    if len(text) > MAX_FILE_SIZE:
        raise ValueError(f"{file} is larger than {MAX_FILE_SIZE} bytes")
    keys: set[bytes] = set()
    for number, line in enumerate(text.splitlines(), start=1):
        key = line.strip()
        if not key or key.startswith(b"#"):
            continue
        if not _KEY.fullmatch(key):
            raise ValueError(f"{file}, line {number}: a key has only visible ASCII characters, and no spaces")
        keys.add(key)
    if not keys:
        raise ValueError(f"{file} has no key in it: write one a line")
    if len(keys) > MAX_KEYS:
        raise ValueError(f"{file} has more than {MAX_KEYS} keys")
    return keys
