import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from math import inf
from pathlib import Path

import httpx
import pytest
from support.fleet import account_of
from support.peer import Handler, Peer, PeerConnection, answering, response
from support.router import CONFIG, running_router, until
from support.worker import running_worker
from warmroute_router import health
from warmroute_router.blocks import BLOCK_TOKENS, hash_blocks
from warmroute_router.config import HealthConfig, TlsConfig, WorkerSpec
from warmroute_router.tls import worker_context
from warmroute_router.upstream.engine import NOTHING, EngineReport, ask_engine, read_report
from warmroute_router.upstream.worker_client import WorkerClient

pytestmark = pytest.mark.anyio

OFTEN = replace(CONFIG, health=HealthConfig(interval=0.02))
VLLM = (
    "# TYPE vllm:cache_config_info gauge\n"
    'vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="7000",engine="0"} 1.0\n'
)


@pytest.mark.parametrize(
    ("exposition", "tokens"),
    [
        (VLLM, 112_000),
        (VLLM + VLLM.splitlines()[1].replace('engine="0"', 'engine="1"') + "\n", 224_000),
        ('sglang:cache_config_info{page_size="1",num_pages="5000"} 1\n', 5000),
        (
            'sglang:cache_config_info{page_size="4",num_pages="10"} 1\n'
            'sglang_cache_config_info{page_size="4",num_pages="10"} 1\n',
            40,
        ),
        (VLLM.replace("\n", "\r\n"), 112_000),
        (VLLM.replace('"7000"', '"None"'), None),
        (VLLM.replace('"7000"', f'"{"9" * 400}"'), None),
        (VLLM.replace('"16"', f'"{"0" * 3000}16"'), None),
        ("something_else 1\n", None),
        ("", None),
    ],
    ids=[
        "vllm",
        "two-ranks",
        "sglang",
        "two-spellings",
        "other-line-ends",
        "not-known-yet",
        "no-number-of-tokens",
        "no-line-of-an-engine",
        "other",
        "empty",
    ],
)
def test_the_engines_own_words_are_read(exposition: str, tokens: int | None) -> None:
    assert read_report(exposition) == EngineReport(tokens, None)


async def test_a_worker_that_comes_up_is_asked_once_for_what_it_holds() -> None:
    peer = Peer(answering(response(b"{}")))
    peer.metrics = VLLM.encode()
    async with peer.listening(), running_router(peer.url) as router:
        retention = router.app.fleet.workers[0].retention
        await until(lambda: retention.blocks < inf)
        assert retention.blocks == 112_000 / BLOCK_TOKENS


@pytest.mark.parametrize("metrics", [b"", b"<html>", b"\xff\xfe", b'vllm:cache_config_info{block_size="'])
async def test_a_worker_that_says_nothing_of_use_is_ready_all_the_same(metrics: bytes) -> None:
    peer = Peer(answering(response(b"{}")))
    peer.metrics = metrics
    async with peer.listening(), running_router(peer.url) as router:
        await until(lambda: bool(router.app.fleet.ready()))
        assert router.app.fleet.workers[0].retention.blocks == inf


async def test_our_own_worker_is_understood(tmp_path: Path) -> None:
    from support.toy import save_toy

    flags = ("--page-size", "4", "--max-total-tokens", "6400")
    async with running_worker(save_toy(tmp_path), *flags) as worker, running_router(worker.url) as router:
        retention = router.app.fleet.workers[0].retention
        await until(lambda: retention.blocks < inf)
        assert retention.blocks == 100


async def test_since_when_it_runs_is_read_among_many_other_series() -> None:
    others = "".join(f'other_metric{{number="{number}"}} {number}\n' for number in range(1000))
    report = read_report(others + "process_start_time_seconds 1.764e+09\n" + VLLM + "broken{\n")
    assert report == EngineReport(112_000, 1_764_000_000.0)


def test_of_lines_without_end_the_first_are_read() -> None:
    exposition = "".join(f"process_start_time_seconds {start}\n" for start in range(1, 100_001))
    assert read_report(exposition).started == 1000.0


async def report_of(metrics: Handler, api_key: str | None = None) -> tuple[EngineReport, Peer]:
    peer = Peer(metrics)
    client = WorkerClient(worker_context(TlsConfig()))
    async with peer.listening():
        # A path of its own, since the peer answers the usual one by itself.
        report = await ask_engine(client, WorkerSpec(f"{peer.url}/engine", api_key=api_key))
    await client.close()
    return report, peer


async def test_an_engine_is_asked_with_its_own_key() -> None:
    report, peer = await report_of(answering(response(VLLM.encode())), api_key="worker-key")
    assert report == EngineReport(112_000, None)
    assert peer.seen[0].request_line == b"GET /engine/metrics HTTP/1.1"
    assert peer.seen[0].header(b"authorization") == b"Bearer worker-key"


@pytest.mark.parametrize(
    "answer",
    [
        response(VLLM.encode(), status=b"401 Unauthorized"),
        response(bytes(8 * 1024 * 1024) + VLLM.encode()),
        response(b"process_start_time_seconds x\n"),
        b"garbage\r\n\r\n",
    ],
    ids=["refused", "too-long", "no-number", "no-http"],
)
async def test_an_engine_that_gives_no_metrics_says_nothing(answer: bytes) -> None:
    assert (await report_of(answering(answer)))[0] == NOTHING


async def test_a_worker_that_restarts_between_two_probes_is_forgotten() -> None:
    peer = Peer(answering(response(b"{}")))
    peer.metrics = b"process_start_time_seconds 1000\n"
    async with (
        peer.listening(),
        running_router(peer.url, config=replace(OFTEN, engine_stats_interval=0.05)) as router,
    ):
        worker = router.app.fleet.workers[0]
        await until(lambda: worker.started == 1000)
        placement = router.app.routing.place(hash_blocks(b"x" * 2560))
        assert placement is not None
        placement.release()
        assert router.app.tree.held[0] == 10
        peer.metrics = b"process_start_time_seconds 999\n"
        await asyncio.sleep(0.2)
        assert router.app.tree.held[0] == 10, "another process behind the same URL"
        peer.metrics = b"process_start_time_seconds 1001\n"
        await until(lambda: router.app.tree.held[0] == 0)
        assert worker.retention.filled == 0


async def test_a_worker_whose_port_is_closed_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "RETRY_INTERVAL", 0.02)
    async with running_router("http://127.0.0.1:1") as router:
        worker = router.app.fleet.workers[0]
        router.app.tree.insert(router.app.tree.find(hash_blocks(b"x" * 2560).hashes), 0, 1.0)
        assert router.app.tree.held[0] == 10
        await until(lambda: router.app.tree.held[0] == 0)
        assert not account_of(worker).requests


FIGURES = EngineReport(
    running=3, queued=2, kv_usage=0.25, prompt_tokens=1000, cached_tokens=700, generation_tokens=90
)
V1 = """\
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.7e+09
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 700.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 960.0
vllm:generation_tokens_total{engine="0",model_name="m"} 90.0
"""
SGLANG = """\
sglang:num_running_reqs{model_name="m",tp_rank="0"} 3.0
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 2.0
sglang:token_usage{model_name="m",tp_rank="0"} 0.25
sglang:prompt_tokens_total{model_name="m"} 1000.0
sglang:cached_tokens_total{model_name="m",cache_source="device"} 600.0
sglang:cached_tokens_total{model_name="m",cache_source="host"} 100.0
sglang:generation_tokens_total{model_name="m"} 90.0
"""


@pytest.mark.parametrize(
    "exposition",
    [
        V1,
        V1.replace("kv_cache_usage_perc", "gpu_cache_usage_perc").replace("prefix_cache", "gpu_prefix_cache"),
        V1.replace("prompt_tokens_total", "prompt_tokens_cached_total").replace("960", "700")
        + "vllm:prompt_tokens_total 1000\n",
        V1.replace(" 3.0", " 1.0").replace(" 0.25", " 0.2")
        + 'vllm:num_requests_running{engine="1"} 2\nvllm:kv_cache_usage_perc{engine="1"} 0.3\n',
        SGLANG,
        SGLANG.replace("sglang:", "sglang_"),
        SGLANG + SGLANG.replace("sglang:", "sglang_"),
    ],
    ids=["vllm", "old-vllm", "newer-vllm", "ranks", "sglang", "underscores", "both-spellings"],
)
def test_engines_have_one_set_of_names(exposition: str) -> None:
    assert read_report(exposition) == FIGURES


def test_what_an_engine_does_not_say_is_not_known() -> None:
    told = SGLANG.replace("cached_tokens_total", "other")
    assert read_report(told) == FIGURES._replace(cached_tokens=None)
    assert read_report("trtllm_num_requests_running 3\n") == EngineReport(running=3)
    assert read_report("vllm:num_requests_running nan\nvllm:num_requests_running_other 7\n") == NOTHING


def test_what_cannot_be_is_not_known() -> None:
    """Two such numbers have no sum and no mean."""
    for number in ("1.7e308", "1e18", "-3", "+Inf", "nan"):
        garbage = V1.replace(" 3.0", f" {number}").replace(" 0.25", f" {number}")
        told = read_report(garbage + garbage.replace('engine="0"', 'engine="1"'))
        assert (told.running, told.kv_usage) == (None, None), number
        assert told.queued == 2 * 2, "the others still are"
    assert read_report(V1.replace(" 0.25", " 37")) == FIGURES._replace(kv_usage=None)


@pytest.mark.parametrize("how", ["its probe fails", "a request finds nobody there", "it drains"])
async def test_the_figures_of_an_engine_that_is_gone_are_not_shown(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "RETRY_INTERVAL", 0.02)
    answering_still = asyncio.Event()

    async def answer(connection: PeerConnection) -> None:
        await answering_still.wait()
        await connection.send(response(b"{}"))

    peer = Peer(answer)
    peer.metrics = V1.encode()
    config = replace(OFTEN, engine_stats_interval=0.02)
    async with AsyncExitStack() as stack:
        listening = await stack.enter_async_context(AsyncExitStack())
        await listening.enter_async_context(peer.listening())
        router = await stack.enter_async_context(running_router(peer.url, config=config))
        worker = router.app.fleet.workers[0]
        await until(lambda: worker.engine == FIGURES)
        if how == "it drains":
            client = await stack.enter_async_context(httpx.AsyncClient())
            asked = asyncio.create_task(client.get(router.url + "/x"))
            await until(lambda: bool(peer.seen))
            router.app.fleet.drain(worker)
        await listening.aclose()
        if how == "a request finds nobody there":
            router.app.routing.unreachable(worker, gone=True)
        await until(lambda: worker.engine == NOTHING)
        answering_still.set()
        if how == "it drains":
            assert (await asked).status_code == 200


async def test_our_own_workers_figures_are_read(tmp_path: Path) -> None:
    from support.toy import save_toy

    config = replace(CONFIG, engine_stats_interval=0.02, health=HealthConfig(interval=0.02))
    prompt = {"model": "toy", "prompt": "a b c d e f g h", "max_tokens": 3, "ignore_eos": True}
    async with (
        running_worker(save_toy(tmp_path / "toy"), "--page-size", "1") as engine,
        running_router(engine.url, config=config) as router,
        httpx.AsyncClient() as client,
    ):
        worker = router.app.fleet.workers[0]
        usages = [(await client.post(router.url + "/v1/completions", json=prompt)).json()["usage"] for _ in range(2)]
        prompts = sum(usage["prompt_tokens"] for usage in usages)
        cached = sum((usage["prompt_tokens_details"] or {}).get("cached_tokens", 0) for usage in usages)
        generated = sum(usage["completion_tokens"] for usage in usages)
        assert cached
        await until(lambda: worker.engine.generation_tokens == generated)
        assert (worker.engine.prompt_tokens, worker.engine.cached_tokens) == (prompts, cached)
        assert (worker.engine.running, worker.engine.queued, worker.models) == (0, 0, ("toy",))


async def test_what_an_engine_said_is_forgotten_when_it_says_no_more() -> None:
    peer = Peer(answering(response(b"{}")))
    peer.metrics = V1.encode()
    async with (
        peer.listening(),
        running_router(peer.url, config=replace(OFTEN, engine_stats_interval=0.02)) as router,
    ):
        worker = router.app.fleet.workers[0]
        await until(lambda: worker.engine == FIGURES)
        peer.metrics = b""
        await until(lambda: worker.engine == NOTHING)
