"""What an admin may see and do, without HTTP: questions in, shapes out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from rsnotify.datetimes import Instant, parse_datetime
from rsnotify.errors import RsnotifyError
from rsnotify_hub.admin import shapes, views
from rsnotify_hub.admin.paging import cut, subscription_key, topic_key
from rsnotify_hub.admin.rates import Rates
from rsnotify_hub.admin.shapes import PageQuery, SubscriptionOrder
from rsnotify_hub.log.store import LogState, Waiting
from rsnotify_hub.log.topics import Topics
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.websocket.connections import WebSockets
from rsnotify_hub.websocket.subscribers import WebSocketChannel
from rsnotify_hub.websub.channel import WebSubChannel
from rsnotify_hub.websub.delivery import Delivery, State

#: What a subscriber is told whose subscription an admin ends (`hub.reason`).
DROPPED = "an administrator of the hub ended this subscription"
TOPIC_DROPPED = "an administrator of the hub removed this topic"

_UP_TO_DATE = Waiting(0, None)


class NotHere(RsnotifyError):
    """There is no such topic or subscription, or it has ended."""


class Office:
    """Looks into the hub, and acts on it.

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
        websockets: WebSockets,
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
            states={state: standing[state] for state in State},
            websockets=self._websockets.count(),
            accepted=self._statistics.accepted,
            accepted_bytes=self._statistics.accepted_bytes,
            deliveries=views.deliveries(self._statistics),
            log_bytes=sum(state.size for state in states),
        )

    async def topics(self, query: shapes.TopicQuery) -> shapes.Topics:
        """Tell of a page of topics."""
        page = cut(self._chosen(query), topic_key(query.sort), query)
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

    def _chosen(self, query: shapes.TopicQuery) -> list[LogState]:
        if query.topic is None:
            return self._topics.states()
        state = self._topics.state(query.topic)
        return [] if state is None else [state]

    async def subscriptions(self, query: shapes.SubscriptionQuery) -> shapes.Subscriptions:
        """Tell of a page of subscriptions.

        Raises:
            StorageError: The log cannot be read.
        """
        wanted = (
            each
            for each in self._callbacks.all()
            if query.topic in (None, each.subscription.topic) and query.state in (None, each.state)
        )
        page = cut(wanted, subscription_key(query.sort), query)
        return shapes.Subscriptions(await self._tell(page.rows), page.total, page.next)

    async def failures(self) -> shapes.Failures:
        """Tell of the last failures, newest first."""
        rows = (views.failure(*each) for each in reversed(self._callbacks.recent_failures))
        return shapes.Failures(tuple(rows))

    async def dead_letters(self, query: PageQuery) -> shapes.DeadLetters:
        """Tell of a page of subscriptions that were given up.

        Raises:
            StorageError: The log cannot be read.
        """
        given_up = (each for each in self._callbacks.all() if each.state is State.GIVEN_UP)
        page = cut(given_up, subscription_key(SubscriptionOrder.TOPIC), query)
        waiting = await self._waiting(page.rows)
        rows = (
            views.dead_letter(each, waiting[each.id], self._through(each)) for each in page.rows
        )
        return shapes.DeadLetters(tuple(rows), page.total, page.next)

    async def redeliver(self, id: str, what: shapes.Redelivery) -> shapes.Subscription:
        """Deliver now what waits, or again from an instant on.

        Raises:
            NotHere: There is no such subscription.
            Refusal: `since` is not an instant.
            StorageError: It could not be noted, and nothing has changed.
        """
        done = await self._callbacks.redeliver(id, _instant(what.since))
        return await self._after(id, done)

    async def suspend(self, id: str) -> shapes.Subscription:
        """Hold back deliveries until `resume`.

        Raises:
            NotHere: There is no such subscription.
            StorageError: It could not be noted, and nothing has changed.
        """
        return await self._after(id, await self._callbacks.suspend(id))

    async def resume(self, id: str) -> shapes.Subscription:
        """Deliver again after `suspend`, from where it stopped.

        Raises:
            NotHere: There is no such subscription.
            StorageError: It could not be noted, and nothing has changed.
        """
        return await self._after(id, await self._callbacks.resume(id))

    async def drop(self, id: str) -> None:
        """End a subscription; its callback is told why.

        Raises:
            NotHere: There is no such subscription.
            StorageError: It could not be forgotten, and goes on.
        """
        if not await self._callbacks.drop(id, DROPPED):
            raise _no_subscription()

    async def drop_topic(self, id: str) -> None:
        """Forget a topic's log, and end its subscriptions. Who publishes again begins anew.

        Raises:
            NotHere: There is no such topic.
            StorageError: Not all could be forgotten; ask again.
        """
        topics = (state.topic for state in self._topics.states())
        topic = next((each for each in topics if views.topic_id(each) == id), None)
        if topic is None:
            raise NotHere("there is no such topic")
        for each in self._callbacks.all():
            if each.subscription.topic == topic:
                await self._callbacks.drop(each.id, TOPIC_DROPPED)
        await self._topics.delete(topic)

    async def _after(self, id: str, done: bool) -> shapes.Subscription:
        """Tell of a subscription after something was done to it."""
        delivery = self._callbacks.get(id) if done else None
        if delivery is None:
            raise _no_subscription()
        (row,) = await self._tell([delivery])
        return row

    async def _tell(self, deliveries: Sequence[Delivery]) -> tuple[shapes.Subscription, ...]:
        waiting, now = await self._waiting(deliveries), self._clock()
        return tuple(views.subscription(each, waiting[each.id], now) for each in deliveries)

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


def _no_subscription() -> NotHere:
    return NotHere("there is no such subscription")


def _instant(text: str | None) -> Instant | None:
    try:
        return None if text is None else parse_datetime(text)
    except ValueError as error:
        raise Refusal(Code.BAD_REQUEST, f"since: {error}") from None
