"""What crosses the router unchanged, what must not, and what it tells about itself."""

import asyncio

import orjson

from ..chaos.answers import response
from ..chaos.connection import Connection, Request
from ..rivals.routers import WARMROUTE, Router
from .client import chat, tally
from .scenario import Outcome, scenario
from .stage import Stage, stage, time_until
from .workers import CHAT

_KEY = "sk-worker-7f3a9c51d2"


@scenario(
    fault="a body with fields that the router does not know (`rid`, `priority`, `cache_salt`, a vendor's own)",
    right="the worker gets every field as it was sent",
    source="sglang PR #21571, vllm/router #161",
)
async def body_fields(router: Router) -> Outcome:
    fields = {
        "rid": "abc",
        "priority": 3,
        "cache_salt": "s",
        "max_tokens": 7,
        "vendor_field": {"a": [1, None]},
        "chat_template_kwargs": {"enable_thinking": False},
    }
    async with stage(router, workers=1) as at:
        _, body = chat("hello", **fields)
        answer = await at.client.post(CHAT, body)
        sent, got = orjson.loads(body), orjson.loads(at.workers[0].seen[-1].body)
        gone = sorted(name for name in sent if sent[name] != got.get(name))
        added = sorted(set(got) - set(sent))
        ok = answer.status == 200 and not gone
        return Outcome(ok, f"gone: {_listed(gone)}; added: {_listed(added)}")


@scenario(
    fault="headers of the client's own (`x-custom`, `x-tenant-id`, `traceparent`, `accept-language`)",
    right="the worker gets them",
    source="sglang PR #29206",
)
async def request_headers(router: Router) -> Outcome:
    sent = {
        "x-custom": "1",
        "x-tenant-id": "t",
        "accept-language": "de",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
    async with stage(router, workers=1) as at:
        await at.client.ask(headers=sent)
        request = at.workers[0].seen[-1]
        gone = [name for name in sent if not request.headers(name.encode())]
        return Outcome(not gone, f"gone: {_listed(gone)}")


@scenario(
    fault="a worker's error: 422, `application/problem+json`, a body and a header of its own",
    right="the client gets all four unchanged",
    source="issue 4, part 4",
)
async def error_answers(router: Router) -> Outcome:
    body = b'{"title":"unprocessable","detail":[1,2]}'

    async def refuse(connection: Connection, request: Request) -> None:
        del request
        headers = b"x-engine: 7\r\n"
        await connection.send(response(body, b"422 Unprocessable", headers, b"application/problem+json"))

    async with stage(router, workers=1) as at:
        at.workers[0].script = refuse
        answer = await at.client.ask()
        changed = [
            name
            for name, same in {
                "status": answer.status == 422,
                "content type": answer.headers.get("content-type") == "application/problem+json",
                "body": answer.body == body,
                "header": answer.headers.get("x-engine") == "7",
            }.items()
            if not same
        ]
        return Outcome(not changed, f"changed: {_listed(changed)}")


@scenario(
    fault="the worker has an API key, and the client sends an Authorization of its own",
    right="the worker gets exactly one Authorization, with its key",
    source="smg #2092",
)
async def one_authorization(router: Router) -> Outcome:
    async with stage(router, *_worker_key(router), workers=1, key=_client_key(router)) as at:
        answer = await at.client.ask()
        if not at.workers[0].seen:
            return Outcome(False, f"{answer}, nothing at the worker")
        got = at.workers[0].seen[-1].headers(b"authorization")
        ok = got == [f"Bearer {_KEY}".encode()]
        return Outcome(ok, f"{len(got)} Authorization, {'its key' if ok else 'not just its key'}")


@scenario(
    fault="the worker asks for its API key under /v1, as engines do with --api-key",
    right="the router comes up, and both a chat and GET /v1/models work",
    source="issue 4, part 7",
)
async def worker_with_a_key(router: Router) -> Outcome:
    async with stage(router, *_worker_key(router), workers=1, key=_client_key(router), worker_key=_KEY) as at:
        answer = await at.client.ask()
        models = await at.client.http.get(f"{at.router.url}/v1/models")
        ok = answer.right and models.status_code == 200 and b"mock" in models.content
        return Outcome(ok, f"chat {answer}, models {models.status_code}")


@scenario(
    fault="the worker's key, looked for in the log (at debug), in /metrics and in /workers",
    right="found nowhere",
    source="issue 4, part 7",
)
async def no_secret_told(router: Router) -> Outcome:
    flags = (*_worker_key(router), "--log-level", "debug")
    async with stage(router, *flags, workers=1, key=_client_key(router)) as at:
        await at.client.ask()
        workers = await at.client.http.get(f"{at.router.url}/workers")
        metrics = await at.client.http.get(at.router.metrics_url)
        told = {"log": at.router.log, "/workers": workers.text, "/metrics": metrics.text}
        found = [where for where, text in told.items() if _KEY in text]
        return Outcome(not found, f"found in: {_listed(found, 'none')}")


def _worker_key(router: Router) -> list[str]:
    """The rivals give the key that clients must show to their workers too; warmroute has one flag for each."""
    return ["--worker-api-key" if router is WARMROUTE else "--api-key", _KEY]


def _client_key(router: Router) -> str:
    return "sk-client-own" if router is WARMROUTE else _KEY


@scenario(
    fault="30 requests for models that do not exist",
    right="/metrics does not grow by what clients make up (10 series at most)",
    source="smg #2093, #1679, #1328",
)
async def made_up_models(router: Router) -> Outcome:
    async with stage(router, workers=1) as at:
        await at.client.ask(model="mock")
        before = await _series(at)
        answers = [await at.client.ask(model=f"made-up-{number}") for number in range(30)]
        grown = len(await _series(at) - before)
        told = sum("made-up" in name for name in await _series(at))
        return Outcome(grown <= 10 and not told, f"{grown} more series ({tally(answers)})")


async def _series(at: Stage) -> set[str]:
    text = (await at.client.http.get(at.router.metrics_url)).text
    return {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}


@scenario(
    fault="SGLang's /abort_request for a request that runs on one of 4 workers; 5 times",
    right="that worker is told",
    source="sglang #6531, #6790, #20160, #31685, #35782",
)
async def abort_request(router: Router) -> Outcome:
    async with stage(router, workers=4) as at:
        for worker in at.workers:
            worker.delay = 2.0
        told, statuses = 0, set()
        for number in range(5):
            rid = f"rid-{number}"
            token, body = chat(f"{number} " * 100, rid=rid)
            running = asyncio.create_task(at.client.post(CHAT, body))
            await time_until(lambda token=token: any(each.has_seen(token) for each in at.workers), 5)  # type: ignore[misc]
            runs_on = next(each for each in at.workers if each.has_seen(token))
            answer = await at.client.post("/abort_request", orjson.dumps({"rid": rid}))
            running.cancel()
            statuses.add(str(answer))
            told += any(got.path == "/abort_request" and rid.encode() in got.body for got in runs_on.seen)
        return Outcome(told == 5, f"{told} of 5 told ({', '.join(sorted(statuses))})")


def _listed(names: list[str], none: str = "nothing") -> str:
    return ", ".join(names) or none


FIDELITY = (
    body_fields,
    request_headers,
    error_answers,
    one_authorization,
    worker_with_a_key,
    no_secret_told,
    made_up_models,
    abort_request,
)
