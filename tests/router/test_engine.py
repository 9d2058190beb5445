import asyncio
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from support.fleet import account_of
from support.peer import Handler, Peer, answering, response
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
