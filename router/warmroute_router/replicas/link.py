"""The way to one peer: dialled, warmed up from, told to, and dialled again."""

import asyncio
import logging
import random
import time
from collections.abc import Callable

from ..config import Address, bracketed
from .channel import Channel, Identity, PeerError, dial
from .warm_up import WarmUp

logger = logging.getLogger(__name__)

MAX_UNSENT = 1024 * 1024
"""Bytes that a peer may leave unread before it misses batches, or, where it tells, is hung up on."""
MIN_PAUSE, MAX_PAUSE = 0.5, 10.0
"""Seconds between two tries to reach it."""


class Link:
    def __init__(self, address: Address, own: Identity, warm_up: WarmUp) -> None:
        self.channel: Channel | None = None
        """Where there is a connection."""
        self.tried = asyncio.Event()
        """Set once the peer has given its snapshot, or has turned out not to be there."""
        self.missed = 0
        """Batches that it was too slow for."""
        self._address = address
        self._own = own
        self._warm_up = warm_up
        self._behind = True

    async def run(self) -> None:
        pause = MIN_PAUSE
        shown = f"{bracketed(self._address[0])}:{self._address[1]}"
        said = ""
        while True:
            try:
                channel = await dial(*self._address, self._own)
                logger.info("peer %s: connected", shown)
                connected = time.monotonic()
                try:
                    await self._stay(channel)
                finally:
                    if time.monotonic() - connected > MAX_PAUSE:
                        pause, said = MIN_PAUSE, ""
            except (PeerError, OSError, ValueError) as error:
                if str(error) != said:  # not at every try
                    said = str(error)
                    logger.info("peer %s: %s", shown, said)
            self.tried.set()
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, MAX_PAUSE)

    async def _stay(self, channel: Channel) -> None:
        """Until the connection ends, which raises PeerError."""
        self.channel, self._behind = channel, True
        try:
            await self._warm_up.ask(channel)
            self.tried.set()
            while True:
                await channel.receive()
        finally:
            self.channel = None
            channel.close()

    def tell(self, data: bytes, standing: Callable[[], bytes]) -> None:
        """Send a batch, or leave it out. After one that was left out, and at first, comes the `standing` load."""
        if self.channel is None:
            return
        if self.channel.unsent > MAX_UNSENT:
            self._behind = True
            self.missed += 1
            return
        if self._behind:
            self._behind = False
            self.channel.send(standing())
        self.channel.send(data)
