"""What engines tell of themselves, what the router remembers, and where it has workers and peers from."""

from .expressions import ROUTER, WORKER, fleets, rate, seen, share, total
from .panels import Panel, Query, Section

ENGINES = Section(
    "Engines, by their own metrics",
    [
        Panel(
            title="Hit rate, by the engine",
            description="Of all of its traffic. Far from the first panel's real one: others use the engine too.",
            queries=[
                Query(
                    share(
                        f"max by (worker) (rate(warmroute_engine_cached_tokens_total{WORKER}[$__rate_interval]))",
                        f"max by (worker) (rate(warmroute_engine_prompt_tokens_total{WORKER}[$__rate_interval]))",
                    ),
                    "{{worker}}",
                )
            ],
            unit="percentunit",
            top=1,
        ),
        Panel(
            title="KV memory in use",
            description="By running requests, or by these and the cache: engines differ. At 1 for long with a "
            "queue: requests are preempted and the cache is pushed out.",
            queries=[Query(seen("max", "engine_kv_cache_usage_ratio"), "{{worker}}")],
            unit="percentunit",
            top=1,
        ),
        Panel(
            title="Running and queued",
            description="Queued on one worker while others have none: skew. On all: too few workers.",
            queries=[
                Query(seen("max", "engine_running_requests"), "running {{worker}}"),
                Query(seen("max", "engine_queued_requests"), "queued {{worker}}", dashed=True),
            ],
        ),
        Panel(
            title="Generated tokens",
            description="Per second.",
            queries=[
                Query(
                    f"max by (worker) (rate(warmroute_engine_generation_tokens_total{WORKER}[$__rate_interval]))",
                    "{{worker}}",
                )
            ],
        ),
        Panel(
            title="Metrics of engines",
            description="Red: the last scrape of the worker's /metrics gave nothing. SGLang needs --enable-metrics.",
            queries=[Query(seen("min", "engine_up"), "{{worker}}")],
            kind="state-timeline",
            width=16,
        ),
    ],
)

TREE = Section(
    "Tree and retention",
    [
        Panel(
            title="Retention",
            description="Prompt tokens that may come in before an unused prefix is gone, as learned from replies, "
            "and the KV memory that the engine tells (dashed). Near 0: the engine's prefix cache is off.",
            queries=[
                Query(seen("avg", "retention_tokens"), "{{worker}}"),
                Query(seen("max", "engine_kv_cache_tokens"), "{{worker}} memory", dashed=True),
            ],
        ),
        Panel(
            title="Blocks held",
            description="That each worker is predicted to hold, by the router that knows most.",
            queries=[Query(seen("max", "held_blocks"), "{{worker}}")],
        ),
        Panel(
            title="Tree",
            description="Memory of the prefix tree of each router. It is bounded.",
            queries=[Query(total("tree_bytes", "instance", ROUTER), "{{instance}}")],
            unit="bytes",
        ),
        Panel(
            title="Blocks in the tree",
            description="Of each router. Routers that talk hold about the same.",
            queries=[Query(total("tree_blocks", "instance", ROUTER), "{{instance}}")],
        ),
        Panel(
            title="Evicted from the tree",
            description="Blocks per second. Steady is normal for a full tree: what is evicted is older than what "
            "engines keep.",
            queries=[Query(rate("tree_evicted_blocks", "instance", ROUTER), "{{instance}}")],
            unit="ops",
        ),
        Panel(
            title="Tasks",
            description="Of each router's event loop. Goes back with the load; what only grows is a leak: report it.",
            queries=[Query(total("tasks", "instance", ROUTER), "{{instance}}")],
        ),
    ],
)

OTHERS = Section(
    "Replicas and discovery (where there are several routers, or --service-discovery)",
    [
        Panel(
            title="Peers",
            description="Other routers that each is connected to. Below their number: port, key or network policy "
            "of the gossip; until then each of them learns alone and hit rates fall.",
            queries=[Query(total("peers", "instance", ROUTER), "{{instance}}")],
        ),
        Panel(
            title="Gossip",
            description="Per second: decisions taken over from others; decisions that no batch had room for; "
            "batches that a peer was too slow for. The last two should be 0.",
            queries=[
                Query(rate("followed_decisions", chosen=ROUTER), "followed"),
                Query(rate("untold_decisions", chosen=ROUTER), "untold"),
                Query(rate("missed_batches", chosen=ROUTER), "missed"),
            ],
            unit="ops",
        ),
        Panel(
            title="Discovered workers",
            description="And failures per second (dashed). 0 workers: the selector matches nothing. Failures: the "
            "log names the missing permission; workers known so far are kept.",
            queries=[
                Query(fleets("min", "discovered_workers", "source"), "{{source}}"),
                Query(rate("discovery_failures", "source", ROUTER), "failures {{source}}", dashed=True),
            ],
        ),
    ],
)
