"""Bodies are read whole, bounded one by one and all together, and what is held is counted."""

import asyncio
from collections.abc import Iterable

import pytest
from warmroute_router.body import Bodies
from warmroute_router.errors import ClientLeft, RequestError
from warmroute_router.types import Message, Receive, Scope

pytestmark = pytest.mark.anyio


def sends(pieces: Iterable[bytes], *, leaves: bool = False) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    messages.append({"type": "http.disconnect"} if leaves else {"type": "http.request", "body": b""})
    return iterating(messages)


def iterating(messages: list[Message]) -> Receive:
    left = iter(messages)

    async def receive() -> Message:
        await asyncio.sleep(0)
        return next(left)

    return receive


def scope(*headers: tuple[bytes, bytes]) -> Scope:
    return {"headers": list(headers)}


@pytest.mark.parametrize("pieces", [[], [b""], [b"a"], [b"a", b"bc", b"", b"d"], [b"", b"x" * 10]])
async def test_the_pieces_come_together_in_their_order(pieces: list[bytes]) -> None:
    bodies = Bodies(10)
    body = await bodies.read(scope(), sends(pieces))
    assert body == b"".join(pieces)
    assert bodies.held == len(body)
    bodies.release(body)
    assert bodies.held == 0


async def test_a_body_over_the_limit_is_refused_before_it_is_read_where_its_length_is_told() -> None:
    bodies = Bodies(10)

    async def never() -> Message:
        raise AssertionError("it has been read")

    with pytest.raises(RequestError) as refused:
        await bodies.read(scope((b"content-length", b"11")), never)
    assert refused.value.status == 413


@pytest.mark.parametrize("pieces", [[b"x" * 11], [b"x"] * 11])
async def test_a_body_over_the_limit_is_refused_when_it_gets_there(pieces: list[bytes]) -> None:
    bodies = Bodies(10)
    with pytest.raises(RequestError) as refused:
        await bodies.read(scope(), sends(pieces))
    assert (refused.value.status, bodies.held) == (413, 0)


async def test_who_leaves_holds_nothing() -> None:
    bodies = Bodies(10)
    with pytest.raises(ClientLeft):
        await bodies.read(scope(), sends([b"abc", b"def"], leaves=True))
    assert bodies.held == 0


async def test_who_is_cancelled_holds_nothing() -> None:
    bodies = Bodies(10)
    waiting = asyncio.Event()
    first: list[Message] = [{"type": "http.request", "body": b"abc", "more_body": True}]

    async def receive() -> Message:
        if first:
            return first.pop()
        await waiting.wait()
        raise AssertionError("it goes on")

    reading = asyncio.create_task(bodies.read(scope(), receive))
    while not bodies.held:  # noqa: ASYNC110
        await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert bodies.held == 0


async def test_all_together_are_bounded_and_who_is_too_much_is_told_to_come_again() -> None:
    bodies = Bodies(10)
    held = [await bodies.read(scope(), sends([b"x" * 10])) for _ in range(4)]
    with pytest.raises(RequestError) as refused:
        await bodies.read(scope(), sends([b"y"]))
    assert (refused.value.status, refused.value.code) == (503, "router_exhausted")
    assert (b"retry-after", b"1") in refused.value.headers
    assert bodies.held == 40
    bodies.release(held[0])
    assert await bodies.read(scope(), sends([b"y"])) == b"y"


async def test_a_large_body_is_the_same_as_its_pieces() -> None:
    bodies = Bodies(32 << 20)
    pieces = [bytes([number]) * (1 << 20) for number in range(20)]
    body = await bodies.read(scope(), sends(pieces))
    assert body == b"".join(pieces)
    assert bodies.held == len(body) == 20 << 20
