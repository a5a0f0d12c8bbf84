"""Questions to callbacks, one GET each: whether they want what was asked for, and what was denied.

Theory of operation. Whatever comes in, one request of a stranger makes one GET at most: a
question is put again only where no connection could be made, so that nobody was reached.
"""

from __future__ import annotations

import asyncio
from random import Random

from rsnotify.sync.retry import Retry
from rsnotify_hub.urls import authority_of
from rsnotify_hub.websub.delivery.answers import Answer
from rsnotify_hub.websub.delivery.fair_queue import Capacity
from rsnotify_hub.websub.delivery.requests import CallbackRequests
from rsnotify_hub.websub.delivery.scheduler import DeliveryScheduler
from rsnotify_hub.websub.delivery.turn import DeliverySlot

#: How often a question is put to a callback that no connection can be made to.
TRIES = 3

#: Connections for questions; deliveries have their own.
QUICK = Capacity(100, per_host=20)
SLOW = Capacity(50, per_host=5)

_UNASKED = Answer(None, "could not be asked")


class IntentRequests:
    """Asks callbacks.

    Args:
        callbacks: Makes the requests.
        retry: The waits between tries.
        seconds: How long one request may take.
    """

    def __init__(self, callbacks: CallbackRequests, retry: Retry, seconds: float) -> None:
        self._callbacks = callbacks
        self._retry = retry
        self._random = Random()
        self._turns = DeliveryScheduler(seconds, quick=QUICK, slow=SLOW)
        self._telling: set[asyncio.Task[Answer]] = set()

    async def ask(self, url: str, *, limit: int) -> Answer:
        """Put a question, when its turn comes (`CallbackRequests.ask`)."""
        answer = await self._ask_once(url, limit, slow=False)
        for failures in range(1, TRIES):
            if answer.reached:
                break
            await asyncio.sleep(self._retry.delay(failures, self._random))
            answer = await self._ask_once(url, limit, slow=True)
        return answer

    def tell(self, url: str) -> None:
        """Let a callback know, whatever it answers; returns at once."""
        task = asyncio.create_task(self.ask(url, limit=0))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _ask_once(self, url: str, limit: int, *, slow: bool) -> Answer:
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        async def work(turn: DeliverySlot) -> None:
            answer = _UNASKED
            try:
                answer = await turn.within(self._callbacks.ask(url, limit=limit))
            finally:  # whatever happens, nobody waits for ever
                if not answered.done():
                    answered.set_result(answer)

        turn = self._turns.take(authority_of(url), work, slow=slow)
        try:
            return await answered
        finally:
            self._turns.cancel(turn)

    async def close(self) -> None:
        """Ask nothing more."""
        for task in self._telling:
            task.cancel()
        await asyncio.gather(*self._telling, return_exceptions=True)
        await self._turns.close(0)
