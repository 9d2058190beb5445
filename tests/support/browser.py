"""A page as a person sees it: headless Chromium, its network off, spoken to in the DevTools protocol over a pipe."""

import base64
import fcntl
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

PATIENCE = 30.0
"""Seconds for any one answer of the browser."""
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # there is none for root in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)


class BrowserError(Exception):
    """The browser, or the page's JavaScript, answered with an error."""


@contextmanager
def chromium() -> Iterator["Browser"]:
    """A browser whose processes and files are gone afterwards. It is found as `scripts/chromium` finds it."""
    found = subprocess.run(["scripts/chromium"], cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, check=True)
    (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
    # The protocol is spoken on 3 and 4; beyond 9 neither end is in the other's way when they are moved there.
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (their_in, their_out)]
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        moved = f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}'
        command = [found.stdout.decode().strip(), *FLAGS, f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            ["bash", "-c", moved, "chromium", *command],
            pass_fds=ends,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for end in (their_in, their_out, *ends):
            os.close(end)
        try:
            yield Browser(our_in, our_out)
        finally:
            os.close(our_out)  # which ends it, and its children with it
            os.close(our_in)
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
            process.kill()
            process.wait()


class Browser:
    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer = reader, writer
        self._buffer = b""
        self._calls = 0
        self._page: Page | None = None

    def open(self, path: Path, *, width: int = 1200, height: int = 900, dark: bool = False) -> "Page":
        """The page of a file, once it has loaded. The page before is closed: one behind another is not drawn."""
        if self._page is not None:
            self.call("Target.closeTarget", targetId=self._page.target)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._page = Page(self, target, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call(
            "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        page.resize(width, height)
        page.call("Page.navigate", url=path.resolve().as_uri())
        while not page.loaded:
            self._receive()
        return page

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._calls += 1
        number = self._calls
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != number:
            pass
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        """The next message; what it tells of a page is noted there."""
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._reader], [], [], max(deadline - time.monotonic(), 0))
            received = os.read(self._reader, 1 << 20) if ready else b""
            if not received:
                raise BrowserError("the browser has ended" if ready else f"no answer in {PATIENCE:g} s")
            self._buffer += received
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        page = self._page
        if page is not None and message.get("sessionId") == page.session and "method" in message:
            page.note(message["method"], message["params"])
        return message


@dataclass
class Page:
    browser: Browser
    target: str
    session: str
    requests: list[str] = field(default_factory=list)
    """Every URL that it asked for, its own file's included."""
    errors: list[str] = field(default_factory=list)
    """What it wrote to the console as a warning or worse, uncaught exceptions, and what the browser complains of."""
    loaded: bool = False

    def note(self, method: str, params: dict[str, Any]) -> None:
        match method:
            case "Page.loadEventFired":
                self.loaded = True
            case "Network.requestWillBeSent" if not params["request"]["url"].startswith(("data:", "blob:")):
                self.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.errors.append(json.dumps(params["args"]))
            case "Log.entryAdded":
                self.errors.append(params["entry"]["text"])

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **params)

    def evaluate(self, expression: str) -> Any:
        """The JSON value of a JavaScript expression; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def texts(self, selector: str) -> list[str]:
        """What is written in the elements that a CSS selector finds, as it is laid out."""
        elements = f"[...document.querySelectorAll({json.dumps(selector)})]"
        found: list[str] = self.evaluate(f"{elements}.map(element => element.innerText)")
        return found

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def screenshot(self, path: Path) -> None:
        """Of all of the page, as PNG."""
        image = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(image))
