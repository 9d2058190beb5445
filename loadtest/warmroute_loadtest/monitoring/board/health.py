"""Workers that fail, and what is done about it."""

from .expressions import ROUTER, fleets, rate, seen, total
from .panels import Panel, Query, Section

HEALTH = Section(
    "Health",
    [
        Panel(
            title="Workers up",
            description="Green where every router finds the worker ready. Red: ask its /health, read its log; where "
            "only one router sees it so (max and min of warmroute_worker_up differ), look at the network between.",
            queries=[Query(seen("min", "worker_up"), "{{worker}}")],
            kind="state-timeline",
            width=16,
        ),
        Panel(
            title="Workers by state",
            description="As the router counts them that has most of them in that state.",
            queries=[Query(fleets("max", "workers", "state"), "{{state}}")],
            stacked="normal",
        ),
        Panel(
            title="Failed tries by code",
            description="Per second. 502: a worker broke off or could not be reached; 499: the client left; the "
            "others are the worker's own. Most of 502, 503 and 429 are tried again elsewhere.",
            queries=[
                Query(
                    'sum by (code) (rate(warmroute_worker_requests_total{job=~"$job", model=~"$model", '
                    'worker=~"$worker", code!~"2.."}[$__rate_interval]))',
                    "{{code}}",
                )
            ],
            unit="reqps",
        ),
        Panel(
            title="Refused by the router",
            description="Per second. 503: no worker is ready; 429: too much at a time; 401: wrong key; 400 and 413: "
            "bad or too large requests.",
            queries=[Query(rate("refused_requests", "code", ROUTER), "{{code}}")],
            unit="reqps",
        ),
        Panel(
            title="Retries, and breakers that open",
            description="Per second. Retries of one worker: it fails before the first byte, read its log.",
            queries=[
                Query(rate("retries", "worker"), "retries {{worker}}"),
                Query(rate("breaker_opened", "worker"), "breaker {{worker}}", dashed=True),
            ],
            unit="ops",
        ),
        Panel(
            title="Breaker closed",
            description="Red: faults, or the worker's own word that it is full, keep requests from it.",
            queries=[Query(seen("min", "breaker_closed"), "{{worker}}")],
            kind="state-timeline",
        ),
        Panel(
            title="Connections to workers",
            description="Open ones, over all routers.",
            queries=[Query(total("worker_connections", "state"), "{{state}}")],
            stacked="normal",
        ),
        Panel(
            title="Drains",
            description="Workers that were told to end, and those that are at it.",
            queries=[
                # Every router sees each of them.
                Query(f"sum(max by (job) (increase(warmroute_drains_total{ROUTER}[$__rate_interval])))", "begun"),
                Query(f"sum({seen('max', 'worker_draining')})", "draining"),
            ],
        ),
    ],
)
