import subprocess
import sys

import httpx
import pytest
from warmroute_loadtest.processes import StartError, processes, url_in


def test_children_end_with_the_block() -> None:
    with processes() as children:
        process = children.spawn("warmroute_loadtest.mock_worker")
        url = url_in(children.announcement(process))
        reply = httpx.post(f"{url}/v1/chat/completions", content=b"{}")
        assert reply.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 256}
    assert process.returncode is not None


def test_children_end_when_the_block_fails() -> None:
    with pytest.raises(RuntimeError, match="on the way"), processes() as children:  # noqa: PT012
        process = children.spawn("warmroute_loadtest.mock_worker")
        raise RuntimeError("on the way")
    assert process.returncode is not None


def test_a_child_that_does_not_start_is_told() -> None:
    with processes() as children, pytest.raises(StartError, match="exit code 2"):
        children.start("warmroute_router", "--port", "none")


def test_the_mock_streams_as_an_engine_does() -> None:
    with processes() as children:
        url = url_in(children.start("warmroute_loadtest.mock_worker"))
        reply = httpx.post(f"{url}/v1/chat/completions", content=b'{"stream":true}')
    events = reply.text.split("\n\n")
    assert len(events) == 16 + 3
    assert events[-2:] == ["data: [DONE]", ""]


def test_the_benchmark_prints_its_table() -> None:
    command = [sys.executable, "-m", "warmroute_loadtest.proxy_bench", "--seconds", "0.1", "--rounds", "1"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "router / direct" in result.stdout
    assert result.stdout.count("KB") == 5
