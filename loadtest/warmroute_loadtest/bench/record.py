"""What a run of `warmroute bench` was and what became of each request: what `--json` writes and reports read.

Every time of a request counts from `due`, when it was to be sent, and not from when it was: a generator that falls
behind would otherwise leave out just the waits that it caused (coordinated omission). In a closed loop both are one.
"""

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import orjson

FORMAT = "warmroute-bench-1"
UNANSWERED = 0
"""The status of a request that got no whole answer."""


class RecordError(Exception):
    """The file is no record of a run. The message is one line."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One request. Times in seconds; what is None was not told, or never came."""

    due: float
    """From the run's start."""
    late: float
    """How long after `due` it was sent."""
    status: int
    error: str = ""
    """Why there is no good answer; empty where there is one."""
    worker: str = ""
    """Whom the router chose (`x-warmroute-worker`), or the URL that was asked where it does not say."""
    session: str = ""
    ttft: float | None = None
    """From `due` to the first byte of the answer's body, or, in a stream, to the first event with text."""
    e2e: float | None = None
    itl_mean: float | None = None
    """Inter-token latency: the mean gap between this stream's events with text."""
    itl_max: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    """Of the prompt, as the engine reported it."""
    matched_tokens: int | None = None
    """Of the prompt, as the router predicted it (`x-warmroute-matched-tokens`)."""

    @property
    def good(self) -> bool:
        return 200 <= self.status < 300 and not self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    label: str
    """What the report calls it."""
    command: str
    started: str
    """ISO 8601, UTC."""
    duration: float
    """Seconds from the first request's time to the last answer's end."""
    version: str
    urls: list[str]
    model: str
    workload: dict[str, Any]
    """`name`, and the parameters that made it."""
    load: dict[str, Any]
    """`kind` (poisson, constant, ramp, trace, concurrency) and what belongs to it, such as `rate`."""
    itl: dict[str, float] = field(default_factory=dict)
    """Percentiles over every gap of every stream: `p50`, `p90`, `p99`, `mean`, `max`; empty without streams."""
    answers: list[Answer] = field(default_factory=list)
    """In the order in which they were due."""

    def write(self, path: Path) -> None:
        path.write_bytes(orjson.dumps({"format": FORMAT, **asdict(self)}, option=orjson.OPT_APPEND_NEWLINE))

    @staticmethod
    def read(path: Path) -> "Run":
        """Raises RecordError, and OSError where the file cannot be read."""
        try:
            record = orjson.loads(path.read_bytes())
            if record.pop("format") != FORMAT:
                raise ValueError(f"its format is not {FORMAT}")
            answers = [_checked(Answer(**answer)) for answer in record.pop("answers")]
            return Run(**record, answers=answers)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RecordError(f"{path} is no record of a `warmroute bench` run: {error}") from None


_KINDS: dict[str, Any] = dict.fromkeys((field.name for field in fields(Answer)), int | float | None)
_KINDS |= dict.fromkeys(("error", "worker", "session"), str) | dict.fromkeys(("due", "late", "status"), int | float)


def _checked(answer: Answer) -> Answer:
    """Raises TypeError where a field holds something of another kind."""
    for name, kind in _KINDS.items():
        if not isinstance(value := getattr(answer, name), kind):
            raise TypeError(f"{name} is {value!r}")
    return answer
