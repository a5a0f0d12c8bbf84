"""The state of the hub for admins, without HTTP: status, history, rates, and pages of rows.

Rows may change while a client reads page after page. Each page begins after the key of the previous
page's last row. A row whose key does not change is therefore on exactly one page, regardless of
changes to the other rows.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import nlargest, nsmallest
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from rsnotify.format.datetimes import Instant
from rsnotify_hub.admin import schemas, views
from rsnotify_hub.admin.history import HubHistory, joined
from rsnotify_hub.admin.parts import with_parts
from rsnotify_hub.admin.schemas import (
    ConnectionInfo,
    ConnectionList,
    ConnectionOrder,
    ConnectionQuery,
    ConnectionRoles,
    ConnectionState,
    PageQuery,
    SubscriptionOrder,
    SubscriptionQuery,
    TopicOrder,
    TopicQuery,
)
from rsnotify_hub.admin.views import HubReadings
from rsnotify_hub.delivery_channel import DeliveryChannel
from rsnotify_hub.live.connections import LiveConnection, LiveConnections, TopicRole
from rsnotify_hub.live.subscribers import LiveChannel
from rsnotify_hub.log.topic_log import TopicLogs
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.statistics import DeliveryTransport
from rsnotify_hub.store.interface import Backlog, LogEntry, LogState
from rsnotify_hub.store.nodes import HubNodes, NodeCall
from rsnotify_hub.websub.callback_subscriber import CallbackSubscriber
from rsnotify_hub.websub.retries import RECENT_FAILURES
from rsnotify_hub.websub.websub_channel import WebSubChannel
from rsnotify_hub.websub_subscription import DeliveryState

#: The period over which a rate is measured, in seconds.
WINDOW_SECONDS = 10

#: Number of heartbeats remembered for each Source, and maximum number of Sources remembered.
_HEARTBEATS, _SOURCES = 10, 10_000


class SourcePaces:
    """Learns the heartbeat interval of each Source, and from it, when a Source counts as silent.

    A Source sends a heartbeat whenever it has sent nothing for some interval, which it does not
    announce. The longest pause before any of its last heartbeats is a good estimate.
    """

    def __init__(self) -> None:
        self._last: dict[str, Instant] = {}
        self._before: dict[str, deque[timedelta]] = {}

    def received(self, topic: str, entries: Sequence[LogEntry], now: Instant) -> None:
        source = views.source_of(topic)
        last = self._last.pop(source, None)
        if last is not None and entries[0].fragment.heartbeat:
            self._before.setdefault(source, deque(maxlen=_HEARTBEATS)).append(now - last)
        self._last[source] = now  # moves the Source to the end of the order
        if len(self._last) > _SOURCES:
            oldest = next(iter(self._last))
            del self._last[oldest]
            self._before.pop(oldest, None)

    def silence(self, source: str) -> timedelta:
        """Return the time without a fragment after which the Source counts as silent."""
        before = self._before.get(source)
        if before is None:
            return views.SILENT
        return min(views.SILENT, max(views.SHORTEST_SILENCE, views.PACES * max(before)))


class TopicRates(DeliveryChannel):
    """Counts fragments per second for recently changed topics, and measures the Sources' paces."""

    def __init__(self, clock: Callable[[], Instant]) -> None:
        self._clock = clock
        self._counts: dict[str, deque[list[int]]] = {}
        self.paces = SourcePaces()

    def deliver(self, topic: str, entries: Sequence[LogEntry]) -> None:
        now = self._clock()
        self.paces.received(topic, entries, now)
        second = int(now.timestamp())
        self._forget(before=second - WINDOW_SECONDS)
        counts = self._counts.pop(topic, None) or deque(maxlen=WINDOW_SECONDS + 1)
        self._counts[topic] = counts  # moves the topic to the end of the order
        if counts and counts[-1][0] == second:
            counts[-1][1] += len(entries)
        else:
            counts.append([second, len(entries)])

    def rate(self, topic: str) -> float:
        now = int(self._clock().timestamp())
        counts = self._counts.get(topic, ())
        # A clock that was set back leaves seconds that are later than now.
        recent = (count for second, count in counts if now - WINDOW_SECONDS < second <= now)
        return sum(recent) / WINDOW_SECONDS

    def __len__(self) -> int:
        return len(self._counts)

    def _forget(self, *, before: int) -> None:
        while self._counts:
            topic, counts = next(iter(self._counts.items()))
            if before < counts[-1][0] <= before + WINDOW_SECONDS:
                return
            del self._counts[topic]


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
    """An order of rows by a unique key of the given type."""

    key: Callable[[T], tuple[Any, ...]]
    type: Any
    descending: bool = False


TOPICS: dict[TopicOrder, RowOrder[LogState]] = {
    TopicOrder.TOPIC: RowOrder(lambda log: (log.topic,), tuple[str]),
    TopicOrder.RECEIVED: RowOrder(
        lambda log: (log.received, log.topic), tuple[datetime, str], descending=True
    ),
}
# The keys contain the instant, not the lag, because the lag would differ on the next page.
SUBSCRIPTIONS: dict[SubscriptionOrder, RowOrder[CallbackSubscriber]] = {
    SubscriptionOrder.TOPIC: RowOrder(
        lambda each: (each.subscription.topic, each.id), tuple[str, str]
    ),
    SubscriptionOrder.TROUBLE: RowOrder(
        lambda each: (_STATE_ORDER[each.state], each.behind_since or _NEVER, each.id),
        tuple[int, datetime, str],
    ),
}


class RowPage(Struct, Generic[T], frozen=True):
    """A page. `total` counts the rows on all pages, and `next` is the `after` of the next page."""

    rows: list[T]
    total: int
    next: str | None


class PagePart(Struct, Generic[T], frozen=True):
    """One node's part of a page: its first rows with their keys, and its total number of rows.

    There is up to one row more than the page has, which shows whether another page follows.
    """

    rows: list[tuple[str, T]]
    total: int

    def converted(self, rows: Iterable[U]) -> PagePart[U]:
        """Return this part with the same rows in another form."""
        keyed = [(key, row) for (key, _), row in zip(self.rows, rows, strict=True)]
        return PagePart(keyed, self.total)


def part_of(rows: Iterable[T], order: RowOrder[T], query: PageQuery) -> PagePart[T]:
    keyed = [(order.key(row), row) for row in rows]
    first = nlargest if order.descending else nsmallest
    found = first(query.limit + 1, _after(keyed, order, query.after))
    return PagePart([(_encode(key), row) for key, row in found], len(keyed))


def merged_page(parts: Iterable[PagePart[T]], order: RowOrder[Any], limit: int) -> RowPage[T]:
    """Merge the parts of all nodes into a page."""
    parts = list(parts)
    rows = [
        (msgspec.json.decode(key, type=order.type), row) for part in parts for key, row in part.rows
    ]
    rows.sort(key=lambda pair: pair[0], reverse=order.descending)
    following = _encode(rows[limit - 1][0]) if len(rows) > limit else None
    page = [row for _, row in rows[:limit]]
    return RowPage(page, sum(part.total for part in parts), following)


def page_of(rows: Iterable[T], order: RowOrder[T], query: PageQuery) -> RowPage[T]:
    return merged_page([part_of(rows, order, query)], order, query.limit)


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

#: Calls that return the status and history of another node, and its subscribers to some topics.
STATUS_PART: NodeCall[None, schemas.StatusInfo] = NodeCall("admin.status", None, schemas.StatusInfo)
HISTORY_PART: NodeCall[None, schemas.HistoryInfo] = NodeCall(
    "admin.history", None, schemas.HistoryInfo
)
SUBSCRIBER_COUNTS: NodeCall[list[str], list[schemas.SubscriberCounts]] = NodeCall(
    "admin.subscribers", list[str], list[schemas.SubscriberCounts]
)
#: Maximum number of topics in one call. NATS accepts this many topics of maximum length in one
#: message.
_TOPICS_AT_ONCE = 250

#: Calls that return each node's part of the lists.
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

    Methods raise `Refusal` if a page does not exist, and `StorageError` if the store fails.
    """

    logs: TopicLogs
    live: LiveChannel
    callbacks: WebSubChannel
    rates: TopicRates
    readings: Callable[[], HubReadings]
    history: HubHistory
    clock: Callable[[], Instant]
    nodes: HubNodes

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
        readings = self.readings()
        return with_parts(views.status_of_all(views.status(readings), others), readings)

    async def _status(self, _: None) -> schemas.StatusInfo:
        return views.status(self.readings())

    async def minutes(self) -> schemas.HistoryInfo:
        others = await self.nodes.ask_others(HISTORY_PART, None)
        return joined([await self._minutes(None), *others])

    async def _minutes(self, _: None) -> schemas.HistoryInfo:
        self.history.add(self.readings(), self.clock())  # include the current minute
        return self.history.info()

    async def topics(self, query: TopicQuery) -> schemas.TopicList:
        page = page_of(self._selected(query), TOPICS[query.sort], query)
        counts = await self._subscribers([state.topic for state in page.rows])
        silent = self._silent(self.logs.states())
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
        """Return the number of subscribers to each topic, at all nodes that answer."""
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
        silent = self._silent(states) if query.silent else {}
        return [
            state
            for state in states
            if (
                text in state.topic.lower()
                or (is_id and views.topic_id(state.topic).startswith(text))
            )
            and (not query.silent or views.source_of(state.topic) in silent)
        ]

    def _silent(self, states: Sequence[LogState]) -> dict[str, Instant]:
        return views.silent_sources(states, self.clock(), self.rates.paces.silence)

    async def subscriptions(self, query: SubscriptionQuery) -> schemas.SubscriptionList:
        parts = await self.nodes.ask_all(SUBSCRIPTION_PART, query)
        page = merged_page(parts, SUBSCRIPTIONS[query.sort], query.limit)
        return schemas.SubscriptionList(tuple(page.rows), page.total, page.next)

    async def _subscriptions(self, query: SubscriptionQuery) -> PagePart[schemas.SubscriptionInfo]:
        selected = (each for each in self.callbacks.registry.all() if _is_selected(each, query))
        part = part_of(selected, SUBSCRIPTIONS[query.sort], query)
        return part.converted(await self.describe([delivery for _, delivery in part.rows]))

    async def describe(
        self, deliveries: Sequence[CallbackSubscriber]
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
        parts = await self.nodes.ask_all(DEAD_LETTER_PART, query)
        page = merged_page(parts, SUBSCRIPTIONS[SubscriptionOrder.TOPIC], query.limit)
        return schemas.DeadLetterList(tuple(page.rows), page.total, page.next)

    async def _dead_letters(self, query: PageQuery) -> PagePart[schemas.DeadLetterInfo]:
        given_up = (
            each for each in self.callbacks.registry.all() if each.state is DeliveryState.GIVEN_UP
        )
        part = part_of(given_up, SUBSCRIPTIONS[SubscriptionOrder.TOPIC], query)
        found = [delivery for _, delivery in part.rows]
        backlogs = await self._backlogs(found)
        return part.converted(
            views.dead_letter(each, backlogs[each.id], self._through(each)) for each in found
        )

    async def _backlogs(self, deliveries: Sequence[CallbackSubscriber]) -> dict[str, Backlog]:
        """Return the backlog of each subscription by its id, with one query per log."""
        found: dict[str, Backlog] = {}
        behind: dict[str, list[CallbackSubscriber]] = defaultdict(list)
        for each in deliveries:
            found[each.id] = _NO_BACKLOG
            if each.subscription.position < self.logs.position(each.subscription.topic):
                behind[each.subscription.topic].append(each)
        for topic, group in behind.items():
            positions = [each.subscription.position for each in group]
            backlogs = await self.logs.store.backlogs(topic, positions)
            found |= zip((each.id for each in group), backlogs, strict=True)
        return found

    def _through(self, delivery: CallbackSubscriber) -> Instant | None:
        state = self.logs.state(delivery.subscription.topic)
        return state.through if state else None


def _is_selected(delivery: CallbackSubscriber, query: SubscriptionQuery) -> bool:
    found = delivery.subscription
    if query.topic not in (None, found.topic) or query.state not in (None, delivery.state):
        return False
    if query.trouble and delivery.state not in views.TROUBLED:
        return False
    text = f"{found.topic} {found.callback} {delivery.id}" if query.search else ""
    return query.search.lower() in text.lower()


#: The reason in the close frame. The maximum length is 123 bytes.
CLOSED = "an administrator of the hub closed this connection"

_SHOWN_TOPICS = 10

CONNECTION_PART: NodeCall[ConnectionQuery, PagePart[ConnectionInfo]] = NodeCall(
    "admin.connections", ConnectionQuery, PagePart[ConnectionInfo]
)
DISCONNECT: NodeCall[str, bool | None] = NodeCall("admin.disconnect", str, bool | None)

_RANKS = {state: rank for rank, state in enumerate(ConnectionState)}
_ROLES = {
    (False, False): ConnectionRoles.NONE,
    (True, False): ConnectionRoles.SUBSCRIBER,
    (False, True): ConnectionRoles.PUBLISHER,
    (True, True): ConnectionRoles.BOTH,
}


def _roles(connection: LiveConnection) -> Sequence[TopicRole]:
    return () if connection.role is None else tuple(connection.role.topic_roles())


def _role_of(connection: LiveConnection) -> ConnectionRoles:
    role = connection.role
    return ConnectionRoles.NONE if role is None else _ROLES[role.receives(), role.publishes()]


def _state_of(connection: LiveConnection) -> ConnectionState:
    if connection.paused_at is not None and connection.is_slow(asyncio.get_running_loop().time()):
        return ConnectionState.SLOW
    role = connection.role
    replays = role is not None and role.replays()
    return ConnectionState.REPLAYING if replays else ConnectionState.LIVE


CONNECTIONS: dict[ConnectionOrder, RowOrder[LiveConnection]] = {
    ConnectionOrder.SINCE: RowOrder(
        lambda each: (each.client.since, each.client.id), tuple[datetime, str]
    ),
    ConnectionOrder.TROUBLE: RowOrder(
        lambda each: (_RANKS[_state_of(each)], each.client.since, each.client.id),
        tuple[int, datetime, str],
    ),
}


@dataclass(eq=False, repr=False)
class ConnectionTable:
    """The open WebSockets and event streams of all nodes.

    The readers of a broker are connected to the broker, so the table only names the brokers that
    the hub publishes to, in `brokers`.
    """

    connections: LiveConnections
    logs: TopicLogs
    brokers: tuple[str, ...]
    nodes: HubNodes

    def __post_init__(self) -> None:
        self.nodes.serve(CONNECTION_PART, self._part)
        self.nodes.serve(DISCONNECT, self._end_here)

    async def page(self, query: ConnectionQuery) -> ConnectionList:
        # The connections of a node that does not answer are left out.
        others = await self.nodes.ask_others(CONNECTION_PART, query)
        parts = [await self._part(query), *others]
        page = merged_page(parts, CONNECTIONS[query.sort], query.limit)
        return ConnectionList(tuple(page.rows), page.total, page.next, self.brokers)

    async def _part(self, query: ConnectionQuery) -> PagePart[ConnectionInfo]:
        selected = (each for each in self.connections.all() if _is_wanted(each, query))
        part = part_of(selected, CONNECTIONS[query.sort], query)
        return part.converted(self._row(connection) for _, connection in part.rows)

    def _row(self, connection: LiveConnection) -> ConnectionInfo:
        client, roles = connection.client, _roles(connection)
        ends = [(each, self.logs.position(each.topic)) for each in roles]
        replayed = sum(each.remaining(end) for each, end in ends)
        waiting = connection.queue.frames if connection.queue else 0
        return ConnectionInfo(
            id=client.id,
            transport=connection.kind,
            role=_role_of(connection),
            state=_state_of(connection),
            address=client.address,
            agent=client.agent,
            since=client.since,
            topics=tuple(each.topic for each in roles[:_SHOWN_TOPICS]),
            topic_count=len(roles),
            lag_seconds=connection.stalled(asyncio.get_running_loop().time()),
            behind=waiting + replayed,
            unsent=connection.unsent,
            sent=sum(each.passed for each in roles if not each.publishes()),
            received=sum(each.passed for each in roles if each.publishes()),
        )

    async def end(self, id: str) -> bool:
        """Close a connection at any node. Return False if no node has it."""
        found: bool | None = await self.nodes.find(DISCONNECT, id)
        return found is not None

    async def _end_here(self, id: str) -> bool | None:
        return self.connections.end(id, CLOSED) or None


def _is_wanted(connection: LiveConnection, query: ConnectionQuery) -> bool:
    if query.role is not None and query.role is not (role := _role_of(connection)):
        both = role is ConnectionRoles.BOTH and query.role is not ConnectionRoles.NONE
        if not both:
            return False
    if query.topic is None and not query.search:
        return True
    topics = [each.topic for each in _roles(connection)]
    if query.topic is not None and query.topic not in topics:
        return False
    client = connection.client
    texts = (client.id, client.address, client.agent, *topics)
    return any(query.search.lower() in text.lower() for text in texts)
