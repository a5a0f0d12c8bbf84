"""GET requests to callbacks: to verify an intent, and to say that a subscription is denied.

Theory of operation. Whatever a stranger sends to the hub, it causes one GET at most: a request is
repeated only if no connection could be opened, so that nobody was reached.
"""

from __future__ import annotations

import asyncio
from random import Random

from rsnotify.runtime.tasks import cancel
from rsnotify.sync.retry import Retry
from rsnotify_hub.urls import authority_of
from rsnotify_hub.websub.delivery.answers import Answer
from rsnotify_hub.websub.delivery.fair_queue import Capacity
from rsnotify_hub.websub.delivery.requests import CallbackRequests
from rsnotify_hub.websub.delivery.scheduler import DeliveryScheduler, DeliverySlot

#: How many attempts are made at a callback to which no connection can be opened.
TRIES = 3

#: The capacity for these requests; deliveries have their own.
QUICK_INTENTS = Capacity(100, per_host=20)
SLOW_INTENTS = Capacity(50, per_host=5)

_NOT_SENT = Answer(None, "could not be requested")


class IntentRequests:
    def __init__(self, requests: CallbackRequests, retry: Retry, seconds: float) -> None:
        self._requests = requests
        self._retry = retry
        self._random = Random()
        self._scheduler = DeliveryScheduler(seconds, quick=QUICK_INTENTS, slow=SLOW_INTENTS)
        self._background: set[asyncio.Task[Answer]] = set()

    async def get(self, url: str, *, limit: int) -> Answer:
        """GET a callback as soon as there is capacity (`CallbackRequests.get`)."""
        answer = await self._get_once(url, limit, slow=False)
        for failures in range(1, TRIES):
            if answer.reached:
                break
            await asyncio.sleep(self._retry.delay(failures, self._random))
            answer = await self._get_once(url, limit, slow=True)
        return answer

    def notify(self, url: str) -> None:
        """GET a callback in the background, whatever it answers."""
        task = asyncio.create_task(self.get(url, limit=0))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _get_once(self, url: str, limit: int, *, slow: bool) -> Answer:
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        async def work(slot: DeliverySlot) -> None:
            answer = _NOT_SENT
            try:
                answer = await slot.limit(self._requests.get(url, limit=limit))
            finally:  # whatever happens, the future must resolve
                if not answered.done():
                    answered.set_result(answer)

        def start(slot: DeliverySlot) -> None:
            self._scheduler.run(slot, work(slot))

        slot = self._scheduler.submit(authority_of(url), start, slow=slow)
        try:
            return await answered
        finally:
            self._scheduler.cancel(slot)

    async def close(self) -> None:
        await cancel(self._background)
        await self._scheduler.close(0)
