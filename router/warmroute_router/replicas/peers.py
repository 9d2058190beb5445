"""The replicas of this router: who they are, one connection from each to each, and the beat in which all are told.

All of it is soft. A peer that is away is dialled again, ever more rarely; one that is slow misses batches; one that
sends garbage is hung up on; and routing waits for none of them, but for a moment at its own start, when a peer is
asked for a snapshot.
"""

import asyncio
import logging
import socket
import time

from ..config import Address, GossipConfig
from ..routing import Routing
from .channel import identity
from .gossip import FLUSH_INTERVAL, Gossip
from .link import Link
from .listener import MAX_PEERS, Listener
from .warm_up import ALIVE, WarmUp
from .wire import encode_batch

logger = logging.getLogger(__name__)

HEARTBEAT = 1.0
WARM_UP = 2.0
"""Seconds that the start waits for a peer's snapshot; after that it comes in beside the traffic."""
RESOLVE_INTERVAL = 5.0


class Peers:
    def __init__(self, routing: Routing, config: GossipConfig, listener: socket.socket) -> None:
        """`listener`: where peers connect to, bound and listening."""
        self.gossip = Gossip(routing)
        self._config = config
        self._socket = listener
        self._identity = identity(config.key)
        self._listener = Listener(routing, self.gossip, self._identity)
        self._warm_up = WarmUp(routing)
        self._links: dict[Address, Link] = {}
        self._dialling: dict[Address, asyncio.Task[None]] = {}
        self._missed_by_former = 0
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def connected(self) -> int:
        """Peers that are being told."""
        return sum(link.channel is not None for link in list(self._links.values()))

    @property
    def missed(self) -> int:
        """Batches that peers were too slow for."""
        links = list(self._links.values())  # at once, since metrics ask from a thread of their own
        return self._missed_by_former + sum(link.missed for link in links)

    async def start(self) -> None:
        work = [self._listener.run(self._socket), self._tell(), self._resolve()]
        self._tasks = [asyncio.create_task(each) for each in work]
        first = asyncio.create_task(self._first_round())
        self._tasks.append(first)
        for task in self._tasks:
            task.add_done_callback(_say_if_it_failed)
        await asyncio.wait([first], timeout=WARM_UP)

    async def _first_round(self) -> None:
        self._dial(await self._addresses())
        for link in list(self._links.values()):
            await link.tried.wait()

    async def stop(self) -> None:
        tasks = [*self._tasks, *self._dialling.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _addresses(self) -> set[Address]:
        """Where the name cannot be resolved just now, the peers stay who they are."""
        if self._config.dns is None:
            return set(self._config.peers)
        name, port = self._config.dns
        try:
            found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            logger.info("peers %s: %s", name, error)
            return set(self._links)
        return {(str(address[0]), port) for *_, address in found}

    async def _resolve(self) -> None:
        while self._config.dns is not None:
            await asyncio.sleep(RESOLVE_INTERVAL)
            self._dial(await self._addresses())

    def _dial(self, addresses: set[Address]) -> None:
        for address in self._links.keys() - addresses:
            self._missed_by_former += self._links.pop(address).missed
            self._dialling.pop(address).cancel()
        for address in sorted(addresses - self._links.keys())[: MAX_PEERS - len(self._links)]:
            self._links[address] = link = Link(address, self._identity, self._warm_up)
            self._dialling[address] = asyncio.create_task(link.run())
            self._dialling[address].add_done_callback(_say_if_it_failed)

    async def _tell(self) -> None:
        """Everyone the same, in every interval in which there is anything to tell."""
        beat_at = 0.0
        while True:
            await asyncio.sleep(FLUSH_INTERVAL)
            batch = self.gossip.take()
            now = time.monotonic()
            if now >= beat_at:
                beat_at = now + HEARTBEAT
                self._listener.beat()
            elif batch is None:
                continue
            data = ALIVE if batch is None else encode_batch(batch)
            for link in self._links.values():
                link.tell(data, self._standing)

    def _standing(self) -> bytes:
        return encode_batch(self.gossip.standing())


def _say_if_it_failed(task: asyncio.Task[None]) -> None:
    """Routing goes on without replicas, but not without a word."""
    if not task.cancelled() and task.exception() is not None:
        logger.error("gossip has stopped", exc_info=task.exception())
