"""The engine: a thread that turns requests into tokens, one step at a time.

    schedule -> forward -> sample -> deliver

Everything below `step` runs on that thread alone; the outside talks to it through `submit` and `abort`. Every request
that is submitted and not aborted is delivered one last output, whatever happens to the engine.
"""

import logging
import threading
from array import array
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor
from warmroute_kernels.to_device import to_device

from .attention.base import Attention, SequenceSpan
from .core import FinishReason, Output, Request, Span
from .kv_pool import KVPool
from .metrics import EngineMetrics
from .prefix_cache import PrefixCache
from .sampling import Sampler
from .scheduler import Scheduler

logger = logging.getLogger(__name__)


class Model(Protocol):
    def forward(self, tokens: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Hidden states [tokens, hidden] of a flat batch; `tokens` and `positions` are int64 [tokens]."""

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, vocab] of `hidden` [rows, hidden]."""


class Engine:
    def __init__(
        self,
        model: Model,
        attention: Attention,
        pool: KVPool,
        *,
        eos_ids: frozenset[int],
        context: int,
        chunk: int,
        max_running: int,
    ) -> None:
        self.metrics = EngineMetrics()
        self.pool = pool
        self.cache = PrefixCache(pool)
        self.scheduler = Scheduler(pool, self.cache, max_running=max_running, chunk=chunk, context=context)
        self._model = model
        self._attention = attention
        self._eos_ids = eos_ids
        self._sampler = Sampler()
        self._inbox: list[Request] = []
        self._aborted: list[Request] = []
        self._flush: threading.Event | None = None
        self._stopping = False
        self._ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Abort everything, and take nothing more. Returns at once, and may be called from a signal handler."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def stop(self) -> None:
        """Close, and wait for the thread to end."""
        self.close()
        self._thread.join()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def num_running(self) -> int:
        return len(self.scheduler.running)

    @property
    def num_waiting(self) -> int:
        return len(self.scheduler.waiting) + len(self._inbox)

    @property
    def token_usage(self) -> float:
        """Share of the pool that running requests need; what is merely cached does not count."""
        return 1 - (self.pool.free_slots + self.cache.evictable) / self.pool.num_slots

    def submit(self, request: Request) -> None:
        with self._changed:
            self._inbox.append(request)
            self._changed.notify()
            ended = self._ended
        if ended:
            self._dismiss_all()

    def abort(self, request: Request) -> None:
        """Take a request out. Nothing more is delivered for it; aborting one that has ended does nothing."""
        with self._changed:
            self._aborted.append(request)
            self._changed.notify()

    def flush_cache(self) -> bool:
        """Forget the prefix cache. False, and nothing done, while requests run or wait."""
        with self._changed:
            if self._stopping or self._inbox or self.scheduler.running or self.scheduler.waiting:
                return False
            done = self._flush = self._flush or threading.Event()
            self._changed.notify()
        return done.wait(timeout=10)

    def _run(self) -> None:
        try:
            while self._receive():
                self.step()
        except Exception:
            # The account of slots may be what broke, so nothing is released: /health tells that this worker is done.
            logger.exception("the engine has failed")
        with self._changed:
            self._ended = True
        self._dismiss_all()

    def _dismiss_all(self) -> None:
        """After the end: tell those who would wait for ever."""
        with self._changed:
            left = [*self.scheduler.running, *self.scheduler.waiting, *self._inbox]
            self.scheduler.running, self.scheduler.waiting, self._inbox = [], [], []
        for request in left:
            request.finished = FinishReason.ABORT
            request.deliver(Output("", FinishReason.ABORT, request.usage))

    def _receive(self) -> bool:
        """Take in what has come, waiting while there is nothing to do. False at the end."""
        with self._changed:
            while not (self._stopping or self._inbox or self._aborted or self._flush or self._busy):
                self._changed.wait()
            arrived, self._inbox = self._inbox, []
            aborted, self._aborted = self._aborted, []
            flush, self._flush = self._flush, None
            stopping = self._stopping
        for request in arrived:
            self.scheduler.add(request)
        for request in aborted:
            self._abort(request)
        if stopping:
            for request in [*self.scheduler.running, *self.scheduler.waiting]:
                self._finish(request, FinishReason.ABORT, "")
        if flush is not None:
            self.cache.flush()
            flush.set()
        return not stopping

    @property
    def _busy(self) -> bool:
        return bool(self.scheduler.running or self.scheduler.waiting)

    def _abort(self, request: Request) -> None:
        if request.finished is None:
            self._leave(request, FinishReason.ABORT)

    @torch.inference_mode()
    def step(self) -> None:
        """Compute one batch: a token more for each running request, and a chunk of prefill."""
        spans = self.scheduler.schedule()
        if not spans:
            return
        try:
            self._compute(spans)
        except Exception:
            # Out of memory, say: those in the batch must hear of it, and the next batch may fare better.
            logger.exception("a step of the engine failed")
            for span in spans:
                if span.request.finished is None:
                    self._finish(span.request, FinishReason.ERROR, "")
            self._check_device()

    def _check_device(self) -> None:
        """Raises where the device is lost, as after an illegal access: no step would succeed any more."""
        if self.pool.device.type == "cuda":
            torch.cuda.synchronize(self.pool.device)

    def _compute(self, spans: list[Span]) -> None:
        sampling = [span.request for span in spans if span.samples]
        logits = self._forward(spans)
        for span in spans:
            self.scheduler.computed(span)
        # The host waits for the device here, and nowhere else.
        for request, token in zip(sampling, self._sampler.sample(logits, sampling), strict=True):
            self._append(request, token)

    def _forward(self, spans: list[Span]) -> Tensor:
        """Logits [sampling spans, vocab], on the device."""
        self._attention.plan([self._sequence(span) for span in spans])
        flat = array("q")
        for span in spans:
            flat += span.request.tokens[span.start : span.end]
            span.request.told = span.end
        ends = accumulate(span.end - span.start for span in spans)
        last = [end - 1 for span, end in zip(spans, ends, strict=True) if span.samples]
        positions = torch.cat([torch.arange(span.start, span.end) for span in spans])
        device = self.pool.device
        rows = to_device(torch.tensor(last, dtype=torch.int64), device)
        # `torch.tensor` reads an array one by one, which for 8192 tokens takes 9 ms.
        tokens = to_device(torch.frombuffer(flat, dtype=torch.int64), device)
        hidden = self._model.forward(tokens, to_device(positions, device), self._attention)
        return self._model.logits(hidden[rows])

    def _sequence(self, span: Span) -> SequenceSpan:
        request = span.request
        assert request.row is not None, "only a running request is computed"
        slots = self.scheduler.slots(request, span.end)
        return SequenceSpan(slots, span.start, request.shared, request.node, request.row, request.told)

    def _append(self, request: Request, token: int) -> None:
        first = not request.output_tokens
        request.tokens.append(token)
        if first:
            self.metrics.first_token(request)
        if token in self._eos_ids and not request.params.ignore_eos:
            self._finish(request, FinishReason.STOP, request.output.flush())
            return
        text = request.output.add(token)
        if request.output.stopped:
            self._finish(request, FinishReason.STOP, text)
        elif request.output_tokens >= request.params.max_tokens:
            text += request.output.flush()
            self._finish(request, FinishReason.STOP if request.output.stopped else FinishReason.LENGTH, text)
        else:
            request.deliver(Output(text, None, request.usage))

    def _finish(self, request: Request, reason: FinishReason, text: str) -> None:
        self._leave(request, reason)
        request.deliver(Output(text, reason, request.usage))

    def _leave(self, request: Request, reason: FinishReason) -> None:
        request.finished = reason
        self.scheduler.release(request)
        self._sampler.forget(request)
        self.metrics.ended(request)
