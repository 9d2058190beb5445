"""Names of backends, and the classes that have been registered for them."""

from collections.abc import Callable
from enum import Enum
from importlib import import_module

_REGISTERED: dict["AttentionBackendEnum", str] = {}


class AttentionBackendEnum(Enum):
    TRITON_ATTN = "vllm.v1.attention.backends.triton_attn.TritonAttentionBackend"
    CUSTOM = None

    def get_path(self) -> str:
        path: str | None = _REGISTERED.get(self, self.value)
        if not path:
            raise ValueError(f"{self.name} is not registered")
        return path

    def get_class(self) -> type:
        module, _, name = self.get_path().rpartition(".")
        found: type = getattr(import_module(module), name)
        return found


def register_backend(
    backend: AttentionBackendEnum, class_path: str | None = None, is_mamba: bool = False
) -> Callable[[type], type]:
    assert class_path is not None
    assert not is_mamba
    _REGISTERED[backend] = class_path
    return lambda cls: cls
