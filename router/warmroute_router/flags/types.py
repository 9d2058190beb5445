"""What the flags of `warmroute serve` may be: each a function from its text to its value."""

from argparse import ArgumentTypeError
from math import isfinite
from pathlib import Path

from ..config import Address, normalize_worker_url, parse_address


def address(text: str) -> Address:
    try:
        return parse_address(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def dns_name(text: str) -> Address:
    """Port 0 where none is given."""
    if ":" in text:
        return address(text)
    if not text or not text.isascii() or any(not 0 < len(label) < 64 for label in text.rstrip(".").split(".")):
        raise ArgumentTypeError(f"{text!r} is no name of a host")
    return text, 0


def worker_url(text: str) -> str:
    try:
        return normalize_worker_url(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def new_file(text: str) -> Path:
    """One that may come to be."""
    path = Path(text)
    if not path.parent.is_dir() or (path.exists() and not path.is_file()):
        raise ArgumentTypeError(f"cannot be written: {text}")
    return path


def socket_path(text: str) -> Path:
    path = Path(text)
    if not path.parent.is_dir() or (path.exists() and not path.is_socket()):
        raise ArgumentTypeError(f"cannot be a socket: {text}")
    if len(text.encode()) > 107:
        raise ArgumentTypeError(f"a socket's path has at most 107 bytes: {text}")
    return path


def readable_file(text: str) -> Path:
    path = Path(text)
    try:
        path.open("rb").close()
    except OSError as error:
        raise ArgumentTypeError(f"cannot be read: {text}: {error.strerror}") from None
    return path


def secret(text: str) -> str:
    if not text:
        raise ArgumentTypeError("the key is empty")
    if not text.isascii() or any(character <= " " for character in text) or "\x7f" in text:
        raise ArgumentTypeError("the key has characters that no header can carry")
    return text


def port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise ArgumentTypeError(f"{text!r} is not a port (0 to 65535)")
    return int(text)


def size(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise ArgumentTypeError(f"{text!r} is not a number of bytes")
    return int(text)


def count(text: str) -> int:
    """From 1."""
    if not text.isdecimal() or int(text) == 0:
        raise ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def whole(text: str) -> int:
    """From 0."""
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def limit(text: str) -> int | None:
    """As the known routers write it: -1 for none."""
    return None if text == "-1" else count(text)


def number(text: str) -> float:
    """From 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not isfinite(value) or value < 0:
        raise ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return value


def seconds(text: str) -> float:
    """More than 0."""
    value = number(text)
    if not value:
        raise ArgumentTypeError(f"{text!r} is not a time of more than 0 seconds")
    return value


def milliseconds(text: str) -> float:
    """As seconds."""
    return number(text) / 1000


def timeout(text: str) -> float | None:
    """0 for none."""
    return number(text) or None


def probe_path(text: str) -> str:
    if not text.startswith("/") or not text.isascii() or any(character <= " " for character in text):
        raise ArgumentTypeError(f"{text!r} is not a path like /health")
    return text


def fair_by(text: str) -> str:
    """`api-key`, or `header:NAME` as that name."""
    if text == "api-key":
        return text
    kind, _, name = text.partition(":")
    if kind != "header" or not name or not all(letter.isalnum() or letter in "-_" for letter in name):
        raise ArgumentTypeError(f"{text!r} is neither `api-key` nor `header:NAME`")
    return name.lower()
