"""What a scrape says, read by prometheus_client's own parser."""

import asyncio
from dataclasses import replace

import httpx
import orjson
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry
from support.fleet import fleet_of
from support.peer import STREAM_HEAD, Peer, PeerConnection, answering, chunk, response
from support.router import CONFIG, running_router, until
from warmroute_router import __version__
from warmroute_router.blocks import hash_blocks
from warmroute_router.config import AdmissionConfig, RetryConfig
from warmroute_router.fleet import State
from warmroute_router.metrics import build_registry
from warmroute_router.policies import POLICIES
from warmroute_router.proxy import Proxy
from warmroute_router.retries import Retries
from warmroute_router.routing import Routing
from warmroute_router.tree import PrefixTree
from warmroute_router.usage import Usage

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


def parts(max_blocks: int = 1000, policy: str = "cache_aware") -> tuple[Routing, CollectorRegistry]:
    fleet = fleet_of(A, B)
    for worker in fleet.workers:
        worker.state = State.READY
    routing = Routing(fleet, PrefixTree(max_blocks), policy, POLICIES[policy]())
    return routing, build_registry(routing, Proxy(routing, Retries(RetryConfig()), None, 1000))


def completion(letter: str, blocks: int) -> bytes:
    return orjson.dumps({"prompt": letter * (256 * blocks)})


COUNTERS = {
    "prompt_tokens": ["worker"],
    "available_tokens": ["worker"],
    "captured_tokens": ["worker"],
    "delivered_tokens": ["worker"],
    "mispredicted_tokens": ["worker"],
    "unreported_requests": ["worker"],
    "retries": ["worker"],
    "breaker_opened": ["worker"],
    "queue_refused_requests": ["reason"],
    "worker_requests": ["code", "worker"],
    "refused_requests": ["code"],
    "decisions": ["reason"],
    "tree_evicted_blocks": [],
}
GAUGES = {
    "in_flight_requests": ["worker"],
    "waiting_tokens": ["worker"],
    "worker_up": ["worker"],
    "worker_connections": ["state", "worker"],
    "held_body_bytes": [],
    "breaker_closed": ["worker"],
    "admitted_requests": [],
    "queued_requests": [],
    "held_blocks": ["worker"],
    "tree_blocks": [],
    "retention_tokens": ["worker"],
    "prefill_tokens_per_second": ["worker"],
}


@pytest.mark.anyio
async def test_every_metric_has_its_type_its_help_and_its_labels() -> None:
    limited = replace(CONFIG, max_payload_size=100, admission=AdmissionConfig(max_per_worker=1))
    async with (
        Peer(answering(response(b"{}"))).listening() as peer,
        running_router(peer.url, config=limited) as router,
        httpx.AsyncClient() as client,
    ):
        for body in (b"{}", b"x" * 101):
            await client.post(router.url + "/v1/completions", content=body)
        await until(lambda: not router.app.fleet.workers[0].in_flight)
        router.app.fleet.workers[0].retention.start_at(100)
        router.app.fleet.workers[0].backlog.speed.tokens_per_s = 1000.0
        scrape = Scrape(build_registry(router.app.routing, router.app.proxy))
    labels: dict[str, list[str]] = {}
    for family in scrape.families.values():
        assert family.documentation.endswith("."), family.name
        assert family.samples, family.name
        for sample in family.samples:
            labels[sample.name] = sorted(sample.labels)
            assert sample.name == family.name + ("_total" if family.type == "counter" else "")
    assert labels == {
        "warmroute_info": ["policy", "version"],
        **{f"warmroute_{name}_total": names for name, names in COUNTERS.items()},
        **{f"warmroute_{name}": names for name, names in GAUGES.items()},
    }
    for name in COUNTERS:
        assert f"# TYPE warmroute_{name}_total counter\n" in scrape.text
        assert f"# HELP warmroute_{name}_total " in scrape.text
    for name in GAUGES:
        assert f"# TYPE warmroute_{name} gauge\n" in scrape.text


def test_at_the_start_every_worker_is_there_with_zeros() -> None:
    routing, registry = parts()
    routing.fleet.workers[1].state = State.STARTING
    scrape = Scrape(registry)
    for name, labels in COUNTERS.items():
        if labels == ["worker"]:
            assert scrape(name + "_total") == {(A,): 0, (B,): 0}, name
    for name in ("in_flight_requests", "waiting_tokens", "held_blocks"):
        assert scrape(name) == {(A,): 0, (B,): 0}, name
    assert scrape("worker_up") == {(A,): 1, (B,): 0}
    assert scrape("tree_blocks") == scrape("tree_evicted_blocks_total") == {(): 0}
    for name in ("worker_requests_total", "refused_requests_total", "decisions_total"):
        assert scrape(name) == {}


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
    assert scrape("prompt_tokens_total") == {(A,): 1024, (B,): 512}
    assert scrape("available_tokens_total") == {(A,): 512, (B,): 512}
    assert scrape("captured_tokens_total") == {(A,): 512, (B,): 0}
    assert scrape("delivered_tokens_total") == {(A,): 500, (B,): 16}
    assert scrape("unreported_requests_total") == {(A,): 0, (B,): 0}


def test_what_an_engine_did_not_report_is_counted_as_that_alone() -> None:
    routing, registry = parts(policy="round_robin")
    for usage in (None, Usage(512, None), Usage(512, None)):
        placement = routing.place(hash_blocks(b"x" * 1024))
        assert placement is not None
        placement.report(usage)
    scrape = Scrape(registry)
    assert scrape("unreported_requests_total") == {(A,): 2, (B,): 1}
    for name in ("prompt_tokens", "available_tokens", "captured_tokens", "delivered_tokens"):
        assert scrape(name + "_total") == {(A,): 0, (B,): 0}


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
    assert Scrape(registry)("decisions_total") == {("cold",): 1, ("affinity",): 2, ("load",): 1}


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
    async with Peer(answer).listening() as peer, running_router(peer.url, config=config) as router:
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
        await until(lambda: worker.requests[499] == 1)

        scrape = Scrape(registry)
        url = peer.url
        requests = {("200", url): 5, ("500", url): 1, ("502", url): 1, ("499", url): 1}
        assert scrape("worker_requests_total") == requests
        # The 502 is the worker's failure, and the router's answer. The client that left got no answer.
        assert scrape("refused_requests_total") == {("413",): 2, ("502",): 1}
        # An engine that has told what is cached tells nothing where nothing is.
        assert scrape("prompt_tokens_total") == {(url,): 4 * 512}
        assert scrape("available_tokens_total") == scrape("captured_tokens_total") == {(url,): 3 * 512}
        assert scrape("delivered_tokens_total") == {(url,): 480 + 448}
        assert scrape("mispredicted_tokens_total") == {(url,): (512 - 480) + (512 - 448) + 512}
        assert scrape("unreported_requests_total") == {(url,): 0}
        assert scrape("decisions_total") == {("no_prompt",): 1, ("cold",): 1, ("affinity",): 6}
        assert scrape("held_blocks") == {(url,): 4}
        assert scrape("tree_blocks") == {(): 4}
        assert scrape("worker_up") == {(url,): 1}
        assert scrape("in_flight_requests") == scrape("waiting_tokens") == {(url,): 0}
