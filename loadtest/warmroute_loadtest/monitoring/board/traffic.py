"""Latency, load, the queue, and what the router decides."""

from .expressions import MODEL, ROUTER, mean, quantile, quantiles, rate, seen, total
from .panels import Panel, Query, Section

_LOADS = (
    f"max by (model, worker) (warmroute_worker_serves{MODEL}) * on (worker) group_left () "
    f"{mean('in_flight_requests', 'worker')}"
)

LATENCY = Section(
    "Latency",
    [
        Panel(
            title="Time to first token",
            description="Of streamed answers, from the request's last byte. p50 high: prefill is too slow or the "
            "hit rate too low. Only p99 high: single long prompts, or a queue behind them.",
            queries=quantiles("time_to_first_token"),
            unit="s",
        ),
        Panel(
            title="Time to first token, p90 of each worker",
            description="One worker above the others: it is slower, colder, or gets more; compare hit rate and load.",
            queries=[Query(quantile(0.9, "time_to_first_token", "worker"), "{{worker}}")],
            unit="s",
        ),
        Panel(
            title="Request duration",
            description="Of answered requests, to the last byte. Mostly the number of tokens that clients ask for.",
            queries=quantiles("request_duration"),
            unit="s",
        ),
    ],
)

LOAD = Section(
    "Load and skew",
    [
        Panel(
            title="Requests of each worker",
            description="Ended tries per second. Uneven is fine where hit rates are high and queues short.",
            queries=[Query(rate("worker_requests", "worker", MODEL), "{{worker}}")],
            unit="reqps",
        ),
        Panel(
            title="In flight",
            description="Requests sent and not yet ended, over all routers.",
            queries=[Query(mean("in_flight_requests", "worker"), "{{worker}}")],
        ),
        Panel(
            title="Waiting prompt tokens",
            description="Uncached prompt tokens sent and not yet answered by a first byte. Growing everywhere: more "
            "is asked than can be computed. On one worker: it is stuck, see health.",
            queries=[Query(mean("waiting_tokens", "worker"), "{{worker}}")],
        ),
        Panel(
            title="Skew",
            description="Requests in flight of the model's busiest worker over the mean. 1 is even. High for long: "
            "is one slower, or behind a breaker? Compare time to first token, prefill speed and health.",
            queries=[Query(f"max by (model) ({_LOADS}) / (avg by (model) ({_LOADS}) > 0)", "{{model}}")],
        ),
        Panel(
            title="Prefill behind",
            description="Seconds of prefill that wait on each worker: what a new prompt there has to wait for.",
            queries=[
                Query(
                    f"{mean('waiting_tokens', 'worker')} / {seen('avg', 'prefill_tokens_per_second')}", "{{worker}}"
                )
            ],
            unit="s",
        ),
        Panel(
            title="Prefill speed",
            description="Prompt tokens per second, learned from streams that met an idle worker. A worker below the "
            "others gets less; is it throttled, or shared with something else?",
            queries=[Query(seen("avg", "prefill_tokens_per_second"), "{{worker}}")],
        ),
    ],
)

QUEUE = Section(
    "Queue (where --max-concurrent-requests or a rate limit is set)",
    [
        Panel(
            title="Admitted and waiting",
            description="Requests past the queue, and in it. Waiting all the time: add workers, or raise the limit.",
            queries=[
                Query(total("admitted_requests", chosen=ROUTER), "admitted"),
                Query(total("queued_requests", chosen=ROUTER), "waiting"),
            ],
        ),
        Panel(
            title="Time in the queue",
            description="Of admitted requests. It is part of the client's time to first token.",
            queries=quantiles("queue_wait", ROUTER),
            unit="s",
        ),
        Panel(
            title="Refused by the queue",
            description="429s per second. full: --queue-size; timeout: --queue-timeout-secs.",
            queries=[Query(rate("queue_refused_requests", "reason", ROUTER), "{{reason}}")],
            unit="reqps",
        ),
    ],
)

DECISIONS = Section(
    "Decisions",
    [
        Panel(
            title="Reasons",
            description="affinity: it has most of the prompt; tie: so it has, and others would answer as soon; load: "
            "somebody has more and is busier; cold: nobody has any of it. Much load: workers are too few. Much "
            "cold: see the workload loss.",
            queries=[Query(rate("decisions", "reason", ROUTER), "{{reason}}")],
            unit="ops",
            stacked="percent",
        ),
        Panel(
            title="Decision time",
            description="From the parsed prompt to the chosen worker. Grows with prompts and workers; above some "
            "milliseconds the router's CPU is short: give it --processes or replicas.",
            queries=quantiles("decision", ROUTER),
            unit="s",
        ),
        Panel(
            title="Bodies in memory",
            description="Request bodies that are held until the first byte of their answer, per router.",
            queries=[Query(total("held_body_bytes", "instance", ROUTER), "{{instance}}")],
            unit="bytes",
        ),
    ],
)
