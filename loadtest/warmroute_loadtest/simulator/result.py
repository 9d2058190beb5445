"""The figures of one run."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ..percentile import percentile
from .fleet import Answer


@dataclass(frozen=True, slots=True)
class Result:
    policy: str
    requests: int
    hit_rate: float
    """Prompt tokens that the workers really reused, of all prompt tokens."""
    ceiling: float
    """The hit rate that nobody can beat: see `traces.Trace.ceiling`."""
    ttft_mean: float
    """Seconds, as are the next three."""
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    skew: float
    """Tokens computed on the busiest worker over the mean of all: 1 is even, the number of workers is one for all."""
    prediction_error: float
    """Mean over the requests of |predicted − really cached| blocks, as a share of the prompt's blocks."""
    goodput: float
    """Requests a second with a first token in time, over the whole run."""

    def figures(self) -> dict[str, str | int | float]:
        """What `--json` writes: all but the goodput, which hangs on an SLO that is not among them."""
        figures = asdict(self)
        del figures["goodput"]
        return figures


def summarise(
    policy: str,
    answers: Sequence[Answer],
    computed_tokens: Sequence[int],
    ceiling: float,
    block_tokens: int,
    slo: float,
) -> Result:
    """computed_tokens: prompt tokens that each worker computed."""
    times = sorted(answer.ttft for answer in answers) or [0.0]
    total = sum(answer.input_tokens for answer in answers)
    cached = sum(answer.cached_blocks for answer in answers) * block_tokens
    return Result(
        policy=policy,
        requests=len(answers),
        hit_rate=cached / total if total else 0.0,
        ceiling=ceiling,
        ttft_mean=statistics.fmean(times),
        ttft_p50=percentile(times, 50),
        ttft_p90=percentile(times, 90),
        ttft_p99=percentile(times, 99),
        skew=_skew(computed_tokens),
        prediction_error=_prediction_error(answers),
        goodput=_goodput(answers, slo),
    )


def _skew(computed_tokens: Sequence[int]) -> float:
    busiest = max(computed_tokens)
    return busiest * len(computed_tokens) / sum(computed_tokens) if busiest else 1.0


def _prediction_error(answers: Sequence[Answer]) -> float:
    """Of the prompts with any full block; of the others there is nothing to predict."""
    errors = [
        abs(answer.predicted_blocks - answer.cached_blocks) / answer.prompt_blocks
        for answer in answers
        if answer.prompt_blocks
    ]
    return statistics.fmean(errors) if errors else 0.0


def _goodput(answers: Sequence[Answer], slo: float) -> float:
    if not answers:
        return 0.0
    took = max(answer.end for answer in answers) - min(answer.arrival for answer in answers)
    return sum(answer.ttft <= slo for answer in answers) / took if took else 0.0
