"""The JSON of the admin API: queries, request bodies and answers.

Each field and its description are stated here only, in the `Args:` of its class or of a base class;
`api.py` makes the OpenAPI description from them. `views.py` fills the fields with attributes of the
same name, and `text_tables.py` names those that the commands print. Lists show callbacks redacted,
since they may contain secrets.  `rsnotify_hub.store.nodes` has the JSON about nodes, since the
store describes them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct, field

from rsnotify.format.datetimes import Instant
from rsnotify_hub.statistics import BrokerInfo, DeliveryTransport, StoreFailure
from rsnotify_hub.subscriptions import DeliveryState

#: The largest number of rows on a page.
MAX_ROWS = 1000

_When = Annotated[Instant, Meta(tz=True)]


class Redelivery(Struct, frozen=True, forbid_unknown_fields=True):
    """The start of a redelivery.

    Args:
        since: A W3C Datetime: deliver all changes after it again. If it is absent, the pending
            fragments are delivered at once.
    """

    since: str | None = None


class NoParameters(Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters."""


#: The pattern of the first digits of an id; fewer would often be those of several.
FIRST_DIGITS = "[0-9a-f]{4,32}"


class TopicOrder(StrEnum):
    """The order of topics: by URI, or the last changed first."""

    TOPIC = "topic"
    RECEIVED = "received"


class SubscriptionOrder(StrEnum):
    """The order of subscriptions: by topic, or by state (given up, retrying, suspended, active).

    In the order by state, those that have lagged for longest are the first of each state.
    """

    TOPIC = "topic"
    TROUBLE = "trouble"


class PageQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A page.

    Args:
        limit: The largest number of rows.
        after: The `next` of the page before, in the same order.
    """

    limit: Annotated[int, Meta(ge=1, le=MAX_ROWS)] = 100
    after: str = ""


class TopicQuery(PageQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A page of topics.

    Args:
        topic: Only this topic.
        search: Only topics whose URI contains this text, in any case, or whose id begins with it.
        silent: Only topics of silent Sources.
        sort: The order: by URI, or `received` for the last changed first.
    """

    topic: str | None = None
    search: str = ""
    silent: bool = False
    sort: TopicOrder = TopicOrder.TOPIC


# An older node refuses fields that it does not know.
class SubscriptionQuery(
    PageQuery, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """A page of subscriptions.

    Args:
        topic: Only subscriptions of this topic.
        state: Only subscriptions in this state.
        trouble: Only subscriptions that are retried or given up.
        search: Only subscriptions whose topic, callback or id contains this text, in any case.
        sort: The order: by topic, or `trouble` for given up, retrying, suspended and active, and
            the longest lag first in each state.
    """

    topic: str | None = None
    state: DeliveryState | None = None
    trouble: bool = False
    search: str = ""
    sort: SubscriptionOrder = SubscriptionOrder.TOPIC


class SubscriberCounts(Struct, frozen=True, kw_only=True):
    """The subscribers of a topic at one node, or at all."""

    websockets: int
    event_streams: int
    subscriptions: int


class TopicInfo(Struct, frozen=True, kw_only=True):
    """A topic and its subscribers.

    Args:
        id: Its identifier in paths of this API.
        topic: Its URI.
        through: The latest `until` of all fragments.
        received: When the last fragment arrived.
        begins: The instant at which the kept part of the log begins.
        kept: The number of kept fragments.
        bytes: Their bytes.
        rate: Fragments per second, over the last ten seconds.
        websockets: The number of WebSockets that receive it; one on which a Source publishes it
            is not counted.
        event_streams: The number of event streams that receive it.
        subscriptions: The number of its WebSub subscriptions.
        silent: Whether its Source is silent: nothing has come on any topic of the same host for
            three times as long as before any of its last ten heartbeats, but at least 30 seconds,
            or for 15 minutes.
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
        total: Their number on all pages together.
        next: The `after` of the next page; null on the last page.
    """

    topics: tuple[TopicInfo, ...]
    total: int
    next: str | None


class ConnectionRoles(StrEnum):
    """What a connection does: nothing before its first frame, and after that at least one."""

    NONE = "none"
    SUBSCRIBER = "subscriber"
    PUBLISHER = "publisher"
    BOTH = "both"


class ConnectionState(StrEnum):
    """How a client keeps up.

    Something has waited for a `slow` client for 5 seconds; `replaying` is a subscriber that does
    not have all of the log yet; all others are `live`.
    """

    SLOW = "slow"
    REPLAYING = "replaying"
    LIVE = "live"


class ConnectionOrder(StrEnum):
    """The order of connections: the oldest first, or slow and replaying ones before the others."""

    SINCE = "since"
    TROUBLE = "trouble"


class ConnectionQuery(PageQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A page of connections.

    Args:
        topic: Only connections that receive or publish this topic.
        role: Only connections with this role; `both` are subscribers and publishers, too.
        search: Only connections whose address, client, id or some topic contains this text, in any
            case.
        sort: The order: the oldest first, or `trouble` for slow and replaying ones before.
    """

    topic: str | None = None
    role: ConnectionRoles | None = None
    search: str = ""
    sort: ConnectionOrder = ConnectionOrder.SINCE


class ConnectionInfo(Struct, frozen=True, kw_only=True):
    """An open WebSocket or event stream of a client; those of the dashboard are left out.

    Args:
        id: Its identifier in paths of this API.
        transport: Its transport: `websocket` or `sse`.
        role: What it does.
        state: How its client keeps up.
        address: The address of its client.
        agent: The `User-Agent` of its client.
        since: When it was opened.
        topics: The first ten of its topics.
        topic_count: The number of its topics.
        lag_seconds: For how long something has waited for its client to read; 0 if nothing does.
            What the client's system has accepted counts as read.
        behind: The number of fragments that wait, or are still to be replayed.
        unsent: The bytes that wait.
        sent: The number of fragments that it was sent, on its present topics.
        received: The number of fragments that its client has published, on its present topics.
    """

    id: str
    transport: DeliveryTransport
    role: ConnectionRoles
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
    """A page of connections, of all nodes that answered at once.

    Args:
        connections: The connections.
        total: Their number on all pages together.
        next: The `after` of the next page; null on the last page.
        brokers: The brokers that the hub publishes to. Their readers are connected to them, so the
            hub does not know these connections.
    """

    connections: tuple[ConnectionInfo, ...]
    total: int
    next: str | None
    brokers: tuple[str, ...]


class FailureInfo(Struct, frozen=True, kw_only=True):
    """A delivery that failed.

    Args:
        at: The instant.
        status: The HTTP status of the answer; null without an answer.
        reason: Why it failed.
        excerpt: The beginning of the body of the answer.
    """

    at: _When
    status: int | None
    reason: str
    excerpt: str


class SubscriptionName(Struct, frozen=True, kw_only=True):
    """The subscription that a row is about.

    Args:
        id: The identifier of the subscription in paths of this API.
        topic: The URI of its topic.
        host: The host of its callback.
    """

    id: str
    topic: str
    host: str


class SubscriptionInfo(SubscriptionName, frozen=True, kw_only=True):
    """A WebSub subscription and the state of its deliveries.

    Args:
        state: Its state.
        expires: When its lease ends.
        lag_seconds: How long it has been behind; 0 if it is up to date.
        behind: The number of fragments it has not received.
        failures: The number of consecutive failed attempts.
        retry_at: When the next attempt is due; null if none is.
        last_failure: Its last failed delivery since the hub started.
        callback: Its callback, redacted.
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
        total: Their number on all pages together.
        next: The `after` of the next page; null on the last page.
    """

    subscriptions: tuple[SubscriptionInfo, ...]
    total: int
    next: str | None


class SubscriptionFailure(SubscriptionName, frozen=True, kw_only=True):
    """A delivery that failed, and its subscription.

    Args:
        at: The instant.
        status: The HTTP status of the answer; null without an answer.
        reason: Why it failed.
        excerpt: The beginning of the body of the answer.
        callback: Its callback, redacted.
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
    """The fragments that one subscription is not sent until its topic changes.

    Args:
        given_up_since: When the hub gave up.
        from_: The beginning of their interval (exclusive); null if none of them is kept.
        until: The end of their interval.
        fragments: Their number.
        last_failure: The last delivery that failed.
    """

    given_up_since: _When | None
    from_: _When | None = field(name="from")
    until: _When | None
    fragments: int
    last_failure: FailureInfo | None


class DeadLetterList(Struct, frozen=True):
    """A page of dead letters, in the order of their topics.

    Args:
        dead_letters: The dead letters.
        total: Their number on all pages together.
        next: The `after` of the next page; null on the last page.
    """

    dead_letters: tuple[DeadLetterInfo, ...]
    total: int
    next: str | None


class Problem(Struct, frozen=True):
    """The reason why a request failed; it had no effect.

    Args:
        error: The reason, in one sentence.
    """

    error: str


class AttemptInfo(FailureInfo, frozen=True, kw_only=True):
    """An attempt to deliver.

    Args:
        at: When it ended.
        reason: The outcome.
        excerpt: The beginning of the body of the answer, unless the attempt succeeded.
        seconds: How long it took.
        delivered: Whether it succeeded.
        after: The position in the log after which the payload begins.
        through: The position in the log of the end of the payload.
        size: The bytes of the payload.
    """

    seconds: float
    delivered: bool
    after: int
    through: int
    size: int


class SubscriptionDetails(Struct, frozen=True, kw_only=True):
    """A subscription with its callback, and its last attempts.

    Args:
        subscription: The subscription.
        callback: Its whole callback, which may contain secrets of the subscriber.
        attempts: Its last failed attempts and some of its last successful ones, newest first.
        since: When the hub, or the node that delivers to it, started. Of earlier attempts only the
            last one is kept, if it failed and none has succeeded since.
    """

    subscription: SubscriptionInfo
    callback: str
    attempts: tuple[AttemptInfo, ...]
    since: _When | None = None


class PayloadQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The attempt whose payload is requested: the last one with these positions.

    Args:
        after: Its `after`.
        through: Its `through`.
    """

    after: int | None = None
    through: int | None = None


class PayloadInfo(Struct, frozen=True, kw_only=True):
    """What an attempt has sent.

    Args:
        text: The beginning of the payload; null if the log no longer has all of it.
        size: The bytes of the whole payload.
    """

    text: str | None
    size: int


class DiskInfo(Struct, frozen=True):
    """A disk.

    Args:
        free: The bytes that the hub may still write.
        size: Its bytes.
    """

    free: int
    size: int


class PartState(StrEnum):
    """Whether a part of the hub does what it should, is to be watched, or is in trouble."""

    IN_ORDER = "in-order"
    WATCH = "watch"
    TROUBLE = "trouble"


class PartInfo(Struct, frozen=True):
    """A part of the hub, or of what it depends on.

    Args:
        name: `sources`, `callbacks`, `connections`, `store`, `disk`, `nodes`, or a broker.
        state: Its state.
        text: Why, in one sentence.
    """

    name: str
    state: PartState
    text: str


class StatusInfo(Struct, frozen=True, kw_only=True):
    """The hub as a whole; on a cluster, all nodes that answered at once.

    Args:
        version: The version of the hub, or of this node.
        started: When it, or this node, started; the counts of each node begin when it starts.
        now: The time of its clock.
        nodes: How many nodes these numbers are about.
        topics: The number of topics with a log.
        subscriptions: The number of WebSub subscriptions.
        states: The number of subscriptions in each state.
        lag_seconds: The longest lag of a subscription that is not suspended.
        websockets: The number of open WebSockets, of subscribers and of Sources; here and in all
            that follows, those of the dashboard are left out.
        event_streams: The number of open event streams, each of which receives a topic.
        subscribers: The number of `websocket_subscribers`, `event_streams` and `subscriptions`. The
            readers of a broker are unknown.
        websocket_subscribers: The number of WebSockets that receive at least one topic.
        publishers: The number of WebSockets on which a Source publishes at least one topic.
        slow: The number of WebSockets and event streams for whose client something has waited for
            5 seconds.
        slow_seconds: For how long it has, at most.
        troubled: The number of subscriptions that are retried or given up, of slow connections, and
            of all other parts that are not in order.
        parts: The parts of the hub, those in trouble first.
        accepted: Fragments that became durable.
        accepted_bytes: Their bytes.
        deliveries: Deliveries and attempts, by transport and outcome.
        log_bytes: The bytes of all kept fragments.
        store_failure: Why fragments cannot be stored; null if the last write succeeded.
        silent: The number of Sources, by the hosts of topics, that are silent (see the topics).
        connections: Open connections to the server, of any kind.
        live_queue: The bytes that wait in WebSockets and event streams.
        delivery_queue: The number of WebSub deliveries that wait for a connection.
        commit_queue: The number of writes that wait for the next transaction.
        brokers: The state of each broker that the hub has a bridge to, by transport.
        lag_p50: The lag in seconds that half of the WebSub subscriptions that are not suspended do
            not exceed, on a cluster at each node; null if there is none.
        lag_p99: The same of 99 of 100.
        disk: The disk with the data folder; null on a cluster.
        admin: Always true, since only admins receive this.
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
    """What the hub did in one minute or quarter of an hour, and the most of what it then had.

    Args:
        minute: The minute, or the first one, counted since 1970-01-01T00:00Z.
        accepted: Fragments that became durable.
        delivered: Deliveries, over all transports.
        failed: Attempts that failed.
        subscribers: The `subscribers` of the status.
        troubled: The number of subscriptions that were retried or given up.
        seconds: The seconds of it in which the hub ran.
        lag_p50: The lag in seconds that half of the WebSub subscriptions that are not suspended did
            not exceed, on a cluster at each node. Null if there was none, and all of
            these numbers are null in a minute before version 0.3.
        lag_p99: The same of 99 of 100.
        delivery_queue: The number of WebSub deliveries that waited for a connection.
        commit_queue: The number of writes that waited for the next transaction.
        live_queue: The bytes that waited in WebSockets and event streams.
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
    """The times in which the hub ran, oldest first.

    Args:
        minutes: The minutes of the last day, each as an array of the numbers that `MinuteInfo`
            names.
        quarters: The quarters of an hour of the last week, likewise.
    """

    minutes: tuple[MinuteInfo, ...]
    quarters: list[MinuteInfo] = []
