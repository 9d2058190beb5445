"""Replicas over real sockets: those that are well, and those that are late, dead, foreign, forged or babbling."""

import asyncio
import socket
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from support.fleet import fleet_of
from support.router import until
from warmroute_router.blocks import BLOCK_TOKENS, PromptBlocks
from warmroute_router.config import Address, GossipConfig
from warmroute_router.fleet import Load, State
from warmroute_router.placement import Placement
from warmroute_router.policies import POLICIES
from warmroute_router.replicas import channel as channel_module
from warmroute_router.replicas import link as link_module
from warmroute_router.replicas import listener as listener_module
from warmroute_router.replicas.channel import Channel, OneselfError, PeerError, dial, greet, identity
from warmroute_router.replicas.gossip import Batch, ToldLoad
from warmroute_router.replicas.peers import Peers
from warmroute_router.replicas.warm_up import ALIVE, END, PLEASE
from warmroute_router.replicas.wire import decode_batch, encode_batch
from warmroute_router.routing import Routing
from warmroute_router.tree import PrefixTree

pytestmark = pytest.mark.anyio

KEY = "a secret"
A, B = "http://a", "http://b"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "MIN_PAUSE", 0.02)
    monkeypatch.setattr(link_module, "MAX_PAUSE", 0.05)


class Replica:
    """A router without its HTTP side."""

    def __init__(self, peers: tuple[Address, ...], listener: socket.socket, key: str, dns: Address | None) -> None:
        fleet = fleet_of(A, B)
        for worker in fleet.workers:
            worker.state = State.READY
        self.routing = Routing(fleet, PrefixTree(100_000), "cache_aware", POLICIES["cache_aware"]())
        config = GossipConfig(host="127.0.0.1", port=0, peers=peers, dns=dns, key=key)
        self.peers = Peers(self.routing, config, listener)
        self.address = address_of(listener)

    def place(self, *hashes: int) -> Placement:
        placement = self.routing.place(prompt(*hashes))
        assert placement is not None
        return placement

    def cached(self, *hashes: int) -> dict[int, int]:
        return self.routing.tree.find(array("Q", hashes)).cached(self.routing.fleet.retentions).blocks

    def knows(self, *hashes: int) -> bool:
        return bool(self.cached(*hashes))

    @property
    def loads(self) -> list[Load]:
        return [Load(worker.in_flight, worker.waiting_tokens) for worker in self.routing.fleet.workers]


def prompt(*hashes: int) -> PromptBlocks:
    return PromptBlocks(array("Q", hashes), hashes[-1], len(hashes) * BLOCK_TOKENS)


def free_socket() -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    listener.setblocking(False)
    return listener


def address_of(listener: socket.socket) -> Address:
    host, port = listener.getsockname()
    return host, port


@asynccontextmanager
async def running(
    *peers: Address, listener: socket.socket | None = None, key: str = KEY, dns: Address | None = None
) -> AsyncIterator[Replica]:
    replica = Replica(peers, listener or free_socket(), key, dns)
    before = asyncio.all_tasks()
    await replica.peers.start()
    try:
        yield replica
    finally:
        await replica.peers.stop()
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - before - {asyncio.current_task()}
        assert not [task for task in left if "replicas" in repr(task.get_coro())], left


@asynccontextmanager
async def channel_to(replica: Replica, key: str = KEY) -> AsyncIterator[Channel]:
    channel = await dial(*replica.address, identity(key))
    try:
        yield channel
    finally:
        channel.close()


async def hung_up(channel: Channel) -> None:
    async def until_it_ends() -> None:
        while True:
            await channel.receive()

    with pytest.raises((PeerError, ConnectionError)):
        await until_it_ends()
    channel.close()


async def test_each_knows_what_the_others_decide_and_nothing_is_left_at_the_end() -> None:
    sockets = [free_socket() for _ in range(3)]
    addresses = [address_of(each) for each in sockets]
    async with (
        running(*addresses, listener=sockets[0]) as one,  # its own address among them, as in a list for all
        running(*addresses, listener=sockets[1]) as two,
        running(*addresses, listener=sockets[2]) as three,
    ):
        replicas = (one, two, three)
        await until(lambda: all(replica.peers.connected == 2 for replica in replicas))
        placements = [replica.place(number * 10 + 1, number * 10 + 2) for number, replica in enumerate(replicas)]
        await until(lambda: all(replica.knows(11, 12) and replica.knows(21, 22) for replica in replicas))
        await until(lambda: one.loads == two.loads == three.loads)
        assert sum(load.in_flight for load in one.loads) == 3
        assert sum(load.waiting_tokens for load in one.loads) == 3 * 2 * BLOCK_TOKENS
        for placement in placements:
            placement.release()
        await until(lambda: all(replica.loads == [Load(0, 0)] * 2 for replica in replicas))
        # All that is known of a prompt is where it went: the same everywhere.
        depths = [replica.cached(1, 2) for replica in replicas]
        assert depths[0] == depths[1] == depths[2] != {}


async def test_a_newcomer_starts_with_what_its_peer_knows() -> None:
    async with running() as old:
        for number in range(1000):
            old.place(*range(number * 100 + 1, number * 100 + 6)).release()
        async with running(old.address) as new:
            assert new.routing.tree.blocks == old.routing.tree.blocks == 5000
            assert new.knows(501, 502, 503, 504, 505)


async def test_it_starts_without_those_that_are_not_there_and_finds_them_later() -> None:
    nobody = free_socket()
    address = address_of(nobody)
    nobody.close()
    async with running(address) as one:
        one.place(1, 2)
        async with running(listener=listening_at(address)) as other:
            await until(lambda: one.peers.connected == 1)
            one.place(3, 4)
            await until(lambda: other.knows(3, 4))
            await until(lambda: other.loads == one.loads)  # also what stood before they met
        await until(lambda: one.peers.connected == 0)


def listening_at(address: Address) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen()
    listener.setblocking(False)
    return listener


async def test_the_load_of_a_peer_that_dies_is_gone() -> None:
    async with running() as living:
        async with running(living.address) as dying:
            await until(lambda: dying.peers.connected == 1)
            dying.place(1, 2, 3)
            await until(lambda: sum(load.in_flight for load in living.loads) == 1)
        await until(lambda: living.loads == [Load(0, 0)] * 2)
        assert living.knows(1, 2, 3), "its decision stands: the worker has the prompt"


async def test_a_peer_that_reconnects_is_not_counted_twice() -> None:
    async with running() as replica:
        own = identity(KEY)
        first = await dial(*replica.address, own)
        first.send(encode_batch(Batch([], {A: ToldLoad(2, 20)})))
        await until(lambda: replica.loads[0] == Load(2, 20))
        second = await dial(*replica.address, own)
        second.send(encode_batch(Batch([], {A: ToldLoad(3, 30)})))
        await until(lambda: replica.loads[0] == Load(3, 30))
        await hung_up(first)
        await asyncio.sleep(0.05)
        assert replica.loads[0] == Load(3, 30)
        second.close()
        await until(lambda: replica.loads[0] == Load(0, 0))


async def test_a_name_stands_for_all_of_them() -> None:
    async with running() as one, running(dns=("localhost", one.address[1])) as two:
        await until(lambda: two.peers.connected == 1)
        two.place(1, 2)
        await until(lambda: one.knows(1, 2))


async def test_a_name_that_does_not_resolve_is_no_reason_not_to_start() -> None:
    async with running(dns=("no-such-name.invalid", 1)) as replica:
        assert replica.peers.connected == 0
        replica.place(1)


async def test_another_key_is_turned_away_on_both_sides() -> None:
    async with running() as one, running(one.address, key="another") as two:
        with pytest.raises(PeerError, match="another --gossip-key"):
            async with channel_to(one, key="guessed"):
                pass
        two.place(1, 2)
        await asyncio.sleep(0.1)
        assert two.peers.connected == 0
        assert not one.knows(1, 2)


async def test_oneself_is_recognised() -> None:
    async with running() as replica:
        with pytest.raises(OneselfError):
            await dial(*replica.address, replica.peers._identity)


@pytest.mark.parametrize(
    "said",
    [b"", b"GET / HTTP/1.1\r\nhost: a\r\n\r\n" + b"x" * 100, b"\x00" * 44, b"warmroute/2 " + b"\x00" * 32],
    ids=["nothing", "http", "zeros", "another-version"],
)
async def test_who_is_no_router_of_this_kind_is_hung_up_on(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "SILENCE", 0.1)
    async with running() as replica:
        reader, writer = await asyncio.open_connection(*replica.address)
        writer.write(said)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(1000)
        writer.close()


@pytest.mark.parametrize(
    "payload", [b"garbage", b"{}\n1", b'{"loads":{"http://a":[-1,0,0,0.0]}}\n', b"\xff" * 100], ids=str
)
async def test_who_sends_garbage_is_hung_up_on_and_leaves_nothing(payload: bytes) -> None:
    async with running() as replica, channel_to(replica) as channel:
        channel.send(encode_batch(Batch([], {A: ToldLoad(1, 1)})))
        await until(lambda: replica.loads[0] == Load(1, 1))
        channel.send(payload)
        await hung_up(channel)
        await until(lambda: replica.loads[0] == Load(0, 0))


async def test_a_frame_that_was_changed_on_its_way_or_sent_again_is_not_believed() -> None:
    async with running() as replica:
        for change in ("payload", "again", "length"):
            async with channel_to(replica) as channel:
                written: list[bytes] = []
                keep = channel._writer.write
                channel._writer.write = written.append  # type: ignore[method-assign, assignment]
                channel.send(encode_batch(Batch([], {A: ToldLoad(1, 1)})))
                channel._writer.write = keep  # type: ignore[method-assign]
                frame = b"".join(written)
                if change == "payload":
                    keep(frame[:-10] + bytes([frame[-10] ^ 1]) + frame[-9:])
                elif change == "again":
                    keep(frame + frame)
                else:
                    keep(b"\xff\xff\xff\xff" + frame[4:])
                await hung_up(channel)
            await until(lambda: replica.loads[0] == Load(0, 0))


async def test_who_falls_silent_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "SILENCE", 1.0)
    async with running() as replica, channel_to(replica) as channel:
        channel.send(encode_batch(Batch([], {A: ToldLoad(1, 1)})))
        await until(lambda: replica.loads[0] == Load(1, 1))
        await until(lambda: replica.loads[0] == Load(0, 0))


@asynccontextmanager
async def listener_that(behaves: str) -> AsyncIterator[tuple[Address, list[bytes]]]:
    """A peer with the right key that does no more than it must."""
    heard: list[bytes] = []
    own = identity(KEY)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = await greet(reader, writer, own, dialed=False)
        writers.append(writer)
        while behaves == "stalls" and not writer.is_closing():
            channel.send(ALIVE)
            await asyncio.sleep(0.05)
        with suppress(PeerError, ConnectionError):
            while True:
                payload = await channel.receive()
                if payload == PLEASE:
                    channel.send(b"garbage" if behaves == "babbles" else END)
                elif payload != ALIVE:
                    heard.append(payload)

    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield address_of(server.sockets[0]), heard
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()


async def test_a_peer_that_does_not_read_misses_batches_and_costs_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_module, "MAX_UNSENT", 64 * 1024)
    monkeypatch.setattr("warmroute_router.replicas.peers.WARM_UP", 0.1)
    async with (
        listener_that("stalls") as (stalled, _),
        listener_that("reads") as (good, heard),
        running(stalled, good) as replica,
    ):
        await until(lambda: replica.peers.connected == 2)
        number = 0
        while not replica.peers.missed:
            for _ in range(20):
                number += 1
                replica.place(*range(number * 10_000, number * 10_000 + 500)).release()
            await asyncio.sleep(0.02)
            assert number < 20_000
        link = next(link for address, link in replica.peers._links.items() if address == stalled)
        assert link.channel is not None
        assert link.channel.unsent < 64 * 1024 + 1024 * 1024 + 1024
        heard.clear()
        replica.place(1, 2, 3).release()
        await until(lambda: any(list(sent.hashes) == [1, 2, 3] for data in heard for sent in decode_batch(data).sent))


async def test_whoever_missed_a_batch_is_told_the_whole_load_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listener_that("reads") as (address, heard), running(address) as replica:
        await until(lambda: replica.peers.connected == 1)
        placement = replica.place(1, 2)
        await until(lambda: told(heard) == Load(1, 2 * BLOCK_TOKENS))
        monkeypatch.setattr(link_module, "MAX_UNSENT", -1)
        placement.release()
        await until(lambda: replica.peers.missed > 0)
        assert told(heard) == Load(1, 2 * BLOCK_TOKENS)
        monkeypatch.undo()
        replica.peers.gossip._sent.clear()
        replica.place(5, 6).release()
        await until(lambda: told(heard) == Load(0, 0))


async def test_what_a_peer_has_missed_stays_counted_when_it_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as peer, running(dns=("localhost", peer.address[1])) as replica:
        await until(lambda: replica.peers.connected == 1)
        monkeypatch.setattr(link_module, "MAX_UNSENT", -1)
        replica.place(1, 2)
        await until(lambda: replica.peers.missed > 0)
        missed = replica.peers.missed
        replica.peers._dial(set())
        assert (replica.peers.connected, replica.peers.missed) == (0, missed)


def told(heard: list[bytes]) -> Load:
    """The sum over the workers of what was told last."""
    loads: dict[str, ToldLoad] = {}
    for data in heard:
        loads.update(decode_batch(data).loads)
    return Load(sum(load.in_flight for load in loads.values()), sum(load.waiting_tokens for load in loads.values()))


async def test_a_snapshot_that_is_garbage_is_asked_for_elsewhere() -> None:
    async with running() as good:
        good.place(1, 2, 3)
        async with listener_that("babbles") as (bad, _), running(bad, good.address) as new:
            await until(lambda: new.knows(1, 2, 3))


async def test_who_knows_no_key_cannot_keep_out_who_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "MAX_PEERS", 3)
    async with running() as replica:
        strangers = [await asyncio.open_connection(*replica.address) for _ in range(5)]
        async with channel_to(replica) as channel:
            channel.send(encode_batch(Batch([], {A: ToldLoad(2, 20)})))
            await until(lambda: replica.loads[0] == Load(2, 20))
        for _, writer in strangers:
            writer.close()


async def test_a_listener_shows_nothing_to_who_cannot_prove_anything() -> None:
    async with running() as replica:
        reader, writer = await asyncio.open_connection(*replica.address)
        hello = await reader.readexactly(channel_module._HELLO.size)
        writer.write(hello[:20] + b"\x01" * 24 + b"\x00" * 32)
        assert await reader.read() == b"", "not even what a key could be guessed from"
        writer.close()


async def test_telling_a_peer_that_has_just_left_is_no_error() -> None:
    async with running() as replica:
        channel = await dial(*replica.address, identity(KEY))
        channel.close()
        channel.send(b"late")
    with pytest.raises((PeerError, OSError)):
        await channel.receive()


async def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "MAX_PEERS", 3)
    async with running() as replica:
        channels = [await dial(*replica.address, identity(KEY)) for _ in range(3)]
        with pytest.raises((PeerError, ConnectionError)):
            await dial(*replica.address, identity(KEY))
        for channel in channels:
            channel.close()
        await until(lambda: not replica.peers._listener._tasks)
        async with channel_to(replica):
            pass
