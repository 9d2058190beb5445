"""Flags of other routers that have no meaning here: whoever comes from there gets a word about each, and a start."""

import sys
from argparse import SUPPRESS, Action, ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

_NO_THRESHOLD = "there are no thresholds: cache and load are weighed in one cost"
_TREE = "the prefix tree is bounded by itself"
_STARTS = "the router starts without workers and takes each when it is up"
_PODS = "give --service-discovery with --selector, --service-discovery-namespace and --service-discovery-port"

_IGNORED = {
    "--cache-threshold": _NO_THRESHOLD,
    "--balance-abs-threshold": _NO_THRESHOLD,
    "--balance-rel-threshold": _NO_THRESHOLD,
    "--eviction-interval-secs": _TREE,
    "--eviction-interval": _TREE,
    "--max-tree-size": _TREE,
    "--worker-startup-timeout-secs": _STARTS,
    "--worker-startup-check-interval": _STARTS,
    "--request-id-headers": "ids are taken from x-request-id",
    "--enable-igw": "not needed",
    "--log-dir": "the log goes to stderr",
}
_REFUSED = {
    "--static-backends": "give --worker-urls, with spaces between them",
    "--k8s-label-selector": _PODS,
    "--k8s-namespace": _PODS,
    "--k8s-port": _PODS,
    "--pd-disaggregation": "prefill and decode on different workers is not supported",
    "--prefill": "prefill and decode on different workers is not supported",
    "--decode": "prefill and decode on different workers is not supported",
    "--dp-aware": "ranks behind one URL are not told apart: give each a port of its own",
    "--disable-health-check": "workers are always probed: see --health-check-interval-secs",
}


def add_foreign_flags(parser: ArgumentParser) -> None:
    """They are not shown in the help."""
    for flag in (*_IGNORED, *_REFUSED):
        parser.add_argument(flag, nargs="*", action=_Foreign, dest=SUPPRESS, help=SUPPRESS)


class _Foreign(Action):
    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,
        values: str | Sequence[Any] | None,
        option: str | None = None,
    ) -> None:
        assert option is not None, "they all have names"
        if option in _REFUSED:
            parser.error(f"argument {option}: {_REFUSED[option]}")
        print(f"{parser.prog}: {option} means nothing here: {_IGNORED[option]}", file=sys.stderr)
