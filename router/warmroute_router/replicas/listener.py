"""The peers that tell this router: let in, listened to, given a snapshot if they ask, hung up on when they babble."""

import asyncio
import logging
import socket

from ..routing import Routing
from .channel import Channel, Identity, PeerError, greet
from .gossip import Gossip
from .link import MAX_UNSENT
from .warm_up import ALIVE, PLEASE, give
from .wire import decode_batch

logger = logging.getLogger(__name__)

MAX_PEERS = 64
"""Connections at a time, those included that have not said who they are."""


class Listener:
    def __init__(self, routing: Routing, gossip: Gossip, own: Identity) -> None:
        self._routing = routing
        self._gossip = gossip
        self._own = own
        self._channels: dict[str, Channel] = {}
        """By the peer's id."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._unproved: dict[asyncio.Task[None], None] = {}
        """Those of whom nothing is known yet, the oldest first."""

    async def run(self, listener: socket.socket) -> None:
        """Until it is cancelled."""
        server = await asyncio.start_server(self._take_in, sock=listener)
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def beat(self) -> None:
        """Let those who tell know that somebody is listening."""
        for channel in self._channels.values():
            if channel.unsent > MAX_UNSENT:
                channel.close()
            else:
                channel.send(ALIVE)

    def _take_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= MAX_PEERS:
            oldest = next(iter(self._unproved), None)
            if oldest is None:
                writer.close()
                return
            oldest.cancel()  # so that who knows no key cannot keep out who does
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        self._unproved[task] = None
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda task: self._unproved.pop(task, None))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            channel = await greet(reader, writer, self._own, dialed=False)
        except (PeerError, OSError) as error:
            logger.debug("a peer was turned away: %s", error)
            return
        task = asyncio.current_task()
        assert task is not None, "this is one"
        self._unproved.pop(task, None)
        before = self._channels.get(channel.peer)
        if before is not None:  # it has lost that one and does not know that we have not
            before.close()
        self._channels[channel.peer] = channel
        giving: asyncio.Task[None] | None = None
        try:
            while True:
                payload = await channel.receive()
                if payload == PLEASE and giving is None:
                    giving = asyncio.create_task(give(channel, self._routing))
                elif payload != ALIVE:
                    self._gossip.apply(channel.peer, decode_batch(payload))
        except (PeerError, OSError, ValueError) as error:
            logger.info("peer %s does not tell any more: %s", channel.peer, error)
        finally:
            channel.close()
            if giving is not None:
                giving.cancel()
                await asyncio.gather(giving, return_exceptions=True)
            if self._channels.get(channel.peer) is channel:
                del self._channels[channel.peer]
                self._gossip.lost(channel.peer)
