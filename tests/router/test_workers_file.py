"""Workers from a file: what it may say, and what becomes of the fleet when it says something else."""

import logging
import os
from pathlib import Path
from typing import Any

import orjson
import pytest
from warmroute_router.discovery import file as file_module
from warmroute_router.discovery.file import WorkersFile
from warmroute_router.discovery.membership import Membership
from warmroute_router.fleet import Fleet, State
from warmroute_router.policies import POLICIES
from warmroute_router.routing import Routing
from warmroute_router.tree import PrefixTree

A, B = "http://a", "http://b"


class House:
    def __init__(self, path: Path) -> None:
        self.fleet = Fleet()
        routing = Routing(self.fleet, PrefixTree(1000), "round_robin", POLICIES["round_robin"]())
        self.path = path
        self.file = WorkersFile(path, Membership(routing, None))

    def write(self, content: Any) -> None:
        """As an editor that is careful: a new file takes the place of the old one."""
        new = self.path.with_suffix(".new")
        new.write_bytes(content if isinstance(content, bytes) else orjson.dumps(content))
        new.replace(self.path)

    @property
    def serving(self) -> dict[str, str | None]:
        """Those that do not drain, with their keys."""
        workers = (worker for worker in self.fleet.workers if worker.state is not State.DRAINING)
        return {worker.url: worker.spec.api_key for worker in workers}


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path / "workers.json")


def test_an_entry_is_a_url_or_an_object_with_its_key(house: House) -> None:
    (house.path.parent / "c.key").write_text("from-a-file\n")
    house.write([A, {"url": "b:80/"}, {"url": B + ":1", "api_key": "here"}, {"url": "c", "api_key_file": "c.key"}])
    house.file.load()
    assert house.serving == {A: None, B: None, B + ":1": "here", "http://c": "from-a-file"}


def test_a_file_that_changes_is_read_again(house: House) -> None:
    house.write([A])
    house.file.load()
    house.write([B])
    house.file.reload_if_changed()
    assert house.serving == {B: None}
    house.write([])
    house.file.reload_if_changed()
    assert house.serving == {}
    assert house.file.healthy


def test_a_file_that_does_not_change_costs_one_look(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.write([A])
    house.file.load()
    monkeypatch.setattr(Path, "open", None)
    looks: list[Path] = []
    status = os.stat

    def look(path: Path) -> os.stat_result:
        looks.append(path)
        return status(path)

    monkeypatch.setattr(os, "stat", look)
    house.file.reload_if_changed()
    monkeypatch.undo()
    assert looks == [house.path]


def test_a_file_behind_links_is_read_again_when_they_are_swapped(tmp_path: Path) -> None:
    """As Kubernetes does it: the file is a link into `..data`, which is a link to a folder with a date."""
    for name, urls in (("..monday", [A]), ("..tuesday", [B])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "workers.json").write_bytes(orjson.dumps(urls))
    (tmp_path / "..data").symlink_to("..monday")
    (tmp_path / "workers.json").symlink_to("..data/workers.json")
    house = House(tmp_path / "workers.json")
    house.file.load()
    assert house.serving == {A: None}
    (tmp_path / "..next").symlink_to("..tuesday")
    (tmp_path / "..next").replace(tmp_path / "..data")
    house.file.reload_if_changed()
    assert house.serving == {B: None}


def test_a_key_is_read_again_when_its_file_changes(house: House) -> None:
    key = house.path.parent / "key"
    key.write_text("first")
    house.write([{"url": A, "api_key_file": "key"}])
    house.file.load()
    key.write_text("second, rotated".replace(", ", "-"))
    house.file.reload_if_changed()
    assert house.serving == {A: "second-rotated"}
    assert len(house.fleet.workers) == 1
    key.unlink()
    house.file.reload_if_changed()
    assert house.serving == {A: "second-rotated"}
    key.write_text("third")
    house.file.reload_if_changed()
    assert house.serving == {A: "third"}


BAD: list[tuple[Any, str]] = [
    (b"", "is not JSON"),
    (b'["http://secret"', "is not JSON"),
    (b"\xff\xfe", "is not JSON"),
    (b"[" * 5000, "is not JSON"),
    ({"url": A}, "expected a list"),
    ([A, 7], "entry 1: expected a URL or an object"),
    ([A, "ftp://b"], "entry 1: worker 'ftp://b': the scheme must be"),
    (["http://user:secret@a"], "entry 0: worker 'http://a': a URL with a user"),
    ([{"url": None}], "entry 0: `url` must be a string"),
    ([{"api_key": "secret"}], "entry 0: `url` is missing"),
    ([{"url": A, "weight": 2, "api_key": "secret"}], "entry 0: unknown field 'weight': there are api_key"),
    ([A, B, "a:80"], "entry 2: http://a is there twice"),
    ([{"url": A, "api_key": "sec ret"}], "entry 0: `api_key` has characters"),
    ([{"url": A, "api_key": None}], "entry 0: `api_key` must be a string"),
    ([{"url": A, "api_key_file": ""}], "entry 0: `api_key_file` must be the path"),
    ([{"url": A, "api_key_file": 3}], "entry 0: `api_key_file` must be the path"),
    ([{"url": A, "api_key_file": "nul\0"}], "entry 0: `api_key_file` must be the path"),
    ([{"url": A, "api_key_file": "missing"}], "missing cannot be read: No such file"),
    ([{"url": A, "api_key_file": "."}], "cannot be read: Is a directory"),
    ([{"url": A, "api_key_file": "bad"}], "entry 0: .*bad: not a key in UTF-8"),
    ([{"url": A, "api_key": "secret", "api_key_file": "bad"}], "one too many"),
    ([f"http://{number}" for number in range(5000)], "more than 4096 workers"),
]


@pytest.mark.parametrize(("content", "reason"), BAD)
def test_a_start_with_a_bad_file_says_what_is_wrong(house: House, content: Any, reason: str) -> None:
    (house.path.parent / "bad").write_bytes(b"secret \xff")
    house.write(content)
    with pytest.raises((ValueError, OSError), match=reason) as caught:
        house.file.load()
    assert str(house.path.parent) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)
    assert house.serving == {}


@pytest.mark.parametrize(("content", "reason"), BAD)
def test_a_bad_edit_keeps_who_is_there_and_says_so_once(
    house: House, content: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    (house.path.parent / "bad").write_bytes(b"secret \xff")
    house.write([A, B])
    house.file.load()
    house.write(content)
    for _ in range(3):
        house.file.reload_if_changed()
    assert house.serving == {A: None, B: None}
    assert not house.file.healthy
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1
    assert "secret" not in caplog.text
    house.write([B])
    house.file.reload_if_changed()
    assert house.serving == {B: None}
    assert house.file.healthy


def test_a_file_that_is_too_long_is_not_read_whole(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_module, "MAX_BYTES", 100)
    house.write(b" " * 200)
    with pytest.raises(ValueError, match="larger than 100 bytes"):
        house.file.load()


def test_a_file_that_vanishes_keeps_who_is_there(house: House, caplog: pytest.LogCaptureFixture) -> None:
    house.write([A])
    house.file.load()
    house.path.unlink()
    house.file.reload_if_changed()
    house.file.reload_if_changed()
    assert house.serving == {A: None}
    assert not house.file.healthy
    assert caplog.text.count("cannot be read: No such file") == 1
    house.write([B])
    house.file.reload_if_changed()
    assert house.serving == {B: None}


def test_a_start_without_the_file_says_so(house: House) -> None:
    with pytest.raises(OSError, match=r"workers\.json cannot be read: No such file"):
        house.file.load()
