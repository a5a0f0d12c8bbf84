"""Verification of intent (WebSub §5.3): nobody subscribes a callback that is not theirs.

Theory of operation. Each request gets its own random challenge, which lives only in the task
that checks it: it is used once, and a restart forgets it. Of the requests for one topic and
callback, one is verified at a time, and the newest waits for it; what stood between is passed
over. So the last request wins, and a stranger's, which is never confirmed, cannot keep the
subscriber's own from being so.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Callable

from msgspec import Struct

from rsnotify.format.datetimes import Instant
from rsnotify_hub.config.configuration import WebSubConfig
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.subscriptions import granted_lease, subscribed
from rsnotify_hub.urls import host_of
from rsnotify_hub.websub.asking import Questions
from rsnotify_hub.websub.channel import WebSubChannel
from rsnotify_hub.websub.forms import Intent, denial_url, verification_url
from rsnotify_hub.websub.room import Held, Room

log = logging.getLogger("rsnotify.hub.websub")


class _Request(Struct, frozen=True):
    """One request: what is asked for, who asks, why it is denied, if it is; and the room it has."""

    intent: Intent
    client: str
    denial: str | None
    held: Held


class _Pending:
    """The request of one topic and callback that is under way, and the one that comes next."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task
        self.next: _Request | None = None


class Verification:
    """Verifies intents, and then does what was intended.

    Args:
        channel: Keeps the subscriptions.
        topics: The logs; a new subscription begins at the end of one.
        questions: Asks the callbacks.
        configuration: The settings of leases, and how many subscriptions there may be.
        clock: Tells the current instant.
    """

    def __init__(
        self,
        channel: WebSubChannel,
        topics: TopicLogs,
        questions: Questions,
        configuration: WebSubConfig,
        clock: Callable[[], Instant],
    ) -> None:
        self._channel = channel
        self._topics = topics
        self._questions = questions
        self._configuration = configuration
        self._clock = clock
        self._room = Room(channel.register, configuration)
        self._pending: dict[tuple[str, str], _Pending] = {}

    def refusal(self, intent: Intent, client: str) -> str | None:
        """Say why there is no room for a request; None when there is (`Room.refusal`)."""
        return self._room.refusal(intent, client)

    def verify(self, intent: Intent, client: str) -> None:
        """Begin to verify an intent; returns at once.

        Args:
            intent: What is asked for.
            client: Who asks, for their share of the room.
        """
        self._take(intent, client, None)

    def deny(self, intent: Intent, client: str, reason: str) -> None:
        """Tell a callback that its subscription is denied (WebSub §5.2); returns at once."""
        self._take(intent, client, reason)

    def _take(self, intent: Intent, client: str, denial: str | None) -> None:
        request = _Request(intent, client, denial, self._room.take(intent, client))
        key = (intent.topic, intent.callback)
        pending = self._pending.get(key)
        if pending is None:
            self._begin(key, request)
        else:
            passed_over, pending.next = pending.next, request
            if passed_over is not None:
                self._room.leave(passed_over.held)

    def _begin(self, key: tuple[str, str], request: _Request) -> None:
        task = asyncio.create_task(self._settle(request))
        self._pending[key] = _Pending(task)
        task.add_done_callback(lambda done: self._settled(key, request, done))

    def _settled(self, key: tuple[str, str], request: _Request, task: asyncio.Task[None]) -> None:
        self._room.leave(request.held)
        pending = self._pending.pop(key)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.error("a subscription of %s could not be changed", key[0], exc_info=error)
        if pending.next is not None:
            self._begin(key, pending.next)

    async def _settle(self, request: _Request) -> None:
        intent = request.intent
        if request.denial is not None:
            url = denial_url(intent.topic, intent.callback, reason=request.denial)
            await self._questions.ask(url, limit=0)
        elif intent.mode == "subscribe":
            await self._subscribe(intent, request.client)
        elif await self._confirms(intent, lease=0):
            await self._channel.remove(intent.topic, intent.callback)

    async def _subscribe(self, intent: Intent, client: str) -> None:
        lease = granted_lease(
            intent.lease,
            default=self._configuration.lease_seconds,
            minimum=self._configuration.min_lease_seconds,
            maximum=self._configuration.max_lease_seconds,
        )
        asked = self._clock()
        if not await self._confirms(intent, lease=lease):
            return
        await self._channel.put(
            subscribed(
                self._channel.find(intent.topic, intent.callback),
                topic=intent.topic,
                callback=intent.callback,
                secret=intent.secret,
                lease=lease,
                now=asked,
                position=self._topics.position(intent.topic),
                client=client,
            )
        )

    async def _confirms(self, intent: Intent, *, lease: int) -> bool:
        challenge = secrets.token_urlsafe(32)
        url = verification_url(intent, challenge=challenge, lease=lease)
        answer = await self._questions.ask(url, limit=len(challenge))
        if answer.succeeded and hmac.compare_digest(answer.excerpt, challenge.encode()):
            return True
        log.warning(
            "the callback at %s did not confirm its %s of %s: it %s",
            host_of(intent.callback),
            intent.mode,
            intent.topic,
            "answers something else" if answer.succeeded else answer.reason,
        )
        return False

    async def close(self) -> None:
        """Give up what is pending; the subscribers will ask again."""
        tasks = [pending.task for pending in self._pending.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
