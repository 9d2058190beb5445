"""The cap, the queue before it and its order: against a naive model, and under random schedules."""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from warmroute_router.admission.admission import Admission
from warmroute_router.admission.shared_counts import SharedCounts
from warmroute_router.config import AdmissionConfig
from warmroute_router.errors import RequestError

pytestmark = pytest.mark.anyio


class Clients:
    """Requests that go through an Admission as the proxy sends them, and workers with so much room."""

    def __init__(
        self,
        config: AdmissionConfig,
        room: int = 10**9,
        shared: SharedCounts | None = None,
        now: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.admission = Admission(config, has_room=lambda: self.placed < self.room, shared=shared, now=now)
        self.room = room
        self.placed = 0
        self.admitted: list[int] = []
        """In their order."""
        self.refused: dict[int, str] = {}
        """The codes."""
        self.running: dict[int, asyncio.Event] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}

    def come(self, name: int, key: bytes = b"") -> None:
        self.tasks[name] = asyncio.create_task(self._request(name, key))

    def go(self, name: int) -> None:
        self.running[name].set()

    async def end(self) -> None:
        """All of them: those in flight end, until nobody waits."""
        for _ in range(len(self.tasks) + 2):
            if all(task.done() for task in self.tasks.values()):
                break
            for event in self.running.values():
                event.set()
            await settle()
        assert all(task.done() for task in self.tasks.values()), "somebody waits for ever"
        assert (self.admission.in_flight, self.admission.waiting, self.placed) == (0, 0, 0)
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)

    async def _request(self, name: int, key: bytes) -> None:
        try:
            await self.admission.enter(key)
        except RequestError as error:
            self.refused[name] = error.code
            return
        try:
            assert self.placed < self.room
            self.placed += 1
            self.admitted.append(name)
            self.running[name] = asyncio.Event()
            try:
                await self.running[name].wait()
            finally:
                del self.running[name]
                self.placed -= 1
        finally:
            self.admission.leave()


async def settle() -> None:
    """Longer than any chain of wake-ups here, in turns of the loop."""
    for _ in range(40):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not come to that")


def without_timers(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs it on asyncio's own loop, which can be asked for its timers, and asserts that it leaves none."""

    async def checked() -> None:
        await main()
        timers = vars(asyncio.get_running_loop())["_scheduled"]
        assert [timer for timer in timers if not timer.cancelled()] == []

    asyncio.run(checked())


# --- against a model ------------------------------------------------------------------------------------------------


@dataclass
class Model:
    """What Admission should do, in the simplest words, when every task has run after each step."""

    cap: int
    queue_size: int
    room: int
    running: list[int] = field(default_factory=list)
    waiting: list[tuple[bytes, list[int]]] = field(default_factory=list)
    """A line per key, in the order of turns."""
    admitted: list[int] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)

    @property
    def queued(self) -> list[int]:
        return [name for _, line in self.waiting for name in line]

    def come(self, name: int, key: bytes) -> None:
        if not self.queued and self._free():
            self._admit(name)
            return
        if len(self.queued) >= self.queue_size:
            most = max((len(line) for _, line in self.waiting), default=0)
            if len(dict(self.waiting).get(key, [])) >= most:
                self.refused.add(name)
                return
            pushed_out = next(line for _, line in self.waiting if len(line) == most)[-1]
            self.refused.add(pushed_out)
            self._drop(pushed_out)
        for other, line in self.waiting:
            if other == key:
                line.append(name)
                return
        self.waiting.append((key, [name]))

    def end(self, name: int) -> None:
        if name in self.running:
            self.running.remove(name)
        else:
            self._drop(name)
        self.fill()

    def fill(self) -> None:
        while self.waiting and self._free():
            key, line = self.waiting.pop(0)
            self._admit(line.pop(0))
            if line:
                self.waiting.append((key, line))

    def _free(self) -> bool:
        return len(self.running) < min(self.cap, self.room)

    def _admit(self, name: int) -> None:
        self.running.append(name)
        self.admitted.append(name)

    def _drop(self, name: int) -> None:
        self.waiting = [(key, kept) for key, line in self.waiting if (kept := [n for n in line if n != name])]


steps = st.lists(
    st.tuples(st.sampled_from(["come", "come", "come", "go", "cancel", "room"]), st.integers(0, 99)), max_size=60
)


@settings(max_examples=150)
@given(cap=st.integers(1, 4), queue_size=st.integers(0, 6), fair=st.booleans(), steps=steps)
def test_it_does_what_the_model_does(cap: int, queue_size: int, fair: bool, steps: list[tuple[str, int]]) -> None:
    config = AdmissionConfig(
        max_concurrent_requests=cap, queue_size=queue_size, fair_by="api-key" if fair else None, max_per_worker=9
    )

    async def main() -> None:
        clients, model = Clients(config, room=3), Model(cap, queue_size, room=3)
        for name, (step, number) in enumerate(steps):
            _step(clients, model, name, step, number, keys=4 if fair else 1)
            await settle()
            assert clients.admitted == model.admitted
            assert set(clients.refused) == model.refused
            assert sorted(clients.running) == sorted(model.running)
            assert (clients.admission.in_flight, clients.admission.waiting) == (len(model.running), len(model.queued))
        clients.room = 3
        clients.admission.wake()
        await clients.end()
        assert set(clients.refused.values()) <= {"queue_full"}
        assert clients.admission.queue_full == len(model.refused)

    without_timers(main)


def _step(clients: Clients, model: Model, name: int, step: str, number: int, *, keys: int) -> None:
    if step == "come":
        key = b"%d" % (number % keys)
        clients.come(name, key)
        model.come(name, key)
    elif step == "room":
        clients.room = model.room = number % 4
        clients.admission.wake()
        model.fill()
    elif step == "go" and model.running:
        chosen = model.running[number % len(model.running)]
        clients.go(chosen)
        model.end(chosen)
    elif step == "cancel" and (alive := model.queued + model.running):
        chosen = alive[number % len(alive)]
        clients.tasks[chosen].cancel()
        model.end(chosen)


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(0, 6), st.booleans())
def test_no_permit_is_lost_however_things_fall_together(seed: int, cap: int, queue_size: int, fair: bool) -> None:
    """Many things in one turn of the loop: ends, and cancellations of those who were given a permit just then."""
    chance = random.Random(seed)
    config = AdmissionConfig(
        max_concurrent_requests=cap, queue_size=queue_size, fair_by="api-key" if fair else None, max_per_worker=9
    )

    async def main() -> None:
        clients = Clients(config, room=3)
        most = 0
        for name in range(150):
            clients.come(name, b"%d" % chance.randrange(3))
            for event in [event for event in clients.running.values() if chance.random() < 0.4]:
                event.set()
            for task in [task for task in clients.tasks.values() if not task.done() and chance.random() < 0.15]:
                task.cancel()
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
                assert clients.admission.in_flight <= cap
                assert clients.admission.waiting <= queue_size
                most = max(most, len(clients.running))
        await settle()
        idle = clients.admission.in_flight < min(cap, 3)
        assert not (idle and clients.admission.waiting), "somebody waits beside a free permit"
        assert most <= min(cap, 3)
        await clients.end()

    without_timers(main)


# --- one by one -----------------------------------------------------------------------------------------------------


async def test_a_newcomer_does_not_overtake_one_that_was_given_a_permit_or_still_waits() -> None:
    clients = Clients(AdmissionConfig(max_concurrent_requests=1))
    for name in range(3):
        clients.come(name)
    await settle()
    clients.go(0)
    await asyncio.sleep(0)  # request 0 ends in this turn: 1 has its permit, and has not run
    assert (clients.admission.in_flight, clients.admission.waiting, clients.admitted) == (1, 1, [0])
    clients.come(3)
    await settle()
    await clients.end()
    assert clients.admitted == [0, 1, 2, 3]


async def test_a_permit_goes_on_where_whoever_got_it_is_cancelled_in_the_same_turn() -> None:
    clients = Clients(AdmissionConfig(max_concurrent_requests=1))
    for name in range(4):
        clients.come(name)
    await settle()
    clients.go(0)
    await asyncio.sleep(0)
    assert clients.admission.waiting == 2
    clients.tasks[1].cancel()
    clients.tasks[2].cancel()
    await settle()
    assert clients.admitted == [0, 3]
    clients.tasks[3].cancel()
    await settle()
    assert clients.admission.in_flight == 0
    await clients.end()


async def test_room_for_one_lets_one_in_though_it_shows_only_when_that_one_is_placed() -> None:
    clients = Clients(AdmissionConfig(max_per_worker=1), room=0)
    for name in range(4):
        clients.come(name)
    await settle()
    assert clients.admission.in_flight == 0
    clients.room = 1
    clients.admission.wake()
    clients.come(4)
    await settle()
    assert clients.admitted == [0]
    clients.room = 3
    clients.admission.wake()
    await settle()
    assert clients.admitted == [0, 1, 2]
    await clients.end()
    assert clients.admitted == [0, 1, 2, 3, 4]


async def test_a_newcomer_does_not_take_the_room_of_one_that_is_about_to_be_placed() -> None:
    clients = Clients(AdmissionConfig(max_per_worker=1), room=0)
    clients.come(0)
    await settle()
    clients.room = 1
    clients.come(1)  # its task runs first
    clients.admission.wake()
    await settle()
    assert (clients.admitted, clients.admission.waiting) == ([0], 1)
    await clients.end()
    assert clients.admitted == [0, 1]


async def test_room_is_found_though_nobody_tells() -> None:
    clients = Clients(AdmissionConfig(max_per_worker=1), room=0)
    clients.come(0)
    await settle()
    clients.room = 1
    await until(lambda: clients.admitted == [0])
    await clients.end()


async def test_keys_take_turns_and_the_busiest_makes_place() -> None:
    clients = Clients(AdmissionConfig(max_concurrent_requests=1, queue_size=4, fair_by="api-key"))
    for name, key in enumerate((b"a", b"a", b"a", b"a", b"a", b"b", b"c")):
        clients.come(name, key)
    await settle()
    assert clients.refused == {4: "queue_full", 3: "queue_full"}, "the newest ones of a"
    clients.come(7, b"a")
    await settle()
    assert clients.refused[7] == "queue_full", "nobody has more of them waiting than a itself"
    await clients.end()
    assert clients.admitted == [0, 1, 5, 6, 2]


async def test_who_waits_too_long_is_told_so_and_when_to_come_again() -> None:
    config = AdmissionConfig(max_concurrent_requests=1, queue_timeout=0.02)
    admission = Admission(config, has_room=lambda: True)
    await admission.enter(b"")
    with pytest.raises(RequestError, match=r"--queue-timeout-secs 0\.02\)\. Try again in 1 s\.") as raised:
        await admission.enter(b"")
    error = raised.value
    assert (error.status, error.type, error.code) == (429, "rate_limit_error", "queue_timeout")
    assert error.headers == [(b"retry-after", b"1")]
    assert (admission.in_flight, admission.waiting, admission.queue_timeouts) == (1, 0, 1)
    admission.leave()
    await admission.enter(b"")
    admission.leave()
    assert (admission.in_flight, admission.queue_full) == (0, 0)


async def test_retry_after_tells_how_fast_the_queue_moves() -> None:
    now = 0.0
    clients = Clients(AdmissionConfig(max_concurrent_requests=1, queue_size=5), now=lambda: now)
    for name in range(6):
        clients.come(name)
    await settle()
    assert retry_after(clients.admission) == 1
    now = 2.5
    assert retry_after(clients.admission) == 13, "five that wait, and none has gone on for 2.5 s"
    now = 1000.0
    assert retry_after(clients.admission) == 60
    for name in range(6, 40):
        now += 4.0
        clients.go(name - 6)
        await settle()
        clients.come(name)
        await settle()
    assert 20 <= retry_after(clients.admission) <= 23, "five that wait, and one goes on every 4 s"
    await clients.end()


def retry_after(admission: Admission) -> int:
    with pytest.raises(RequestError, match=r"--queue-size 5\)") as raised:
        admission.check()
    return int(dict(raised.value.headers)[b"retry-after"])


async def test_a_full_queue_shows_before_the_body_is_read_but_not_where_another_may_have_to_go() -> None:
    clients = Clients(AdmissionConfig(max_concurrent_requests=1, queue_size=0))
    clients.admission.check()
    clients.come(0)
    await settle()
    with pytest.raises(RequestError, match="--queue-size 0"):
        clients.admission.check()
    clients.come(1)
    await settle()
    assert clients.refused == {1: "queue_full"}
    assert clients.admission.queue_full == 2
    await clients.end()
    clients.admission.check()

    fair = Clients(AdmissionConfig(max_concurrent_requests=1, queue_size=1, fair_by="api-key"))
    for name in range(2):
        fair.come(name)
    await settle()
    fair.admission.check()
    await fair.end()


# --- the rate -------------------------------------------------------------------------------------------------------


async def test_a_burst_takes_the_tokens_of_one_second_and_the_rest_waits_for_theirs() -> None:
    now = 50.0
    clients = Clients(AdmissionConfig(rate=2.0), now=lambda: now)
    for name in range(5):
        clients.come(name)
    await settle()
    assert clients.admitted == [0, 1]
    now += 0.5
    clients.admission.wake()
    await settle()
    assert clients.admitted == [0, 1, 2], "ends make no room: it is starts that are counted"
    for name in range(3):
        clients.go(name)
    await settle()
    assert clients.admitted == [0, 1, 2]
    now += 60.0
    clients.admission.wake()
    await settle()
    assert clients.admitted == [0, 1, 2, 3, 4]
    await clients.end()


async def test_who_waits_for_a_token_is_woken_when_there_is_one() -> None:
    clients = Clients(AdmissionConfig(rate=20.0), now=time.monotonic)
    for name in range(23):
        clients.come(name)
    await until(lambda: len(clients.admitted) == 23)
    assert clients.admitted == list(range(23))
    await clients.end()


def test_one_cancelled_while_it_waits_for_a_token_leaves_no_timer_behind() -> None:
    async def main() -> None:
        clients = Clients(AdmissionConfig(rate=0.001))
        clients.come(0)
        clients.come(1)
        await settle()
        assert (clients.admitted, clients.admission.waiting) == ([0], 1)
        clients.tasks[1].cancel()
        await clients.end()

    without_timers(main)


# --- several processes ----------------------------------------------------------------------------------------------


@pytest.fixture
def slots(tmp_path: Path) -> Iterator[list[SharedCounts]]:
    parent = SharedCounts.create(tmp_path / "counts", 2)
    slots = [SharedCounts(tmp_path / "counts", slot) for slot in range(2)]
    yield slots
    for counts in (parent, *slots):
        counts.close()


async def test_processes_share_the_cap_and_the_queue_size(slots: list[SharedCounts]) -> None:
    config = AdmissionConfig(max_concurrent_requests=3, queue_size=3)
    one, other = (Clients(config, shared=counts) for counts in slots)
    for name in range(5):
        one.come(name)
        await settle()
    assert (one.admitted, one.refused) == ([0, 1, 2], {})
    one.come(5)
    await settle()
    assert one.refused == {5: "queue_full"}, "half of three, rounded up"
    other.come(0)
    await settle()
    assert (other.admitted, other.admission.waiting) == ([], 1)
    one.go(0)
    await until(lambda: other.admitted == [0])
    assert slots[0].total() == 3
    assert one.admitted == [0, 1, 2], "it had more in flight, and stood back for the other"
    await other.end()
    await until(lambda: 3 in one.admitted)
    await one.end()
    assert slots[0].total() == 0


async def test_a_process_that_has_stopped_does_not_hold_up_the_other(slots: list[SharedCounts]) -> None:
    stopped, running = slots
    stopped.set(0, 5)
    clients = Clients(AdmissionConfig(max_concurrent_requests=2), shared=running)
    for name in range(6):
        clients.come(name)
    for number in range(1, 7):
        await until(lambda number=number: len(clients.admitted) == number)  # type: ignore[misc]
        if number >= 2:
            clients.go(number - 2)
    assert clients.admitted == [0, 1, 2, 3, 4, 5]
    await clients.end()


async def test_processes_share_the_tokens(slots: list[SharedCounts]) -> None:
    config = AdmissionConfig(rate=3.0)
    one, other = (Clients(config, shared=counts, now=lambda: 9.0) for counts in slots)
    for name in range(2):
        one.come(name)
        other.come(name)
        await settle()
    assert (one.admitted, other.admitted) == ([0, 1], [0])
    assert other.admission.waiting == 1
    other.tasks[1].cancel()
    await one.end()
    await other.end()


# --- keys -----------------------------------------------------------------------------------------------------------


def test_a_client_is_known_by_its_key_however_it_shows_it() -> None:
    admission = Admission(AdmissionConfig(fair_by="api-key"), has_room=lambda: True)
    key = admission.fairness_key([(b"host", b"x"), (b"authorization", b"Bearer sk-1")])
    assert len(key) == 16
    assert b"sk-1" not in key
    for same in ((b"authorization", b"bearer  sk-1 "), (b"x-api-key", b"sk-1"), (b"authorization", b"sk-1")):
        assert admission.fairness_key([same]) == key
    assert admission.fairness_key([(b"authorization", b"Bearer sk-2")]) != key
    assert admission.fairness_key([(b"host", b"x")]) == b""


def test_a_header_may_tell_whose_turn_it_is() -> None:
    by_tenant = Admission(AdmissionConfig(fair_by="x-tenant"), has_room=lambda: True)
    long = by_tenant.fairness_key([(b"authorization", b"Bearer sk-1"), (b"x-tenant", b"a" * 9000)])
    assert len(long) == 16
    assert by_tenant.fairness_key([(b"authorization", b"Bearer sk-2"), (b"x-tenant", b"a" * 9000)]) == long
    assert by_tenant.fairness_key([(b"x-tenant", b"a" * 9001)]) != long
    nobody = Admission(AdmissionConfig(), has_room=lambda: True)
    assert nobody.fairness_key([(b"authorization", b"Bearer sk-1")]) == b""


async def test_it_is_known_how_long_the_admitted_have_waited() -> None:
    now = 0.0
    admission = Admission(AdmissionConfig(max_concurrent_requests=1), has_room=lambda: True, now=lambda: now)
    await admission.enter(b"")
    waiting = asyncio.create_task(admission.enter(b""))
    given_up = asyncio.create_task(admission.enter(b""))
    await settle()
    now = 3.0
    given_up.cancel()
    admission.leave()
    await waiting
    admission.leave()
    waits = admission.queue_wait
    assert (waits.count, waits.sum) == (2, 3.0)
    assert dict(waits.cumulated())["0.001"] == 1, "who did not have to wait counts as well"
