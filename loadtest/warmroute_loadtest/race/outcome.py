"""What a run of `warmroute bench` shows of a router's policy: figures, and a table of them."""

from collections.abc import Sequence

from ..bench.record import Run
from ..percentile import percentile
from .contenders import US
from .results import Measure, Results, markdown_table, multiple, spread

BASE = "round-robin"


def outcome(run: Run, served: Sequence[float]) -> Measure:
    """Times in seconds, over the good answers alone. `served`: requests of each worker."""
    good = [answer for answer in run.answers if answer.good]
    prompt = sum(answer.prompt_tokens or 0 for answer in good)
    ttfts = sorted(answer.ttft for answer in good if answer.ttft is not None)
    measure: dict[str, float] = {"requests": len(run.answers), "failed": len(run.answers) - len(good)}
    if run.answers:
        measure["late_p99"] = percentile(sorted(answer.late for answer in run.answers), 99)
    if prompt:
        measure["hit_rate"] = sum(answer.cached_tokens or 0 for answer in good) / prompt
        answered = prompt + sum(answer.completion_tokens or 0 for answer in good)
        measure["tokens_per_s"] = answered / run.duration
    if ttfts:
        measure["ttft_mean"] = sum(ttfts) / len(ttfts)
        measure |= {f"ttft_p{percent}": percentile(ttfts, percent) for percent in (50, 99)}
    if any(served):
        measure["skew"] = max(served) * len(served) / sum(served)
    return measure


def table(results: Results, part: str, case: str, names: Sequence[str]) -> str:
    """A row for each contender."""
    headings = [
        "",
        "hit rate, %",
        "TTFT mean, s",
        f"so many times that of {US}",
        "TTFT p50, s",
        "TTFT p99, s",
        "tokens/s",
        "busiest worker / mean",
        "not answered",
    ]
    rows = []
    for name in names:

        def shown(figure: str, form: str, scale: float = 1.0, name: str = name) -> str:
            return spread([scale * value for value in results.values(part, case, name, figure)], form.format)

        ratio = results.ratio(part, case, name, "ttft_mean")
        failed = sum(results.values(part, case, name, "failed"))
        requests = sum(results.values(part, case, name, "requests"))
        rows.append(
            [
                name,
                shown("hit_rate", "{:.1f}", 100),
                shown("ttft_mean", "{:.2f}"),
                multiple(1 / ratio if ratio else None),
                shown("ttft_p50", "{:.2f}"),
                shown("ttft_p99", "{:.2f}"),
                shown("tokens_per_s", "{:,.0f}"),
                shown("skew", "{:.2f}"),
                f"{failed:,.0f} of {requests:,.0f}",
            ]
        )
    return markdown_table(headings, rows)


def over_base(results: Results, part: str, case: str, names: Sequence[str]) -> str:
    """What each has of round robin's throughput and hit rate."""
    base = {figure: results.median(part, case, BASE, figure) for figure in ("tokens_per_s", "hit_rate")}
    rows = []
    for name in names:
        medians = {figure: results.median(part, case, name, figure) for figure in base}
        shown = [multiple(value / base[each] if value and base[each] else None) for each, value in medians.items()]  # type: ignore[operator]
        rows.append([name, *shown])
    return markdown_table([f"over {BASE}", "tokens/s", "hit rate"], rows)
