"""How other routers are started and looked at from outside."""

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest
from warmroute_loadtest.rivals.balancers import HAPROXY, NGINX, Balancer, haproxy_configuration, nginx_configuration
from warmroute_loadtest.rivals.program import Place
from warmroute_loadtest.rivals.routers import SMG
from warmroute_loadtest.rivals.running import RunningRouter, kilobytes, running

PLACE = Place(["http://127.0.0.1:8001", "http://10.0.0.2:8002"], 30000, 29000, Path("/tmp/somewhere"))
STATUS = "Name:\tnginx\nVmHWM:\t   20480 kB\nVmRSS:\t   10240 kB\nThreads:\t1\n"


def test_a_router_is_told_its_workers_and_where_to_serve() -> None:
    assert SMG.arguments(PLACE) == [
        *("--worker-urls", "http://127.0.0.1:8001", "http://10.0.0.2:8002"),
        *("--host", "127.0.0.1", "--port", "30000"),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", "29000"),
        *("--log-level", "warn"),
    ]


def test_nginx_has_one_process_and_keeps_its_connections() -> None:
    text = nginx_configuration(PLACE)
    assert text.count("{") == text.count("}") == 5
    assert re.findall(r"server (\S+);", text) == ["127.0.0.1:8001", "10.0.0.2:8002"]
    assert "listen 127.0.0.1:30000;" in text
    for setting in (
        "worker_processes 1",
        "access_log off",
        "client_max_body_size 0",
        "keepalive 256",
        "proxy_http_version 1.1",
        'proxy_set_header Connection ""',
        "proxy_buffering off",
    ):
        assert f"{setting};" in text


def test_haproxy_has_one_thread_and_keeps_its_connections() -> None:
    text = haproxy_configuration(PLACE)
    assert re.findall(r"server (w\d) (\S+)", text) == [("w0", "127.0.0.1:8001"), ("w1", "10.0.0.2:8002")]
    assert "bind 127.0.0.1:30000" in text
    for setting in ("nbthread 1", "http-reuse always", "balance roundrobin"):
        assert f"    {setting}\n" in text


@pytest.mark.parametrize("balancer", [NGINX, HAPROXY], ids=lambda balancer: balancer.name)
def test_a_balancer_gets_the_name_of_its_file(balancer: Balancer, tmp_path: Path) -> None:
    arguments = balancer.arguments(PLACE._replace(folder=tmp_path))
    assert "127.0.0.1:8001" in Path(arguments[-1]).read_text()


def test_memory_is_read_from_the_kernel_s_lines() -> None:
    assert kilobytes(STATUS, "VmRSS") == 10240
    assert kilobytes(STATUS, "VmHWM") == 20480


class Script:
    """A program that does what the test says."""

    name = title = "script"
    installed = True

    def __init__(self, text: str) -> None:
        self.command = (sys.executable, "-c", text)

    def arguments(self, place: Place) -> list[str]:
        return [str(place.port)]


async def first_line(router: RunningRouter) -> str:
    while not router.log.endswith("\n"):
        assert router.process.returncode is None
        await asyncio.sleep(0.02)
    return router.log.splitlines()[0]


def is_alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


PARENT = """
import subprocess, sys, time
taken = bytearray(30_000_000)
taken[::4096] = b"x" * len(taken[::4096])
sum(range(3_000_000))
child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""
CHILD = "taken = b'x' * 20_000_000; print('ready', flush=True); import time; time.sleep(60)"


@pytest.mark.anyio
async def test_children_count_and_go_with_the_process() -> None:
    async with running(Script(f"CHILD = {CHILD!r}\n{PARENT}"), []) as router:
        child = int(await first_line(router))
        assert is_alive(child)
        assert router.rss > 50_000_000
        assert router.peak_rss >= router.rss
        assert router.cpu_seconds > 0
    for _ in range(500):  # a killed process takes a moment to go
        if not is_alive(child):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the child is still there")


@pytest.mark.anyio
async def test_a_peak_counts_from_when_it_is_watched() -> None:
    script = "taken = b'x' * 50_000_000; del taken; print('done', flush=True); import time; time.sleep(60)"
    async with running(Script(script), []) as router:
        await first_line(router)
        assert router.peak_rss > 50_000_000
        router.watch_peak()
        assert router.peak_rss < 50_000_000


@pytest.mark.anyio
async def test_a_process_keeps_to_the_cores_that_it_is_given() -> None:
    core = min(os.sched_getaffinity(0))
    script = "import os; print(sorted(os.sched_getaffinity(0)), flush=True); import time; time.sleep(60)"
    async with running(Script(script), [], cpus=[core]) as router:
        assert await first_line(router) == f"[{core}]"
