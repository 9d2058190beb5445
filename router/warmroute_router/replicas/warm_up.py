"""A snapshot from one router to another that has just started, over the channel on which the newcomer tells."""

import asyncio

from ..routing import Routing
from .channel import Channel, PeerError
from .snapshot import Loading, snapshot

ALIVE = b""
"""The payload that says no more than that somebody is there."""
PLEASE = b"snapshot, please"
END = b"that is all"
PATIENCE = 30.0
"""Seconds that one peer has for its snapshot, before another is asked. A full tree takes about two."""


class WarmUp:
    """Gets one snapshot, from whichever peer gives one first."""

    def __init__(self, routing: Routing) -> None:
        self.done = False
        self._routing = routing
        self._asking = asyncio.Lock()

    async def ask(self, channel: Channel) -> None:
        """Raises PeerError, and ValueError on garbage. What came before that stays; another peer may be asked."""
        async with self._asking:
            if self.done:
                return
            channel.send(PLEASE)
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._take(channel)
            except TimeoutError:
                raise PeerError("its snapshot does not come to an end") from None
            self.done = True

    async def _take(self, channel: Channel) -> None:
        loading = Loading(self._routing)
        while (chunk := await channel.receive()) != END:
            if chunk != ALIVE:
                loading.feed(chunk)
                await asyncio.sleep(0)  # requests come first


async def give(channel: Channel, routing: Routing) -> None:
    """As fast as the newcomer takes it, and as the requests between the chunks allow."""
    for chunk in snapshot(routing):
        channel.send(chunk)
        await channel.drain()
        await asyncio.sleep(0)
    channel.send(END)
