"""Probes: which workers are up. Off the hot path, and blind to load."""

import asyncio
import logging
import random
import time
from contextlib import suppress

from .blocks import BLOCK_TOKENS
from .config import HealthConfig
from .fleet import State, Worker
from .routing import Routing
from .upstream.engine import NOTHING, ask_engine
from .upstream.models import PATH as MODELS
from .upstream.models import ask_models
from .upstream.worker_client import Unanswered, WorkerClient

logger = logging.getLogger(__name__)

RETRY_INTERVAL = 1.0
"""Seconds to the next probe, at most, where the last one failed or the worker is not ready."""
DOUBT_PAUSE = 0.1
"""Seconds between two probes, at least, however many connections break."""
MODELS_EVERY = 60.0
"""Seconds after which a ready worker is asked for its models again: adapters come and go."""
MOST_MUTE = 3
"""Times in a row that a worker may leave open which models it has; then it is taken for one that lists none."""
FIRST_ROUND = 1.0
"""Seconds that the start waits for the first probes, so that the first request finds its worker."""

_OUT = (State.STARTING, State.UNHEALTHY)
"""Those that come in as soon as they are well."""


class HealthProbes:
    def __init__(
        self, routing: Routing, client: WorkerClient, config: HealthConfig, stats_interval: float = 10.0
    ) -> None:
        """`stats_interval`: seconds after which a ready engine is asked for its own figures, at the next probe."""
        self._routing = routing
        self._client = client
        self._config = config
        self._stats_interval = stats_interval
        self._tasks: dict[Worker, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Of those that there are, and from now on of each that is added."""
        first = [self._begin(worker) for worker in self._routing.fleet.workers]
        self._routing.fleet.added = self._begin
        waits = [asyncio.create_task(probed.wait()) for probed in first]
        if waits:
            _, late = await asyncio.wait(waits, timeout=FIRST_ROUND)
            for wait in late:
                wait.cancel()

    async def stop(self) -> None:
        self._routing.fleet.added = None
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, worker: Worker) -> asyncio.Event:
        """Probe it, also again. The event tells that it has been probed once."""
        before = self._tasks.get(worker)
        if before is not None:
            before.cancel()
        probed = asyncio.Event()
        watch = _Watch(worker, self._routing, self._client, self._config, self._stats_interval)
        task = asyncio.create_task(watch.run(probed))
        self._tasks[worker] = task
        task.add_done_callback(lambda ended: self._ended(worker, ended))
        return probed

    def _ended(self, worker: Worker, task: asyncio.Task[None]) -> None:
        if self._tasks.get(worker) is task:
            del self._tasks[worker]


class _Watch:
    """The probes of one worker."""

    def __init__(
        self, worker: Worker, routing: Routing, client: WorkerClient, config: HealthConfig, stats_interval: float
    ) -> None:
        self._worker = worker
        self._routing = routing
        self._client = client
        self._config = config
        self._stats_interval = stats_interval
        self._failures = 0
        self._successes = 0
        self._silent = 0
        """Probes in a row that a worker which takes connections has failed, without a byte for any request either."""
        self._mute = 0
        """Times in a row that it has not said which models it has, nor that it does not say."""
        self._trouble = ""
        """Why a probe failed last."""
        self._said = ""
        """What the log has of it."""
        self._ask_after = self._ask_models_after = 0.0

    async def run(self, probed: asyncio.Event) -> None:
        worker = self._worker
        while worker.state is not State.GONE:
            alive = await self._probe()
            worker.retention.expire(time.monotonic())
            self._routing.fleet.compare_speeds()
            if alive:
                await self._ask(anew=bool(self._failures) or worker.state in _OUT)
            else:
                worker.engine = NOTHING
            self._judge(alive)
            probed.set()
            interval = self._config.interval
            if self._failures or worker.state in _OUT:
                interval = min(RETRY_INTERVAL, interval)
            # Jitter, so that many routers do not probe one worker in step.
            await self._pause(interval * random.uniform(0.8, 1.2))
        probed.set()

    async def _pause(self, seconds: float) -> None:
        """Shorter where a connection broke meanwhile: it may be gone."""
        await asyncio.sleep(min(DOUBT_PAUSE, seconds))
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds - DOUBT_PAUSE, 0.0)):
                await self._worker.doubted.wait()
        self._worker.doubted.clear()

    def _judge(self, alive: bool) -> None:
        worker, config = self._worker, self._config
        self._failures = 0 if alive else self._failures + 1
        self._successes = self._successes + 1 if alive else 0
        worker.answers = self._successes >= config.success_threshold and not self._would_get_the_wrong_ones()
        if self._silent >= config.failure_threshold:
            worker.pool.give_up_waiting(f"{self._silent} probes failed: {self._trouble}")
        if not worker.spec.ready:
            return
        if worker.state in _OUT and worker.answers:
            logger.info("worker %s is ready (was %s)", worker.url, worker.state)
            worker.state, self._said = State.READY, ""
        elif worker.state is State.READY and self._failures >= config.failure_threshold:
            logger.warning("worker %s is unhealthy: %d probes failed: %s", worker.url, self._failures, self._trouble)
            worker.state = State.UNHEALTHY

    def _would_get_the_wrong_ones(self) -> bool:
        """Requests for models of other workers, since its own are not known yet."""
        unknown = self._worker.models is None and 0 < self._mute < MOST_MUTE
        return unknown and bool(self._routing.fleet.catalogue.models)

    async def _ask(self, *, anew: bool) -> None:
        """What is due; `anew`: all of it, since another engine may be there."""
        now, questions = time.monotonic(), []
        if anew or now > self._ask_models_after:
            questions.append(self._ask_models())
        if anew or now > self._ask_after:
            questions.append(self._ask_engine())
        if questions:
            await asyncio.gather(*questions)  # an engine that leaves both open holds up its probes only once

    async def _ask_models(self) -> None:
        worker = self._worker
        try:
            listed = worker.spec.models or await ask_models(self._client, worker.spec)
        except Unanswered as error:
            self._mute += 1
            self._say(f"{MODELS}: {error}")
        else:
            self._mute = 0
            if listed is not None and worker.state is not State.GONE:
                self._routing.fleet.set_models(worker, listed)
        if not 0 < self._mute < MOST_MUTE:
            self._ask_models_after = time.monotonic() + MODELS_EVERY

    async def _ask_engine(self) -> None:
        worker = self._worker
        worker.engine = report = await ask_engine(self._client, worker.spec)
        self._ask_after = time.monotonic() + self._stats_interval
        if report.started is not None:
            # Only later is a restart: behind one URL may be several processes, and any of them answers.
            if worker.started is not None and report.started > worker.started:
                logger.info("worker %s has restarted: its cache is empty", worker.url)
                self._routing.process_ended(worker)
                self._ask_models_after = 0.0
            worker.started = max(report.started, worker.started or report.started)
        if report.capacity is not None:
            worker.retention.start_at(report.capacity / BLOCK_TOKENS)

    async def _probe(self) -> bool:
        """Whatever answers without a server error is up: not every engine has a `/health`.

        So is one that answers requests meanwhile: an engine in a long prefill may not find the time for probes.
        """
        worker = self._worker
        before = worker.pool.reads
        moves = refused = False
        try:
            answer = await self._client.get(worker.spec, self._config.endpoint, timeout=self._config.timeout)
            alive, self._trouble = answer.status < 500, f"{self._config.endpoint} answers {answer.status}"
        except Unanswered as error:
            refused, moves = error.refused, not error.refused and worker.pool.reads > before
            if refused and self._routing.tree.held[worker.index]:
                self._routing.process_ended(worker)  # there is no process, and so no cache
            alive, self._trouble = moves and worker.state is State.READY, str(error)
        # Where nobody listens, what is still connected is breaking off by itself, or being answered to the end.
        self._silent = 0 if alive or moves or refused else self._silent + 1
        if not alive:
            self._say(self._trouble)
        return alive

    def _say(self, trouble: str) -> None:
        """Why a worker is not up, once."""
        if trouble != self._said and self._worker.state in _OUT:
            logger.info("worker %s is not up: %s", self._worker.url, trouble)
            self._said = trouble
