import logging
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from warmroute_router.config import KeyConfig
from warmroute_router.keys import MAX_FILE_SIZE, MAX_KEYS, KeyRing
from warmroute_router.types import Headers

KEYS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=40)


def bearer(key: str) -> Headers:
    return [(b"host", b"router"), (b"authorization", b"Bearer " + key.encode())]


def ring(file: Path, text: str | bytes, *keys: str) -> KeyRing:
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    keyring = KeyRing(KeyConfig(keys, file))
    keyring.load()
    return keyring


def replace_by(file: Path, text: str) -> None:
    """Another file under the same name, as editors and Kubernetes do it: it differs whatever the clock says."""
    beside = file.with_suffix(".new")
    beside.write_text(text)
    beside.replace(file)


@pytest.mark.parametrize(
    ("headers", "admitted"),
    [
        ([(b"authorization", b"Bearer one")], True),
        ([(b"authorization", b"bearer two")], True),
        ([(b"authorization", b"BEARER  one ")], True),
        ([(b"x-api-key", b"one")], True),
        ([(b"x-api-key", b" two ")], True),
        ([(b"authorization", b"Bearer two"), (b"x-api-key", b"one")], True),
        ([(b"authorization", b"Bearer wrong"), (b"x-api-key", b"one")], False),
        ([(b"x-api-key", b"wrong"), (b"authorization", b"Bearer one")], False),
        ([(b"authorization", b"Basic one"), (b"x-api-key", b"one")], False),
        ([], False),
        ([(b"authorization", b"")], False),
        ([(b"authorization", b"Bearer")], False),
        ([(b"authorization", b"Bearer ")], False),
        ([(b"authorization", b"one")], False),
        ([(b"authorization", b"Basic one")], False),
        ([(b"authorization", b"Bearer onetwo")], False),
        ([(b"authorization", b"Bearer on")], False),
        ([(b"authorization", b"Bearer ONE")], False),
        ([(b"x-api-key", b"")], False),
        ([(b"x-api-key", b"Bearer one")], False),
        ([(b"x-api-keys", b"one"), (b"api-key", b"one")], False),
    ],
)
def test_a_valid_key_admits_and_a_wrong_one_beside_it_does_not(headers: Headers, admitted: bool) -> None:
    assert KeyRing(KeyConfig(("one", "two"))).admits(headers) is admitted


@given(st.sets(KEYS, min_size=1, max_size=20), KEYS)
def test_a_key_is_admitted_just_when_it_is_one_of_them(keys: set[str], shown: str) -> None:
    keyring = KeyRing(KeyConfig(tuple(keys)))
    assert keyring.admits(bearer(shown)) is (shown in keys)
    assert all(keyring.admits(bearer(key)) and keyring.admits([(b"x-api-key", key.encode())]) for key in keys)


def test_a_ring_without_keys_admits_nobody() -> None:
    assert not KeyRing(KeyConfig()).admits(bearer(""))


def test_the_files_keys_come_to_those_of_the_flags(tmp_path: Path) -> None:
    keyring = ring(tmp_path / "keys", "# staff\none\n\n  two\t\r\n#three\none\n", "given")
    assert [keyring.admits(bearer(key)) for key in ("given", "one", "two")] == [True] * 3
    assert [keyring.admits(bearer(key)) for key in ("three", "#three", "# staff")] == [False] * 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "{} has no key in it: write one a line"),
        ("# none yet\n\n", "{} has no key in it: write one a line"),
        ("good\n\ns3cret key\n", "{}, line 3: a key has only visible ASCII characters, and no spaces"),
        ("s3cret\x00\n", "{}, line 1: a key has only visible ASCII characters, and no spaces"),
        ("good\ns3crét\n", "{}, line 2: a key has only visible ASCII characters, and no spaces"),
        (b"s3cret\xff\n", "{}, line 1: a key has only visible ASCII characters, and no spaces"),
        ("s3cret" * (MAX_FILE_SIZE // 6 + 1), f"{{}} is larger than {MAX_FILE_SIZE} bytes"),
        ("".join(f"s3cret{n}\n" for n in range(MAX_KEYS + 1)), f"{{}} has more than {MAX_KEYS} keys"),
    ],
    ids=["empty", "comments", "space", "control", "letter", "not-text", "large", "many"],
)
def test_a_file_that_cannot_be_meant_is_refused_without_showing_a_key(
    tmp_path: Path, text: str | bytes, message: str
) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        ring(tmp_path / "keys", text)
    assert str(caught.value) == message.format(tmp_path / "keys")


def test_the_largest_file_is_read(tmp_path: Path) -> None:
    keyring = ring(tmp_path / "keys", "\n".join(f"key{n}" for n in range(MAX_KEYS)))
    assert keyring.admits(bearer(f"key{MAX_KEYS - 1}"))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"/keys cannot be read: No such file or directory$"):
        KeyRing(KeyConfig((), tmp_path / "keys")).load()


def test_a_changed_file_replaces_its_keys_and_not_the_others(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    keyring = ring(file, "old\n", "given")
    replace_by(file, "new\n")
    keyring.reload_if_changed()
    assert [keyring.admits(bearer(key)) for key in ("old", "new", "given")] == [False, True, True]


def test_a_link_that_is_swapped_is_a_change(tmp_path: Path) -> None:
    for version, key in (("v1", "aaa"), ("v2", "bbb")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "keys").write_text(key)
        os.utime(tmp_path / version / "keys", (1.0, 1.0))
    (tmp_path / "data").symlink_to("v1")
    keyring = KeyRing(KeyConfig((), tmp_path / "data" / "keys"))
    keyring.load()
    (tmp_path / "next").symlink_to("v2")
    (tmp_path / "next").replace(tmp_path / "data")
    keyring.reload_if_changed()
    assert [keyring.admits(bearer(key)) for key in ("aaa", "bbb")] == [False, True]


@pytest.mark.parametrize("text", ["", "# all gone\n", "a key with s3cret spaces\n", None])
def test_a_bad_edit_keeps_the_old_keys_and_says_so_once(
    tmp_path: Path, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys"
    keyring = ring(file, "old\n")
    if text is None:
        file.unlink()
    else:
        replace_by(file, text)
    for _ in range(3):
        keyring.reload_if_changed()
    assert keyring.admits(bearer("old"))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert str(file) in caplog.text
    assert "s3cret" not in caplog.text
    replace_by(file, "new\n")
    keyring.reload_if_changed()
    assert [keyring.admits(bearer(key)) for key in ("old", "new")] == [False, True]


def test_the_same_fault_is_told_again_after_it_was_mended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys"
    keyring = ring(file, "old\n")
    for text in ("", "new\n", ""):
        replace_by(file, text)
        keyring.reload_if_changed()
    assert len(caplog.records) == 2
    assert keyring.admits(bearer("new"))


def test_a_file_that_becomes_readable_again_without_a_change_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    keyring = ring(file, "old\n")
    replace_by(file, "new\n")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", out_of_descriptors)
        keyring.reload_if_changed()
    assert keyring.admits(bearer("old"))
    keyring.reload_if_changed()
    assert keyring.admits(bearer("new"))


def out_of_descriptors(*_: object) -> None:
    raise OSError(24, "Too many open files")


def test_a_file_that_has_not_changed_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keyring = ring(tmp_path / "keys", "old\n")
    monkeypatch.setattr(Path, "open", out_of_descriptors)
    for _ in range(3):
        keyring.reload_if_changed()
    assert keyring.admits(bearer("old"))


def test_what_the_ring_shows_of_itself_are_no_keys(tmp_path: Path) -> None:
    config = KeyConfig(("s3cret-one",), tmp_path / "keys")
    (tmp_path / "keys").write_text("s3cret-two\n")
    keyring = KeyRing(config)
    keyring.load()
    assert repr(keyring) == "KeyRing(2 keys)"
    assert "s3cret" not in repr(config) + repr(vars(keyring))
