"""The plugin, in a package tree with vLLM's names.

In vLLM itself, which is too large to install for this, it is checked by `python -m warmroute_worker.vllm.check`.
"""

import os
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

FAKE = Path(__file__).parents[1] / "support" / "fake_vllm"
PLUGIN = "from warmroute_worker.vllm.plugin import register; register(); register();"


def run(*arguments: str, vllm: Path = FAKE) -> tuple[int, str, str]:
    """Python with a vLLM."""
    environment = os.environ | {"PYTHONPATH": str(vllm)}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def other_vllm(tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    shutil.copytree(FAKE, tmp_path / "other")
    return tmp_path / "other"


def test_vllm_finds_the_plugin() -> None:
    (found,) = (plugin for plugin in entry_points(group="vllm.general_plugins") if plugin.name == "warmroute")
    assert found.value == "warmroute_worker.vllm.plugin:register"


def test_registering_twice_is_registering_once_and_imports_no_kernel() -> None:
    code = (
        f"{PLUGIN} import sys; from vllm.v1.attention.backends.registry import AttentionBackendEnum as names;"
        "print(names.CUSTOM.get_path(), [name for name in ('torch', 'triton') if name in sys.modules])"
    )
    assert run("-c", code) == (0, "warmroute_worker.vllm.attention_backend.WarmrouteBackend []\n", "")


def test_vllm_asks_the_backend_by_its_name() -> None:
    code = (
        f"{PLUGIN} from vllm.v1.attention.backends.registry import AttentionBackendEnum as names;"
        "backend = names.CUSTOM.get_class(); assert names[backend.get_name()] is names.CUSTOM;"
        "assert backend.get_builder_cls().reorder_batch_threshold == 1;"
        "assert not backend.forward_includes_kv_cache_update"
    )
    assert run("-c", code) == (0, "", "")


def test_a_step_of_vllms_is_attended_to_as_by_pytorch() -> None:
    code, out, err = run("-m", "warmroute_worker.vllm.check")
    assert (code, err) == (0, ""), out
    assert len(out.splitlines()) == 7  # two orders of strides, each plain, with a window, and with a soft cap


def test_another_version_says_so_when_the_backend_is_chosen(other_vllm: Path) -> None:
    (other_vllm / "vllm" / "version.py").write_text('__version__ = "0.33.0"\n')
    assert run("-c", PLUGIN, vllm=other_vllm) == (0, "", "")
    says = "warmroute: warmroute's attention backend is written for vLLM 0.32: this is 0.33.0\n"
    assert run("-m", "warmroute_worker.vllm.check", vllm=other_vllm) == (1, "", says)


def test_a_vllm_without_such_backends_starts_nevertheless(other_vllm: Path) -> None:
    (other_vllm / "vllm" / "v1" / "attention" / "backends" / "registry.py").unlink()
    code, out, err = run("-c", PLUGIN, vllm=other_vllm)
    assert (code, out) == (0, "")
    assert "no attention backends as warmroute knows them" in err


@pytest.mark.parametrize("argument", ["alibi_slopes=[1.0]", "kv_sharing_target_layer_name='layer.0'"])
def test_what_the_kernels_lack_is_refused(argument: str) -> None:
    code = f"from warmroute_worker.vllm.attention_backend import *; WarmrouteAttention(1, 64, 1.0, {argument})"
    returncode, _, err = run("-c", code)
    assert returncode == 1
    assert "NotImplementedError: warmroute's attention backend has neither ALiBi" in err
