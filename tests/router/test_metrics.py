"""What a scrape says, read by prometheus_client's own parser."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import orjson
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry
from support.fleet import account_of, fleet_of
from support.peer import STREAM_HEAD, Peer, PeerConnection, chunk, response
from support.router import CONFIG, running_app, running_router, until
from warmroute_router import __version__
from warmroute_router.account import MAX_MODELS
from warmroute_router.app import RouterApp
from warmroute_router.blocks import hash_blocks
from warmroute_router.config import AdmissionConfig, GossipConfig, HealthConfig, KubernetesConfig, RetryConfig
from warmroute_router.discovery.kubernetes.discovery import KubernetesWorkers
from warmroute_router.discovery.membership import Membership
from warmroute_router.fleet import Load, State
from warmroute_router.histogram import MICROSECONDS
from warmroute_router.metrics import build_registry
from warmroute_router.policies import POLICIES
from warmroute_router.proxy import Proxy
from warmroute_router.retries import Retries
from warmroute_router.routing import Routing
from warmroute_router.tree import PrefixTree
from warmroute_router.upstream.engine import EngineReport
from warmroute_router.usage import Usage

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
LABELS = {"worker", "model", "code", "reason", "state", "source", "policy", "version"}
"""There are no others: each has few values, or goes with what it names."""
OF_MODELS = (
    "prompt_tokens",
    "available_tokens",
    "captured_tokens",
    "delivered_tokens",
    "mispredicted_tokens",
    "unreported_requests",
)
KUBERNETES = KubernetesConfig("app=worker", 8000, "default", api="http://127.0.0.1:1")
A, B = "http://a", "http://b"


class Scrape:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.text = generate_latest(registry).decode()
        self.families = {family.name: family for family in text_string_to_metric_families(self.text)}
        self._samples = [sample for family in self.families.values() for sample in family.samples]

    def __call__(self, name: str) -> dict[tuple[str, ...], float]:
        """The samples of one name, by the values of their labels, which are in the order of the labels' names."""
        return {
            tuple(value for _, value in sorted(sample.labels.items())): sample.value
            for sample in self._samples
            if sample.name == f"warmroute_{name}"
        }


def counted(scrape: Scrape, name: str) -> dict[tuple[str, ...], float]:
    """Without the series that are there from the start, at 0."""
    return {labels: value for labels, value in scrape(name).items() if value}


def parts(max_blocks: int = 1000, policy: str = "cache_aware") -> tuple[Routing, CollectorRegistry]:
    fleet = fleet_of(A, B)
    for worker in fleet.workers:
        worker.state = State.READY
    routing = Routing(fleet, PrefixTree(max_blocks), policy, POLICIES[policy]())
    return routing, build_registry(routing, Proxy(routing, Retries(RetryConfig()), None, 1000))


def completion(letter: str, blocks: int) -> bytes:
    return orjson.dumps({"prompt": letter * (256 * blocks)})


@pytest.mark.anyio
async def test_docs_metrics_md_describes_each_metric_as_it_is() -> None:
    """Of a router that has everything: limits, replicas, Kubernetes, and traffic of every kind."""
    written = {
        row[1]: (row[2], row[3].replace("`", ""), row[4])
        for row in re.finditer(r"^\| `(\w+)` \| (\w+) \| ([^|]*?) \| (.+?) \|$", DOCS.read_text(), re.MULTILINE)
    }
    assert written.pop("warmroute_tasks") == (
        "gauge",
        "",
        "Tasks of the router's event loop: a few, and some for each request.",
    )
    async with everything() as registry:
        scrape = Scrape(registry)
    families = {
        family.name + ("_total" if family.type == "counter" else ""): family for family in scrape.families.values()
    }
    for name, family in families.items():
        assert family.samples, f"{name}: the test's router has no such thing"
        labels = {label for sample in family.samples for label in sample.labels if label != "le"}
        kind = "info" if name == "warmroute_info" else family.type
        assert name in written, f"docs/metrics.md: {name} is missing: {family.documentation}"
        assert written[name][0] == kind, name
        assert set(filter(None, written[name][1].split(", "))) == labels, name
        assert written[name][2] == family.documentation, name
        assert {label: True for label in labels if label not in LABELS} == {}, name
    assert sorted(written) == sorted(families), "docs/metrics.md has what the router has not"


def test_at_the_start_every_worker_is_there_with_zeros() -> None:
    routing, registry = parts()
    routing.fleet.workers[1].state = State.STARTING
    routing.fleet.set_models(routing.fleet.workers[0], ("m", "n"))
    scrape = Scrape(registry)
    for name in OF_MODELS:
        assert scrape(name + "_total") == {("m", A): 0, ("n", A): 0}, name
    assert scrape("worker_serves") == {("m", A): 1, ("n", A): 1, ("unknown", B): 1}
    for name in ("retries_total", "breaker_opened_total"):
        assert scrape(name) == {(A,): 0, (B,): 0}, name
    for name in ("in_flight_requests", "waiting_tokens", "held_blocks", "engine_up", "worker_draining"):
        assert scrape(name) == {(A,): 0, (B,): 0}, name
    assert scrape("worker_up") == {(A,): 1, (B,): 0}
    assert scrape("workers") == {("starting",): 1, ("ready",): 1, ("unhealthy",): 0, ("draining",): 0}
    assert scrape("tree_blocks") == scrape("tree_bytes") == scrape("tree_evicted_blocks_total") == {(): 0}
    codes = ("200", "499", "502")
    assert scrape("worker_requests_total") == {(code, model, A): 0 for code in codes for model in ("m", "n")}
    assert scrape("refused_requests_total") == {("429",): 0, ("502",): 0, ("503",): 0}
    assert scrape("decisions_total") == {("no_prompt",): 0, ("no_capacity",): 0}
    assert scrape("decision_seconds_count") == {}


def test_info_names_version_and_policy() -> None:
    _, registry = parts(policy="round_robin")
    (sample,) = Scrape(registry).families["warmroute_info"].samples
    assert (sample.labels, sample.value) == ({"version": __version__, "policy": "round_robin"}, 1)


@pytest.mark.parametrize(("state", "up"), [(State.STARTING, 0), (State.READY, 1), (State.UNHEALTHY, 0)])
def test_up_is_ready_and_nothing_else(state: State, up: int) -> None:
    routing, registry = parts()
    routing.fleet.workers[0].state = state
    assert Scrape(registry)("worker_up") == {(A,): up, (B,): 1}


def test_load_is_there_while_a_request_is_and_gone_after_it() -> None:
    routing, registry = parts(policy="round_robin")
    placement = routing.place(hash_blocks(b"x" * 1024))
    assert placement is not None
    scrape = Scrape(registry)
    assert scrape("in_flight_requests") == {(A,): 1, (B,): 0}
    assert scrape("waiting_tokens") == {(A,): 256, (B,): 0}
    assert scrape("held_blocks") == {(A,): 4, (B,): 0}
    placement.first_byte()
    scrape = Scrape(registry)
    assert scrape("in_flight_requests") == {(A,): 1, (B,): 0}
    assert scrape("waiting_tokens") == {(A,): 0, (B,): 0}
    placement.release()
    scrape = Scrape(registry)
    assert scrape("in_flight_requests") == {(A,): 0, (B,): 0}
    assert scrape("held_blocks") == {(A,): 4, (B,): 0}


def test_what_was_available_is_told_apart_from_what_was_captured_and_delivered() -> None:
    """Round robin sends the same prompt to A, to B, which does not have it, and to A again."""
    routing, registry = parts(policy="round_robin")
    prompt = hash_blocks(b"x" * 1024)  # 256 tokens by our count, 512 by the engine's
    for delivered in (0, 16, 500):
        placement = routing.place(prompt)
        assert placement is not None
        placement.release()
        placement.report(Usage(512, delivered))
    scrape = Scrape(registry)
    assert scrape("prompt_tokens_total") == {("unknown", A): 1024, ("unknown", B): 512}
    assert scrape("available_tokens_total") == {("unknown", A): 512, ("unknown", B): 512}
    assert scrape("captured_tokens_total") == {("unknown", A): 512, ("unknown", B): 0}
    assert scrape("delivered_tokens_total") == {("unknown", A): 500, ("unknown", B): 16}
    assert scrape("unreported_requests_total") == {("unknown", A): 0, ("unknown", B): 0}


def test_what_an_engine_did_not_report_is_counted_as_that_alone() -> None:
    routing, registry = parts(policy="round_robin")
    for usage in (None, Usage(512, None), Usage(512, None)):
        placement = routing.place(hash_blocks(b"x" * 1024))
        assert placement is not None
        placement.report(usage)
    scrape = Scrape(registry)
    assert scrape("unreported_requests_total") == {("unknown", A): 2, ("unknown", B): 1}
    for name in ("prompt_tokens", "available_tokens", "captured_tokens", "delivered_tokens"):
        assert scrape(name + "_total") == {("unknown", A): 0, ("unknown", B): 0}


def test_silence_means_zero_only_where_this_process_says_it_in_this_form() -> None:
    """SGLang's own API always says what was cached, its OpenAI API only where it was told to."""
    routing, registry = parts()
    worker = routing.fleet.workers[0]
    routing.fleet.workers[1].state = State.UNHEALTHY

    def report(usage: Usage) -> tuple[float, float]:
        """All prompt tokens, and replies that are unknown."""
        placement = routing.place(hash_blocks(b"x" * 1024))
        assert placement is not None
        placement.release()
        placement.report(usage)
        scrape = Scrape(registry)
        return sum(scrape("prompt_tokens_total").values()), sum(scrape("unreported_requests_total").values())

    assert report(Usage(512, 16, leaves_out_zero=False)) == (512, 0)
    assert report(Usage(512, None)) == (512, 1)
    assert report(Usage(512, 480)) == (1024, 1)
    assert report(Usage(512, None)) == (1536, 1)
    routing.forget(worker)
    assert report(Usage(512, None)) == (2048, 1), "a flush is no restart"
    routing.process_ended(worker)
    assert report(Usage(512, None)) == (2048, 2)


@pytest.mark.parametrize("why", ["full", "declined"])
def test_what_somebody_has_who_cannot_be_asked_just_now_is_available(why: str) -> None:
    routing, registry = parts()
    routing.max_per_worker = 1
    prompt = hash_blocks(b"x" * 1024)
    holder = routing.place(prompt)
    assert holder is not None
    if why == "declined":
        holder.release()
        holder.worker.guard.declined(routing.now(), None)
    other = routing.place(prompt)
    assert other is not None
    assert other.worker is not holder.worker
    assert (other.available, other.captured) == (prompt.tokens, 0)
    assert counted(Scrape(registry), "decisions_total") == {("cold",): 1, ("load",): 1}
    other.release()
    holder.worker.state = State.UNHEALTHY
    routing.tree.forget(other.worker.index)
    alone = routing.place(prompt)
    assert alone is not None
    assert alone.available == 0, "who is down has nothing to give"


def test_who_would_be_asked_again_is_not_kept_out() -> None:
    now = [1000.0]
    fleet = fleet_of(A)
    fleet.workers[0].state = State.READY
    routing = Routing(fleet, PrefixTree(1000), "round_robin", POLICIES["round_robin"](), now=lambda: now[0])
    registry = build_registry(routing, Proxy(routing, Retries(RetryConfig()), None, 1000))
    fleet.workers[0].guard.declined(now[0], 2.0)
    assert Scrape(registry)("breaker_closed") == {(A,): 0}
    now[0] += 2.0
    assert Scrape(registry)("breaker_closed") == {(A,): 1}, "though nobody has asked it since"


def test_in_the_middle_of_what_a_peer_tells_no_load_is_below_zero() -> None:
    routing, registry = parts()
    routing.fleet.workers[0].peer_loads["peer"] = Load(3, 500)
    scrape = Scrape(registry)
    assert scrape("in_flight_requests") == scrape("waiting_tokens") == {(A,): 0, (B,): 0}


def test_decisions_are_counted_by_their_reason() -> None:
    routing, registry = parts()
    first = routing.place(hash_blocks(b"x" * 256))
    assert first is not None
    first.release()
    held = routing.place(hash_blocks(b"x" * 256))
    again = routing.place(hash_blocks(b"x" * 256 + b"y" * 25600))
    assert held is not None
    assert again is not None
    assert held.worker is first.worker
    assert again.worker is not first.worker  # one block saved is not worth the eviction of a hundred more
    last = routing.place(hash_blocks(b"x" * 256))
    assert last is not None
    assert last.worker is first.worker  # the other one has it too, but a long queue besides
    assert counted(Scrape(registry), "decisions_total") == {("cold",): 1, ("affinity",): 2, ("load",): 1}


def test_where_several_would_do_as_well_it_is_a_tie() -> None:
    routing, registry = parts()
    prompt = hash_blocks(b"x" * 2560)
    for worker in routing.fleet.workers:
        reading = worker.retention.sent([], 0, len(prompt.hashes), routing.now())
        routing.tree.insert(routing.tree.find(prompt.hashes), worker.index, reading)
    placement = routing.place(prompt)
    assert placement is not None
    placement.release()
    assert counted(Scrape(registry), "decisions_total") == {("tie",): 1}
    routing.tree.forget(0)
    placement = routing.place(prompt)
    assert placement is not None
    assert placement.worker.index == 1
    assert counted(Scrape(registry), "decisions_total") == {("tie",): 1, ("affinity",): 1}


def test_the_tree_tells_what_it_holds_and_what_it_let_go() -> None:
    routing, registry = parts(max_blocks=5, policy="round_robin")
    for text in (b"x" * 1024, b"y" * 512, b"y" * 512):
        routing.place(hash_blocks(text))
    scrape = Scrape(registry)
    assert scrape("tree_blocks") == {(): 5}
    assert scrape("tree_evicted_blocks_total") == {(): 1}
    assert scrape("held_blocks") == {(A,): 5, (B,): 2}


def test_a_scrape_counts_nothing_twice_and_changes_nothing() -> None:
    routing, registry = parts(policy="round_robin")
    routing.place(hash_blocks(b"x" * 1024))
    assert Scrape(registry).text == Scrape(registry).text
    assert dict(routing.tree.held) == {0: 4}


@pytest.mark.anyio
async def test_traffic_is_counted_as_it_was() -> None:
    """One worker, prompts of 4 blocks, which are 256 tokens by our count and 512 by the engine's."""
    told = b'{"usage":{"prompt_tokens":512,"prompt_tokens_details":{"cached_tokens":%d}}}'
    streamed = b'data: {"choices":[],"usage":{"prompt_tokens":512,"prompt_tokens_details":{"cached_tokens":448}}}\n\n'
    answers = {
        b"/v1/completions?cold": response(told % 0),
        b"/v1/completions?warm": response(told % 480),
        b"/v1/completions?stream": STREAM_HEAD + chunk(streamed) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n",
        b"/v1/completions?silent": response(b'{"usage":{"prompt_tokens":512}}'),
        b"/v1/completions?failed": response(told % 512, b"500 Oops"),
        b"/other": response(told % 1),
    }

    async def answer(connection: PeerConnection) -> None:
        target = connection.request_line.split()[1]
        if target == b"/v1/completions?stall":
            await connection.closed_by_router()
        elif target == b"/v1/completions?break":
            connection.writer.close()
        else:
            await connection.send(answers[target])

    config = replace(CONFIG, max_payload_size=4096)
    async with Peer(answer, "m").listening() as peer, running_router(peer.url, config=config) as router:
        registry = build_registry(router.app.routing, router.app.proxy)
        async with httpx.AsyncClient(base_url=router.url) as client:
            for query, status in (
                ("cold", 200),
                ("warm", 200),
                ("stream", 200),
                ("silent", 200),
                ("failed", 500),
                ("break", 502),
            ):
                reply = await client.post(f"/v1/completions?{query}", content=completion("x", 4))
                assert reply.status_code == status, query
            assert (await client.get("/other")).status_code == 200
            for _ in range(2):
                assert (await client.post("/v1/completions", content=b"x" * 4097)).status_code == 413
        writer = (await asyncio.open_connection("127.0.0.1", router.port))[1]
        body = completion("x", 4)
        head = b"POST /v1/completions?stall HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        worker = router.app.fleet.workers[0]
        await until(lambda: peer.seen[-1].request_line.endswith(b"?stall HTTP/1.1"))
        assert Scrape(registry)("in_flight_requests") == {(peer.url,): 1}
        writer.close()
        await until(lambda: account_of(worker).requests[499] == 1)

        scrape = Scrape(registry)
        url = peer.url
        requests = {(code, "m", url): count for code, count in (("200", 5), ("500", 1), ("502", 1), ("499", 1))}
        assert scrape("worker_requests_total") == requests
        # The 502 is the worker's failure, and the router's answer. The client that left got no answer.
        assert counted(scrape, "refused_requests_total") == {("413",): 2, ("502",): 1}
        # An engine that has told what is cached tells nothing where nothing is.
        assert scrape("prompt_tokens_total") == {("m", url): 4 * 512}
        assert scrape("available_tokens_total") == scrape("captured_tokens_total") == {("m", url): 3 * 512}
        assert scrape("delivered_tokens_total") == {("m", url): 480 + 448}
        assert scrape("mispredicted_tokens_total") == {("m", url): (512 - 480) + (512 - 448) + 512}
        assert scrape("unreported_requests_total") == {("m", url): 0}
        assert counted(scrape, "decisions_total") == {("no_prompt",): 1, ("cold",): 1, ("affinity",): 6}
        assert scrape("held_blocks") == {(url,): 4}
        assert scrape("tree_blocks") == {(): 4}
        assert scrape("worker_up") == {(url,): 1}
        assert scrape("in_flight_requests") == scrape("waiting_tokens") == {(url,): 0}
        # Of the streamed one, and of those that were answered well.
        assert scrape("time_to_first_token_seconds_count") == {("m", url): 1}
        assert scrape("request_duration_seconds_count") == {("m", url): 5}
        assert scrape("decision_seconds_count") == {(): 8}


def test_a_model_that_the_worker_does_not_list_is_no_label() -> None:
    routing, registry = parts(policy="round_robin")
    for worker in routing.fleet.workers:
        routing.fleet.set_models(worker, ("base", "adapter"))
    for number in range(1000):
        place(routing, f"made-up-{number}")
    for _ in range(2):
        place(routing, "adapter")
    scrape = Scrape(registry)
    assert scrape("unreported_requests_total") == {
        (model, url): count for url in (A, B) for model, count in (("base", 500), ("adapter", 1))
    }


def test_of_many_models_the_first_have_series_of_their_own() -> None:
    routing, registry = parts(policy="round_robin")
    routing.fleet.set_models(routing.fleet.workers[0], tuple(f"adapter-{number}" for number in range(1000)))
    assert len(Scrape(registry)("prompt_tokens_total")) == MAX_MODELS


def test_what_a_worker_no_longer_serves_has_no_series() -> None:
    routing, registry = parts(policy="round_robin")
    worker = routing.fleet.workers[0]
    routing.fleet.set_models(worker, ("one", "two"))
    account = worker.accounts.of("two")
    account.prompt_tokens = 5
    routing.fleet.set_models(worker, ("two", "three"))
    assert Scrape(registry)("prompt_tokens_total") == {("two", A): 5, ("three", A): 0}


def test_a_worker_that_is_gone_has_no_series_at_all() -> None:
    routing, registry = parts(policy="round_robin")
    routing.fleet.set_models(routing.fleet.workers[1], ("m",))
    place(routing, "m")
    place(routing, "m")
    worker = routing.fleet.workers[1]
    worker.accounts.of("m").duration.observe(1.0)
    worker.engine = EngineReport(100, 1.0, 1, 2, 0.5, 10, 5, 3)
    assert f'worker="{B}"' in Scrape(registry).text
    routing.remove(worker)
    assert f'worker="{B}"' not in Scrape(registry).text


def test_what_an_engine_says_is_shown_and_what_it_does_not_is_not() -> None:
    routing, registry = parts()
    routing.fleet.workers[0].engine = EngineReport(running=3, queued=0, prompt_tokens=70)
    scrape = Scrape(registry)
    assert scrape("engine_up") == {(A,): 1, (B,): 0}
    assert scrape("engine_running_requests") == {(A,): 3}
    assert scrape("engine_queued_requests") == {(A,): 0}
    assert scrape("engine_prompt_tokens_total") == {(A,): 70}
    for name in ("engine_cached_tokens_total", "engine_kv_cache_usage_ratio", "engine_kv_cache_tokens"):
        assert scrape(name) == {}, name


def test_a_histogram_says_how_many_were_below_each_bound() -> None:
    routing, registry = parts()
    for seconds in (0.0, 0.00001, 0.0002, 5.0):
        routing.decision_time.observe(seconds)
    buckets = {
        sample.labels["le"]: sample.value
        for sample in Scrape(registry).families["warmroute_decision_seconds"].samples
        if sample.name.endswith("_bucket")
    }
    assert list(buckets) == [*(repr(bound) for bound in MICROSECONDS), "+Inf"]
    assert (buckets["1e-05"], buckets["0.0001"], buckets["0.00025"], buckets["0.1"], buckets["+Inf"]) == (
        2,
        2,
        3,
        3,
        4,
    )
    assert Scrape(registry)("decision_seconds_sum") == {(): pytest.approx(5.00021)}


def place(routing: Routing, model: str) -> None:
    placement = routing.place(hash_blocks(b"x" * 1024, model=model))
    assert placement is not None
    placement.release()
    placement.report(None)


@asynccontextmanager
async def everything() -> AsyncIterator[CollectorRegistry]:
    told = b'{"usage":{"prompt_tokens":512,"prompt_tokens_details":{"cached_tokens":0}}}'
    config = replace(
        CONFIG,
        max_payload_size=10_000,
        admission=AdmissionConfig(max_per_worker=8),
        gossip=GossipConfig("127.0.0.1", 0, (), None, "secret"),
        health=HealthConfig(interval=3600.0),
    )

    async def answer(connection: PeerConnection) -> None:
        data = chunk(b"data: " + told + b"\n\n") + b"0\r\n\r\n"
        await connection.send(STREAM_HEAD + data if b"stream" in connection.body else response(told))

    async with Peer(answer, "m").listening() as peer, httpx.AsyncClient() as client:
        gossip = socket.create_server(("127.0.0.1", 0))
        app = RouterApp(replace(config, worker_urls=(peer.url,)), gossip)
        async with running_app(app) as router:
            worker = app.fleet.workers[0]
            worker.retention.start_at(100)
            worker.engine = EngineReport(100, 1.0, 1, 2, 0.5, 10, 5, 3)
            for body in (completion("x", 1), b'{"prompt":"x","stream":true}', b"x" * 10_001):
                await client.post(f"{router.url}/v1/completions", content=body)
            await until(lambda: not worker.in_flight)
            worker.backlog.speed.tokens_per_s = 1000.0
            assert app.peers is not None
            discovery = KubernetesWorkers(KUBERNETES, Membership(app.routing, None), app.fleet)
            yield build_registry(app.routing, app.proxy, app.peers, discovery)
