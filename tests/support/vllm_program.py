#!/usr/bin/env python3
"""Stands in for the `vllm` command: it notes how it was called, and serves /health after a moment.

Told by the environment. VLLM_NOTES: a folder for its notes. VLLM_LOADS: seconds until it listens. VLLM_FAILS: a code
to end with instead. VLLM_IGNORES: how many signals it ignores before one ends it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

GRACEFUL = 7
"""Exit code after a signal: one that nothing else has."""


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        print(f"INFO {format % args}", flush=True)


def main() -> None:
    arguments = sys.argv[1:]
    print("INFO vLLM's log is on its stdout", flush=True)
    sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]
    engine = subprocess.Popen(sleeping, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    signals: list[int] = []
    wanted = int(os.environ.get("VLLM_IGNORES", "0")) + 1

    def note(number: int | None = None, frame: object = None) -> None:
        if number is not None:
            signals.append(number)
        notes = {
            "arguments": arguments,
            "pid": os.getpid(),
            "engine": engine.pid,
            "signals": signals,
            "log_level": os.environ.get("VLLM_LOGGING_LEVEL"),
            "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        }
        path = Path(os.environ["VLLM_NOTES"], f"{os.getpid()}.json")
        path.with_suffix(".new").write_text(json.dumps(notes))
        path.with_suffix(".new").rename(path)
        if len(signals) == wanted:
            engine.kill()
            os._exit(GRACEFUL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    note()
    if "VLLM_FAILS" in os.environ:
        sys.exit(int(os.environ["VLLM_FAILS"]))
    time.sleep(float(os.environ.get("VLLM_LOADS", "0")))
    host, port = (arguments[arguments.index(flag) + 1] for flag in ("--host", "--port"))
    server = ThreadingHTTPServer((host, int(port)), Answers)
    Thread(target=server.serve_forever).start()
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
