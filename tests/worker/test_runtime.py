"""What `auto` comes to, with and without a GPU, which is made believe: nothing is computed on it."""

import logging
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from warmroute_worker.cli import parse_config
from warmroute_worker.errors import WorkerError
from warmroute_worker.model.llama import LlamaConfig
from warmroute_worker.runtime import Runtime, bytes_per_token, pool_pages, resolve

GIB = 1 << 30
SHAPE = LlamaConfig(4096, 32, 32, 8, 128, 14336, 128256, 8192, 500000.0, 1e-5)
"""Llama 3 8B."""


def resolved(*flags: str) -> Runtime:
    return resolve(parse_config(["--model", "m", *flags]))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """One with 80 GiB, of which 60 are free, beside a C compiler."""
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("no_gpu")
def test_on_a_cpu() -> None:
    assert resolved() == Runtime(torch.device("cpu"), torch.float32, torch.float32, "torch", 256, False)
    assert resolved("--dtype", "bf16").kv_dtype == torch.bfloat16
    assert resolved("--kv-cache-dtype", "fp8_e4m3")[1:3] == (torch.float32, torch.float8_e4m3fn)
    assert resolved("--chunked-prefill-size", "7").chunk == 7


@pytest.mark.usefixtures("gpu")
def test_on_a_gpu() -> None:
    assert resolved() == Runtime(torch.device("cuda:0"), torch.bfloat16, torch.bfloat16, "triton", 8192, True)
    assert resolved("--dtype", "fp16").kv_dtype == torch.float16
    assert not resolved("--disable-cuda-graph").cuda_graphs
    assert not resolved("--attention-backend", "torch").cuda_graphs
    assert resolved("--device", "cpu") == Runtime(
        torch.device("cpu"), torch.float32, torch.float32, "torch", 256, False
    )


@pytest.mark.usefixtures("gpu")
def test_without_a_c_compiler_a_gpu_has_no_triton(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    runtime = resolved()
    assert (runtime.attention, runtime.cuda_graphs) == ("torch", False)
    ((_, level, message),) = caplog.record_tuples
    assert (level, "install gcc" in message) == (logging.WARNING, True)
    with pytest.raises(WorkerError, match="--attention-backend triton: Triton needs a C compiler"):
        resolved("--attention-backend", "triton")
    (tmp_path / "clang").touch(0o755)
    assert resolved().attention == "triton"


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("flags", "pages"),
    [
        # 0.85 of the 76 GiB that were free before the weights came are not free at the end: 60 - 11.4 = 48.6 GiB.
        # K and V of a token: 2 * 32 layers * 8 heads * 128 * 2 bytes = 128 KiB.
        ([], int(48.6 * 8192)),
        (["--page-size", "16"], int(48.6 * 8192) // 16),
        (["--mem-fraction-static", "0.5"], 22 * 8192),
        (["--max-total-tokens", "1000", "--page-size", "16"], 62),
        # 2 * 32 * 8 * (128 + 4) bytes = 66 KiB.
        (["--kv-cache-dtype", "fp8_e4m3", "--mem-fraction-static", "0.5"], 22 * GIB // (66 * 1024)),
    ],
)
def test_the_pool_takes_what_the_weights_have_left(flags: list[str], pages: int) -> None:
    config = parse_config(["--model", "m", *flags])
    assert pool_pages(config, resolve(config), SHAPE, 76 * GIB) == pages


@pytest.mark.usefixtures("gpu")
def test_weights_that_leave_no_room() -> None:
    config = parse_config(["--model", "m", "--mem-fraction-static", "0.2"])
    with pytest.raises(WorkerError, match="--mem-fraction-static"):
        pool_pages(config, resolve(config), SHAPE, 76 * GIB)


@pytest.mark.usefixtures("no_gpu")
def test_the_pool_of_a_cpu() -> None:
    config = parse_config(["--model", "m", "--page-size", "16"])
    assert pool_pages(config, resolve(config), SHAPE, 0) == 1024


def test_bytes_of_a_token() -> None:
    assert bytes_per_token(SHAPE, torch.bfloat16) == 128 * 1024
    assert bytes_per_token(SHAPE, torch.float8_e4m3fn) == 66 * 1024


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("capability", "fits"), [((8, 0), False), ((8, 9), True), ((9, 0), True), ((10, 0), True)])
def test_an_fp8_cache_needs_a_gpu_that_triton_has_it_for(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], fits: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert resolved("--kv-cache-dtype", "fp8_e4m3", "--attention-backend", "torch").kv_dtype == torch.float8_e4m3fn
    with nullcontext() if fits else pytest.raises(WorkerError, match=r"compute capability 8\.9 .* has 8\.0:"):
        resolved("--kv-cache-dtype", "fp8_e4m3")
