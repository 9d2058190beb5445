"""Workers from names: each address that a URL's name resolves to is a worker. Names are looked up all the time."""

import asyncio
import logging
import random
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from ..config import WorkerSpec, bracketed
from .membership import Membership

logger = logging.getLogger(__name__)

INTERVAL = 5.0
"""Seconds between two lookups of a name."""
FIRST_ROUND = 2.0
"""Seconds that the start waits for the first lookups, so that the first request finds workers."""
MAX_ADDRESSES = 1024
"""Of one name."""

Resolve = Callable[[str], Awaitable[list[str]]]
"""From a name to its addresses. Raises OSError, or UnicodeError on what cannot be a name."""


async def resolve_name(name: str) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


class DnsWorkers:
    def __init__(self, urls: tuple[str, ...], membership: Membership, resolve: Resolve = resolve_name) -> None:
        """`urls`: normalised like those of workers."""
        self._names = [_Name(url, membership, resolve) for url in urls]
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._tasks = [asyncio.create_task(name.run()) for name in self._names]
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_ROUND):
                for name in self._names:
                    await name.looked_up.wait()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _Name:
    """The lookups of one URL."""

    def __init__(self, url: str, membership: Membership, resolve: Resolve) -> None:
        self.looked_up = asyncio.Event()
        """Whether that has been tried once."""
        self._url = url
        self._parts = urlsplit(url)
        self._membership = membership
        self._resolve = resolve
        self._complaint = ""

    async def run(self) -> None:
        host = self._parts.hostname
        assert host is not None, f"not an absolute URL: {self._url}"
        if _is_address(host):
            self._apply([WorkerSpec(self._url)])
            return
        while True:
            await self._look_up(host)
            # Jitter, so that many routers do not ask in step.
            await asyncio.sleep(INTERVAL * random.uniform(0.8, 1.2))

    async def _look_up(self, host: str) -> None:
        """A failure, or an answer without addresses, says nothing of the workers: those that are known stay."""
        complaint = ""
        try:
            addresses = _of_one_family(await self._resolve(host))
        except (OSError, UnicodeError) as error:
            addresses, complaint = [], f"{getattr(error, 'strerror', None) or error}; those known so far stay"
        if not addresses:
            complaint = complaint or "it has no addresses; those known so far stay"
        elif len(addresses) > MAX_ADDRESSES:
            complaint = f"it has more than {MAX_ADDRESSES} addresses; the others are left out"
        self._complain(complaint)
        self._apply([_spec(self._parts, host, address) for address in addresses[:MAX_ADDRESSES]])

    def _apply(self, specs: list[WorkerSpec]) -> None:
        if specs:
            self._membership.apply(f"dns:{self._url}", specs)
        self.looked_up.set()

    def _complain(self, complaint: str) -> None:
        """Once for each thing that is wrong, however often it is looked up."""
        if complaint and complaint != self._complaint:
            logger.warning("workers of %s: %s", self._url, complaint)
        self._complaint = complaint


def _of_one_family(addresses: list[str]) -> list[str]:
    """In order. A name with addresses of both families has two for each worker: those of IPv4 are enough."""
    return sorted({address for address in addresses if ":" not in address} or set(addresses))


def _spec(parts: SplitResult, host: str, address: str) -> WorkerSpec:
    port = f":{parts.port}" if parts.port else ""
    return WorkerSpec(f"{parts.scheme}://{bracketed(address)}{port}{parts.path}", server_name=host)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
