"""Who is in the fleet: what sources name, what the API takes out, and what several processes tell one another."""

import logging
import stat
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from warmroute_router.blocks import BLOCK_TOKENS, PromptBlocks
from warmroute_router.config import WorkerSpec
from warmroute_router.discovery import changes as changes_module
from warmroute_router.discovery import membership as membership_module
from warmroute_router.discovery.changes import Change, Changes, Kind
from warmroute_router.discovery.membership import Membership, checked_key, checked_url
from warmroute_router.fleet import Fleet, State, Worker
from warmroute_router.placement import Placement
from warmroute_router.policies import POLICIES
from warmroute_router.routing import Routing
from warmroute_router.tree import PrefixTree

A, B, C = "http://a", "http://b", "http://c"


class House:
    """A router without its HTTP side."""

    def __init__(self, default_key: str | None = None, path: Path | None = None) -> None:
        self.fleet = Fleet()
        self.begun: list[Worker] = []
        """Whose probes were begun."""
        self.fleet.added = self.begun.append
        self.routing = Routing(self.fleet, PrefixTree(100_000), "round_robin", POLICIES["round_robin"]())
        self.membership = Membership(self.routing, default_key)
        self.changes = Changes(path, self.membership)

    def names(self, source: str, *urls: str) -> None:
        self.membership.apply(source, [WorkerSpec(url) for url in urls])

    def worker(self, url: str) -> Worker:
        worker = self.fleet.by_url(url)
        assert worker is not None, url
        return worker

    @property
    def states(self) -> dict[str, State]:
        return {worker.url: worker.state for worker in self.fleet.workers}

    @property
    def keys(self) -> dict[str, str | None]:
        return {worker.url: worker.spec.api_key for worker in self.fleet.workers}

    def probe(self) -> None:
        """They are all up."""
        for worker in self.fleet.workers:
            if worker.state is State.STARTING:
                worker.state = State.READY

    def place(self, *hashes: int) -> Placement:
        placement = self.routing.place(PromptBlocks(array("Q", hashes), 1, len(hashes) * BLOCK_TOKENS))
        assert placement is not None
        return placement

    def keep(self) -> None:
        """As the housekeeping does."""
        for worker in list(self.fleet.workers):
            if worker.state is State.DRAINING and not worker.own_counts[0]:
                self.routing.remove(worker)


def test_a_worker_is_there_while_any_source_names_it() -> None:
    house = House()
    house.names("flags", A, B)
    house.names("file", B, C)
    assert house.states == {A: "starting", B: "starting", C: "starting"}
    assert house.membership.sources_of(B) == ["flags", "file"]
    house.names("file")
    assert house.states == {A: "starting", B: "starting", C: "draining"}
    assert [worker.url for worker in house.begun] == [A, B, C]


def test_a_worker_that_nobody_names_any_more_answers_what_it_has() -> None:
    house = House()
    house.names("file", A)
    house.probe()
    placement = house.place(1, 2)
    house.names("file")
    house.keep()
    assert house.states == {A: "draining"}
    assert house.routing.place(placement.prompt) is None
    placement.release()
    house.keep()
    assert house.states == {}
    assert not house.routing.tree.held


def test_a_draining_worker_that_is_named_again_keeps_its_tree_and_is_probed() -> None:
    house = House()
    house.names("file", A)
    house.probe()
    worker = house.worker(A)
    placement = house.place(1, 2)
    house.names("file")
    house.names("file", A)
    assert house.worker(A) is worker
    assert worker.state is State.STARTING
    assert house.begun == [worker, worker]
    assert house.routing.tree.held[worker.index] == 2
    placement.release()


def test_what_the_api_takes_out_stays_out_until_a_source_names_it_anew() -> None:
    house = House()
    house.names("flags", A, B)
    house.membership.remove(A)
    house.membership.drain(B)
    house.names("flags", A, B)
    house.keep()
    assert house.states == {}
    house.names("flags", B)
    house.names("flags", A, B)
    assert house.states == {A: "starting"}


def test_the_first_word_of_a_source_brings_nobody_back() -> None:
    """A process that is started anew may hear of the API's changes before a name resolves."""
    house = House()
    house.membership.remove(A)
    house.names("dns:http://workers", A)
    assert house.states == {}


def test_the_api_brings_back_what_it_took_out() -> None:
    house = House()
    house.names("flags", A)
    house.membership.drain(A)
    house.membership.add(A)
    assert house.states == {A: "starting"}
    house.names("flags")
    assert house.states == {A: "starting"}
    assert house.membership.sources_of(A) == ["api"]


def test_a_removed_worker_is_gone_at_once_and_its_answers_go_on() -> None:
    house = House()
    house.names("flags", A)
    house.probe()
    worker, placement = house.worker(A), house.place(1, 2)
    house.membership.remove(A)
    assert house.states == {}
    assert worker.state is State.GONE
    assert not house.routing.tree.held
    placement.retract(house.routing.tree)
    placement.release()
    assert not house.routing.tree.held
    assert (worker.in_flight, worker.waiting_tokens) == (0, 0)


def test_keys_come_from_the_api_then_from_sources_then_from_the_default() -> None:
    house = House(default_key="default")
    house.names("flags", A)
    assert house.worker(A).spec.api_key == "default"
    house.membership.apply("file", [WorkerSpec(A, api_key="file")])
    assert house.worker(A).spec.api_key == "file"
    house.membership.set_key(A, "api")
    assert house.worker(A).spec.api_key == "api"
    house.membership.set_key(A, None)
    assert house.worker(A).spec.api_key == "file"
    assert house.begun == [house.worker(A)], "a new key is no new worker"


def test_a_draining_worker_can_get_a_key_and_goes_on_draining() -> None:
    house = House()
    house.names("flags", A)
    house.names("flags")
    house.membership.set_key(A, "new")
    assert house.worker(A).spec.api_key == "new"
    assert house.states == {A: "draining"}


def test_a_key_is_forgotten_with_the_worker_that_it_was_for() -> None:
    house = House()
    house.membership.set_key(A, "secret")
    house.membership.add(A)
    house.membership.remove(A)
    house.membership.add(A)
    assert house.worker(A).spec.api_key is None


def test_another_name_for_an_address_makes_another_worker() -> None:
    house = House()
    house.names("flags", A)
    before = house.worker(A)
    house.membership.apply("dns:http://workers", [WorkerSpec(A, server_name="workers")])
    after = house.worker(A)
    assert (before.state, after.state) == (State.GONE, State.STARTING)
    assert after.index > before.index
    assert after.pool.host_header == b"workers"
    assert house.begun == [before, after]


def test_another_identity_makes_another_worker_whose_predecessor_answers_what_it_has() -> None:
    house = House()
    house.membership.apply("pods", [WorkerSpec(A, identity="one")])
    house.probe()
    before, placement = house.worker(A), house.place(1)
    house.membership.apply("pods", [WorkerSpec(A, identity="two")])
    after = house.worker(A)
    assert (before.state, after.state) == (State.GONE, State.STARTING)
    assert not house.routing.tree.held
    placement.release()
    house.membership.apply("pods", [])
    house.membership.apply("pods", [WorkerSpec(A, identity="three")])
    assert after.state is State.GONE, "also of one that drains"


def test_a_worker_of_which_less_is_known_by_now_is_still_the_same() -> None:
    house = House()
    house.names("flags", A)
    worker = house.worker(A)
    house.membership.apply("pods", [WorkerSpec(A, identity="one")])
    house.membership.apply("pods", [])
    assert house.worker(A) is worker
    house.membership.apply("pods", [WorkerSpec(A, identity="two")])
    assert house.worker(A) is not worker


def test_what_the_api_took_out_is_not_the_next_one_at_its_address() -> None:
    house = House()
    house.membership.apply("pods", [WorkerSpec(A, identity="one")])
    house.membership.remove(A)
    house.membership.apply("pods", [WorkerSpec(A, identity="one", ready=False)])
    assert house.states == {}
    house.membership.apply("pods", [WorkerSpec(A, identity="two")])
    assert house.states == {A: "starting"}


def test_a_worker_that_is_not_ready_for_any_source_gets_nothing_and_keeps_its_cache() -> None:
    house = House()
    house.names("flags", A)
    house.membership.apply("pods", [WorkerSpec(A, ready=False)])
    worker = house.worker(A)
    assert (worker.state, worker.doubted.is_set()) == (State.STARTING, False)
    house.membership.apply("pods", [WorkerSpec(A)])
    assert worker.doubted.is_set(), "it is to be probed at once"
    house.probe()
    placement = house.place(1, 2)
    house.membership.apply("pods", [WorkerSpec(A, ready=False)])
    assert (house.worker(A), worker.state) == (worker, State.UNHEALTHY)
    assert house.routing.place(placement.prompt) is None
    assert house.routing.tree.held[worker.index] == 2
    placement.release()


def test_one_that_answers_is_ready_as_soon_as_its_source_says_so() -> None:
    house = House()
    house.membership.apply("pods", [WorkerSpec(A, ready=False)])
    worker = house.worker(A)
    worker.answers = True
    house.membership.apply("pods", [WorkerSpec(A)])
    assert worker.state is State.READY, "those that it replaces may be ending just now"


def test_the_first_source_that_knows_a_workers_models_is_believed() -> None:
    house = House()
    house.names("flags", A)
    assert house.worker(A).spec.models is None
    house.membership.apply("pods", [WorkerSpec(A, models=("m",))])
    house.membership.apply("others", [WorkerSpec(A, models=("n",))])
    assert house.worker(A).spec.models == house.worker(A).models == ("m",)
    for source in ("others", "pods"):
        house.membership.apply(source, [WorkerSpec(A)])
    assert house.worker(A).spec.models is None
    assert house.worker(A).models == ("m",), "until it has been asked itself"


def test_there_are_never_too_many_workers(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(membership_module, "MAX_WORKERS", 2)
    house = House()
    house.names("file", A, B, C)
    house.names("file", A, B, C)
    assert set(house.states) == {A, B}
    assert not house.membership.has_room
    assert [record.levelno for record in caplog.records].count(logging.WARNING) == 1
    house.names("file", B, C)
    house.keep()
    house.names("file", B, C)
    assert set(house.states) == {B, C}


def test_what_is_remembered_of_workers_that_are_gone_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_module, "MOST_REMEMBERED", 2)
    house = House()
    house.names("flags", A, B)
    house.membership.remove(A)
    house.membership.set_key(B, "secret")
    for number in range(4):
        house.membership.set_key(f"http://{number}", "another")
        house.membership.remove(f"http://{number}")
        house.membership.set_key(f"http://{number}", "another")
    house.names("flags", A, B)
    assert house.states == {B: "starting"}
    assert house.worker(B).spec.api_key == "secret"


@pytest.mark.parametrize("given", [None, 1, ["http://a"], "", "ftp://a", "http://u:secret@a", "http://a\r\nx: y"])
def test_what_is_no_url_is_refused(given: object) -> None:
    with pytest.raises(ValueError, match=r"url|worker") as caught:
        checked_url(given)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("given", [None, 1, "", "two secrets", "secret\r\nx: y", "sécret"])
def test_what_is_no_key_is_refused_and_not_shown(given: object) -> None:
    with pytest.raises(ValueError, match="api_key") as caught:
        checked_key(given)
    assert "cret" not in str(caught.value)


urls = st.sampled_from([A, B, C, "http://d"])
steps = st.one_of(
    st.tuples(st.just("apply"), st.sampled_from(["flags", "file"]), st.frozensets(urls)),
    st.tuples(st.sampled_from(["add", "drain", "remove"]), urls, st.none()),
    st.tuples(st.sampled_from(["probe", "place", "release", "keep"]), st.none(), st.none()),
)


class Model:
    """The same, as simply as it can be said."""

    def __init__(self) -> None:
        self.named: dict[str, frozenset[str]] = {"api": frozenset()}
        self.out: set[str] = set()

    def step(self, what: str, which: str, named: frozenset[str]) -> None:
        if what == "apply":
            if which in self.named:
                self.out -= named - self.named[which]
            self.named[which] = named
        elif what == "add":
            self.named["api"] |= {which}
            self.out.discard(which)
        elif what in ("drain", "remove"):
            self.named["api"] -= {which}
            self.out.add(which)

    @property
    def wanted(self) -> set[str]:
        return set().union(*self.named.values()) - self.out


@settings(max_examples=300)
@given(st.lists(steps, max_size=40))
def test_any_sequence_of_words_leaves_the_fleet_as_they_say(sequence: list[tuple[str, str, frozenset[str]]]) -> None:
    house, model = House(), Model()
    placements: list[Placement] = []
    seen: dict[int, Worker] = {}
    for what, which, named in sequence:
        draining = {url for url, state in house.states.items() if state is State.DRAINING}
        model.step(what, which, named)
        match what:
            case "apply":
                house.names(which, *sorted(named))
            case "add" | "drain" | "remove":
                {"add": house.membership.add, "drain": house.membership.drain, "remove": house.membership.remove}[
                    what
                ](which)
            case "probe":
                house.probe()
            case "place" if house.fleet.ready():
                placements.append(house.place(len(placements) + 1))
            case "release" if placements:
                placements.pop().release()
            case "keep":
                house.keep()
        now = house.states
        assert {url for url, state in now.items() if state is not State.DRAINING} == model.wanted
        if what == "remove":
            assert which not in now
        for url in draining - model.wanted:
            assert now.get(url) is State.DRAINING or what in ("remove", "keep")
        for worker in house.fleet.workers:
            assert seen.setdefault(worker.index, worker) is worker, "an index is never used again"
        assert set(house.routing.tree.held) <= {worker.index for worker in house.fleet.workers}
        assert set(house.fleet.retentions) == {worker.index for worker in house.fleet.workers}
    for placement in placements:
        placement.release()
    house.keep()
    assert set(house.states) == model.wanted
    assert all((worker.in_flight, worker.waiting_tokens) == (0, 0) for worker in seen.values())


def test_what_one_process_changes_holds_for_the_others(tmp_path: Path) -> None:
    one, other = House(path=tmp_path / "changes"), House(path=tmp_path / "changes")
    for house in (one, other):
        house.names("flags", A)
    one.changes.apply(Change(Kind.KEY, B, "secret"), Change(Kind.ADDED, B))
    one.changes.apply(Change(Kind.DRAINED, A))
    assert other.states == {A: "starting"}
    other.changes.reload_if_changed()
    assert one.states == other.states == {A: "draining", B: "starting"}
    assert other.worker(B).spec.api_key == "secret"
    other.changes.apply(Change(Kind.REMOVED, B))
    one.changes.reload_if_changed()
    assert one.states == other.states == {A: "draining"}


def test_no_change_is_lost_between_two_processes(tmp_path: Path) -> None:
    """Neither has read what the other wrote when it writes."""
    one, other = House(path=tmp_path / "changes"), House(path=tmp_path / "changes")
    one.changes.apply(Change(Kind.ADDED, A))
    other.changes.apply(Change(Kind.ADDED, B))
    one.changes.apply(Change(Kind.ADDED, C))
    other.changes.reload_if_changed()
    assert one.states == other.states == {A: "starting", B: "starting", C: "starting"}


def test_no_change_is_lost_when_all_write_at_once(tmp_path: Path) -> None:
    def change(process: int) -> None:
        house = House(path=tmp_path / "changes")
        for number in range(30):
            house.changes.apply(Change(Kind.ADDED, f"http://{process}.{number}"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(change, range(4)))
    house = House(path=tmp_path / "changes")
    house.changes.reload_if_changed()
    assert len(house.states) == 120


def test_a_process_that_is_started_anew_is_told_everything(tmp_path: Path) -> None:
    house = House(path=tmp_path / "changes")
    house.names("flags", A, B)
    house.changes.apply(Change(Kind.REMOVED, A))
    house.changes.apply(Change(Kind.KEY, C, "old"), Change(Kind.ADDED, C))
    house.changes.apply(Change(Kind.KEY, C, "new"))
    house.changes.apply(Change(Kind.KEY, B, "secret"))
    house.changes.apply(Change(Kind.DRAINED, B))
    house.changes.apply(Change(Kind.ADDED, B))
    house.keep()
    again = House(path=tmp_path / "changes")
    again.names("flags", A, B)
    again.changes.reload_if_changed()
    again.keep()
    assert again.keys == house.keys == {B: None, C: "new"}


def test_a_change_is_not_made_twice(tmp_path: Path) -> None:
    one, other = House(path=tmp_path / "changes"), House(path=tmp_path / "changes")
    for house in (one, other):
        house.names("file", A)
    one.changes.apply(Change(Kind.DRAINED, A))
    other.changes.reload_if_changed()
    for house in (one, other):
        house.names("file")
        house.names("file", A)
    one.changes.apply(Change(Kind.ADDED, B))
    other.changes.reload_if_changed()
    assert other.states == {A: "starting", B: "starting"}


def test_changes_are_nobody_elses_to_read(tmp_path: Path) -> None:
    change = Change(Kind.KEY, A, "secret")
    House(path=tmp_path / "changes").changes.apply(change)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["changes", "changes.lock"]
    assert "secret" not in repr(change)


def test_a_change_that_cannot_be_written_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(entries: object) -> bytes:
        raise OSError(28, "No space left on device")

    house = House(path=tmp_path / "changes")
    monkeypatch.setattr(changes_module, "_encode", fail)
    with pytest.raises(OSError, match="No space left"):
        house.changes.apply(Change(Kind.ADDED, A))
    assert house.states == {}
    assert [path.name for path in tmp_path.iterdir()] == ["changes.lock"]
    monkeypatch.undo()
    house.changes.apply(Change(Kind.ADDED, A))
    assert house.states == {A: "starting"}


@pytest.mark.parametrize("content", [b"", b"{", b"7", b"[7]", b'[[1,"eaten","http://a",null]]', b'{"a": 1}'])
def test_a_broken_file_is_told_of_once_and_written_anew(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "changes"
    house = House(path=path)
    house.changes.apply(Change(Kind.ADDED, A))
    path.write_bytes(content)
    house.changes.reload_if_changed()
    house.changes.reload_if_changed()
    assert [record.levelno for record in caplog.records].count(logging.ERROR) == 1
    house.changes.apply(Change(Kind.ADDED, B))
    again = House(path=path)
    again.changes.reload_if_changed()
    assert again.states == house.states == {A: "starting", B: "starting"}


def test_the_file_does_not_grow_with_workers_that_come_and_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes_module, "MOST_REMEMBERED", 3)
    path = tmp_path / "changes"
    house = House(path=path)
    house.changes.apply(Change(Kind.KEY, A, "secret"), Change(Kind.ADDED, A))
    for number in range(10):
        house.changes.apply(Change(Kind.KEY, f"http://{number}"), Change(Kind.ADDED, f"http://{number}"))
        house.changes.apply(Change(Kind.REMOVED, f"http://{number}"))
    assert path.read_bytes().count(b"http") == 5
    again = House(path=path)
    again.changes.reload_if_changed()
    assert again.states == {A: "starting"}
    assert again.worker(A).spec.api_key == "secret"


def test_alone_a_process_needs_no_file() -> None:
    house = House()
    house.changes.apply(Change(Kind.ADDED, A))
    house.changes.reload_if_changed()
    assert house.states == {A: "starting"}
