"""A router that starts again where it stopped; and one whose state file is damaged, foreign or not to be written."""

import asyncio
import os
import stat
from dataclasses import replace
from pathlib import Path

import httpx
import orjson
import pytest
from support.peer import Peer, answering, response
from support.router import CONFIG, RunningRouter, running_router, until
from warmroute_router.replicas import state_file as module

pytestmark = pytest.mark.anyio


def body(letter: str) -> bytes:
    return orjson.dumps({"prompt": letter * 256 * 20})


async def warm_up(router: RunningRouter, *letters: str) -> None:
    async with httpx.AsyncClient() as client:
        for letter in letters:
            assert (await client.post(router.url + "/v1/completions", content=body(letter))).status_code == 200


async def matched(router: RunningRouter, letter: str) -> int:
    async with httpx.AsyncClient() as client:
        answer = await client.post(router.url + "/v1/completions", content=body(letter))
    return int(answer.headers["x-warmroute-matched-tokens"])


async def test_a_router_that_starts_again_knows_what_it_knew(tmp_path: Path) -> None:
    path = tmp_path / "state"
    config = replace(CONFIG, state_file=path)
    peer = Peer(answering(response(b"{}")))
    async with peer.listening():
        async with running_router(peer.url, config=config) as router:
            await warm_up(router, "a", "b")
            held = router.app.tree.held[0]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert os.listdir(tmp_path) == ["state"]
        async with running_router("http://127.0.0.1:1", peer.url, config=config) as router:
            assert router.app.tree.held[1] == held == 40
            assert await matched(router, "a") == 20 * 64
            assert await matched(router, "c") == 0


async def test_it_writes_now_and_then_so_that_a_kill_loses_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAVE_INTERVAL", 0.02)
    path = tmp_path / "state"
    peer = Peer(answering(response(b"{}")))
    async with peer.listening(), running_router(peer.url, config=replace(CONFIG, state_file=path)) as router:
        await warm_up(router, "a")
        await until(lambda: path.exists() and path.stat().st_size > 20 * 8)


async def test_a_worker_that_has_restarted_in_between_is_forgotten(tmp_path: Path) -> None:
    config = replace(CONFIG, state_file=tmp_path / "state")
    peer = Peer(answering(response(b"{}")))
    peer.metrics = b"process_start_time_seconds 1000.5\n"
    async with peer.listening():
        async with running_router(peer.url, config=config) as router:
            await warm_up(router, "a")
        async with running_router(peer.url, config=config) as router:
            assert router.app.tree.held[0] == 20
        peer.metrics = b"process_start_time_seconds 2000.5\n"
        async with running_router(peer.url, config=config) as router:
            await until(lambda: bool(router.app.fleet.ready()))
            assert router.app.tree.held[0] == 0


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "half", "noise", "folder-gone"])
async def test_a_damaged_file_costs_no_more_than_what_was_in_it(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "state"
    config = replace(CONFIG, state_file=path)
    peer = Peer(answering(response(b"{}")))
    async with peer.listening():
        async with running_router(peer.url, config=config) as router:
            await warm_up(router, "a")
        data = path.read_bytes()
        spoilt = {
            "empty": b"",
            "text": b"# settings\n" * 10,
            "cut": data[:-3],
            "half": data[: len(data) // 2],
            "noise": data[:60] + b"\xff" * 20 + data[80:],
            "folder-gone": data,
        }
        path.write_bytes(spoilt[damage])
        async with running_router(peer.url, config=config) as router:
            if damage == "folder-gone":
                path.unlink()
                folder.rmdir()
            assert await matched(router, "b") == 0
    said = [record.message for record in caplog.records if "state file" in record.message]
    assert said, "nobody would know"
    assert path.exists() == (damage != "folder-gone")


async def test_what_is_old_is_not_believed_of_an_engine_that_may_have_restarted(tmp_path: Path) -> None:
    path = tmp_path / "state"
    config = replace(CONFIG, state_file=path)
    peer = Peer(answering(response(b"{}")))
    async with peer.listening():
        async with running_router(peer.url, config=config) as router:
            await warm_up(router, "a")
        written = path.stat().st_mtime
        os.utime(path, (written - 301, written - 301))
        async with running_router(peer.url, config=config) as router:
            assert router.app.tree.held[0] == 0


async def test_two_routers_that_write_one_file_leave_one_of_their_states(tmp_path: Path) -> None:
    path = tmp_path / "state"
    config = replace(CONFIG, state_file=path)
    peer = Peer(answering(response(b"{}")))
    async with peer.listening():
        async with running_router(peer.url, config=config) as one, running_router(peer.url, config=config) as two:
            await warm_up(one, "a")
            await warm_up(two, "b", "c")
            files = (one.app._state_file, two.app._state_file)
            await asyncio.gather(*(file._save() for file in files if file is not None))
        assert os.listdir(tmp_path) == ["state"]
        async with running_router(peer.url, config=config) as router:
            assert router.app.tree.held[0] in (20, 40)


async def test_nothing_is_left_running(tmp_path: Path) -> None:
    peer = Peer(answering(response(b"{}")))
    async with peer.listening():
        before = len(asyncio.all_tasks())
        async with running_router(peer.url, config=replace(CONFIG, state_file=tmp_path / "state")):
            pass
        assert len(asyncio.all_tasks()) == before
