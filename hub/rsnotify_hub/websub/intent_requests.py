"""The GETs that verify or deny a subscription.

A request from a stranger causes at most one GET that reaches a server: the hub retries only if it
could not connect.
"""

from __future__ import annotations

import asyncio
from random import Random

from rsnotify.runtime.tasks import cancel, settle
from rsnotify.sync.retry import Retry
from rsnotify_hub.urls import authority_of
from rsnotify_hub.websub.callback_requests import Answer, CallbackRequests
from rsnotify_hub.websub.request_scheduler import Capacity, RequestScheduler, RequestSlot

#: The capacity for these requests.
QUICK_INTENTS = Capacity(100, per_host=20)
SLOW_INTENTS = Capacity(50, per_host=5)

#: Maximum number of attempts to verify or deny a subscription, if the hub cannot connect.
MAX_INTENT_ATTEMPTS = 3

_NOT_SENT = Answer(None, "was not contacted because of an internal error")


class IntentRequests:
    def __init__(self, requests: CallbackRequests, retry: Retry, seconds: float) -> None:
        self._requests = requests
        self._retry = retry
        self._random = Random()
        self._scheduler = RequestScheduler(seconds, quick=QUICK_INTENTS, slow=SLOW_INTENTS)
        self._background: set[asyncio.Task[Answer]] = set()

    async def get(self, url: str, *, limit: int) -> Answer:
        """GET a callback as soon as there is capacity (`CallbackRequests.get`)."""
        answer = await self._get_once(url, limit, slow=False)
        for failures in range(1, MAX_INTENT_ATTEMPTS):
            if answer.reached:
                break
            await asyncio.sleep(self._retry.delay(failures, self._random))
            answer = await self._get_once(url, limit, slow=True)
        return answer

    def notify(self, url: str) -> None:
        """GET a callback in the background, and ignore the answer."""
        task = asyncio.create_task(self.get(url, limit=0))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _get_once(self, url: str, limit: int, *, slow: bool) -> Answer:
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        async def work(slot: RequestSlot) -> None:
            answer = _NOT_SENT
            try:
                answer = await slot.limit(self._requests.get(url, limit=limit))
            finally:  # `_get_once` waits for the future
                settle(answered, answer)

        def start(slot: RequestSlot) -> None:
            self._scheduler.run(slot, work(slot))

        slot = self._scheduler.submit(authority_of(url), start, slow=slow)
        try:
            return await answered
        finally:
            self._scheduler.cancel(slot)

    async def close(self) -> None:
        await cancel(self._background)
        await self._scheduler.close(0)
