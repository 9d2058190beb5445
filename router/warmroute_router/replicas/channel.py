"""One connection between two routers: who is there, whether both know the key, and frames that nobody can forge.

    both: HELLO   protocol, hash scheme, router id, nonce
    both: PROOF   MAC of both hellos under the shared key, each side's in its own way; the dialer's comes first, so
                  that a listener shows nothing to who cannot prove anything
    then: FRAME*  length, MAC of a running number and the payload, under a key of its own for each direction, payload

Not encrypted: hashes and loads say little, and what they say is not worth a second TLS. MACs are BLAKE2b (RFC 7693).
"""

import asyncio
import hmac
import secrets
import struct
from hashlib import blake2b, sha256
from typing import NamedTuple

from ..blocks import hash_blocks
from ..prompt import read_prompt

PROTOCOL = b"warmroute/1 "
MAX_FRAME = 4 * 1024 * 1024
"""Bytes."""
SILENCE = 5.0
"""Seconds without a frame after which the other side counts as gone. Each side says something every second."""
CONNECT_TIMEOUT = 5.0
HANDSHAKE_TIMEOUT = 2.0

_HELLO = struct.Struct("<12sQ8s16s")
_PROOF_BYTES = 32
_FRAME = struct.Struct("<I16s")


class PeerError(Exception):
    """The other side is no router of this kind, or has left. The message is one line for the log."""


class OneselfError(PeerError):
    def __init__(self) -> None:
        super().__init__("that is this router itself")


class Identity(NamedTuple):
    """What a router shows of itself."""

    router: bytes
    """8 bytes, random for each start."""
    key: bytes
    """32 bytes, of the shared key."""


def identity(shared_key: str) -> Identity:
    return Identity(secrets.token_bytes(8), sha256(shared_key.encode()).digest())


class Channel:
    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        peer: str,
        send_key: bytes,
        receive_key: bytes,
    ) -> None:
        self.peer = peer
        """The other router's id."""
        self._reader = reader
        self._writer = writer
        self._send_key = send_key
        self._receive_key = receive_key
        self._sent = 0
        self._received = 0

    @property
    def unsent(self) -> int:
        """Bytes that wait for the other side to take them."""
        return self._writer.transport.get_write_buffer_size()

    def send(self, payload: bytes) -> None:
        """Nothing, where the connection has ended: `receive` will tell."""
        assert len(payload) <= MAX_FRAME, "batches and chunks are bounded"
        if self._writer.transport.is_closing():  # to which uvloop objects
            return
        self._writer.write(_FRAME.pack(len(payload), _mac(self._send_key, self._sent, payload)))
        self._writer.write(payload)
        self._sent += 1

    async def drain(self) -> None:
        """Wait until the other side has taken most of what was sent."""
        await self._writer.drain()

    async def receive(self) -> bytes:
        """The next payload. Raises PeerError at the connection's end, after a long silence, and on a forged frame."""
        head = await _read(self._reader, _FRAME.size)
        length, mac = _FRAME.unpack(head)
        if length > MAX_FRAME:
            raise PeerError("a frame that is too long")
        payload = await _read(self._reader, length)
        if not hmac.compare_digest(mac, _mac(self._receive_key, self._received, payload)):
            raise PeerError("a frame with a wrong MAC")
        self._received += 1
        return payload

    def close(self) -> None:
        self._writer.close()


async def dial(host: str, port: int, own: Identity) -> Channel:
    """Raises PeerError, OSError."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            reader, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        raise PeerError("no answer") from None
    return await greet(reader, writer, own, dialed=True)


async def greet(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, own: Identity, *, dialed: bool
) -> Channel:
    """Both sides of the handshake. Closes the connection where it fails. Raises PeerError, OSError."""
    try:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT):
            return await _greet(reader, writer, own, dialed=dialed)
    except BaseException as error:
        writer.close()
        if isinstance(error, TimeoutError):
            raise PeerError("it fell silent") from None
        if isinstance(error, RuntimeError):  # uvloop's word for a connection that has just ended
            raise PeerError("it hung up") from None
        raise


async def _greet(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, own: Identity, *, dialed: bool
) -> Channel:
    mine = _HELLO.pack(PROTOCOL, SCHEME, own.router, secrets.token_bytes(16))
    writer.write(mine)
    theirs = await _read(reader, _HELLO.size)
    protocol, scheme, router, _ = _HELLO.unpack(theirs)
    if protocol != PROTOCOL or scheme != SCHEME:
        raise PeerError("another version, or no router at all")
    if router == own.router:
        raise OneselfError
    hellos = mine + theirs if dialed else theirs + mine
    sides = (b"dialer", b"listener") if dialed else (b"listener", b"dialer")
    my_key, their_key = (blake2b(hellos, key=own.key, person=side).digest() for side in sides)
    if dialed:
        writer.write(my_key[:_PROOF_BYTES])
    try:
        proof = await _read(reader, _PROOF_BYTES)
    except PeerError as error:
        raise PeerError(f"{error} (another --gossip-key?)" if dialed else str(error)) from None
    if not hmac.compare_digest(proof, their_key[:_PROOF_BYTES]):
        raise PeerError("another --gossip-key")
    if not dialed:
        writer.write(my_key[:_PROOF_BYTES])
    # The half that was not shown.
    return Channel(reader, writer, router.hex(), my_key[_PROOF_BYTES:], their_key[_PROOF_BYTES:])


def _mac(key: bytes, number: int, payload: bytes) -> bytes:
    return blake2b(number.to_bytes(8, "little") + payload, key=key, digest_size=16).digest()


async def _read(reader: asyncio.StreamReader, length: int) -> bytes:
    try:
        async with asyncio.timeout(SILENCE):
            return await reader.readexactly(length)
    except asyncio.IncompleteReadError:
        raise PeerError("it hung up") from None
    except TimeoutError:
        raise PeerError("it fell silent") from None


def _scheme() -> int:
    """Tells apart routers that would hash one prompt differently: by the hash of a prompt of many kinds of parts."""
    body = (
        b'{"model":"m","tools":[{"type":"function","function":{"name":"f"}}],"messages":[{"role":"system","content":"'
        + b"s" * 600
        + b'"},{"role":"user","content":[{"type":"text","text":"t"},{"type":"image_url","image_url":{"url":"u"}}]}]}'
    )
    prompt = read_prompt("/v1/chat/completions", body)
    assert prompt is not None
    return hash_blocks(prompt.key, prompt.namespace).digest


SCHEME = _scheme()
