"""Routers for inference workers: this one, and three that descend from SGLang's.

Flags are the defaults of each. What a run needs beyond them (a cap, a policy) has the same flag in all of them, or is
spelled out for each where it is needed.
"""

import sys
from pathlib import Path
from typing import NamedTuple

from warmroute_router import __version__

from .program import RIVALS, Place


class Router(NamedTuple):
    name: str
    version: str
    command: tuple[str, ...]
    quiet: str
    """Its log level for warnings and worse."""
    admin_key: str | None = None
    """What it wants to be shown before `/workers` may be changed; None for nothing."""

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def admin_flags(self) -> tuple[str, ...]:
        return ("--admin-api-key", self.admin_key) if self.admin_key else ()

    @property
    def installed(self) -> bool:
        return Path(self.command[0]).exists()

    def arguments(self, place: Place) -> list[str]:
        where = ["--host", "127.0.0.1", "--port", str(place.port)]
        metrics = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(place.metrics_port)]
        return ["--worker-urls", *place.urls, *where, *metrics, "--log-level", self.quiet]


WARMROUTE = Router("warmroute", __version__, (sys.executable, "-m", "warmroute_router"), "warning", "sk-admin")
SGLANG_ROUTER = Router(
    "sglang-router",
    "0.3.2",
    (str(RIVALS / "sglang-router/bin/python"), "-m", "sglang_router.launch_router"),
    "warn",
)
SMG = Router("smg", "1.13.0", (str(RIVALS / "smg/bin/smg"), "launch"), "warn")
VLLM_ROUTER = Router("vllm-router", "0.1.17", (str(RIVALS / "vllm-router/bin/vllm-router"),), "error")
