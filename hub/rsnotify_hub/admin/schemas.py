"""The JSON of the admin API: queries, request bodies and responses.

The `Args:` of a class, or of its base class, are the only description of its fields. `openapi.py`
generates the OpenAPI description from them. `schema_conversion.py` sets the fields from attributes
with the same names. Callbacks in lists are redacted, because they may contain secrets.

The JSON about nodes is in `rsnotify_hub.store.nodes`, because the store describes the nodes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct, field

from rsnotify.format.datetimes import Instant
from rsnotify_hub.statistics import BrokerInfo, DeliveryTransport, StoreFailure
from rsnotify_hub.websub_subscription import DeliveryState

#: Maximum number of rows on a page.
MAX_ROWS = 1000

_When = Annotated[Instant, Meta(tz=True)]


class Redelivery(Struct, frozen=True, forbid_unknown_fields=True):
    """The start of a redelivery.

    Args:
        since: A W3C Datetime. The hub redelivers all changes after it. If absent, the hub
            delivers the pending fragments immediately.
    """

    since: str | None = None


class NoParameters(Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters."""


#: Matches an id or a prefix of it. Prefixes of fewer than 4 digits would often be ambiguous.
ID_PREFIX = "[0-9a-f]{4,32}"


class TopicOrder(StrEnum):
    """The order of topics: by URI, or most recently changed first."""

    TOPIC = "topic"
    RECEIVED = "received"


class SubscriptionOrder(StrEnum):
    """The order of subscriptions: by topic, or by state (given up, retrying, suspended, active).

    Within a state, the subscriptions with the longest lag are first.
    """

    TOPIC = "topic"
    TROUBLE = "trouble"


class PageQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A page.

    Args:
        limit: The maximum number of rows.
        after: The `next` of the previous page, in the same order.
    """

    limit: Annotated[int, Meta(ge=1, le=MAX_ROWS)] = 100
    after: str = ""


class TopicQuery(PageQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A page of topics.

    Args:
        topic: Only this topic.
        search: Only topics whose URI contains this string, ignoring case, or whose id begins with
            it.
        silent: Only topics of silent Sources.
        sort: The order: by URI, or `received` for the most recently changed first.
    """

    topic: str | None = None
    search: str = ""
    silent: bool = False
    sort: TopicOrder = TopicOrder.TOPIC


# Defaults are omitted, because older nodes refuse unknown fields.
class SubscriptionQuery(
    PageQuery, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """A page of subscriptions.

    Args:
        topic: Only subscriptions of this topic.
        state: Only subscriptions in this state.
        trouble: Only subscriptions that are retrying or given up.
        search: Only subscriptions whose topic, callback or id contains this string, ignoring case.
        sort: The order: by topic, or `trouble` for given up, retrying, suspended and active, with
            the longest lag first within each state.
    """

    topic: str | None = None
    state: DeliveryState | None = None
    trouble: bool = False
    search: str = ""
    sort: SubscriptionOrder = SubscriptionOrder.TOPIC


class SubscriberCounts(Struct, frozen=True, kw_only=True):
    """The number of subscribers to a topic on one node, or on all nodes."""

    websockets: int
    event_streams: int
    subscriptions: int


class TopicInfo(Struct, frozen=True, kw_only=True):
    """A topic and its subscribers.

    Args:
        id: The topic's identifier in paths of this API.
        topic: The topic's URI.
        through: The latest `until` of all fragments.
        received: When the last fragment arrived.
        begins: The start of the kept part of the log.
        kept: The number of kept fragments.
        bytes: The total size of the kept fragments, in bytes.
        rate: Fragments per second, over the last ten seconds.
        websockets: The number of WebSockets that receive the topic, not counting WebSockets on
            which a Source publishes it.
        event_streams: The number of event streams that receive the topic.
        subscriptions: The number of WebSub subscriptions to the topic.
        silent: Whether the topic's Source is silent: no fragment has arrived on any topic of the
            same host for 15 minutes, or for 3 times the longest pause before one of the last ten
            heartbeats (but at least 30 seconds).
    """

    id: str
    topic: str
    through: _When
    received: _When
    begins: _When
    kept: int
    bytes: int
    rate: float
    websockets: int
    event_streams: int
    subscriptions: int
    silent: bool = False


class TopicList(Struct, frozen=True):
    """A page of topics.

    Args:
        topics: The topics.
        total: The number of topics on all pages.
        next: The `after` of the next page; null on the last page.
    """

    topics: tuple[TopicInfo, ...]
    total: int
    next: str | None


class ClientRole(StrEnum):
    """The role of a connection's client. Before its first frame, it is `none`."""

    NONE = "none"
    SUBSCRIBER = "subscriber"
    PUBLISHER = "publisher"
    BOTH = "both"


class ConnectionState(StrEnum):
    """How well a client keeps up.

    A client is `slow` if data has waited for it for 5 seconds. A subscriber that does not have the
    whole log yet is `replaying`. All other clients are `live`.
    """

    SLOW = "slow"
    REPLAYING = "replaying"
    LIVE = "live"


class ConnectionOrder(StrEnum):
    """The order of connections: oldest first, or slow ones, replaying ones and then live ones."""

    SINCE = "since"
    TROUBLE = "trouble"


class ConnectionQuery(PageQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A page of connections.

    Args:
        topic: Only connections that receive or publish this topic.
        role: Only connections with this role. A connection with role `both` also matches
            `subscriber` and `publisher`.
        search: Only connections whose id, address, `User-Agent` or any topic contains this string,
            ignoring case.
        sort: The order: oldest first, or `trouble` for slow ones, replaying ones and then live
            ones.
    """

    topic: str | None = None
    role: ClientRole | None = None
    search: str = ""
    sort: ConnectionOrder = ConnectionOrder.SINCE


class ConnectionInfo(Struct, frozen=True, kw_only=True):
    """An open WebSocket or event stream of a client, other than the dashboard.

    Args:
        id: The connection's identifier in paths of this API.
        transport: The transport: `websocket` or `sse`.
        role: Whether the client subscribes, publishes or both.
        state: How well the client keeps up.
        address: The client's address.
        agent: The client's `User-Agent`.
        since: When the connection was opened.
        topics: The first ten of the connection's topics.
        topic_count: The number of the connection's topics.
        lag_seconds: How long data has been waiting for the client to read it; 0 if none is waiting.
            Data that the client's operating system has received counts as read.
        behind: The number of fragments that are waiting to be sent or replayed.
        unsent: The number of bytes waiting to be sent.
        sent: The number of fragments sent to the client, on its current topics.
        received: The number of fragments that the client has published, on its current topics.
    """

    id: str
    transport: DeliveryTransport
    role: ClientRole
    state: ConnectionState
    address: str
    agent: str
    since: _When
    topics: tuple[str, ...]
    topic_count: int
    lag_seconds: float
    behind: int
    unsent: int
    sent: int
    received: int


class ConnectionList(Struct, frozen=True):
    """A page of connections, from all nodes that answered promptly.

    Args:
        connections: The connections.
        total: The number of connections on all pages.
        next: The `after` of the next page; null on the last page.
        brokers: The brokers that the hub publishes to. Their readers connect to the broker, so the
            hub does not know these connections.
    """

    connections: tuple[ConnectionInfo, ...]
    total: int
    next: str | None
    brokers: tuple[str, ...]


class FailureInfo(Struct, frozen=True, kw_only=True):
    """A delivery that failed.

    Args:
        at: When the delivery failed.
        status: The HTTP status of the response; null if there was none.
        reason: Why the delivery failed.
        excerpt: The beginning of the response's body.
    """

    at: _When
    status: int | None
    reason: str
    excerpt: str


class SubscriptionName(Struct, frozen=True, kw_only=True):
    """The subscription that a row describes.

    Args:
        id: The subscription's identifier in paths of this API.
        topic: The URI of the topic.
        host: The host of the callback.
    """

    id: str
    topic: str
    host: str


class SubscriptionInfo(SubscriptionName, frozen=True, kw_only=True):
    """A WebSub subscription and the state of its deliveries.

    Args:
        state: The state of the deliveries.
        expires: When the lease expires.
        lag_seconds: How long the subscription has been behind; 0 if it is up to date.
        behind: The number of fragments that the subscription has not received.
        failures: The number of consecutive failed attempts.
        retry_at: When the next attempt is due; null if none is due.
        last_failure: The last failed delivery since the hub started.
        callback: The callback, redacted.
    """

    state: DeliveryState
    expires: _When
    lag_seconds: float
    behind: int
    failures: int
    retry_at: _When | None
    last_failure: FailureInfo | None
    callback: str = ""


class SubscriptionList(Struct, frozen=True):
    """A page of subscriptions.

    Args:
        subscriptions: The subscriptions.
        total: The number of subscriptions on all pages.
        next: The `after` of the next page; null on the last page.
    """

    subscriptions: tuple[SubscriptionInfo, ...]
    total: int
    next: str | None


class SubscriptionFailure(SubscriptionName, frozen=True, kw_only=True):
    """A delivery that failed, and its subscription.

    Args:
        at: When the delivery failed.
        status: The HTTP status of the response; null if there was none.
        reason: Why the delivery failed.
        excerpt: The beginning of the response's body.
        callback: The callback, redacted.
    """

    at: _When
    status: int | None
    reason: str
    excerpt: str
    callback: str = ""


class FailureList(Struct, frozen=True):
    """The last failures, newest first. The hub remembers a limited number of them.

    Args:
        failures: The failures.
    """

    failures: tuple[SubscriptionFailure, ...]


class DeadLetterInfo(SubscriptionName, frozen=True, kw_only=True):
    """The fragments that the hub does not deliver to a subscription until its topic changes.

    Args:
        given_up_since: When the hub gave up.
        from_: The start of the fragments' interval (exclusive); null if none of them is kept.
        until: The end of the fragments' interval.
        fragments: The number of fragments.
        last_failure: The last failed delivery.
    """

    given_up_since: _When | None
    from_: _When | None = field(name="from")
    until: _When | None
    fragments: int
    last_failure: FailureInfo | None


class DeadLetterList(Struct, frozen=True):
    """A page of dead letters, ordered by topic.

    Args:
        dead_letters: The dead letters.
        total: The number of dead letters on all pages.
        next: The `after` of the next page; null on the last page.
    """

    dead_letters: tuple[DeadLetterInfo, ...]
    total: int
    next: str | None


class Problem(Struct, frozen=True):
    """Why a request failed. It had no effect.

    Args:
        error: The reason, in one sentence.
    """

    error: str


class AttemptInfo(FailureInfo, frozen=True, kw_only=True):
    """A delivery attempt.

    Args:
        at: When the attempt ended.
        reason: The outcome.
        excerpt: The beginning of the response's body; empty if the attempt succeeded.
        seconds: The duration of the attempt.
        delivered: Whether the attempt succeeded.
        after: The log position after which the payload begins.
        through: The log position at which the payload ends.
        size: The size of the payload, in bytes.
    """

    seconds: float
    delivered: bool
    after: int
    through: int
    size: int


class SubscriptionDetails(Struct, frozen=True, kw_only=True):
    """A subscription with its callback and its last attempts.

    Args:
        subscription: The subscription.
        callback: The complete callback, which may contain the subscriber's secrets.
        attempts: The last failed attempts and some of the last successful ones, newest first.
        since: When the hub, or the node that delivers to the subscription, started. Of the earlier
            attempts, only the last one is kept, if it failed and no later one has succeeded.
    """

    subscription: SubscriptionInfo
    callback: str
    attempts: tuple[AttemptInfo, ...]
    since: _When | None = None


class PayloadQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Selects a delivery attempt: the last one with these positions.

    Args:
        after: The attempt's `after`.
        through: The attempt's `through`.
    """

    after: int | None = None
    through: int | None = None


class PayloadInfo(Struct, frozen=True, kw_only=True):
    """The payload of an attempt.

    Args:
        text: The beginning of the payload; null if the log no longer has all of it.
        size: The size of the whole payload, in bytes.
    """

    text: str | None
    size: int


class DiskInfo(Struct, frozen=True):
    """A disk.

    Args:
        free: The number of bytes that the hub can still write.
        size: The size of the disk, in bytes.
    """

    free: int
    size: int


class PartState(StrEnum):
    """The state of a part of the hub: it works, needs attention, or is in trouble."""

    IN_ORDER = "in-order"
    WATCH = "watch"
    TROUBLE = "trouble"


class PartInfo(Struct, frozen=True):
    """A part of the hub, or a system that the hub depends on.

    Args:
        name: `sources`, `callbacks`, `connections`, `store`, `disk`, `nodes`, or a broker.
        state: The state of the part.
        text: The reason for the state, in one sentence.
    """

    name: str
    state: PartState
    text: str


class StatusInfo(Struct, frozen=True, kw_only=True):
    """The state of the hub. On a cluster, it covers all nodes that answered promptly.

    Args:
        version: The version of the hub, or of this node.
        started: When the hub, or this node, started. Each node counts from its start.
        now: The current time of the hub, or of this node.
        nodes: The number of nodes that the status covers.
        topics: The number of topics with a log.
        subscriptions: The number of WebSub subscriptions.
        states: The number of subscriptions in each state.
        lag_seconds: The longest lag of any subscription that is not suspended.
        websockets: The number of open WebSockets of subscribers and Sources. This and all following
            fields do not count the dashboard's WebSockets.
        event_streams: The number of open event streams. Each receives one topic.
        subscribers: The sum of `websocket_subscribers`, `event_streams` and `subscriptions`. The
            readers of a broker are unknown.
        websocket_subscribers: The number of WebSockets that receive at least one topic.
        publishers: The number of WebSockets on which a Source publishes at least one topic.
        slow: The number of WebSockets and event streams for which data has been waiting for 5
            seconds.
        slow_seconds: The longest time that data has been waiting for a slow client.
        troubled: The number of subscriptions that are retrying or given up, plus the number of slow
            connections, plus the number of all other parts that are not in order.
        parts: The parts of the hub, those in trouble first.
        accepted: The number of fragments that became durable.
        accepted_bytes: The total size of these fragments, in bytes.
        deliveries: The number of deliveries and delivery attempts, by transport and outcome.
        log_bytes: The total size of all kept fragments, in bytes.
        store_failure: Why fragments cannot be stored; null if the last write succeeded.
        silent: The number of silent Sources. Each host of a topic is one Source (see `TopicInfo`).
        connections: The number of open connections to the server, of any kind.
        live_queue: The number of bytes waiting to be sent on WebSockets and event streams.
        delivery_queue: The number of WebSub deliveries waiting for a connection.
        commit_queue: The number of writes waiting for the next transaction.
        brokers: The state of each broker that the hub publishes to, by transport.
        lag_p50: The median lag of the WebSub subscriptions that are not suspended, in seconds; on a
            cluster, the largest median of any node. Null if there are none.
        lag_p99: The 99th percentile of the same lags.
        disk: The disk with the data folder; null on a cluster.
        admin: Always true, because only admins receive the status.
    """

    version: str
    started: _When
    now: _When
    nodes: int = 1
    topics: int
    subscriptions: int
    states: dict[DeliveryState, int]
    lag_seconds: float = 0.0
    websockets: int
    event_streams: int
    subscribers: int = 0
    websocket_subscribers: int = 0
    publishers: int = 0
    slow: int = 0
    slow_seconds: float = 0.0
    troubled: int = 0
    parts: list[PartInfo] = []
    accepted: int
    accepted_bytes: int
    deliveries: dict[str, dict[str, int]]
    log_bytes: int
    store_failure: StoreFailure | None = None
    silent: int = 0
    connections: int = 0
    live_queue: int = 0
    delivery_queue: int = 0
    commit_queue: int = 0
    brokers: dict[str, BrokerInfo] = {}
    lag_p50: float | None = None
    lag_p99: float | None = None
    disk: DiskInfo | None = None
    admin: bool = True


class MinuteInfo(Struct, frozen=True, array_like=True):
    """The hub's activity in a minute or quarter-hour, and the peak values of its state.

    Args:
        minute: The minute, or the first minute of the quarter-hour, since 1970-01-01T00:00Z.
        accepted: The number of fragments that became durable.
        delivered: The number of deliveries over all transports.
        failed: The number of failed WebSub delivery attempts.
        subscribers: The `subscribers` of the status.
        troubled: The number of subscriptions that were retrying or given up.
        seconds: The number of seconds that the hub ran.
        lag_p50: The median lag of the WebSub subscriptions that were not suspended, in seconds; on
            a cluster, the largest median of any node. Null if there were none. This and the
            following fields are null for periods recorded before version 0.3.
        lag_p99: The 99th percentile of the same lags.
        delivery_queue: The number of WebSub deliveries waiting for a connection.
        commit_queue: The number of writes waiting for the next transaction.
        live_queue: The number of bytes waiting to be sent on WebSockets and event streams.
    """

    minute: int
    accepted: int
    delivered: int
    failed: int
    subscribers: int
    troubled: int
    seconds: int = 60
    lag_p50: float | None = None
    lag_p99: float | None = None
    delivery_queue: int | None = None
    commit_queue: int | None = None
    live_queue: int | None = None


class HistoryInfo(Struct, frozen=True):
    """The periods in which the hub ran, oldest first.

    Args:
        minutes: The minutes of the last day, each as an array of the numbers in `MinuteInfo`.
        quarters: The quarter-hours of the last week, in the same form.
    """

    minutes: tuple[MinuteInfo, ...]
    quarters: list[MinuteInfo] = []
