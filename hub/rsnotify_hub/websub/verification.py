"""Verification of intent (WebSub §5.3): nobody subscribes a callback that is not theirs.

Each request gets its own random challenge, which lives only in the task that checks it: it
is used once, and a restart forgets it. A newer request for the same topic and callback takes
the place of one that is still being verified.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Callable, Coroutine

from rsnotify.datetimes import Instant
from rsnotify_hub.configuration import Configuration
from rsnotify_hub.log.topics import Topics
from rsnotify_hub.subscriptions import granted_lease, subscribed
from rsnotify_hub.websub.callbacks import Callbacks
from rsnotify_hub.websub.delivery import WebSubChannel
from rsnotify_hub.websub.forms import Intent, denial_url, host_of, verification_url

log = logging.getLogger("rsnotify.hub.websub")

#: How many intents are verified at once.
MAX_PENDING = 1000


class Verification:
    """Verifies intents, and then does what was intended.

    Args:
        channel: Keeps the subscriptions.
        topics: The logs; a new subscription begins at the end of one.
        callbacks: Makes the requests.
        configuration: The settings of leases.
        clock: Tells the current instant.
    """

    def __init__(
        self,
        channel: WebSubChannel,
        topics: Topics,
        callbacks: Callbacks,
        configuration: Configuration,
        clock: Callable[[], Instant],
    ) -> None:
        self._channel = channel
        self._topics = topics
        self._callbacks = callbacks
        self._configuration = configuration
        self._clock = clock
        self._pending: dict[tuple[str, str], asyncio.Task[None]] = {}

    def has_room(self, intent: Intent) -> bool:
        """Tell whether the callback's host may have one more subscription or request."""
        if len(self._pending) >= MAX_PENDING:
            return False
        host = host_of(intent.callback)
        pending = sum(host_of(callback) == host for _, callback in self._pending)
        known = self._channel.find(intent.topic, intent.callback) is not None
        count = pending + (0 if known else self._channel.count_host(host))
        return count < self._configuration.subscriptions_per_host

    def verify(self, intent: Intent) -> None:
        """Begin to verify an intent; returns at once."""
        self._begin(intent, self._verify(intent))

    def deny(self, intent: Intent, reason: str) -> None:
        """Tell a callback that its subscription is denied (WebSub §5.2); returns at once."""
        self._begin(intent, self._deny(intent, reason))

    def _begin(self, intent: Intent, work: Coroutine[None, None, None]) -> None:
        key = (intent.topic, intent.callback)
        if (older := self._pending.get(key)) is not None:
            older.cancel()
        task = asyncio.create_task(work)
        self._pending[key] = task
        task.add_done_callback(lambda done: self._finished(key, done))

    def _finished(self, key: tuple[str, str], task: asyncio.Task[None]) -> None:
        if self._pending.get(key) is task:
            del self._pending[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a subscription of %s could not be changed", key[0], exc_info=error)

    async def _verify(self, intent: Intent) -> None:
        lease = granted_lease(
            intent.lease,
            default=self._configuration.lease_seconds,
            maximum=self._configuration.max_lease_seconds,
        )
        if not await self._confirms(intent, lease):
            log.warning(
                "the callback at %s did not confirm its %s of %s",
                host_of(intent.callback),
                intent.mode,
                intent.topic,
            )
        elif intent.mode == "subscribe":
            await self._subscribe(intent, lease)
        else:
            await self._channel.remove(intent.topic, intent.callback)

    async def _confirms(self, intent: Intent, lease: int) -> bool:
        challenge = secrets.token_urlsafe(32)
        url = verification_url(intent, challenge=challenge, lease=lease)
        answer = await self._callbacks.ask(url, limit=len(challenge))
        return answer is not None and hmac.compare_digest(answer, challenge.encode())

    async def _subscribe(self, intent: Intent, lease: int) -> None:
        await self._channel.put(
            subscribed(
                self._channel.find(intent.topic, intent.callback),
                topic=intent.topic,
                callback=intent.callback,
                secret=intent.secret,
                lease=lease,
                now=self._clock(),
                position=self._topics.position(intent.topic),
            )
        )

    async def _deny(self, intent: Intent, reason: str) -> None:
        await self._callbacks.ask(denial_url(intent, reason=reason), limit=0)

    async def close(self) -> None:
        """Give up what is pending; the subscribers will ask again."""
        tasks = list(self._pending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
