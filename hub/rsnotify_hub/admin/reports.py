"""The state of the hub for admins, without HTTP."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rsnotify.format.datetimes import Instant
from rsnotify_hub.admin import schemas, status_schemas, views
from rsnotify_hub.admin.day_history import DayHistory, joined
from rsnotify_hub.admin.paging import (
    SUBSCRIPTIONS,
    TOPICS,
    PagePart,
    merged_page,
    page_of,
    part_of,
)
from rsnotify_hub.admin.readings import HubReadings
from rsnotify_hub.admin.schemas import (
    PageQuery,
    SubscriptionOrder,
    SubscriptionQuery,
    TopicQuery,
)
from rsnotify_hub.admin.topic_rates import TopicRates
from rsnotify_hub.cluster.calls import HubNodes, NodeCall, SingleNode
from rsnotify_hub.live.subscribers import LiveChannel
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.statistics import DeliveryTransport
from rsnotify_hub.store.interface import Backlog, LogState
from rsnotify_hub.subscriptions import DeliveryState
from rsnotify_hub.websub.channel import WebSubChannel
from rsnotify_hub.websub.delivery.delivery import Delivery
from rsnotify_hub.websub.delivery.failures import RECENT_FAILURES

_NO_BACKLOG = Backlog(0, None)

#: What other nodes have: their own numbers, and the subscribers of some topics.
STATUS_PART: NodeCall[None, status_schemas.StatusInfo] = NodeCall(
    "admin.status", None, status_schemas.StatusInfo
)
HISTORY_PART: NodeCall[None, status_schemas.HistoryInfo] = NodeCall(
    "admin.history", None, status_schemas.HistoryInfo
)
SUBSCRIBER_COUNTS: NodeCall[list[str], list[schemas.SubscriberCounts]] = NodeCall(
    "admin.subscribers", list[str], list[schemas.SubscriberCounts]
)
#: So many topics of the greatest length are less than NATS accepts in one message.
_TOPICS_AT_ONCE = 250

#: What each node has of the lists.
SUBSCRIPTION_PART: NodeCall[SubscriptionQuery, PagePart[schemas.SubscriptionInfo]] = NodeCall(
    "admin.subscriptions", SubscriptionQuery, PagePart[schemas.SubscriptionInfo]
)
DEAD_LETTER_PART: NodeCall[PageQuery, PagePart[schemas.DeadLetterInfo]] = NodeCall(
    "admin.dead-letters", PageQuery, PagePart[schemas.DeadLetterInfo]
)
FAILURE_PART: NodeCall[None, schemas.FailureList] = NodeCall(
    "admin.failures", None, schemas.FailureList
)


@dataclass(eq=False, repr=False)
class Reports:
    """Reads the state of the hub.

    A page that does not exist raises `Refusal`, a failing store `StorageError`.
    """

    logs: TopicLogs
    live: LiveChannel
    callbacks: WebSubChannel
    rates: TopicRates
    readings: Callable[[], HubReadings]
    history: DayHistory
    clock: Callable[[], Instant]
    nodes: HubNodes = field(default_factory=SingleNode)

    def __post_init__(self) -> None:
        self.started = self.clock()
        self.nodes.serve(STATUS_PART, self._status)
        self.nodes.serve(HISTORY_PART, self._minutes)
        self.nodes.serve(SUBSCRIBER_COUNTS, self._count_subscribers)
        self.nodes.serve(SUBSCRIPTION_PART, self._subscriptions)
        self.nodes.serve(DEAD_LETTER_PART, self._dead_letters)
        self.nodes.serve(FAILURE_PART, self._failures)

    async def status(self) -> status_schemas.StatusInfo:
        others = await self.nodes.ask_others(STATUS_PART, None)
        return views.status_of_all(await self._status(None), others)

    async def _status(self, _: None) -> status_schemas.StatusInfo:
        return views.status(self.readings(), started=self.started, now=self.clock())

    async def minutes(self) -> status_schemas.HistoryInfo:
        others = await self.nodes.ask_others(HISTORY_PART, None)
        return joined([await self._minutes(None), *others])

    async def _minutes(self, _: None) -> status_schemas.HistoryInfo:
        return self.history.info()

    async def topics(self, query: TopicQuery) -> schemas.TopicList:
        page = page_of(self._selected(query), TOPICS[query.sort], query)
        counts = await self._subscribers([state.topic for state in page.rows])
        silent = views.silent_sources(self.logs.states(), self.clock())
        rows = (
            views.topic(
                state,
                rate=self.rates.rate(state.topic),
                subscribers=subscribers,
                silent=views.source_of(state.topic) in silent,
            )
            for state, subscribers in zip(page.rows, counts, strict=True)
        )
        return schemas.TopicList(tuple(rows), page.total, page.next)

    async def _subscribers(self, topics: list[str]) -> list[schemas.SubscriberCounts]:
        """Return the subscribers of each topic at all nodes that answer."""
        found: list[schemas.SubscriberCounts] = []
        for begin in range(0, len(topics), _TOPICS_AT_ONCE):
            part = topics[begin : begin + _TOPICS_AT_ONCE]
            others = await self.nodes.ask_others(SUBSCRIBER_COUNTS, part)
            counts = [await self._count_subscribers(part), *others]
            found += map(views.total_subscribers, zip(*counts, strict=True))
        return found

    async def _count_subscribers(self, topics: list[str]) -> list[schemas.SubscriberCounts]:
        over = self.live.subscribers_over
        return [
            schemas.SubscriberCounts(
                websockets=over(each, DeliveryTransport.WEBSOCKET),
                event_streams=over(each, DeliveryTransport.SSE),
                subscriptions=self.callbacks.subscribers(each),
            )
            for each in topics
        ]

    def _selected(self, query: TopicQuery) -> list[LogState]:
        if query.topic is not None:
            state = self.logs.state(query.topic)
            return [] if state is None else [state]
        states, text = self.logs.states(), query.search.lower()
        silent = views.silent_sources(states, self.clock()) if query.silent else ()
        return [
            state
            for state in states
            if text in state.topic.lower()
            and (not query.silent or views.source_of(state.topic) in silent)
        ]

    async def subscriptions(self, query: SubscriptionQuery) -> schemas.SubscriptionList:
        """Return a page of subscriptions."""
        parts = await self.nodes.ask_all(SUBSCRIPTION_PART, query)
        page = merged_page(parts, SUBSCRIPTIONS[query.sort], query.limit)
        return schemas.SubscriptionList(tuple(page.rows), page.total, page.next)

    async def _subscriptions(self, query: SubscriptionQuery) -> PagePart[schemas.SubscriptionInfo]:
        selected = (each for each in self.callbacks.registry.all() if _is_selected(each, query))
        order = SUBSCRIPTIONS[query.sort]
        page = page_of(selected, order, query, more=1)
        return part_of(page.rows, await self.describe(page.rows), page, order)

    async def describe(
        self, deliveries: Sequence[Delivery]
    ) -> tuple[schemas.SubscriptionInfo, ...]:
        backlogs, now = await self._backlogs(deliveries), self.clock()
        return tuple(views.subscription(each, backlogs[each.id], now) for each in deliveries)

    async def failures(self) -> schemas.FailureList:
        parts = await self.nodes.ask_all(FAILURE_PART, None)
        rows = (failure for part in parts for failure in part.failures)
        newest = sorted(rows, key=lambda failure: failure.at, reverse=True)
        return schemas.FailureList(tuple(newest[:RECENT_FAILURES]))

    async def _failures(self, _: None) -> schemas.FailureList:
        rows = (views.failure(*each) for each in reversed(self.callbacks.recent_failures))
        return schemas.FailureList(tuple(rows))

    async def dead_letters(self, query: PageQuery) -> schemas.DeadLetterList:
        """Return a page of subscriptions that were given up."""
        parts = await self.nodes.ask_all(DEAD_LETTER_PART, query)
        page = merged_page(parts, SUBSCRIPTIONS[SubscriptionOrder.TOPIC], query.limit)
        return schemas.DeadLetterList(tuple(page.rows), page.total, page.next)

    async def _dead_letters(self, query: PageQuery) -> PagePart[schemas.DeadLetterInfo]:
        given_up = (
            each for each in self.callbacks.registry.all() if each.state is DeliveryState.GIVEN_UP
        )
        order = SUBSCRIPTIONS[SubscriptionOrder.TOPIC]
        page = page_of(given_up, order, query, more=1)
        backlogs = await self._backlogs(page.rows)
        rows = (
            views.dead_letter(each, backlogs[each.id], self._through(each)) for each in page.rows
        )
        return part_of(page.rows, rows, page, order)

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


def _is_selected(delivery: Delivery, query: SubscriptionQuery) -> bool:
    found = delivery.subscription
    if query.topic not in (None, found.topic) or query.state not in (None, delivery.state):
        return False
    if query.trouble and delivery.state not in views.TROUBLED:
        return False
    text = f"{found.topic} {found.callback} {delivery.id}" if query.search else ""
    return query.search.lower() in text.lower()
