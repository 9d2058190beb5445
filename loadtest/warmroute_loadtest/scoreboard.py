"""The figures of a played demo: a table for people, a summary for programs."""

import statistics
from collections.abc import Mapping, Sequence
from typing import TypedDict

from rich.console import Console
from rich.table import Table

from .percentile import percentile
from .play import Turn


class Summary(TypedDict):
    hit_rate: float
    """Cached prompt tokens over prompt tokens, both as the engines reported them; 0 to 1."""
    ttft_mean: float
    """Seconds."""
    ttft_p95: float
    requests: int


def summary(turns: Sequence[Turn]) -> Summary:
    times = sorted(turn.ttft for turn in turns)
    return {
        "hit_rate": sum(turn.cached_tokens for turn in turns) / sum(turn.prompt_tokens for turn in turns),
        "ttft_mean": statistics.fmean(times),
        "ttft_p95": percentile(times, 95),
        "requests": len(times),
    }


def print_scoreboard(console: Console, results: Mapping[str, Sequence[Turn]], workers: Sequence[str]) -> None:
    table = Table(title="The same chats, twice, from cold caches")
    for heading in ("policy", "worker", "requests", "hit rate", "TTFT mean", "TTFT p95"):
        table.add_column(heading, justify="left" if heading in ("policy", "worker") else "right")
    for policy, turns in results.items():
        for number, worker in enumerate(workers, 1):
            own = [turn for turn in turns if turn.worker == worker]
            if own:
                table.add_row(policy, f"worker {number}", *_cells(summary(own)))
        table.add_row(policy, "all", *_cells(summary(turns)), style="bold", end_section=True)
    first, last = (summary(turns) for turns in results.values())
    table.add_row(
        "ratio",
        "",
        "",
        f"{last['hit_rate'] / first['hit_rate']:.2f} ×" if first["hit_rate"] else "",
        f"{last['ttft_mean'] / first['ttft_mean']:.2f} ×",
        f"{last['ttft_p95'] / first['ttft_p95']:.2f} ×",
    )
    console.print(table)


def _cells(figures: Summary) -> tuple[str, str, str, str]:
    return (
        str(figures["requests"]),
        f"{figures['hit_rate']:.1%}",
        f"{figures['ttft_mean']:.2f} s",
        f"{figures['ttft_p95']:.2f} s",
    )
