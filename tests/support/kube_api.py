"""A Kubernetes API that knows of pods and nothing else: list and watch over real HTTP. It misbehaves on command.

Pods change by `add`, `change` and `delete`. The next requests can be answered by a `Fault` instead, and to watches
that are open anything can be said, or nothing any more.
"""

import asyncio
import copy
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import orjson

Pod = dict[str, Any]
Kind = Literal["list", "watch"]
Fault = Callable[["Connection"], Awaitable[None]]


class Asked(NamedTuple):
    kind: Kind
    query: dict[str, str]
    headers: dict[str, str]


class Change(NamedTuple):
    version: int
    before: Pod | None
    after: Pod | None


class Connection:
    """That of one request, and how it is answered."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def answer(self, status: int, body: bytes, headers: str = "") -> None:
        fields = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n{headers}"
        self.writer.write(f"HTTP/1.1 {status} Whatever\r\n{fields}\r\n".encode() + body)
        await self.writer.drain()

    async def refuse(self, status: int, message: str = "", headers: str = "") -> None:
        told = {"kind": "Status", "status": "Failure", "code": status, "message": message}
        await self.answer(status, orjson.dumps(told), headers)

    async def begin(self) -> None:
        """A stream of events."""
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n"
        self.writer.write(head + b"connection: close\r\n\r\n")
        await self.writer.drain()

    async def say(self, piece: bytes) -> None:
        self.writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await self.writer.drain()

    async def end(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()


class Watch:
    """One that is open."""

    def __init__(self, query: dict[str, str]) -> None:
        self.selector = query.get("labelSelector", "")
        self.bookmarks = query.get("allowWatchBookmarks") == "true"
        self.seconds: float | None = float(query.get("timeoutSeconds", "1800"))
        self.pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        """What it says next; None: it ends in order."""
        self.cut = False
        """Whether it ends without order instead."""

    def tell(self, change: Change) -> None:
        before, after = (pod is not None and _matches(self.selector, pod) for pod in (change.before, change.after))
        if before or after:
            kind = "DELETED" if not after else "MODIFIED" if before else "ADDED"
            pod = copy.deepcopy(change.after if after else change.before)
            assert pod is not None, "one of them matches"
            pod["metadata"]["resourceVersion"] = str(change.version)
            self.pieces.put_nowait(event(kind, pod))


class KubeApi:
    def __init__(self, token: str | None = None, namespace: str = "ns") -> None:
        self.url = ""
        self.token = token
        """That it asks for; None: it asks for none."""
        self.namespace = namespace
        self.asked: list[Asked] = []
        self.faults: dict[Kind, list[Fault | None]] = {"list": [], "watch": []}
        """Each answers one of the next requests; None: this one is answered well."""
        self.always: dict[Kind, Fault] = {}
        """Answers all after these."""
        self.pods: dict[str, Pod] = {}
        """By uid."""
        self.watches: list[Watch] = []
        self.version = 100
        self._history: list[Change] = []
        self._forgotten = 0
        self._pages: dict[str, tuple[int, list[Pod]]] = {}
        self._numbers = count(1)
        self._tasks: set[asyncio.Task[None]] = set()

    def add(
        self,
        ip: str | None,
        *,
        ready: bool = True,
        labels: dict[str, str] | None = None,
        annotations: dict[str, str] | None = None,
    ) -> str:
        """A pod; gives its uid."""
        number = next(self._numbers)
        uid = f"uid-{number}"
        metadata: dict[str, Any] = {
            "name": f"worker-{number}",
            "namespace": self.namespace,
            "uid": uid,
            "creationTimestamp": f"2026-11-30T10:{number // 60 % 60:02}:{number % 60:02}Z",
            "labels": labels if labels is not None else {"app": "worker"},
            "annotations": annotations or {},
        }
        pod = {"metadata": metadata, "spec": {"containers": [{"name": "engine"}]}, "status": {}}
        self._set(uid, _with(pod, ip=ip, ready=ready, phase="Running" if ip else "Pending"))
        return uid

    def change(self, uid: str, **changes: Any) -> None:
        """`ip`, `ready`, `phase`, `labels`, or `terminating`."""
        self._set(uid, _with(self.pods[uid], **changes))

    def delete(self, uid: str) -> None:
        self._set(uid, None)

    def forget(self) -> None:
        """What has been until now cannot be watched any more."""
        self.version += 1
        self._forgotten = self.version
        self._history.clear()

    def bookmark(self) -> None:
        self.version += 1
        for watch in self.watches:
            if watch.bookmarks:
                watch.pieces.put_nowait(event("BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}}))

    def say(self, piece: bytes) -> None:
        """To all that watch."""
        for watch in self.watches:
            watch.pieces.put_nowait(piece)

    def fail(self, code: int) -> None:
        """An event that says so ends each watch."""
        self.say(event("ERROR", {"kind": "Status", "code": code, "message": "too old resource version"}))
        self.end()

    def end(self) -> None:
        while self.watches:
            self.watches.pop().pieces.put_nowait(None)

    def drop(self) -> None:
        """In the middle of a line."""
        for watch in self.watches:
            watch.cut = True
            watch.pieces.put_nowait(b'{"type":"DELETED","obj')
        self.end()

    def hush(self) -> None:
        """Those that watch now hear nothing any more, not even an end."""
        for watch in self.watches:
            watch.seconds = None
        self.watches.clear()

    def count(self, kind: Kind) -> int:
        return sum(asked.kind == kind for asked in self.asked)

    def _set(self, uid: str, pod: Pod | None) -> None:
        self.version += 1
        if pod is not None:
            pod["metadata"]["resourceVersion"] = str(self.version)
        change = Change(self.version, self.pods.get(uid), pod)
        self._history.append(change)
        if pod is not None:
            self.pods[uid] = pod
        else:
            del self.pods[uid]
        for watch in self.watches:
            watch.tell(change)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection has a task of its own"
        self._tasks.add(task)
        try:
            await self._serve(await reader.readuntil(b"\r\n\r\n"), Connection(reader, writer))
            writer.close()
            await writer.wait_closed()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _serve(self, head: bytes, connection: Connection) -> None:
        request, *lines = head.decode().split("\r\n")[:-2]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        url = urlsplit(request.split(" ")[1])
        query = dict(parse_qsl(url.query))
        kind: Kind = "watch" if query.get("watch") == "true" else "list"
        self.asked.append(Asked(kind, query, headers))
        fault = self.faults[kind].pop(0) if self.faults[kind] else self.always.get(kind)
        if fault is not None:
            await fault(connection)
        elif self.token is not None and headers.get("authorization") != f"Bearer {self.token}":
            await connection.refuse(401, "Unauthorized")
        elif url.path != f"/api/v1/namespaces/{self.namespace}/pods":
            await connection.refuse(404, "the server could not find the requested resource")
        elif kind == "list":
            await self._list(query, connection)
        elif int(query["resourceVersion"]) < self._forgotten:
            await connection.refuse(410, "too old resource version")
        else:
            await self._watch(query, connection)

    async def _list(self, query: dict[str, str], connection: Connection) -> None:
        if query.get("continue"):
            version, pods = self._pages.pop(query["continue"])
        else:
            version = self.version
            pods = [pod for pod in self.pods.values() if _matches(query.get("labelSelector", ""), pod)]
        page, rest = pods[: int(query["limit"])], pods[int(query["limit"]) :]
        metadata = {"resourceVersion": str(version)}
        if rest:
            metadata["continue"] = f"more-{len(self.asked)}"
            self._pages[metadata["continue"]] = version, rest
        await connection.answer(200, orjson.dumps({"kind": "PodList", "metadata": metadata, "items": page}))

    async def _watch(self, query: dict[str, str], connection: Connection) -> None:
        watch, since = Watch(query), int(query["resourceVersion"])
        for change in self._history:
            if change.version > since:
                watch.tell(change)
        self.watches.append(watch)
        left = asyncio.create_task(_until_left(connection.reader, watch))
        try:
            await connection.begin()
            until = asyncio.get_running_loop().time() + (watch.seconds or 0)
            while (piece := await self._next(watch, until)) is not None:
                await connection.say(piece)
            if watch.cut:
                raise ConnectionError
            await connection.end()
        finally:
            left.cancel()
            if watch in self.watches:
                self.watches.remove(watch)

    async def _next(self, watch: Watch, until: float) -> bytes | None:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                return await watch.pieces.get()
        return None if watch.seconds is not None else await watch.pieces.get()


async def _until_left(reader: asyncio.StreamReader, watch: Watch) -> None:
    """A client that leaves ends its watch."""
    await reader.read(1)
    watch.pieces.put_nowait(None)


def refusing(status: int, message: str = "", headers: str = "") -> Fault:
    return lambda connection: connection.refuse(status, message, headers)


def answering(body: bytes) -> Fault:
    return lambda connection: connection.answer(200, body)


def hanging(after: bytes = b"") -> Fault:
    """Where it says anything, it does not say all."""

    async def hang(connection: Connection) -> None:
        if after:
            await connection.begin()
            await connection.say(after)
        await connection.reader.read(1)

    return hang


def dropping(*, begun: bool = False) -> Fault:
    """Without an answer, or with no more than its head."""

    async def drop(connection: Connection) -> None:
        if begun:
            await connection.begin()
        raise ConnectionError

    return drop


def event(kind: str, item: dict[str, Any]) -> bytes:
    return orjson.dumps({"type": kind, "object": item}) + b"\n"


class Authority:
    """Vouches for itself alone, at 127.0.0.1."""

    def __init__(self, folder: Path, name: str) -> None:
        self.cert, key = folder / f"{name}.pem", folder / f"{name}.key"
        files = ("-keyout", str(key), "-out", str(self.cert))
        kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
        names = ("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1")
        command = ("openssl", "req", "-x509", "-nodes", "-days", "2", *kind, *files, *names)
        subprocess.run(command, check=True, capture_output=True)
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.load_cert_chain(self.cert, key)


@asynccontextmanager
async def kube_api(token: str | None = None, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[KubeApi]:
    api = KubeApi(token)
    server = await asyncio.start_server(api._accept, "127.0.0.1", 0, ssl=tls)
    api.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield api
    finally:
        server.close()
        for task in list(api._tasks):
            task.cancel()
        await asyncio.gather(*api._tasks, return_exceptions=True)


def _matches(selector: str, pod: Pod) -> bool:
    labels = pod["metadata"]["labels"]
    wanted = (each.partition("=") for each in selector.split(",") if each)
    return all(labels.get(key) == value for key, _, value in wanted)


def _with(pod: Pod, **changes: Any) -> Pod:
    pod = copy.deepcopy(pod)
    for what, value in changes.items():
        match what:
            case "ip":
                pod["status"] |= {"podIP": value, "podIPs": [{"ip": value}]} if value else {}
            case "ready":
                pod["status"]["conditions"] = [
                    {"type": "PodScheduled", "status": "True"},
                    {"type": "Ready", "status": "True" if value else "False"},
                ]
            case "phase":
                pod["status"]["phase"] = value
            case "labels":
                pod["metadata"]["labels"] = value
            case "terminating":
                pod["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z"
                pod["metadata"]["deletionGracePeriodSeconds"] = 30
            case _:
                raise AssertionError(f"pods have no {what}")
    return pod
