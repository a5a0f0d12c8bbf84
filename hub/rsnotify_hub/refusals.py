"""Refused requests: their codes and reasons, which are the same over HTTP, WebSocket and MQTT."""

from __future__ import annotations

from enum import StrEnum

from rsnotify.errors import RsnotifyError
from rsnotify.format.datetimes import Instant, parse_datetime


class Code(StrEnum):
    """The codes defined in `docs/protocol.md`."""

    BAD_REQUEST = "bad-request"
    FORBIDDEN = "forbidden"
    INVALID_FRAGMENT = "invalid-fragment"
    UNAVAILABLE = "unavailable"
    TOO_MANY = "too-many"
    MISDIRECTED = "misdirected"


#: The HTTP status of each code, and the close code of a WebSocket (RFC 6455 §7.4.1).
_STATUS_AND_CLOSE = {
    Code.BAD_REQUEST: (400, 1008),
    Code.FORBIDDEN: (403, 1008),
    Code.INVALID_FRAGMENT: (400, 1008),
    Code.UNAVAILABLE: (503, 1013),
    Code.TOO_MANY: (429, 1013),
    Code.MISDIRECTED: (421, 1008),
}

#: The codes of requests that the client may retry.
_TEMPORARY = (Code.UNAVAILABLE, Code.TOO_MANY)
#: The value of `Retry-After`, in seconds.
RETRY_AFTER = "5"


class Refusal(RsnotifyError):
    """A request was refused and had no effect. The reason is sent to the client."""

    def __init__(self, code: Code, reason: str) -> None:
        self.code = code
        self.reason = reason
        super().__init__(code, reason)

    def __str__(self) -> str:
        return self.reason

    @property
    def close_code(self) -> int:
        return _STATUS_AND_CLOSE[self.code][1]


def parse_since(text: str | None) -> Instant | None:
    """Parse a `since` parameter. Return None if it is absent."""
    try:
        return None if text is None else parse_datetime(text)
    except ValueError as error:
        raise Refusal(Code.BAD_REQUEST, f"since: {error}") from None


def answer_to(refusal: Refusal, *, with_token: bool) -> tuple[int, dict[str, str]]:
    """Return the HTTP status of a refusal, and the headers that the response needs.

    If the client lacks permission and sent no token, the response requests one.
    """
    if refusal.code is Code.FORBIDDEN and not with_token:
        return 401, {"WWW-Authenticate": "Bearer"}
    headers = {"Retry-After": RETRY_AFTER} if refusal.code in _TEMPORARY else {}
    return _STATUS_AND_CLOSE[refusal.code][0], headers
