"""The generator against servers that are bare sockets, and through the real router."""

import asyncio
import ssl
import subprocess
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import orjson
import pytest
from support.peer import STREAM_HEAD, Peer, PeerConnection, answering, chunk, response
from support.ports import closed_port
from support.router import running_router, until
from warmroute_loadtest.bench.client import Unreachable
from warmroute_loadtest.bench.load import Concurrency, Load, OwnTimes, Rate
from warmroute_loadtest.bench.record import UNANSWERED, Answer, Run
from warmroute_loadtest.bench.run import Bench, Plan
from warmroute_loadtest.bench.summary import hit_rate
from warmroute_loadtest.bench.workload import Workload, made_workload
from warmroute_loadtest.processes import processes, url_in
from warmroute_loadtest.traces import Trace, TraceRequest

pytestmark = pytest.mark.anyio

PAUSE = 0.1
EARLY = 0.005
"""Seconds by which a sleep may be too short: the loop's timers know milliseconds."""
USAGE = {"prompt_tokens": 100, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 64}}
WHOLE = response(
    orjson.dumps({"choices": [{"message": {"role": "assistant", "content": "one two"}}], "usage": USAGE})
)


def singles(count: int, every: float = 0.0, session: str | None = None) -> Workload:
    """Requests of 10 tokens, at a constant pace."""
    requests = [TraceRequest(number * every, array("Q"), 10, 3, session) for number in range(count)]
    return Workload(Trace("singles", 64, requests, 0))


def plan(url: str, workload: Workload, load: Load = OwnTimes(), **more: Any) -> Plan:  # noqa: B008 - frozen
    return Plan(urls=[url], workload=workload, load=load, model="m", **more)


async def answers(url: str, workload: Workload, load: Load = OwnTimes(), **more: Any) -> list[Answer]:  # noqa: B008
    return (await Bench(plan(url, workload, load, **more)).run()).answers


def event(payload: object) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def delta(**fields: str) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields}]})


USED = event({"choices": [], "usage": USAGE})
DONE = b"data: [DONE]\n\n"
END = b"0\r\n\r\n"


def streaming(*steps: bytes | float) -> Callable[[PeerConnection], Awaitable[None]]:
    """Sends each as a piece of its own, and sleeps where it is a number."""

    async def answer(connection: PeerConnection) -> None:
        await connection.send(STREAM_HEAD)
        for step in steps:
            if isinstance(step, bytes):
                await connection.send(step)
            else:
                await asyncio.sleep(step)

    return answer


async def test_a_whole_answer() -> None:
    async with Peer(answering(WHOLE)).listening() as peer:
        (answer,) = await answers(peer.url, singles(1, session="s 1"), stream=False, api_key="secret")
    assert answer.good
    assert (answer.status, answer.worker, answer.session) == (200, peer.url, "s 1")
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (100, 3, 64)
    assert (answer.matched_tokens, answer.itl_mean, answer.itl_max) == (None, None, None)
    assert answer.ttft is not None
    assert answer.e2e is not None
    assert 0 < answer.ttft <= answer.e2e
    (seen,) = peer.seen
    assert seen.request_line == b"POST /v1/chat/completions HTTP/1.1"
    assert seen.header(b"authorization") == b"Bearer secret"
    assert seen.header(b"x-session-id") == b"s%201"
    body = orjson.loads(seen.body)
    assert len(body["messages"][0].pop("content")) == 40
    assert body == {
        "model": "m",
        "messages": [{"role": "user"}],
        "max_tokens": 3,
        "stream": False,
        "temperature": 0,
    }


async def test_the_other_endpoint_behind_a_prefix() -> None:
    async with Peer(answering(response(orjson.dumps({"choices": [{"text": "a"}]})))).listening() as peer:
        (answer,) = await answers(
            f"{peer.url}/some/v1", singles(1), endpoint="completions", stream=False, ignore_eos=True
        )
    assert answer.good
    assert answer.prompt_tokens is None
    assert peer.seen[0].request_line == b"POST /some/v1/completions HTTP/1.1"
    body = orjson.loads(peer.seen[0].body)
    assert len(body["prompt"]) == 40
    assert body["ignore_eos"] is True


async def test_the_first_token_is_the_first_text() -> None:
    """Not the event that only says whose turn it is, nor a comment; thinking is text."""
    steps = (chunk(delta(role="assistant", content="")), chunk(b": wait\n\n"), PAUSE)
    text = (chunk(delta(reasoning_content="hm")), PAUSE, chunk(delta(content="a") + delta(content="b")))
    async with Peer(streaming(*steps, *text, chunk(USED + DONE) + END)).listening() as peer:
        run = await Bench(plan(peer.url, singles(1))).run()
    (answer,) = run.answers
    assert answer.good
    assert answer.ttft is not None
    assert answer.e2e is not None
    assert answer.ttft >= PAUSE - EARLY
    assert answer.e2e >= 2 * (PAUSE - EARLY)
    assert answer.itl_max is not None
    assert answer.itl_max >= PAUSE - EARLY
    assert answer.itl_mean == pytest.approx(answer.itl_max / 2, abs=1e-5)  # the last two came together
    assert run.itl["max"] == pytest.approx(answer.itl_max, abs=1e-5)
    assert run.itl["p50"] == 0.0
    assert orjson.loads(peer.seen[0].body)["stream_options"] == {"include_usage": True}


async def test_an_event_may_come_in_pieces() -> None:
    stream = delta(content="a") + delta(content="b") + USED + DONE
    pieces = [chunk(stream[place : place + 7]) for place in range(0, len(stream), 7)]
    async with Peer(streaming(*pieces, END)).listening() as peer:
        (answer,) = await answers(peer.url, singles(1))
    assert answer.good
    assert answer.cached_tokens == 64


@pytest.mark.parametrize(
    ("handler", "status", "error"),
    [
        (answering(response(b'{"error": {"message": "too\\n busy"}}', b"503 No")), 503, "too busy"),
        (answering(response(b"<html>", b"500 Oops")), 500, "<html>"),
        (answering(response(b"", b"404 Not Found")), 404, "status 404"),
        (answering(response(b"{}")), 200, "the answer has an unknown shape"),
        (answering(b"SSH-2.0-OpenSSH\r\n"), UNANSWERED, "not a valid HTTP response"),
        (answering(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"), UNANSWERED, "closed amid the answer"),
        (streaming(chunk(delta(content="a"))), UNANSWERED, "closed amid the answer"),
        (streaming(chunk(delta(content="a")) + END), 200, "the stream ended without [DONE]"),
        (streaming(chunk(event({"error": {"message": "lost it"}}) + DONE) + END), 200, "lost it"),
        (streaming(chunk(b"data: {\n\n" + DONE) + END), 200, "unknown shape"),
    ],
)
async def test_what_is_no_good_answer(
    handler: Callable[[PeerConnection], Awaitable[None]], status: int, error: str
) -> None:
    async def and_leave(connection: PeerConnection) -> None:
        await handler(connection)
        connection.writer.close()

    async with Peer(and_leave).listening() as peer:
        (answer,) = await answers(peer.url, singles(1))
    assert not answer.good
    assert answer.status == status
    assert error in answer.error
    assert (answer.e2e is None) == (status == UNANSWERED)


async def test_a_kept_connection_that_the_server_has_closed() -> None:
    """It is nobody's failure. Each request here comes on a connection that ends right after its answer."""

    async def once(connection: PeerConnection) -> None:
        await connection.send(WHOLE)
        connection.writer.close()

    async with Peer(once).listening() as peer:
        got = await answers(peer.url, singles(30), Concurrency(1), stream=False)
    assert [answer.error for answer in got] == [""] * 30


async def test_interim_answers_are_none() -> None:
    async with Peer(
        answering(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nx: y\r\n\r\n" + WHOLE)
    ).listening() as peer:
        got = await answers(peer.url, singles(3), Concurrency(1), stream=False)
    assert [answer.cached_tokens for answer in got] == [64] * 3
    assert peer.connections == 1


async def test_an_answer_that_ends_with_its_connection() -> None:
    async def old(connection: PeerConnection) -> None:
        await connection.send(
            b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n" + WHOLE.split(b"\r\n\r\n")[1]
        )
        connection.writer.close()

    async with Peer(old).listening() as peer:
        got = await answers(peer.url, singles(3), Concurrency(1), stream=False)
    assert [answer.cached_tokens for answer in got] == [64] * 3


async def test_a_server_that_is_not_there() -> None:
    with closed_port() as port:
        url = f"http://127.0.0.1:{port}"
        with pytest.raises(Unreachable, match=f"cannot connect to {url}: connection refused"):
            await answers(url, singles(1))


async def test_a_server_that_leaves_amid_the_load() -> None:
    async with Peer(answering(WHOLE)).listening() as peer:
        bench = Bench(plan(peer.url, singles(20, every=0.02), stream=False))
        running = asyncio.create_task(bench.run())
        await until(lambda: bench.answered >= 5)
        leaving = peer.seen[-1].writer
    leaving.close()
    run = await running
    assert len(run.answers) == 20
    assert run.answers[0].good
    assert (run.answers[-1].status, run.answers[-1].error) == (UNANSWERED, "connection refused")


def certified(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate that only who is told believes, and the server's side of it."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    made = ("openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-keyout", key, "-out", cert, *subject)
    subprocess.run(made, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    return cert, context


async def test_a_server_with_a_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, context = certified(tmp_path)
    peer = Peer(answering(WHOLE))
    async with await asyncio.start_server(peer._accept, "127.0.0.1", 0, ssl=context) as server:
        url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(Unreachable, match=r"cannot connect to .*certificate"):
            await answers(url, singles(3), stream=False)
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        got = await answers(url, singles(3), stream=False)
    assert [answer.status for answer in got] == [200] * 3


async def test_the_model_is_asked_for() -> None:
    async def answer(connection: PeerConnection) -> None:
        models = connection.request_line.startswith(b"GET /v1/models ")
        await connection.send(response(b'{"data": [{"id": "first"}, {"id": "second"}]}') if models else WHOLE)

    async with Peer(answer).listening() as peer:
        run = await Bench(Plan(urls=[peer.url], workload=singles(1), load=OwnTimes(), stream=False)).run()
    assert run.model == "first"
    assert orjson.loads(peer.seen[-1].body)["model"] == "first"
    async with Peer(answering(response(b"{}", b"404 Not Found"))).listening() as peer:
        with pytest.raises(Unreachable, match="say which with --model"):
            await Bench(Plan(urls=[peer.url], workload=singles(1), load=OwnTimes())).run()


async def test_what_a_stall_costs_is_counted() -> None:
    """A server that does nothing for half a second: those who come meanwhile wait, and they come all the same."""
    release = asyncio.Event()
    released_at = stalled_at = 0.0

    async def answer(connection: PeerConnection) -> None:
        nonlocal stalled_at, released_at
        if len(peer.seen) == 10:
            stalled_at = time.perf_counter()
            await asyncio.sleep(0.5)
            released_at = time.perf_counter()
            release.set()
        elif len(peer.seen) > 10:
            await release.wait()
        await connection.send(WHOLE)

    async with Peer(answer).listening() as peer:
        bench = Bench(plan(peer.url, singles(75, every=0.02), stream=False))
        got = (await bench.run()).answers
    assert [answer.due for answer in got] == pytest.approx([number * 0.02 for number in range(75)])
    start = bench._start
    waited = [answer for answer in got if stalled_at < start + answer.due < released_at]
    assert len(waited) >= 23  # of 25: the load went on
    for one in waited:
        assert one.e2e is not None
        assert one.e2e >= released_at - (start + one.due) - 1e-4


async def test_what_the_generator_misses_itself_is_counted() -> None:
    """The loop is blocked for 0.3 s: what was due then is sent late, and its times begin when it was due."""

    async def handler(connection: PeerConnection) -> None:
        if len(peer.seen) == 5:
            asyncio.get_running_loop().call_soon(time.sleep, 0.3)
        await connection.send(WHOLE)

    async with Peer(handler).listening() as peer:
        got = await answers(peer.url, singles(30, every=0.02), stream=False)
    late = [answer for answer in got if answer.late > 0.05]
    assert len(late) >= 10
    for answer in got:
        assert answer.late >= 0
        assert answer.ttft is not None
        assert answer.ttft >= answer.late


class Crowd:
    """A server that lets everybody wait until so many are there, but not for long."""

    def __init__(self, size: int, patience: float) -> None:
        self.most = self._now = 0
        self._size = size
        self._patience = patience
        self._complete = asyncio.Event()

    async def __call__(self, connection: PeerConnection) -> None:
        self._now += 1
        self.most = max(self.most, self._now)
        if self.most == self._size:
            self._complete.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._complete.wait(), self._patience)
        self._now -= 1
        await connection.send(WHOLE)


async def test_an_open_loop_waits_for_nothing() -> None:
    crowd = Crowd(40, patience=10.0)
    async with Peer(crowd).listening() as peer:
        got = await answers(peer.url, singles(40), Rate(inf), stream=False)
    assert crowd.most == 40
    assert all(answer.good and answer.due == 0.0 for answer in got)


async def test_a_closed_loop_has_so_many_at_a_time() -> None:
    crowd = Crowd(5, patience=0.05)
    async with Peer(crowd).listening() as peer:
        got = await answers(peer.url, singles(40), Concurrency(4), stream=False)
    assert crowd.most == 4
    assert all(answer.good for answer in got)
    assert peer.connections == 4
    assert [answer.due for answer in got] == sorted(answer.due for answer in got)


async def never(connection: PeerConnection) -> None:
    await connection.closed_by_router()


async def test_who_does_not_answer_is_not_waited_for_forever() -> None:
    before = asyncio.all_tasks()
    async with Peer(never).listening() as peer:
        run = await Bench(plan(peer.url, singles(100, every=0.02), duration=0.1, grace=0.2)).run()
    assert [answer.due for answer in run.answers] == pytest.approx([0.0, 0.02, 0.04, 0.06, 0.08])
    assert {(answer.status, answer.error) for answer in run.answers} == {
        (UNANSWERED, "no answer 0.2 s after the load's end")
    }
    assert run.load == {"kind": "trace", "speed": 1.0, "duration": 0.1}
    assert run.duration >= 0.3 - EARLY
    await until(lambda: asyncio.all_tasks() == before)


async def test_an_interrupt_keeps_what_there_is() -> None:
    async def answer(connection: PeerConnection) -> None:
        await (connection.send(WHOLE) if len(peer.seen) <= 3 else never(connection))

    async with Peer(answer).listening() as peer:
        bench = Bench(plan(peer.url, singles(100, every=0.02), stream=False))
        running = asyncio.create_task(bench.run())
        await until(lambda: bench.sent >= 6)
        bench.interrupt()
        run = await running
    assert [answer.good for answer in run.answers[:3]] == [True] * 3
    assert len(run.answers) >= 6
    assert {answer.error for answer in run.answers[3:]} == {"interrupted"}


async def test_requests_go_to_all_urls_by_the_seed() -> None:
    async def choices(seed: int) -> list[str]:
        run = await Bench(
            Plan(urls=urls, workload=singles(40), load=Rate(inf), model="m", stream=False, seed=seed)
        ).run()
        return [urls_by_port[answer.worker] for answer in run.answers]

    async with Peer(answering(WHOLE)).listening() as one, Peer(answering(WHOLE)).listening() as other:
        urls = [one.url, other.url]
        urls_by_port = {one.url: "one", other.url: "other"}
        first = await choices(0)
        assert set(first) == {"one", "other"}
        assert await choices(0) == first
        assert await choices(1) != first


# Chats


class Talker:
    """Answers every turn with text of its own, some of it hard to write as JSON, and keeps what was said."""

    def __init__(self, stream: bool) -> None:
        self.bodies: dict[bytes, list[dict[str, Any]]] = {}
        self.said: dict[bytes, list[str]] = {}
        self.answered_at: dict[bytes, list[float]] = {}
        self.asked_at: dict[bytes, list[float]] = {}
        self._stream = stream

    async def __call__(self, connection: PeerConnection) -> None:
        session = connection.header(b"x-session-id") or b""
        self.asked_at.setdefault(session, []).append(time.perf_counter())
        turns = self.bodies.setdefault(session, [])
        turns.append(orjson.loads(connection.body))
        text = f'"{session.decode()}"\n{len(turns)} ünd'
        self.said.setdefault(session, []).append(text)
        if self._stream:
            events = [chunk(delta(content=letter)) for letter in text]
            await connection.send(b"".join([STREAM_HEAD, *events, chunk(USED + DONE), END]))
        else:
            message = {"role": "assistant", "content": text}
            await connection.send(response(orjson.dumps({"choices": [{"message": message}], "usage": USAGE})))
        self.answered_at.setdefault(session, []).append(time.perf_counter())


CHATS = "multi_turn?sessions=6&turns=4&system_prompts=2&system_tokens=128&question_tokens=8&think_s=0.05&rate=100"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("load", [OwnTimes(), Concurrency(2)])
async def test_a_chats_history_holds_the_real_answers(stream: bool, load: Load) -> None:
    talker = Talker(stream)
    async with Peer(talker).listening() as peer:
        got = await answers(peer.url, made_workload(CHATS, seed=3), load, stream=stream)
    assert len(got) == 24
    assert all(answer.good for answer in got)
    assert set(talker.bodies) == {b"chat-%d" % number for number in range(6)}
    for session, bodies in talker.bodies.items():
        for turn, body in enumerate(bodies):
            messages = body["messages"]
            assert [message["role"] for message in messages] == ["user", "assistant"] * turn + ["user"]
            assert [message["content"] for message in messages[1::2]] == talker.said[session][:turn]
            if turn:
                assert messages[: 2 * turn - 1] == bodies[turn - 1]["messages"]
        for answered, asked in zip(talker.answered_at[session], talker.asked_at[session][1:], strict=False):
            assert asked - answered >= 0.049  # it is answered a little earlier than it is noted here
    openings = {bodies[0]["messages"][0]["content"][: 128 * 4] for bodies in talker.bodies.values()}
    assert 1 <= len(openings) <= 2
    questions = [message["content"] for bodies in talker.bodies.values() for message in bodies[-1]["messages"][::2]]
    assert len(set(questions)) == 24
    assert all(16 <= len(question) <= 48 for bodies in talker.bodies.values() for question in _later(bodies))


def _later(bodies: Sequence[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in bodies[-1]["messages"][2::2]]


async def test_a_completions_history_is_one_text() -> None:
    async def answer(connection: PeerConnection) -> None:
        await connection.send(response(orjson.dumps({"choices": [{"text": "<answer>"}]})))

    async with Peer(answer).listening() as peer:
        workload = made_workload(CHATS + "&sessions=1", seed=0)
        await answers(peer.url, workload, endpoint="completions", stream=False)
    prompts = [orjson.loads(seen.body)["prompt"] for seen in peer.seen]
    assert len(prompts) == 4
    for earlier, later in pairwise(prompts):
        assert later.startswith(earlier + "<answer> ")


async def test_a_chat_ends_with_a_failure_and_with_the_load() -> None:
    async with Peer(answering(response(b"{}", b"500 Oops"))).listening() as peer:
        got = await answers(peer.url, made_workload(CHATS, seed=0), stream=False)
    assert len(got) == 6
    async with Peer(answering(WHOLE)).listening() as peer:
        workload = made_workload("multi_turn?sessions=3&turns=4&think_s=60&rate=1000", seed=0)
        got = await answers(peer.url, workload, stream=False, duration=5.0)
    assert len(got) == 3


# Through the real router


async def test_cached_tokens_and_workers_through_the_router() -> None:
    """Four groups of four: the first of each finds nothing, and the others the system prompt of 256 tokens."""
    workload = made_workload(
        "generated_shared_prefix?groups=4&prompts_per_group=4&system_tokens=256&question_tokens=64&output_tokens=4",
        seed=0,
    )
    with processes() as children:
        started = [children.spawn("warmroute_loadtest.mock_worker", "--blocks", "2000") for _ in range(2)]
        urls = [url_in(children.announcement(process)) for process in started]
        async with running_router(*urls) as router:
            run = await Bench(plan(router.url, workload, Concurrency(1), endpoint="completions")).run()
            router.assert_idle()
    got = run.answers
    assert all(answer.good for answer in got)
    assert {answer.worker for answer in got} <= set(urls)
    assert {(answer.prompt_tokens, answer.completion_tokens) for answer in got} == {(320, 4)}
    assert sorted(answer.cached_tokens or 0 for answer in got) == [0] * 4 + [256] * 12
    assert [answer.matched_tokens for answer in got] == [answer.cached_tokens for answer in got]
    assert hit_rate(got) == pytest.approx(12 * 256 / (16 * 320))
    assert run.itl.keys() == {"p50", "p90", "p99", "mean", "max"}


async def test_a_run_is_read_back_as_it_was(tmp_path: Path) -> None:
    async with Peer(streaming(chunk(delta(content="a") + USED + DONE) + END)).listening() as peer:
        run = await Bench(plan(peer.url, singles(5), Rate(inf), label="five")).run()
    run.write(tmp_path / "run.json")
    assert Run.read(tmp_path / "run.json") == run
