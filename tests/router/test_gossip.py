"""What routers tell one another, as objects and as bytes; and the snapshot for one that has just started."""

import random
from array import array
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fleet import fleet_of
from warmroute_router.blocks import BLOCK_TOKENS, PromptBlocks
from warmroute_router.fleet import Load, State
from warmroute_router.placement import Placement
from warmroute_router.policies import POLICIES
from warmroute_router.replicas import gossip as gossip_module
from warmroute_router.replicas.gossip import Batch, Gossip, Sent, ToldLoad
from warmroute_router.replicas.snapshot import Loading, snapshot
from warmroute_router.replicas.wire import decode_batch, decode_records, encode_batch, encode_records
from warmroute_router.routing import Routing
from warmroute_router.tree import PrefixTree, Record

A, B = "http://a", "http://b"


def routing_over(*urls: str) -> Routing:
    fleet = fleet_of(*urls)
    for worker in fleet.workers:
        worker.state = State.READY
    return Routing(fleet, PrefixTree(10_000), "cache_aware", POLICIES["cache_aware"]())


def prompt(*hashes: int) -> PromptBlocks:
    return PromptBlocks(array("Q", hashes), hashes[-1], len(hashes) * BLOCK_TOKENS)


def placed(routing: Routing, blocks: PromptBlocks) -> Placement:
    placement = routing.place(blocks)
    assert placement is not None
    return placement


def cached(routing: Routing, blocks: PromptBlocks) -> dict[str, int]:
    depths = routing.tree.find(blocks.hashes).cached(routing.fleet.retentions).blocks
    return {worker.url: depths[worker.index] for worker in routing.fleet.workers if worker.index in depths}


def test_a_decision_is_known_to_the_peer_and_the_load_is_too() -> None:
    one, other = routing_over(A, B), routing_over(B, A)  # their numbers differ, their names do not
    telling, listening = Gossip(one), Gossip(other)
    assert telling.take() is None
    placement = placed(one, prompt(*range(1, 11)))
    batch = telling.take()
    assert batch is not None
    listening.apply("one", batch)
    url = placement.worker.url
    assert cached(other, prompt(*range(1, 11))) == {url: 10}
    worker = next(worker for worker in other.fleet.workers if worker.url == url)
    assert (worker.in_flight, worker.waiting_tokens, worker.own_load) == (1, 10 * BLOCK_TOKENS, Load(0, 0))
    assert worker.retention.clock == placement.worker.retention.clock == 10
    assert listening.take() is None, "what was told is not told on"

    placement.first_byte()
    again = telling.take()
    assert again == Batch([], {url: ToldLoad(1, 0)})
    placement.release()
    last = telling.take()
    assert last == Batch([], {url: ToldLoad(0, 0)})
    listening.apply("one", again)
    listening.apply("one", last)
    assert (worker.in_flight, worker.waiting_tokens, worker.peer_loads) == (0, 0, {})


def test_a_peer_that_is_lost_leaves_no_load() -> None:
    routing = routing_over(A)
    gossip = Gossip(routing)
    gossip.apply("p", Batch([], {A: ToldLoad(3, 100)}))
    gossip.apply("q", Batch([], {A: ToldLoad(2, 50)}))
    mine = placed(routing, prompt(1))
    worker = routing.fleet.workers[0]
    assert (worker.in_flight, worker.waiting_tokens, worker.own_load[:2]) == (
        6,
        150 + BLOCK_TOKENS,
        (1, BLOCK_TOKENS),
    )
    gossip.lost("p")
    gossip.lost("never there")
    assert (worker.in_flight, worker.waiting_tokens) == (3, 50 + BLOCK_TOKENS)
    mine.release()
    gossip.lost("q")
    assert (worker.in_flight, worker.waiting_tokens) == (0, 0)


def test_of_a_worker_that_is_gone_here_nothing_is_left_at_the_peer() -> None:
    one, other = routing_over(A), routing_over(A)
    telling, listening = Gossip(one), Gossip(other)
    placed(one, prompt(1, 2, 3))
    batch = telling.take()
    assert batch is not None
    listening.apply("one", batch)
    assert other.fleet.workers[0].in_flight == 1
    one.remove(one.fleet.workers[0])
    batch = telling.take()
    assert batch is not None
    listening.apply("one", batch)
    assert (other.fleet.workers[0].in_flight, other.fleet.workers[0].waiting_tokens) == (0, 0)


def test_workers_that_are_not_known_here_are_not_spoken_of() -> None:
    routing = routing_over(A)
    Gossip(routing).apply("p", Batch([Sent("http://c", array("Q", [1]), 64)], {"http://c": ToldLoad(1, 1)}))
    assert routing.tree.blocks == 0
    assert routing.fleet.workers[0].in_flight == 0


def test_a_batch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gossip_module, "MAX_UNTOLD_BLOCKS", 10)
    routing = routing_over(A)
    gossip = Gossip(routing)
    for start in (0, 100, 200):
        placed(routing, prompt(*range(start + 1, start + 5)))
    batch = gossip.take()
    assert batch is not None
    assert [list(sent.hashes) for sent in batch.sent] == [[1, 2, 3, 4], [101, 102, 103, 104]]
    assert gossip.untold == 1
    placed(routing, prompt(301))
    assert gossip.take() is not None, "the next one has room again"


hashes = st.lists(st.integers(0, 2**64 - 1), max_size=5).map(lambda numbers: array("Q", numbers))
counts = st.integers(0, 2**40)
batches = st.builds(
    Batch,
    st.lists(st.builds(Sent, st.text(), hashes, counts), max_size=4),
    st.dictionaries(st.text(), st.builds(ToldLoad, counts, counts, counts, st.floats(0, 1e6)), max_size=4),
)
records = st.lists(
    st.builds(
        Record,
        st.integers(0, 2**64 - 1),
        hashes,
        st.dictionaries(st.integers(0, 200), st.floats(allow_nan=False, allow_infinity=False), max_size=3),
        st.integers(-(2**40), 2**40),
    ),
    max_size=4,
)


@given(batches)
def test_batches_survive_the_wire(batch: Batch) -> None:
    assert decode_batch(encode_batch(batch)) == batch


@given(records)
def test_records_survive_the_wire(many: list[Record]) -> None:
    assert decode_records(encode_records(many)) == many


@given(st.one_of(batches.map(encode_batch), records.map(encode_records), st.binary()), st.data())
def test_garbage_is_a_value_error_and_nothing_else(data: bytes, draw: st.DataObject) -> None:
    spoilt = bytearray(data)
    for _ in range(draw.draw(st.integers(0, 3))):
        if spoilt:
            at = draw.draw(st.integers(0, len(spoilt) - 1))
            spoilt[at : at + draw.draw(st.integers(0, 2))] = draw.draw(st.binary(max_size=2))
    for decode in (decode_batch, decode_records):
        with suppress(ValueError):
            decode(bytes(spoilt))


@pytest.mark.parametrize(
    "head",
    [
        b"[]",
        b'{"sent":[["u",1,1]]}',
        b'{"sent":[["u",-1,1]]}',
        b'{"sent":[["u",0]]}',
        b'{"sent":[[1,0,0]]}',
        b'{"sent":[["u",1e3,1]]}',
        b'{"sent":{}}',
        b'{"loads":{"u":[true,0,0,0.0]}}',
        b'{"loads":{"u":[1,1e300,0,0.0]}}',
        b'{"loads":{"u":[99999999999999999,0,0,0.0]}}',
        b'{"loads":{"u":[1,1,1,"2"]}}',
        b'{"loads":{"u":[1,1]}}',
        b'{"loads":[]}',
    ],
)
def test_batches_that_cannot_be_are_refused(head: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - which one, the peer does not care
        decode_batch(head + b"\n")


def busy(seed: int, steps: int = 300) -> Routing:
    routing = routing_over(A, B)
    routing.token_ratio.learn("m", 1000, 300)
    for number, prompt in enumerate(prompts(seed, steps)):
        placement = placed(routing, prompt)
        if number % 3:
            placement.first_byte()
        if number % 5:
            placement.release()
    return routing


def prompts(seed: int, steps: int) -> list[PromptBlocks]:
    """Chats that grow and begin alike."""
    draw = random.Random(seed)
    chats: list[list[int]] = [[1, 2, 3]]
    made = []
    for _ in range(steps):
        chat = draw.choice(chats)[: draw.randint(1, 40)]
        chat = chat + [draw.getrandbits(64) for _ in range(draw.randint(1, 9))]
        chats.append(chat)
        made.append(prompt(*chat))
    return made


@pytest.mark.parametrize("seed", range(5))
def test_who_loads_a_snapshot_predicts_what_its_giver_predicts(seed: int) -> None:
    giver, taker = busy(seed), routing_over(B, "http://new", A)
    for worker in giver.fleet.workers:
        worker.retention.start_at(500)
        worker.started = 12.5
    loading = Loading(taker)
    for chunk in snapshot(giver):
        loading.feed(chunk)
    assert taker.tree.blocks == giver.tree.blocks
    for blocks in prompts(seed, 300):
        predictions = []
        for routing in (giver, taker):
            depths = routing.tree.find(blocks.hashes).cached(routing.fleet.retentions).blocks
            predictions.append({w.url: depths[w.index] for w in routing.fleet.workers if w.index in depths})
        assert predictions[0] == predictions[1]
    for given_worker in giver.fleet.workers:
        taken = next(worker for worker in taker.fleet.workers if worker.url == given_worker.url)
        assert taken.retention.blocks == 500
        assert taken.cache_fill == pytest.approx(given_worker.cache_fill)
        assert taken.started == 12.5
        assert taken.own_load == Load(0, 0)
    assert taker.token_ratio.of("m") == 0.3


@pytest.mark.parametrize(
    "worker",
    ['{"url":[]}', '{"url":{}}', '{"filled":1}', "7"],
)
def test_whatever_a_head_says_it_is_a_value_error_at_worst(worker: str) -> None:
    head = b'{"version":1,"block_bytes":256,"workers":[%b]}\n' % worker.encode()
    with suppress(ValueError):
        Loading(routing_over(A)).feed(head)


def test_a_snapshot_larger_than_any_can_be_is_refused() -> None:
    loading = Loading(routing_over(A))
    loading.feed(CHUNKS[0])
    many = [Record(0, array("Q", [number]), {0: 1.0}, 0) for number in range(1, 66)]
    with pytest.raises(ValueError, match="larger"):
        loading.feed(encode_records(many))
    chain = [Record(number, array("Q", [number + 1]), {0: 1.0}, 0) for number in range(4000)]
    loading = Loading(routing_over(A))
    loading.feed(CHUNKS[0])
    for start in range(0, len(chain), 50):
        loading.feed(encode_records(chain[start : start + 50]))
    assert loading._routing.tree.blocks < 1100, "so deep no tree is, and walking it would hold up the requests"


def test_an_old_snapshot_says_nothing_of_an_engine_without_a_start_time() -> None:
    giver = busy(0)
    giver.fleet.workers[1].started = 5.0
    taker = routing_over(A, B)
    loading = Loading(taker, age=301.0)
    for chunk in snapshot(giver):
        loading.feed(chunk)
    assert taker.tree.held[0] == 0
    assert taker.tree.held[1] == giver.tree.held[1]


def test_an_answer_that_comes_whole_is_told_as_computed_once_it_must_be() -> None:
    clock = [0.0]
    fleet = fleet_of(A)
    fleet.workers[0].state = State.READY
    fleet.workers[0].backlog.speed.tokens_per_s = 100.0
    routing = Routing(fleet, PrefixTree(1000), "cache_aware", POLICIES["cache_aware"](), lambda: clock[0])
    gossip = Gossip(routing)
    placed(routing, prompt(1, 2, 3)._replace(streamed=False))
    batch = gossip.take()
    assert batch is not None
    assert batch.loads[A].waiting_tokens == 3 * BLOCK_TOKENS
    clock[0] = 60.0
    assert gossip.take() == Batch([], {A: ToldLoad(1, 0)})


def test_a_snapshot_can_be_handed_on() -> None:
    """What is older than all that its holder has seen itself counts as used before its time began."""
    first = busy(0)
    for _ in range(3):
        then = routing_over(A, B)
        loading = Loading(then)
        for chunk in snapshot(first):
            loading.feed(chunk)
        assert then.tree.blocks == first.tree.blocks
        first = then


def test_a_snapshot_of_an_engine_that_has_restarted_since_is_not_believed() -> None:
    giver, taker = busy(0), routing_over(A, B)
    for worker in giver.fleet.workers:
        worker.started = 1.0
    taker.fleet.workers[0].started = 2.0
    loading = Loading(taker)
    for chunk in snapshot(giver):
        loading.feed(chunk)
    assert taker.tree.held[0] == 0
    assert taker.tree.held[1] == giver.tree.held[1] > 0


def test_a_snapshot_that_is_made_between_requests_is_none_the_worse() -> None:
    giver, taker = busy(1), routing_over(A, B)
    before = prompts(1, 300)
    loading = Loading(taker)
    later = iter(prompts(2, 300))
    for chunk in snapshot(giver):
        loading.feed(chunk)
        for blocks in (next(later) for _ in range(10)):
            placed(giver, blocks)
    known = sum(bool(cached(taker, blocks)) for blocks in before)
    assert known == len(before)


@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=3))
def test_a_damaged_snapshot_is_a_value_error_at_worst(at: int, noise: bytes) -> None:
    data = bytearray(CHUNKS[1])
    at %= len(data)
    data[at : at + len(noise)] = noise
    taker = routing_over(A, B)
    loading = Loading(taker)
    loading.feed(CHUNKS[0])
    with suppress(ValueError):
        loading.feed(bytes(data))
    placed(taker, prompt(1, 2, 3, 4))


CHUNKS = list(snapshot(busy(3)))


@pytest.mark.parametrize(
    "head", [b"{}\n", b'{"version":2,"block_bytes":256,"workers":[]}\n', b"\n", b"", b'{"version":1']
)
def test_the_snapshot_of_another_version_is_refused(head: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        Loading(routing_over(A)).feed(head)
