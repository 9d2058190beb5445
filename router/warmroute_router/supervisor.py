"""`--processes N`: a parent that binds the ports, keeps N router processes running behind them, and sums their metrics.

The processes are replicas that gossip with each other over loopback. All listeners stay open here, so that connections
that wait for a process that died are taken by the next one. The parent itself touches no request.
"""

import asyncio
import logging
import secrets
import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from prometheus_client import CollectorRegistry

from .child import Assignment, Child, Order
from .config import Address, GossipConfig, RouterConfig
from .family_metrics import FamilyCollector
from .listeners import Listeners
from .metrics_server import metrics_served
from .shared_counts import SharedCounts
from .start import announcement, starting

logger = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds before a process is started again, the more often it has died soon."""
SOON = 5.0
"""Seconds after its start."""
PATIENCE = 5.0
"""Seconds beyond what they were given, after which processes that should have ended are killed."""


def supervise(config: RouterConfig, listeners: Sequence[Listeners]) -> int:
    """Until the router is stopped; gives the exit code. Raises CannotStart."""
    with tempfile.TemporaryDirectory(prefix="warmroute-") as folder:
        collector = FamilyCollector()
        registry = CollectorRegistry()
        registry.register(collector)
        with starting():
            metrics = metrics_served(config.prometheus_host, config.prometheus_port, registry)
            metrics_url = metrics.__enter__()
