"""Follows the pods that match a selector, and tells the membership which of them are workers.

A list says who is there; a watch, from there on, what changes. A watch that ends is begun again where it was; only
where the API has forgotten that, or has said something that cannot be read, is there another list. Whatever fails,
the workers that are known stay.
"""

import asyncio
import logging
import random
from collections.abc import Iterable
from contextlib import suppress

from ...config import KubernetesConfig, WorkerSpec
from ...fleet import Fleet
from ..membership import Membership
from .account import Account, find_account
from .api import MAX_PODS, Broke, Event, Expired, Failed, Lost, PodApi, version_after
from .pods import Pod, read_pod, workers_of

logger = logging.getLogger(__name__)

SOURCE = "kubernetes"
FIRST_ROUND = 2.0
"""Seconds that the start waits for the first list, so that the first request finds workers."""
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 15.0
"""Seconds before the API is asked again; they double where it fails at once."""
LIVED = 1.0
"""Seconds after which a watch has not failed at once."""
LIST_EVERY = 600.0
"""Seconds after which there is another list, so that nothing that went wrong stays so."""


class KubernetesWorkers:
    def __init__(
        self, config: KubernetesConfig, membership: Membership, fleet: Fleet, account: Account | None = None
    ) -> None:
        """Raises OSError and ValueError where this is no pod of a cluster, and no API is named either."""
        self.discovered = 0
        """Workers among the pods."""
        self.failures = 0
        """Lists and watches that failed. Now and then a watch breaks off, or is too old: that is none yet."""
        self._config = config
        self._membership = membership
        self._fleet = fleet
        account = account or find_account(config)
        self._where = f"namespace {account.namespace}"
        self._api = PodApi(account, config.selector)
        self._pods: dict[str, Pod] = {}
        """By uid: names and addresses are used again."""
        self._version: str | None = None
        """Up to which all is known; None: nothing is."""
        self._list_at = 0.0
        self._workers: list[WorkerSpec] | None = None
        """As the membership was told last; None: not yet."""
        self._failure: Failed | None = None
        """What is wrong, and has been said."""
        self._began: float | None = None
        """When this round's watch did."""
        self._heard = False
        self._broke_off = False
        """Whether the last round did, without a watch worth its name."""
        self._tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._say()

    @property
    def complaint(self) -> str | None:
        """Why it names no worker; None where it names any."""
        if self._workers:
            return None
        if self._workers is None:
            why = f": {self._failure}" if self._failure is not None else ""
            return f"the pods of {self._where} are not known yet{why}"
        matching = f"matches the selector {self._config.selector}"
        if not self._pods:
            return f"no pod in {self._where} {matching}"
        return f"no pod in {self._where} that {matching} runs and has an address"

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run())
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_ROUND):
                await self._tried.wait()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._api.close()

    async def _run(self) -> None:
        clock, failed_at_once = asyncio.get_running_loop().time, 0
        while True:
            wait, self._began, self._heard = 0.0, None, False
            try:
                await self._round(clock())
            except Failed as failure:
                wait = failure.retry_after
                if isinstance(failure, Lost):
                    self._version = None
                self._note(failure, lived=self._lived(clock()))
            else:
                self._broke_off = False
                self._works()
            self._tried.set()
            failed_at_once = 0 if self._lived(clock()) else min(failed_at_once + 1, 10)
            pause = min(FIRST_PAUSE * 2**failed_at_once, LONGEST_PAUSE)
            # Jitter, so that many routers do not ask in step.
            await asyncio.sleep(wait + pause * random.uniform(0.5, 1.0))

    def _lived(self, now: float) -> bool:
        """Whether there was a watch worth its name."""
        return self._heard or (self._began is not None and now - self._began >= LIVED)

    async def _round(self, now: float) -> None:
        """A list where one is due, and a watch to its end."""
        if self._version is None:
            await self._list(now)
        elif now >= self._list_at:
            try:
                await self._list(now)
            except Failed as failure:  # the watch goes on without it
                self._note(failure, lived=False)
        assert self._version is not None, "a list has one"
        await self._api.watch(self._version, self._hear)

    async def _list(self, now: float) -> None:
        listed = await self._api.list()
        self._pods = {pod.uid: pod for pod in map(self._read, listed.items)}
        self._version = listed.version
        self._list_at = now + LIST_EVERY * random.uniform(0.8, 1.2)
        self._apply()
        self._tried.set()

    def _hear(self, events: Iterable[Event]) -> None:
        if self._began is None:
            self._began = asyncio.get_running_loop().time()
            # That it answers does not yet say that it can be read, nor that it goes on.
            if type(self._failure) not in (Lost, Broke):
                self._works()
        try:
            for event in events:
                self._take(event)
                self._heard = True
        finally:
            self._apply()
        if self._heard:
            self._works()

    def _take(self, event: Event) -> None:
        match event.kind:
            case "ADDED" | "MODIFIED":
                pod = self._read(event.item)
                if pod.uid in self._pods or len(self._pods) < MAX_PODS:
                    self._pods[pod.uid] = pod
            case "DELETED":
                self._pods.pop(self._read(event.item).uid, None)
        self._version = version_after(event)

    def _read(self, item: object) -> Pod:
        try:
            return read_pod(item, self._config)
        except ValueError as error:
            raise Lost(str(error)) from None

    def _apply(self) -> None:
        workers = workers_of(self._pods.values(), {spec.identity for spec in self._workers or ()})
        if workers != self._workers:
            self._workers, self.discovered = workers, len(workers)
            self._membership.apply(SOURCE, workers)
        self._say()

    def _note(self, failure: Failed, *, lived: bool) -> None:
        """`lived`: whether there was a watch worth its name before."""
        if isinstance(failure, Expired | Broke):
            again, self._broke_off = self._broke_off, not lived
            if lived or not again:
                logger.debug("pods of %s: %s", self._where, failure)  # happens in each cluster now and then
                return
        self.failures += 1
        if str(failure) != str(self._failure):
            logger.warning("pods of %s: %s; workers known so far stay", self._where, failure)
        self._failure = failure
        self._say()

    def _works(self) -> None:
        if self._failure is not None:
            logger.info("pods of %s: the API answers again", self._where)
        self._failure = None

    def _say(self) -> None:
        """What is answered where there is no worker at all."""
        complaint = self.complaint
        if complaint != self._fleet.why_empty:
            self._fleet.why_empty = complaint
            if complaint is not None and self._workers is not None:
                logger.warning("%s", complaint)
