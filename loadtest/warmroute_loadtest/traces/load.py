"""A trace by its path, whatever its format, or by the name of a made workload."""

import inspect
import lzma
import math
import os
import zlib
from typing import Any
from urllib.parse import parse_qsl

from .bailian import BAILIAN
from .claude_code import CLAUDE_CODE
from .conversations import MESSAGES, SHAREGPT, SWE_AGENT, TAU_BENCH
from .formats import Format, Options
from .lengths import AZURE, BURSTGPT
from .mooncake import MOONCAKE
from .request import Trace, TraceError
from .source import Json, Source, open_trace
from .synthetic import WORKLOADS

# The first that recognises an entry has it: those with a name of their own for something come before the general.
FORMATS: dict[str, Format] = {
    known.name: known
    for known in (CLAUDE_CODE, BAILIAN, MOONCAKE, AZURE, BURSTGPT, TAU_BENCH, SHAREGPT, MESSAGES, SWE_AGENT)
}
_SYNTHETIC = "synthetic:"
_MOST = 10_000_000
_UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError)


def load_trace(
    path: str | os.PathLike[str],
    *,
    format: str = "auto",
    limit: int | None = None,
    sessions_per_s: float = 1.0,
) -> Trace:
    """The trace in a file (plain, gzip or xz), or "synthetic:NAME?parameter=value&..." for a made one.

    format: one of FORMATS, or "auto" to tell it from the content.
    limit: keep the first so many requests in the order of arrival.
    sessions_per_s: how often a session starts, in a trace whose sessions have no common clock (claude-code, sharegpt,
        messages, tau-bench, swe-agent, and Mooncake lines without a timestamp): a Poisson process with a fixed seed.

    A malformed line is left out and counted in `skipped`. Raises TraceError if there are more than 1 % of them, or
    no request at all, or no format that fits, or no such file.
    """
    name = os.fspath(path)
    if format != "auto" and format not in FORMATS:
        raise TraceError(f"unknown format {format!r}: use auto, {', '.join(FORMATS)}")
    if limit is not None and limit < 1:
        raise TraceError(f"limit must be at least 1, not {limit}")
    if not (0 < sessions_per_s < math.inf):
        raise TraceError(f"sessions_per_s must be more than 0, not {sessions_per_s}")
    if name.startswith(_SYNTHETIC):
        trace = _synthetic(name.removeprefix(_SYNTHETIC))
    else:
        trace = _read_file(name, format, Options(limit, sessions_per_s))
    if not trace.requests:
        raise TraceError(f"{name}: no request in it")
    # Stable: of equal arrivals the file's order decides.
    return trace._replace(requests=sorted(trace.requests, key=lambda request: request.arrival)[:limit])


def _read_file(path: str, format: str, options: Options) -> Trace:
    name = os.path.basename(path)
    try:
        with open_trace(path) as stream:
            source = Source(name, stream)
            known = FORMATS[format] if format in FORMATS else _recognise(source)
            block_tokens, requests = known.read(source, options)
    except _UNREADABLE as error:
        raise TraceError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    source.check()
    return Trace(name, block_tokens, requests, source.skipped)


def _recognise(source: Source) -> Format:
    for entry in source.first():
        for known in FORMATS.values():
            if isinstance(entry, dict) and known.holds(entry):
                return known
    # Nobody reads it. Say so by the first malformed line, if that is why.
    for _ in source.parsed(_itself):
        pass
    source.check()
    raise TraceError(f"{source.name}: the format is none of {', '.join(FORMATS)}")


def _itself(entry: Json) -> Json:
    return entry


def _synthetic(text: str) -> Trace:
    name, _, query = text.partition("?")
    workload = WORKLOADS.get(name)
    if workload is None:
        raise TraceError(f"unknown workload {name!r}: use {', '.join(WORKLOADS)}")
    known = inspect.signature(workload).parameters
    given: dict[str, Any] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key not in known:
            raise TraceError(f"{name} has no parameter {key!r}: use {', '.join(known)}")
        given[key] = _parameter(name, key, value, type(known[key].default))
    return workload(**given)._replace(name=f"{_SYNTHETIC}{text}")


def _parameter(name: str, key: str, value: str, kind: type[int] | type[float]) -> int | float:
    """A number of the parameter's own type. Lengths and thinking may be nothing; of all else there is some."""
    try:
        number = kind(value)
    except ValueError:
        raise TraceError(f"{name}: {key} must be a number, not {value!r}") from None
    least = 0.0 if key.endswith(("_tokens", "_s")) or key in ("seed", "skew") else 1.0 if kind is int else 1e-6
    if not least <= number <= _MOST:
        raise TraceError(f"{name}: {key} must be from {least:g} to {_MOST:,}, not {value}")
    return number
