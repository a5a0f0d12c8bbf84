"""What a callback answers, as a value, and what that means for its subscription."""

from __future__ import annotations

from enum import Enum, auto
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from rsnotify_hub.subscriptions import Subscription

#: How much of a failed answer's body is kept, for whoever has to find out why it failed.
EXCERPT_BYTES = 512

#: What is shorter than this is no secret, and stands anywhere.
_TELLING = 4
_HIDDEN = b"[...]"


class AnswerVerdict(Enum):
    """What an answer means for its subscription."""

    DELIVERED = auto()
    GONE = auto()
    RETRY = auto()


class Answer(Struct, frozen=True):
    """What became of one request to a callback.

    Args:
        status: The HTTP status; None when none came.
        reason: What happened, to go on after "the callback": `answers 500`.
        excerpt: The first bytes of the body, as far as anybody asked for them.
        retry_after: The seconds that it asks to wait, if it does.
        reached: False when no connection could be made, so that nothing was sent.
    """

    status: int | None
    reason: str
    excerpt: bytes = b""
    retry_after: float | None = None
    reached: bool = True

    @property
    def verdict(self) -> AnswerVerdict:
        """Judge a delivery (WebSub §7).

        A redirect is a failure: the subscriber verified this callback, no other.
        """
        if self.succeeded:
            return AnswerVerdict.DELIVERED
        return AnswerVerdict.GONE if self.status == 410 else AnswerVerdict.RETRY

    @property
    def succeeded(self) -> bool:
        """Tell whether the status is a 2xx."""
        return self.status is not None and 200 <= self.status < 300


def presentable(excerpt: bytes, subscription: Subscription) -> bytes:
    """Return what of an answer may be shown: an error page may well repeat what it was sent.

    Args:
        excerpt: The first bytes of the body, more of them than are shown.
        subscription: Whose callback and secret must not show.
    """
    for secret in _secrets(subscription):
        excerpt = excerpt.replace(secret.encode(), _HIDDEN)
    return excerpt[:EXCERPT_BYTES]


def _secrets(subscription: Subscription) -> list[str]:
    # The callback is a capability URL: any part of it but the host may be its secret (WebSub §8.2).
    parts = urlsplit(subscription.callback)
    found = [subscription.secret or "", parts.query, *parts.path.split("/")]
    found += [unquote(part) for part in found[1:]]  # as servers read them
    found += [value or name for name, value in parse_qsl(parts.query, keep_blank_values=True)]
    return sorted({part for part in found if len(part) >= _TELLING}, key=len, reverse=True)
