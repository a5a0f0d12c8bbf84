"""The settings of a run of checks, such as how to publish, and its results."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from rsnotify.errors import RsnotifyError


class RequirementLevel(StrEnum):
    """The requirement level in the Recommendation (RFC 2119)."""

    MUST = "MUST"
    SHOULD = "SHOULD"
    MAY = "MAY"


class CheckVerdict(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    #: The value has not changed since the first release.
    INCONCLUSIVE = "untold"


class Requirement(Struct, frozen=True):
    """A requirement of the Recommendation, with the name of its check.

    Args:
        rocks: The numbers of the websub.rocks tests for the same requirement.
        title: The requirement, as a sentence.
    """

    name: str
    section: str
    level: RequirementLevel
    rocks: tuple[int, ...]
    title: str


class CheckResult(Requirement, frozen=True):
    """The result of one check; `reason` says why it failed or is inconclusive."""

    verdict: CheckVerdict
    reason: str
    seconds: float


class RequirementBroken(RsnotifyError):
    """The hub breaks the requirement; the message says how."""


class Inconclusive(RsnotifyError):
    """The check cannot decide for this hub; the message says why."""


def expect(holds: object, otherwise: str) -> None:
    if not holds:
        raise RequirementBroken(otherwise)


class PublishMethod(StrEnum):
    """How a publisher notifies the hub. WebSub does not specify this (§6)."""

    PING = "ping"
    URL = "url"
    TOPIC = "topic"
    CONTENT = "content"


class CheckSettings(Struct, frozen=True, kw_only=True):
    """How to publish to the hub, and how long to wait for it.

    Args:
        hub: The hub's URL.
        publish_url: Where to publish; by default, the hub's URL.
        publish_method: A form with `hub.url`, `hub.topic` or both, or the content itself.
        token: A bearer token for publishing, if the hub requires one.
        patience: Seconds to wait for a request or response that the hub should send at once.
        quiet: Seconds without a request after which the suite assumes that none will come.
        settle: Seconds that the hub may need to process a verification.
        retry: Seconds within which the hub has to repeat a failed delivery.
        denied_topic: A topic for which the hub denies subscriptions, if there is one.
    """

    hub: str
    publish_url: str | None = None
    publish_method: PublishMethod = PublishMethod.PING
    token: str | None = None
    patience: float = 10.0
    quiet: float = 2.0
    settle: float = 1.0
    retry: float = 60.0
    denied_topic: str | None = None
