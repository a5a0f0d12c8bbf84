"""The JSON of the admin API: queries, request bodies and answers.

`openapi.py` describes the API from these classes alone: the first sentence of a class and its
`Args:` become the descriptions. Lists show callbacks redacted, since they may contain secrets.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct, field

from rsnotify.format.datetimes import Instant
from rsnotify_hub.subscriptions import DeliveryState

#: The largest number of rows on a page.
MAX_ROWS = 1000

_When = Annotated[Instant, Meta(tz=True)]


class Redelivery(Struct, frozen=True, forbid_unknown_fields=True):
    """The begin of a redelivery.

    Args:
        since: A W3C Datetime: deliver all changes after it again. If it is absent, the pending
            fragments are delivered at once.
    """

    since: str | None = None


class NoParameters(Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters."""


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
        after: The `next` of the page before.
    """

    limit: Annotated[int, Meta(ge=1, le=MAX_ROWS)] = 100
    after: str = ""


class TopicQuery(PageQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A page of topics.

    Args:
        limit: The largest number of rows.
        after: The `next` of the page before, in the same order.
        topic: Only this topic.
        search: Only topics that contain this text, in any case.
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
        limit: The largest number of rows.
        after: The `next` of the page before, in the same order.
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
        websockets: The number of WebSockets subscribed to it.
        event_streams: The number of event streams subscribed to it.
        subscriptions: The number of its WebSub subscriptions.
        silent: Whether its Source is silent: nothing has come on any topic of the same host for 15
            minutes, although Sources send heartbeats.
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


class SubscriptionInfo(Struct, frozen=True, kw_only=True):
    """A WebSub subscription and the state of its deliveries.

    Args:
        id: Its identifier in paths of this API.
        topic: The URI of its topic.
        host: The host of its callback.
        state: Its state.
        expires: When its lease ends.
        lag_seconds: How long it has been behind; 0 if it is up to date.
        behind: The number of fragments it has not received.
        failures: The number of consecutive failed attempts.
        retry_at: When the next attempt is due; null if none is.
        last_failure: Its last failed delivery since the hub started.
        callback: Its callback, redacted.
    """

    id: str
    topic: str
    host: str
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


class SubscriptionFailure(Struct, frozen=True, kw_only=True):
    """A delivery that failed, and its subscription.

    Args:
        id: The identifier of the subscription.
        topic: The URI of its topic.
        host: The host of its callback.
        at: The instant.
        status: The HTTP status of the answer; null without an answer.
        reason: Why it failed.
        excerpt: The beginning of the body of the answer.
        callback: Its callback, redacted.
    """

    id: str
    topic: str
    host: str
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


class DeadLetterInfo(Struct, frozen=True, kw_only=True):
    """The fragments that one subscription is not sent until its topic changes.

    Args:
        id: The identifier of the subscription.
        topic: The URI of its topic.
        host: The host of its callback.
        given_up_since: When the hub gave up.
        from_: The begin of their interval (exclusive); null if none of them is kept.
        until: The end of their interval.
        fragments: Their number.
        last_failure: The last delivery that failed.
    """

    id: str
    topic: str
    host: str
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
