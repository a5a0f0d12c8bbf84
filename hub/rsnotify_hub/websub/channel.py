"""WebSub callbacks: a channel that delivers to each subscription from its place in the log.

It knows who is subscribed and how each stands; `ledger` keeps that, and `sender` delivers.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from rsnotify.errors import StorageError
from rsnotify.format.datetimes import Instant
from rsnotify_hub.config.configuration import WebSubConfig
from rsnotify_hub.log.store import LogEntry, Store
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.subscriptions import Subscription, is_expired
from rsnotify_hub.websub.asking import Questions
from rsnotify_hub.websub.delivering.callbacks import Callbacks
from rsnotify_hub.websub.delivering.delivery import Delivery, Failure, Trouble
from rsnotify_hub.websub.delivering.sender import Sender
from rsnotify_hub.websub.delivering.turns import Turns
from rsnotify_hub.websub.forms import denial_url
from rsnotify_hub.websub.ledger import Ledger
from rsnotify_hub.websub.register import Register

log = logging.getLogger("rsnotify.hub.websub")


class WebSubChannel:
    """All WebSub subscriptions, and their deliveries.

    Args:
        store: Keeps subscriptions and cursors.
        callbacks: Makes the requests.
        questions: Tells a callback that its subscription was ended.
        configuration: The settings of retries.
        clock: Tells the current instant.
        statistics: Where deliveries are counted.
        turns: Say when each callback may be asked; by default with the usual places.

    Attributes:
        register: Finds subscriptions, and counts them.
    """

    def __init__(
        self,
        store: Store,
        callbacks: Callbacks,
        questions: Questions,
        configuration: WebSubConfig,
        clock: Callable[[], Instant],
        statistics: Statistics,
        turns: Turns | None = None,
    ) -> None:
        self.register = Register()
        self._ledger = Ledger(store, self.register)
        self._questions = questions
        self._clock = clock
        self._topics: TopicLogs | None = None
        self._sender = Sender(
            callbacks,
            configuration,
            clock,
            statistics,
            move=self._ledger.move,
            note=self._ledger.note_trouble,
            end=self._end,
            turns=turns or Turns(configuration.callback_seconds),
        )

    @property
    def recent_failures(self) -> deque[tuple[str, str, str, Failure]]:
        """Return the newest failures: the delivery's id, topic, host, and what failed."""
        return self._sender.failures.recent

    def start(
        self,
        topics: TopicLogs,
        subscriptions: Iterable[Subscription],
        troubles: Mapping[tuple[str, str], bytes],
    ) -> None:
        """Go on with stored subscriptions: deliver what they lack, retry what failed.

        Args:
            topics: The logs, whose channel this is.
            subscriptions: What `Store.subscriptions` returned.
            troubles: What `Store.troubles` returned.
        """
        self._topics = topics
        self._sender.start(topics)
        for subscription in subscriptions:
            delivery = Delivery(subscription)
            self.register.add(delivery)
            trouble = troubles.get((subscription.topic, subscription.callback))
            # A success may have been stored without the end of the trouble before it.
            if trouble is not None and self._sender.lags(delivery):
                delivery.restore(msgspec.msgpack.decode(trouble, type=Trouble))
            self._sender.wake(delivery)
        self._sender.failures.restore(self.all())

    def find(self, topic: str, callback: str) -> Subscription | None:
        """Return a subscription as it stands now."""
        delivery = self.register.find(topic, callback)
        return delivery.subscription if delivery else None

    def all(self) -> list[Delivery]:
        """Return how every subscription stands."""
        return self.register.all()

    def get(self, id: str) -> Delivery | None:
        """Return how the subscription of an id stands; None when there is none."""
        return self.register.get(id)

    def subscribers(self, topic: str) -> int:
        """Count the subscriptions of a topic."""
        return len(self.register.of(topic))

    def waiting(self) -> int:
        """Count the deliveries that wait for a connection."""
        return self._sender.waiting()

    async def put(self, subscription: Subscription) -> None:
        """Keep a confirmed subscription, new or renewed.

        Raises:
            StorageError: It could not be kept, and nothing has changed.
        """
        self._sender.encourage(await self._ledger.put(subscription))

    async def remove(self, topic: str, callback: str) -> None:
        """End a subscription, if there is one.

        Raises:
            StorageError: It could not be forgotten, and goes on.
        """
        delivery = self.register.find(topic, callback)
        if delivery is not None:
            await self._remove(delivery)

    async def _remove(self, delivery: Delivery, *, lease: Instant | None = None) -> bool:
        ended = await self._ledger.end(delivery, lease=lease)
        if ended:
            self._sender.interrupt(delivery)
        return ended

    async def expire(self) -> None:
        """End every subscription whose lease has ended.

        Raises:
            StorageError: The store cannot be written.
        """
        now = self._clock()
        for delivery in self.all():
            subscription = delivery.subscription
            if is_expired(subscription, now):
                log.info("a subscription of %s ends: its lease has ended", subscription.topic)
                await self._remove(delivery, lease=subscription.expires)

    async def redeliver(self, id: str, since: Instant | None = None) -> bool:
        """Try now, whatever failed before; a suspended one goes on to wait.

        Args:
            id: Which subscription.
            since: Deliver again what came after this instant, as far as the log reaches back.

        Returns:
            Whether there is such a subscription.

        Raises:
            StorageError: The log cannot be read, and nothing has changed.
        """
        delivery = self.get(id)
        if delivery is None:
            return False
        position = await self._position_at(delivery.subscription.topic, since)
        if self.get(id) is not delivery:
            return False
        self._sender.interrupt(delivery)
        if position is not None and position < delivery.subscription.position:
            self._ledger.move(delivery, position)
        self._sender.encourage(delivery)
        return True

    async def _position_at(self, topic: str, since: Instant | None) -> int | None:
        assert self._topics is not None
        if since is None:
            return None
        entries = await self._topics.read(topic, after=0, since=since)
        return entries[0].position - 1 if entries else None

    async def suspend(self, id: str) -> bool:
        """Deliver nothing until `resume`; whether there is such a subscription.

        Raises:
            StorageError: It could not be kept, and nothing has changed.
        """
        delivery = self.get(id)
        if delivery is None or not await self._ledger.change(delivery, suspended=True):
            return False
        self._sender.interrupt(delivery)
        self._ledger.note_trouble(delivery)
        return True

    async def resume(self, id: str) -> bool:
        """Deliver again, from where it was; whether there is such a subscription.

        Raises:
            StorageError: It could not be kept, and nothing has changed.
        """
        delivery = self.get(id)
        if delivery is None or not await self._ledger.change(delivery, suspended=False):
            return False
        self._sender.encourage(delivery)
        return True

    async def drop(self, id: str, reason: str) -> bool:
        """End a subscription, and tell its callback that it is denied (WebSub §5.2).

        Args:
            id: Which subscription.
            reason: Why, in words for the subscriber.

        Returns:
            Whether there was such a subscription.

        Raises:
            StorageError: It could not be forgotten, and goes on.
        """
        delivery = self.get(id)
        if delivery is None:
            return False
        topic, callback = delivery.subscription.topic, delivery.subscription.callback
        await self.remove(topic, callback)
        self._questions.tell(denial_url(topic, callback, reason=reason))
        return True

    def deliver(self, topic: str, entries: Sequence[LogEntry]) -> None:
        """Begin to deliver what was appended (`Channel.deliver`)."""
        for delivery in self.register.of(topic):
            self._sender.updated(delivery)

    async def _end(self, delivery: Delivery, reason: str) -> bool:
        subscription = delivery.subscription
        log.info("a subscription of %s ends: %s", subscription.topic, reason)
        try:
            return await self._remove(delivery, lease=subscription.expires)
        except StorageError as error:
            # It stays, and ends at the next try: its lease, or another 410.
            log.warning("a subscription of %s could not be ended: %s", subscription.topic, error)
            return False

    async def close(self) -> None:
        """Stop delivering. What was not delivered is, after the next start."""
        await self._sender.close()
