"""The answer of a callback as a value, and its meaning for the subscription."""

from __future__ import annotations

from enum import Enum, auto
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from rsnotify_hub.subscriptions import Subscription
from rsnotify_hub.urls import SHORTEST_SECRET

#: How much of a failed answer's body is kept, so that an operator can find the cause.
EXCERPT_BYTES = 512

_REDACTED = b"[...]"


class AnswerVerdict(Enum):
    DELIVERED = auto()
    GONE = auto()
    RETRY = auto()


class Answer(Struct, frozen=True, gc=False):
    """The outcome of one request to a callback.

    Args:
        status: The HTTP status; None without a response.
        reason: The outcome, worded to follow "the callback": `answers 500`.
        excerpt: The first bytes of the body, as far as they were wanted.
        retry_after: The seconds after which it wants another request, if it says so.
        reached: False if no connection could be opened, so that nothing was sent.
    """

    status: int | None
    reason: str
    excerpt: bytes = b""
    retry_after: float | None = None
    reached: bool = True

    @property
    def verdict(self) -> AnswerVerdict:
        """The verdict on a delivery (WebSub §7).

        A redirect is a failure: the subscriber verified this callback and no other.
        """
        if self.succeeded:
            return AnswerVerdict.DELIVERED
        return AnswerVerdict.GONE if self.status == 410 else AnswerVerdict.RETRY

    @property
    def succeeded(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


def redacted(excerpt: bytes, subscription: Subscription) -> bytes:
    """Return the part of an answer that may be shown: an error page may repeat the request."""
    for secret in _secrets(subscription):
        excerpt = excerpt.replace(secret.encode(), _REDACTED)
    return excerpt[:EXCERPT_BYTES]


def _secrets(subscription: Subscription) -> list[str]:
    # The callback is a capability URL: any part of it but the host may be secret (WebSub §8.2).
    parts = urlsplit(subscription.callback)
    found = [subscription.secret or "", parts.query, *parts.path.split("/")]
    found += [unquote(part) for part in found[1:]]  # as servers read them
    found += [value or name for name, value in parse_qsl(parts.query, keep_blank_values=True)]
    long_enough = {part for part in found if len(part) >= SHORTEST_SECRET}
    return sorted(long_enough, key=len, reverse=True)
