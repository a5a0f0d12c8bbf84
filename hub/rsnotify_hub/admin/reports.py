"""The state of the hub for admins, without HTTP: status, history, rates, and pages of rows.

The history of the last day (`DayHistory`) is in memory, and each minute replaces a file in the data
folder, if there is one. That file is not flushed: no delivery waits for it, and a crash of the
machine may lose it.

Rows may change while a client reads page after page. A page begins after the key of the last row of
the page before. So a row whose key does not change is on exactly one page, whatever happens to the
others.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from heapq import nlargest, nsmallest
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from rsnotify.format.datetimes import Instant
from rsnotify_hub.admin import schemas, views
from rsnotify_hub.admin.schemas import (
    HistoryInfo,
    MinuteInfo,
    PageQuery,
    SubscriptionOrder,
    SubscriptionQuery,
    TopicOrder,
    TopicQuery,
)
from rsnotify_hub.admin.views import HubReadings
from rsnotify_hub.live.subscribers import LiveChannel
from rsnotify_hub.log.topic_log import DeliveryChannel, TopicLogs
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.statistics import DeliveryOutcome, DeliveryTransport
from rsnotify_hub.store.interface import Backlog, LogEntry, LogState
from rsnotify_hub.store.nodes import HubNodes, NodeCall, SingleNode
from rsnotify_hub.subscriptions import DeliveryState
from rsnotify_hub.websub.channel import WebSubChannel
from rsnotify_hub.websub.delivery import Delivery
from rsnotify_hub.websub.sender import RECENT_FAILURES

log = logging.getLogger("rsnotify.hub")

#: The minutes of a day.
MINUTES = 24 * 60

_NOTHING = (0,) * len(MinuteInfo.__struct_fields__)


class DayHistory:
    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._minutes = deque(_read(file) if file else (), maxlen=MINUTES)
        self._before = (0, 0, 0)

    def info(self) -> HistoryInfo:
        return HistoryInfo(tuple(self._minutes))

    def add(self, readings: HubReadings, now: Instant) -> None:
        """Add what happened since the last call to the present minute."""
        minute, minutes = int(now.timestamp()) // 60, self._minutes
        totals = _totals(readings)
        accepted, delivered, failed = (
            new - old for new, old in zip(totals, self._before, strict=True)
        )
        self._before = totals
        while minutes and minutes[-1].minute >= minute:  # the clock may have been set back
            last = minutes.pop()
            if last.minute == minute:
                accepted += last.accepted
                delivered += last.delivered
                failed += last.failed
        while minutes and minutes[0].minute <= minute - MINUTES:
            minutes.popleft()
        states = readings.subscriptions
        subscribers = readings.websockets + readings.event_streams + sum(states.values())
        troubled = states.get(DeliveryState.RETRYING, 0) + states.get(DeliveryState.GIVEN_UP, 0)
        minutes.append(MinuteInfo(minute, accepted, delivered, failed, subscribers, troubled))

    async def save(self) -> None:
        if self._file is not None:
            await asyncio.to_thread(_write, self._file, msgspec.json.encode(self.info()))


def _totals(readings: HubReadings) -> tuple[int, int, int]:
    counts = readings.statistics.deliveries
    delivered = sum(
        count
        for (way, outcome), count in counts.items()
        if outcome is DeliveryOutcome.DELIVERED and way != DeliveryTransport.DASHBOARD
    )
    failed = counts[DeliveryTransport.WEBSUB, DeliveryOutcome.FAILED]
    return readings.statistics.accepted, delivered, failed


def joined(parts: Iterable[HistoryInfo]) -> HistoryInfo:
    """Return the history of a hub from those of its nodes."""
    found: dict[int, Sequence[int]] = {}
    for part in parts:
        for each in part.minutes:
            before = found.get(each.minute, _NOTHING)
            found[each.minute] = [sum(pair) for pair in zip(before, astuple(each), strict=True)]
    rows = ([minute, *found[minute][1:]] for minute in sorted(found))
    return HistoryInfo(tuple(msgspec.convert(row, MinuteInfo) for row in rows))


def _read(file: Path) -> tuple[MinuteInfo, ...]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=HistoryInfo).minutes
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        log.warning("the history of the last day cannot be read, and begins again: %s", error)
        return ()


def _write(file: Path, content: bytes) -> None:
    new = file.with_suffix(".new")
    try:
        new.write_bytes(content)
        os.replace(new, file)
    except OSError as error:
        log.warning("the history of the last day cannot be stored now: %s", error)


#: The seconds that a rate is measured over.
WINDOW_SECONDS = 10


class TopicRates(DeliveryChannel):
    """Counts the fragments per second of topics that changed recently."""

    def __init__(self, clock: Callable[[], Instant]) -> None:
        self._clock = clock
        self._counts: dict[str, deque[list[int]]] = {}

    def deliver(self, topic: str, entries: Sequence[LogEntry]) -> None:
        second = self._second()
        self._forget(before=second - WINDOW_SECONDS)
        counts = self._counts.pop(topic, None) or deque(maxlen=WINDOW_SECONDS + 1)
        self._counts[topic] = counts  # the topic that changed last is the last
        if counts and counts[-1][0] == second:
            counts[-1][1] += len(entries)
        else:
            counts.append([second, len(entries)])

    def rate(self, topic: str) -> float:
        since = self._second() - WINDOW_SECONDS
        counts = self._counts.get(topic, ())
        return sum(count for second, count in counts if second > since) / WINDOW_SECONDS

    def __len__(self) -> int:
        return len(self._counts)

    def _forget(self, *, before: int) -> None:
        while self._counts:
            topic, counts = next(iter(self._counts.items()))
            if counts[-1][0] > before:
                return
            del self._counts[topic]

    def _second(self) -> int:
        return int(self._clock().timestamp())


T = TypeVar("T")
U = TypeVar("U")

_STATE_ORDER = {
    DeliveryState.GIVEN_UP: 0,
    DeliveryState.RETRYING: 1,
    DeliveryState.SUSPENDED: 2,
    DeliveryState.ACTIVE: 3,
}
_NEVER = datetime.max.replace(tzinfo=UTC)


class RowOrder(Struct, Generic[T], frozen=True):
    """An order of rows, by a unique key of the given type."""

    key: Callable[[T], tuple[Any, ...]]
    type: Any
    descending: bool = False


TOPICS: dict[TopicOrder, RowOrder[LogState]] = {
    TopicOrder.TOPIC: RowOrder(lambda log: (log.topic,), tuple[str]),
    TopicOrder.RECEIVED: RowOrder(
        lambda log: (log.received, log.topic), tuple[datetime, str], descending=True
    ),
}
# The instant and not the lag, which would differ on the next page.
SUBSCRIPTIONS: dict[SubscriptionOrder, RowOrder[Delivery]] = {
    SubscriptionOrder.TOPIC: RowOrder(
        lambda each: (each.subscription.topic, each.id), tuple[str, str]
    ),
    SubscriptionOrder.TROUBLE: RowOrder(
        lambda each: (_STATE_ORDER[each.state], each.behind_since or _NEVER, each.id),
        tuple[int, datetime, str],
    ),
}


class RowPage(Struct, Generic[T], frozen=True):
    """A page; `total` counts the rows on all pages, and `next` is the `after` of the next page."""

    rows: list[T]
    total: int
    next: str | None


class PagePart(Struct, Generic[T], frozen=True):
    """What one node has of a page: its first rows with their keys, and the number of all."""

    rows: list[tuple[str, T]]
    total: int


def part_of(
    keys: Iterable[U], rows: Iterable[T], page: RowPage[U], order: RowOrder[U]
) -> PagePart[T]:
    """Return the part of a page of what was found, as other rows."""
    keyed = [(_encode(order.key(key)), row) for key, row in zip(keys, rows, strict=True)]
    return PagePart(keyed, page.total)


def merged_page(parts: Iterable[PagePart[T]], order: RowOrder[Any], limit: int) -> RowPage[T]:
    """Return a page of the parts of all nodes, which were made with one row more than the page."""
    parts = list(parts)
    rows = [
        (msgspec.json.decode(key, type=order.type), row) for part in parts for key, row in part.rows
    ]
    rows.sort(key=lambda pair: pair[0], reverse=order.descending)
    following = _encode(rows[limit - 1][0]) if len(rows) > limit else None
    page = [row for _, row in rows[:limit]]
    return RowPage(page, sum(part.total for part in parts), following)


def page_of(
    rows: Iterable[T], order: RowOrder[T], query: PageQuery, *, more: int = 0
) -> RowPage[T]:
    """Return a page of rows, with some more than the query wants."""
    limit = query.limit + more
    keyed = [(order.key(row), row) for row in rows]
    first = nlargest if order.descending else nsmallest
    found = first(limit + 1, _after(keyed, order, query.after))
    page = found[:limit]
    following = _encode(page[-1][0]) if len(found) > len(page) else None
    return RowPage([row for _, row in page], len(keyed), following)


def _after(
    keyed: list[tuple[tuple[Any, ...], T]], order: RowOrder[T], after: str
) -> list[tuple[tuple[Any, ...], T]]:
    if not after:
        return keyed
    try:
        key = msgspec.json.decode(after, type=order.type)
    except (msgspec.DecodeError, UnicodeError):
        raise Refusal(Code.BAD_REQUEST, "after is not the next of a page in this order") from None
    if order.descending:
        return [pair for pair in keyed if pair[0] < key]
    return [pair for pair in keyed if pair[0] > key]


def _encode(key: tuple[Any, ...]) -> str:
    return msgspec.json.encode(key).decode()


_NO_BACKLOG = Backlog(0, None)

#: What other nodes have: their own numbers, and the subscribers of some topics.
STATUS_PART: NodeCall[None, schemas.StatusInfo] = NodeCall("admin.status", None, schemas.StatusInfo)
HISTORY_PART: NodeCall[None, schemas.HistoryInfo] = NodeCall(
    "admin.history", None, schemas.HistoryInfo
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

    async def status(self) -> schemas.StatusInfo:
        others = await self.nodes.ask_others(STATUS_PART, None)
        return views.status_of_all(await self._status(None), others)

    async def _status(self, _: None) -> schemas.StatusInfo:
        return views.status(self.readings(), started=self.started, now=self.clock())

    async def minutes(self) -> schemas.HistoryInfo:
        others = await self.nodes.ask_others(HISTORY_PART, None)
        return joined([await self._minutes(None), *others])

    async def _minutes(self, _: None) -> schemas.HistoryInfo:
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
        is_id = re.fullmatch(schemas.FIRST_DIGITS, text) is not None
        silent = views.silent_sources(states, self.clock()) if query.silent else ()
        return [
            state
            for state in states
            if (
                text in state.topic.lower()
                or (is_id and views.topic_id(state.topic).startswith(text))
            )
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
            backlogs = await self.logs.store.backlogs(topic, positions)
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
