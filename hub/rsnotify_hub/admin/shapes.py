"""What travels over the admin API. `openapi.py` describes it from these classes alone.

Of a callback only its host is told, since its path and query may hold a secret.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from rsnotify.format.datetimes import Instant
from rsnotify_hub.websub.delivery.delivery import DeliveryState

_When = Annotated[Instant, Meta(tz=True)]


class Status(Struct, frozen=True, kw_only=True):
    """The hub as a whole.

    Args:
        version: Its version.
        started: When it started; all that is counted is counted since then.
        now: What its clock says.
        topics: How many topics have a log.
        subscriptions: How many WebSub subscriptions there are.
        states: How many of them stand in which state.
        websockets: How many WebSockets are open.
        accepted: Fragments that were made durable.
        accepted_bytes: Their bytes.
        deliveries: Deliveries, and tries at them, by way and outcome.
        log_bytes: The bytes of all fragments that are kept.
        admin: Always true, since only an admin is told.
    """

    version: str
    started: _When
    now: _When
    topics: int
    subscriptions: int
    states: dict[DeliveryState, int]
    websockets: int
    accepted: int
    accepted_bytes: int
    deliveries: dict[str, dict[str, int]]
    log_bytes: int
    admin: bool = True


class Topic(Struct, frozen=True, kw_only=True):
    """A topic, and who listens to it.

    Args:
        id: What it is called in paths of this API.
        topic: Its URI.
        through: The latest instant that any fragment reached.
        received: When the last fragment came.
        begins: The instant that the kept part of the log reaches back to.
        kept: How many fragments are kept.
        bytes: Their bytes.
        rate: Fragments a second, over the last ten seconds.
        websockets: How many WebSockets listen.
        subscriptions: How many WebSub subscriptions it has.
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
    subscriptions: int


class Topics(Struct, frozen=True):
    """A page of topics.

    Args:
        topics: The topics.
        total: How many there are on all pages together.
        next: What to ask for as `after` to get the next page; null on the last.
    """

    topics: tuple[Topic, ...]
    total: int
    next: str | None


class Failure(Struct, frozen=True, kw_only=True):
    """A delivery that failed.

    Args:
        at: When.
        status: The HTTP status of the answer; null when there was none.
        reason: Why it failed.
        excerpt: The first bytes of the answer's body, as text of a stranger.
    """

    at: _When
    status: int | None
    reason: str
    excerpt: str


class Subscription(Struct, frozen=True, kw_only=True):
    """A WebSub subscription, and how its deliveries go.

    Args:
        id: What it is called in paths of this API.
        topic: The URI of its topic.
        host: The host of its callback.
        state: How it stands.
        expires: When its lease ends.
        lag_seconds: How long it has been behind; 0 when it is up to date.
        behind: How many fragments wait for it.
        failures: How many tries failed in a row.
        retry_at: When the next try is due; null when none is.
        last_failure: The last delivery that failed, if any did since the hub started.
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
    last_failure: Failure | None


class Subscriptions(Struct, frozen=True):
    """A page of subscriptions.

    Args:
        subscriptions: The subscriptions.
        total: How many there are on all pages together.
        next: What to ask for as `after` to get the next page; null on the last.
    """

    subscriptions: tuple[Subscription, ...]
    total: int
    next: str | None


class SubscriptionFailure(Struct, frozen=True, kw_only=True):
    """A delivery that failed, and whose it was.

    Args:
        id: The subscription.
        topic: The URI of its topic.
        host: The host of its callback.
        at: When.
        status: The HTTP status of the answer; null when there was none.
        reason: Why it failed.
        excerpt: The first bytes of the answer's body, as text of a stranger.
    """

    id: str
    topic: str
    host: str
    at: _When
    status: int | None
    reason: str
    excerpt: str


class Failures(Struct, frozen=True):
    """The last failures, newest first. The hub remembers a bounded number of them.

    Args:
        failures: The failures.
    """

    failures: tuple[SubscriptionFailure, ...]


class DeadLetter(Struct, frozen=True, kw_only=True):
    """What is not delivered any more to one subscription until its topic changes.

    Args:
        id: The subscription.
        topic: The URI of its topic.
        host: The host of its callback.
        given_up_since: When the hub gave up.
        from_: Where the interval begins that waits (exclusive); null if nothing is kept of it.
        until: Where it ends.
        fragments: How many fragments wait.
        last_failure: The last delivery that failed.
    """

    id: str
    topic: str
    host: str
    given_up_since: _When | None
    from_: _When | None = field(name="from")
    until: _When | None
    fragments: int
    last_failure: Failure | None


class DeadLetters(Struct, frozen=True):
    """A page of dead letters, in the order of their topics.

    Args:
        dead_letters: The dead letters.
        total: How many there are on all pages together.
        next: What to ask for as `after` to get the next page; null on the last.
    """

    dead_letters: tuple[DeadLetter, ...]
    total: int
    next: str | None


class Problem(Struct, frozen=True):
    """Why a request was not done; nothing of it was.

    Args:
        error: The reason, in one sentence.
    """

    error: str
