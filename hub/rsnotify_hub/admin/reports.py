"""The state of the hub for admins, without HTTP."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rsnotify.format.datetimes import Instant
from rsnotify_hub.admin import schemas, views
from rsnotify_hub.admin.paging import SUBSCRIPTIONS, TOPICS, page_of
from rsnotify_hub.admin.schemas import (
    PageQuery,
    SubscriptionOrder,
    SubscriptionQuery,
    TopicQuery,
)
from rsnotify_hub.admin.topic_rates import TopicRates
from rsnotify_hub.log.store import Backlog, LogState
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.subscriptions import DeliveryState
from rsnotify_hub.websocket.handler import WebSocketHandler
from rsnotify_hub.websocket.subscribers import WebSocketChannel
from rsnotify_hub.websub.channel import WebSubChannel
from rsnotify_hub.websub.delivery.delivery import Delivery

_NO_BACKLOG = Backlog(0, None)


@dataclass(eq=False, repr=False)
class Reports:
    """Reads the state of the hub.

    A page that does not exist raises `Refusal`, a failing store `StorageError`.
    """

    logs: TopicLogs
    live: WebSocketChannel
    websockets: WebSocketHandler
    callbacks: WebSubChannel
    statistics: Statistics
    rates: TopicRates
    version: str
    clock: Callable[[], Instant]

    def __post_init__(self) -> None:
        self._started = self.clock()

    async def status(self) -> schemas.StatusInfo:
        states = self.logs.states()
        counts = Counter(each.state for each in self.callbacks.registry.all())
        return schemas.StatusInfo(
            version=self.version,
            started=self._started,
            now=self.clock(),
            topics=len(states),
            subscriptions=counts.total(),
            states={state: counts[state] for state in DeliveryState},
            websockets=self.websockets.count(),
            accepted=self.statistics.accepted,
            accepted_bytes=self.statistics.accepted_bytes,
            deliveries=views.deliveries(self.statistics),
            log_bytes=sum(state.size for state in states),
        )

    async def topics(self, query: TopicQuery) -> schemas.TopicList:
        page = page_of(self._selected(query), TOPICS[query.sort], query)
        rows = (
            views.topic(
                state,
                rate=self.rates.rate(state.topic),
                websockets=self.live.subscribers(state.topic),
                subscriptions=self.callbacks.subscribers(state.topic),
            )
            for state in page.rows
        )
        return schemas.TopicList(tuple(rows), page.total, page.next)

    def _selected(self, query: TopicQuery) -> list[LogState]:
        if query.topic is None:
            return self.logs.states()
        state = self.logs.state(query.topic)
        return [] if state is None else [state]

    async def subscriptions(self, query: SubscriptionQuery) -> schemas.SubscriptionList:
        selected = (
            each
            for each in self.callbacks.registry.all()
            if query.topic in (None, each.subscription.topic) and query.state in (None, each.state)
        )
        page = page_of(selected, SUBSCRIPTIONS[query.sort], query)
        return schemas.SubscriptionList(await self.describe(page.rows), page.total, page.next)

    async def describe(
        self, deliveries: Sequence[Delivery]
    ) -> tuple[schemas.SubscriptionInfo, ...]:
        backlogs, now = await self._backlogs(deliveries), self.clock()
        return tuple(views.subscription(each, backlogs[each.id], now) for each in deliveries)

    async def failures(self) -> schemas.FailureList:
        rows = (views.failure(*each) for each in reversed(self.callbacks.recent_failures))
        return schemas.FailureList(tuple(rows))

    async def dead_letters(self, query: PageQuery) -> schemas.DeadLetterList:
        given_up = (
            each for each in self.callbacks.registry.all() if each.state is DeliveryState.GIVEN_UP
        )
        page = page_of(given_up, SUBSCRIPTIONS[SubscriptionOrder.TOPIC], query)
        backlogs = await self._backlogs(page.rows)
        rows = (
            views.dead_letter(each, backlogs[each.id], self._through(each)) for each in page.rows
        )
        return schemas.DeadLetterList(tuple(rows), page.total, page.next)

    async def _backlogs(self, deliveries: Sequence[Delivery]) -> dict[str, Backlog]:
        """Return the backlog of each subscription, with one query for each log."""
        found: dict[str, Backlog] = {}
        behind: dict[str, list[Delivery]] = defaultdict(list)
        for each in deliveries:
            found[each.id] = _NO_BACKLOG
            if each.subscription.position < self.logs.position(each.subscription.topic):
                behind[each.subscription.topic].append(each)
        for topic, group in behind.items():
            positions = [each.subscription.position for each in group]
            backlogs = await self.logs.backlogs(topic, positions)
            found |= zip((each.id for each in group), backlogs, strict=True)
        return found

    def _through(self, delivery: Delivery) -> Instant | None:
        state = self.logs.state(delivery.subscription.topic)
        return state.through if state else None
