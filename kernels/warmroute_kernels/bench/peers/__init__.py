"""Others who solve the same problems, where they are installed."""

import importlib.util
from collections.abc import Callable
from typing import NamedTuple

from ..problem import Contender, Problem
from . import flashinfer, sdpa, vllm


class Peer(NamedTuple):
    name: str
    package: str
    contender: Callable[[Problem], Contender | None]
    """None where it does not do such a case."""

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None


PEERS = (
    Peer(sdpa.NAME, "torch", sdpa.contender),
    Peer(flashinfer.NAME, "flashinfer", flashinfer.contender),
    Peer(vllm.NAME, "vllm", vllm.contender),
)
