"""What people come for: hit rates, and why they are what they are."""

from .expressions import MODEL, quantile, rate, seen, share
from .panels import Panel, Query, Section


def _tokens(name: str, by: str = "") -> str:
    return rate(f"{name}_tokens", by, MODEL)


def _of_prompt(name: str, by: str = "") -> str:
    return share(_tokens(name, by), _tokens("prompt", by))


def _loss(had: str, left: str) -> str:
    return share(f"({_tokens(had)} - {_tokens(left)})", _tokens("prompt"))


CACHE = Section(
    None,
    [
        Panel(
            title="Hit rate of each worker",
            description="Share of the prompt tokens that came from the worker's cache: real (by the engine's "
            "report, solid) and predicted (by the router, dashed). Real far below predicted: the engine loses what "
            "the router counts on, see the prediction error. Both low: the three losses say why. No line: no "
            "traffic, or an engine that does not report cached tokens.",
            queries=[
                Query(_of_prompt("delivered", "worker"), "{{worker}} real"),
                Query(_of_prompt("captured", "worker"), "{{worker}} predicted", dashed=True),
            ],
            unit="percentunit",
            width=16,
            height=10,
            top=1,
            thresholds=((0.1, "orange"), (0.3, "green")),
            table=True,
        ),
        Panel(
            title="Three losses",
            description="Why the rest is not cached. Workload: no worker had it, so the prompts do not repeat, "
            "begin with something that changes (a date, an id), or all caches are too small. Balancing: another "
            "worker had it and was too busy, so add workers. Index: predicted and not there, so look at evictions "
            "and restarts of engines. Below 0: the engine had more than predicted.",
            queries=[
                Query(_loss("prompt", "available"), "workload"),
                Query(_loss("available", "captured"), "balancing"),
                Query(_loss("captured", "delivered"), "index"),
            ],
            unit="percentunit",
            height=10,
            top=1,
            below_zero=True,
        ),
        Panel(
            title="Hit rate",
            description="Real, over all chosen workers. Below 30 %, look at the three losses.",
            queries=[Query(_of_prompt("delivered"), "real")],
            kind="stat",
            unit="percentunit",
            width=4,
            height=4,
            thresholds=((0.1, "orange"), (0.3, "green")),
        ),
        Panel(
            title="Could have been",
            description="Predicted on the best workers: the hit rate with nothing lost to balancing and index.",
            queries=[Query(_of_prompt("available"), "available")],
            kind="stat",
            unit="percentunit",
            width=4,
            height=4,
        ),
        Panel(
            title="Unknown",
            description="Share of the requests whose reply did not say what was cached. Not 0: start vLLM with "
            "--enable-prompt-tokens-details, SGLang with --enable-cache-report.",
            queries=[
                Query(
                    share(rate("unreported_requests", chosen=MODEL), rate("worker_requests", chosen=MODEL)),
                    "unreported",
                )
            ],
            kind="stat",
            unit="percentunit",
            width=4,
            height=4,
            thresholds=((0.05, "orange"),),
        ),
        Panel(
            title="Requests",
            description="Per second, tries on other workers included.",
            queries=[Query(rate("worker_requests", chosen=MODEL), "requests")],
            kind="stat",
            unit="reqps",
            width=4,
            height=4,
        ),
        Panel(
            title="Time to first token",
            description="Median of streamed answers. Much above what one prompt takes: requests wait, see the load.",
            queries=[Query(quantile(0.5, "time_to_first_token"), "p50")],
            kind="stat",
            unit="s",
            width=4,
            height=4,
        ),
        Panel(
            title="Workers up",
            description="Share of the workers that every router finds ready. Below 100 %: see health.",
            queries=[Query(f"avg({seen('min', 'worker_up')})", "up")],
            kind="stat",
            unit="percentunit",
            width=4,
            height=4,
            thresholds=((0.5, "orange"), (1, "green")),
        ),
        Panel(
            title="Prompt tokens",
            description="Per second, of replies that reported cached tokens: those that were saved, and the others.",
            queries=[
                Query(_tokens("delivered"), "from the cache"),
                Query(f"{_tokens('prompt')} - {_tokens('delivered')}", "computed"),
            ],
            stacked="normal",
        ),
        Panel(
            title="Hit rate of each model",
            description="Real, and what could have been (dashed). A wide gap: see balancing and index.",
            queries=[
                Query(_of_prompt("delivered", "model"), "{{model}} real"),
                Query(_of_prompt("available", "model"), "{{model}} available", dashed=True),
            ],
            unit="percentunit",
            top=1,
        ),
        Panel(
            title="Prediction error",
            description="Prompt tokens predicted in the chosen worker's cache that were not there, or the other "
            "way. Settles at some percent. High for long: does the engine restart, is its cache shared with traffic "
            "that goes past this router, does its chat template change the prompt?",
            queries=[Query(_of_prompt("mispredicted", "worker"), "{{worker}}")],
            unit="percentunit",
            thresholds=((0.15, "orange"),),
        ),
    ],
)
