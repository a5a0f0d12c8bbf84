"""What an admin may see, without HTTP: questions in, shapes out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from rsnotify.format.datetimes import Instant
from rsnotify_hub.admin import shapes, views
from rsnotify_hub.admin.paging import SUBSCRIPTIONS, TOPICS, cut
from rsnotify_hub.admin.questions import (
    PageQuery,
    SubscriptionOrder,
    SubscriptionQuery,
    TopicQuery,
)
from rsnotify_hub.admin.rates import Rates
from rsnotify_hub.log.store import LogState, Waiting
from rsnotify_hub.log.topics import Topics
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.websocket.handler import WebSocketHandler
from rsnotify_hub.websocket.subscribers import WebSocketChannel
from rsnotify_hub.websub.channel import WebSubChannel
from rsnotify_hub.websub.delivery.delivery import Delivery, DeliveryState

_UP_TO_DATE = Waiting(0, None)


class Reports:
    """Looks into the hub.

    Args:
        topics: The logs.
        live: The subscribers over WebSocket.
        websockets: All open WebSockets.
        callbacks: The WebSub subscriptions.
        statistics: What the hub has done.
        rates: How fast topics change.
        version: The version of the hub.
        clock: Tells the current instant.
    """

    def __init__(
        self,
        topics: Topics,
        live: WebSocketChannel,
        websockets: WebSocketHandler,
        callbacks: WebSubChannel,
        statistics: Statistics,
        rates: Rates,
        *,
        version: str,
        clock: Callable[[], Instant],
    ) -> None:
        self._topics = topics
        self._live = live
        self._websockets = websockets
        self._callbacks = callbacks
        self._statistics = statistics
        self._rates = rates
        self._version = version
        self._clock = clock
        self._started = clock()

    async def status(self) -> shapes.Status:
        """Tell of the hub as a whole."""
        states = self._topics.states()
        standing = Counter(each.state for each in self._callbacks.all())
        return shapes.Status(
            version=self._version,
            started=self._started,
            now=self._clock(),
            topics=len(states),
            subscriptions=standing.total(),
            states={state: standing[state] for state in DeliveryState},
            websockets=self._websockets.count(),
            accepted=self._statistics.accepted,
            accepted_bytes=self._statistics.accepted_bytes,
            deliveries=views.deliveries(self._statistics),
            log_bytes=sum(state.size for state in states),
        )

    async def topics(self, query: TopicQuery) -> shapes.Topics:
        """Tell of a page of topics.

        Raises:
            Refusal: There is no such page.
        """
        page = cut(self._chosen(query), TOPICS[query.sort], query)
        rows = (
            views.topic(
                state,
                rate=self._rates.rate(state.topic),
                websockets=self._live.subscribers(state.topic),
                subscriptions=self._callbacks.subscribers(state.topic),
            )
            for state in page.rows
        )
        return shapes.Topics(tuple(rows), page.total, page.next)

    def _chosen(self, query: TopicQuery) -> list[LogState]:
        if query.topic is None:
            return self._topics.states()
        state = self._topics.state(query.topic)
        return [] if state is None else [state]

    async def subscriptions(self, query: SubscriptionQuery) -> shapes.Subscriptions:
        """Tell of a page of subscriptions.

        Raises:
            Refusal: There is no such page.
            StorageError: The log cannot be read.
        """
        wanted = (
            each
            for each in self._callbacks.all()
            if query.topic in (None, each.subscription.topic) and query.state in (None, each.state)
        )
        page = cut(wanted, SUBSCRIPTIONS[query.sort], query)
        return shapes.Subscriptions(await self.tell(page.rows), page.total, page.next)

    async def tell(self, deliveries: Sequence[Delivery]) -> tuple[shapes.Subscription, ...]:
        """Tell of some subscriptions.

        Raises:
            StorageError: The log cannot be read.
        """
        waiting, now = await self._waiting(deliveries), self._clock()
        return tuple(views.subscription(each, waiting[each.id], now) for each in deliveries)

    async def failures(self) -> shapes.Failures:
        """Tell of the last failures, newest first."""
        rows = (views.failure(*each) for each in reversed(self._callbacks.recent_failures))
        return shapes.Failures(tuple(rows))

    async def dead_letters(self, query: PageQuery) -> shapes.DeadLetters:
        """Tell of a page of subscriptions that were given up.

        Raises:
            Refusal: There is no such page.
            StorageError: The log cannot be read.
        """
        given_up = (each for each in self._callbacks.all() if each.state is DeliveryState.GIVEN_UP)
        page = cut(given_up, SUBSCRIPTIONS[SubscriptionOrder.TOPIC], query)
        waiting = await self._waiting(page.rows)
        rows = (
            views.dead_letter(each, waiting[each.id], self._through(each)) for each in page.rows
        )
        return shapes.DeadLetters(tuple(rows), page.total, page.next)

    async def _waiting(self, deliveries: Sequence[Delivery]) -> dict[str, Waiting]:
        """Return what waits for each subscription, with one look into each log."""
        found: dict[str, Waiting] = {}
        behind: dict[str, list[Delivery]] = defaultdict(list)
        for each in deliveries:
            found[each.id] = _UP_TO_DATE
            if each.subscription.position < self._topics.position(each.subscription.topic):
                behind[each.subscription.topic].append(each)
        for topic, group in behind.items():
            positions = [each.subscription.position for each in group]
            waiting = await self._topics.waiting(topic, positions)
            found |= zip((each.id for each in group), waiting, strict=True)
        return found

    def _through(self, delivery: Delivery) -> Instant | None:
        state = self._topics.state(delivery.subscription.topic)
        return state.through if state else None
