"""The admin operations on the hub and its nodes, topics and subscriptions."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import nlargest, nsmallest
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from rsnotify.errors import RsnotifyError
from rsnotify.format.datetimes import Instant
from rsnotify_hub.admin import schemas
from rsnotify_hub.admin.history import HubHistory, merge_histories
from rsnotify_hub.admin.hub_readings import (
    TROUBLED_STATES,
    HubReadings,
    TopicRates,
    silent_sources,
    source_of,
)
from rsnotify_hub.admin.part_states import with_parts
from rsnotify_hub.admin.schema_conversion import (
    attempt_infos,
    dead_letter_info,
    merge_statuses,
    status_info,
    subscription_failure,
    subscription_info,
    sum_subscribers,
    topic_id,
    topic_info,
)
from rsnotify_hub.admin.schemas import (
    PageQuery,
    PayloadQuery,
    SubscriptionOrder,
    SubscriptionQuery,
    TopicOrder,
    TopicQuery,
)
from rsnotify_hub.live.subscribers import LiveChannel
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.statistics import DeliveryTransport
from rsnotify_hub.store.interface import Backlog, LogState
from rsnotify_hub.store.nodes import HubNodes, NodeCall, NodeList
from rsnotify_hub.topic_log import TopicLogs
from rsnotify_hub.websub.callback_subscriber import CallbackSubscriber
from rsnotify_hub.websub.sender import RECENT_FAILURES
from rsnotify_hub.websub.websub_channel import WebSubChannel
from rsnotify_hub.websub_subscription import DeliveryState

T = TypeVar("T")
U = TypeVar("U")


class RowOrder(Struct, Generic[T], frozen=True):
    """An order of rows by a unique key of the given type.

    Rows may change while a client reads page after page. Each page begins after the key of the
    previous page's last row. Therefore a row whose key does not change is on exactly one page,
    whatever happens to other rows.
    """

    key: Callable[[T], tuple[Any, ...]]
    type: Any
    descending: bool = False


class RowPage(Struct, Generic[T], frozen=True):
    """A page. `total` counts the rows on all pages, and `next` is the `after` of the next page."""

    rows: list[T]
    total: int
    next: str | None


class NodeRows(Struct, Generic[T], frozen=True):
    """One node's candidates for a page: its first rows with their keys, and its number of rows.

    There is up to one row more than the page has, so that it is known whether a page follows.
    """

    rows: list[tuple[str, T]]
    total: int

    def with_rows(self, rows: Iterable[U]) -> NodeRows[U]:
        """Return the same candidates with other rows."""
        keyed = [(key, row) for (key, _), row in zip(self.rows, rows, strict=True)]
        return NodeRows(keyed, self.total)


def rows_of_node(rows: Iterable[T], order: RowOrder[T], query: PageQuery) -> NodeRows[T]:
    keyed = [(order.key(row), row) for row in rows]
    first = nlargest if order.descending else nsmallest
    found = first(query.limit + 1, _after(keyed, order, query.after))
    return NodeRows([(_encode(key), row) for key, row in found], len(keyed))


def merge_rows(nodes: Iterable[NodeRows[T]], order: RowOrder[Any], limit: int) -> RowPage[T]:
    """Merge the rows of all nodes into a page."""
    nodes = list(nodes)
    rows = [
        (msgspec.json.decode(key, type=order.type), row) for node in nodes for key, row in node.rows
    ]
    rows.sort(key=lambda pair: pair[0], reverse=order.descending)
    following = _encode(rows[limit - 1][0]) if len(rows) > limit else None
    page = [row for _, row in rows[:limit]]
    return RowPage(page, sum(node.total for node in nodes), following)


def page_of(rows: Iterable[T], order: RowOrder[T], query: PageQuery) -> RowPage[T]:
    return merge_rows([rows_of_node(rows, order, query)], order, query.limit)


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


_STATE_ORDER = {
    DeliveryState.GIVEN_UP: 0,
    DeliveryState.RETRYING: 1,
    DeliveryState.SUSPENDED: 2,
    DeliveryState.ACTIVE: 3,
}
_NEVER = datetime.max.replace(tzinfo=UTC)

TOPIC_ORDERS: dict[TopicOrder, RowOrder[LogState]] = {
    TopicOrder.TOPIC: RowOrder(lambda log: (log.topic,), tuple[str]),
    TopicOrder.RECEIVED: RowOrder(
        lambda log: (log.received, log.topic), tuple[datetime, str], descending=True
    ),
}
# The keys contain an instant instead of the lag, which would differ on the next page.
SUBSCRIPTION_ORDERS: dict[SubscriptionOrder, RowOrder[CallbackSubscriber]] = {
    SubscriptionOrder.TOPIC: RowOrder(
        lambda each: (each.subscription.topic, each.id), tuple[str, str]
    ),
    SubscriptionOrder.TROUBLE: RowOrder(
        lambda each: (_STATE_ORDER[each.state], each.behind_since or _NEVER, each.id),
        tuple[int, datetime, str],
    ),
}

_NO_BACKLOG = Backlog(0, None)

#: Maximum number of bytes of a payload to return.
PAYLOAD_BYTES = 16 * 1024


class UnknownId(RsnotifyError):
    """No topic, subscription or connection has this id, or it has ended."""


class PayloadRequest(Struct, frozen=True):
    """A request for the payload of a delivery attempt."""

    id: str
    attempt: PayloadQuery


#: Calls that return the status and history of another node, and its subscribers to some topics.
NODE_STATUS: NodeCall[None, schemas.StatusInfo] = NodeCall("admin.status", None, schemas.StatusInfo)
NODE_HISTORY: NodeCall[None, schemas.HistoryInfo] = NodeCall(
    "admin.history", None, schemas.HistoryInfo
)
NODE_SUBSCRIBERS: NodeCall[list[str], list[schemas.SubscriberCounts]] = NodeCall(
    "admin.subscribers", list[str], list[schemas.SubscriberCounts]
)
#: Maximum number of topics in one call. Even the longest topics then fit in one NATS message.
_TOPICS_PER_CALL = 250

#: Calls that return each node's rows of a list.
NODE_SUBSCRIPTIONS: NodeCall[SubscriptionQuery, NodeRows[schemas.SubscriptionInfo]] = NodeCall(
    "admin.subscriptions", SubscriptionQuery, NodeRows[schemas.SubscriptionInfo]
)
NODE_DEAD_LETTERS: NodeCall[PageQuery, NodeRows[schemas.DeadLetterInfo]] = NodeCall(
    "admin.dead-letters", PageQuery, NodeRows[schemas.DeadLetterInfo]
)
NODE_FAILURES: NodeCall[None, schemas.FailureList] = NodeCall(
    "admin.failures", None, schemas.FailureList
)
#: Calls to the node that has a subscription.
DETAILS: NodeCall[str, schemas.SubscriptionDetails | None] = NodeCall(
    "admin.details", str, schemas.SubscriptionDetails | None
)
PAYLOAD: NodeCall[PayloadRequest, schemas.PayloadInfo | None] = NodeCall(
    "admin.payload", PayloadRequest, schemas.PayloadInfo | None
)


@dataclass(eq=False, repr=False)
class ReadOperations:
    """Reads the state of all nodes of the hub.

    Operations raise `UnknownId` if there is no such subscription, `Refusal` if a page does not
    exist, and `StorageError` if the store fails.
    """

    logs: TopicLogs
    live: LiveChannel
    callbacks: WebSubChannel
    rates: TopicRates
    readings: Callable[[], HubReadings]
    own_history: HubHistory
    clock: Callable[[], Instant]
    nodes: HubNodes
    describe_nodes: Callable[[], NodeList]

    def __post_init__(self) -> None:
        self.started = self.clock()
        self.nodes.serve(NODE_STATUS, self._status)
        self.nodes.serve(NODE_HISTORY, self._history)
        self.nodes.serve(NODE_SUBSCRIBERS, self._count_subscribers)
        self.nodes.serve(NODE_SUBSCRIPTIONS, self._subscriptions)
        self.nodes.serve(NODE_DEAD_LETTERS, self._dead_letters)
        self.nodes.serve(NODE_FAILURES, self._failures)
        self.nodes.serve(DETAILS, self._details)
        self.nodes.serve(PAYLOAD, self._payload)

    async def status(self) -> schemas.StatusInfo:
        others = await self.nodes.ask_others(NODE_STATUS, None)
        readings = self.readings()
        own = status_info(readings)
        return with_parts(merge_statuses(own, others), readings)

    async def _status(self, _: None) -> schemas.StatusInfo:
        return status_info(self.readings())

    async def history(self) -> schemas.HistoryInfo:
        others = await self.nodes.ask_others(NODE_HISTORY, None)
        return merge_histories([await self._history(None), *others])

    async def _history(self, _: None) -> schemas.HistoryInfo:
        self.own_history.add(self.readings(), self.clock())  # include the current minute
        return self.own_history.info()

    async def list_nodes(self) -> NodeList:
        return self.describe_nodes()

    async def topics(self, query: TopicQuery) -> schemas.TopicList:
        page = page_of(self._matching_topics(query), TOPIC_ORDERS[query.sort], query)
        counts = await self._subscribers([state.topic for state in page.rows])
        silent = self._silent_sources(self.logs.states())
        rows = (
            topic_info(
                state,
                rate=self.rates.rate(state.topic),
                subscribers=subscribers,
                silent=source_of(state.topic) in silent,
            )
            for state, subscribers in zip(page.rows, counts, strict=True)
        )
        return schemas.TopicList(tuple(rows), page.total, page.next)

    async def _subscribers(self, topics: list[str]) -> list[schemas.SubscriberCounts]:
        """Return the number of subscribers to each topic, on all nodes that answer."""
        found: list[schemas.SubscriberCounts] = []
        for begin in range(0, len(topics), _TOPICS_PER_CALL):
            some = topics[begin : begin + _TOPICS_PER_CALL]
            others = await self.nodes.ask_others(NODE_SUBSCRIBERS, some)
            counts = [await self._count_subscribers(some), *others]
            found += map(sum_subscribers, zip(*counts, strict=True))
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

    def _matching_topics(self, query: TopicQuery) -> list[LogState]:
        if query.topic is not None:
            state = self.logs.state(query.topic)
            return [] if state is None else [state]
        states, text = self.logs.states(), query.search.lower()
        is_id = re.fullmatch(schemas.ID_PREFIX, text) is not None
        silent = self._silent_sources(states) if query.silent else {}
        return [
            state
            for state in states
            if (text in state.topic.lower() or (is_id and topic_id(state.topic).startswith(text)))
            and (not query.silent or source_of(state.topic) in silent)
        ]

    def _silent_sources(self, states: Sequence[LogState]) -> dict[str, Instant]:
        return silent_sources(states, self.clock(), self.rates.silence_limits.limit)

    async def subscriptions(self, query: SubscriptionQuery) -> schemas.SubscriptionList:
        rows = await self.nodes.ask_all(NODE_SUBSCRIPTIONS, query)
        page = merge_rows(rows, SUBSCRIPTION_ORDERS[query.sort], query.limit)
        return schemas.SubscriptionList(tuple(page.rows), page.total, page.next)

    async def _subscriptions(self, query: SubscriptionQuery) -> NodeRows[schemas.SubscriptionInfo]:
        matching = (each for each in self.callbacks.registry.all() if _matches(each, query))
        own = rows_of_node(matching, SUBSCRIPTION_ORDERS[query.sort], query)
        return own.with_rows(await self.describe([delivery for _, delivery in own.rows]))

    async def describe(
        self, deliveries: Sequence[CallbackSubscriber]
    ) -> tuple[schemas.SubscriptionInfo, ...]:
        backlogs, now = await self._backlogs(deliveries), self.clock()
        return tuple(subscription_info(each, backlogs[each.id], now) for each in deliveries)

    async def details(self, id: str) -> schemas.SubscriptionDetails:
        found = await self.nodes.find(DETAILS, id)
        if found is None:
            raise _unknown_subscription()
        return found

    async def _details(self, id: str) -> schemas.SubscriptionDetails | None:
        delivery = self.callbacks.registry.get(id)
        if delivery is None:
            return None
        (row,) = await self.describe([delivery])
        return schemas.SubscriptionDetails(
            subscription=row,
            callback=delivery.subscription.callback,
            attempts=attempt_infos(delivery),
            since=self.started,
        )

    async def payload(self, id: str, attempt: PayloadQuery) -> schemas.PayloadInfo:
        found = await self.nodes.find(PAYLOAD, PayloadRequest(id, attempt))
        if found is None:
            raise UnknownId("there is no such subscription, or this attempt is too old")
        return found

    async def _payload(self, request: PayloadRequest) -> schemas.PayloadInfo | None:
        delivery = self.callbacks.registry.get(request.id)
        if delivery is None:
            return None
        wanted = request.attempt
        found = [
            each
            for each in (*delivery.failed, *delivery.delivered)
            if wanted.after in (None, each.after) and wanted.through in (None, each.through)
        ]
        if not found:
            return None
        last = max(found, key=lambda each: each.at)
        body = await self.callbacks.notifications.rebuild(delivery.subscription.topic, last)
        text = None if body is None else body[:PAYLOAD_BYTES].decode(errors="replace")
        return schemas.PayloadInfo(text=text, size=last.size)

    async def failures(self) -> schemas.FailureList:
        lists = await self.nodes.ask_all(NODE_FAILURES, None)
        rows = (failure for each in lists for failure in each.failures)
        newest = sorted(rows, key=lambda failure: failure.at, reverse=True)
        return schemas.FailureList(tuple(newest[:RECENT_FAILURES]))

    async def _failures(self, _: None) -> schemas.FailureList:
        recent = reversed(self.callbacks.recent_failures)
        return schemas.FailureList(tuple(subscription_failure(*each) for each in recent))

    async def dead_letters(self, query: PageQuery) -> schemas.DeadLetterList:
        rows = await self.nodes.ask_all(NODE_DEAD_LETTERS, query)
        page = merge_rows(rows, SUBSCRIPTION_ORDERS[SubscriptionOrder.TOPIC], query.limit)
        return schemas.DeadLetterList(tuple(page.rows), page.total, page.next)

    async def _dead_letters(self, query: PageQuery) -> NodeRows[schemas.DeadLetterInfo]:
        given_up = (
            each for each in self.callbacks.registry.all() if each.state is DeliveryState.GIVEN_UP
        )
        own = rows_of_node(given_up, SUBSCRIPTION_ORDERS[SubscriptionOrder.TOPIC], query)
        found = [delivery for _, delivery in own.rows]
        backlogs = await self._backlogs(found)
        return own.with_rows(
            dead_letter_info(each, backlogs[each.id], self._through(each)) for each in found
        )

    async def _backlogs(self, deliveries: Sequence[CallbackSubscriber]) -> dict[str, Backlog]:
        """Return the backlogs of subscriptions by their ids, with one query per log."""
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


def _matches(delivery: CallbackSubscriber, query: SubscriptionQuery) -> bool:
    found = delivery.subscription
    if query.topic not in (None, found.topic) or query.state not in (None, delivery.state):
        return False
    if query.trouble and delivery.state not in TROUBLED_STATES:
        return False
    text = f"{found.topic} {found.callback} {delivery.id}" if query.search else ""
    return query.search.lower() in text.lower()


def _unknown_subscription() -> UnknownId:
    return UnknownId("there is no such subscription")


#: The reasons sent to a subscriber when an admin ends its subscription (`hub.reason`).
DROPPED = "an administrator of the hub ended this subscription"
TOPIC_DROPPED = "an administrator of the hub removed this topic"


class SubscriptionCommand(Struct, frozen=True, kw_only=True):
    """A change to one subscription: `redeliver`, `suspend`, `resume` or `drop`.

    With `since`, the action `redeliver` repeats all deliveries after that instant.
    """

    action: str
    id: str
    since: Instant | None = None


class CommandOutcome(Struct, frozen=True):
    """The result of a command: the changed subscription, or None if it was dropped."""

    info: schemas.SubscriptionInfo | None


COMMAND: NodeCall[SubscriptionCommand, CommandOutcome | None] = NodeCall(
    "admin.change", SubscriptionCommand, CommandOutcome | None
)
#: Drops all subscriptions of a topic.
DROP_ALL: NodeCall[str, None] = NodeCall("admin.drop-all", str, None)


@dataclass(eq=False, repr=False)
class ChangeOperations:
    """Changes topics and subscriptions, on all nodes of the hub, and drains this node.

    `leave` hands this node's work over to the other nodes.

    Each operation raises `UnknownId` if there is no such topic or subscription, and `StorageError`
    if the store fails. In both cases nothing has changed, except that `drop_topic` may be
    incomplete.
    """

    reads: ReadOperations
    leave: Callable[[], Awaitable[None]]

    def __post_init__(self) -> None:
        self.reads.nodes.serve(COMMAND, self._run)
        self.reads.nodes.serve(DROP_ALL, self._drop_all)

    async def drain(self) -> None:
        """Hand this node's work over to the other nodes. Refuse this if no other node can work."""
        rows = self.reads.describe_nodes().rows
        if not any(row.alive and not row.draining for row in rows if not row.this):
            raise Refusal(Code.BAD_REQUEST, "no other node can take over; just stop this one")
        await self.leave()

    async def drop(self, id: str) -> None:
        await self._find_and_run(SubscriptionCommand(action="drop", id=id))

    async def change(
        self, action: str, id: str, since: Instant | None = None
    ) -> schemas.SubscriptionInfo:
        """Run any action of `SubscriptionCommand` except `drop`."""
        command = SubscriptionCommand(action=action, id=id, since=since)
        info = (await self._find_and_run(command)).info
        if info is None:
            raise _unknown_subscription()
        return info

    async def _find_and_run(self, command: SubscriptionCommand) -> CommandOutcome:
        outcome = await self.reads.nodes.find(COMMAND, command)
        if outcome is None:
            raise _unknown_subscription()
        return outcome

    async def _run(self, command: SubscriptionCommand) -> CommandOutcome | None:
        """Run a command. Return None if this node does not have the subscription."""
        id, callbacks = command.id, self.reads.callbacks
        match command.action:
            case "redeliver":
                found = await callbacks.redeliver(id, command.since)
            case "suspend":
                found = await callbacks.suspend(id)
            case "resume":
                found = await callbacks.resume(id)
            case "drop":
                return CommandOutcome(None) if await callbacks.drop(id, DROPPED) else None
            case _:
                raise Refusal(Code.BAD_REQUEST, f"this node cannot {command.action}")
        delivery = callbacks.registry.get(id) if found else None
        if delivery is None:
            return None
        (row,) = await self.reads.describe([delivery])
        return CommandOutcome(row)

    async def drop_topic(self, id: str) -> None:
        """Delete a topic's log and end its subscriptions. Later publications begin a new log."""
        topics = (state.topic for state in self.reads.logs.states())
        topic = next((each for each in topics if topic_id(each) == id), None)
        if topic is None:
            raise UnknownId("there is no such topic")
        await self.reads.nodes.ask_all(DROP_ALL, topic)
        await self.reads.logs.delete(topic)

    async def _drop_all(self, topic: str) -> None:
        for each in self.reads.callbacks.registry.all():
            if each.subscription.topic == topic:
                await self.reads.callbacks.drop(each.id, TOPIC_DROPPED)
