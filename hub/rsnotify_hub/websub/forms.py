"""Parses the forms of `POST /websub`, and builds the URLs of the hub's requests to callbacks.

This module does no I/O. It ignores parameters that WebSub does not define (WebSub §5.1).
"""

from __future__ import annotations

from urllib.parse import parse_qsl, quote, urlencode

from msgspec import Struct

from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.urls import check_url

#: A secret must be shorter than 200 bytes (WebSub §5.1).
MAX_SECRET_BYTES = 199
_MAX_FIELDS = 100
#: Maximum number of digits of a lease to parse. A longer number means the longest lease.
_MAX_LEASE_DIGITS = 18
_LONGEST_LEASE = 10**_MAX_LEASE_DIGITS


class SubscriptionRequest(Struct, frozen=True):
    """An unverified request to subscribe or unsubscribe. The callback is kept as written."""

    mode: str
    topic: str
    callback: str
    lease: int | None = None
    secret: str | None = None

    def __repr__(self) -> str:
        """Return a string that is safe to log, without the secret and the callback."""
        return f"SubscriptionRequest(mode={self.mode!r}, topic={self.topic!r})"


class Ping(Struct, frozen=True):
    """A request to fetch changed topics (`hub.mode=publish`)."""

    topics: tuple[str, ...]


def parse_form(body: bytes) -> SubscriptionRequest | Ping:
    try:
        fields = parse_qsl(
            body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict"
        )
    except ValueError:
        raise _bad("the form is not URL-encoded UTF-8, or has too many fields") from None
    values = dict(reversed(fields))  # if a field is repeated, use its first value
    mode = values.get("hub.mode")
    if mode == "publish":
        topics = [value for name, value in fields if name in ("hub.url", "hub.topic") and value]
        if not topics:
            raise _bad("hub.url is missing")
        return Ping(tuple(check_url(topic, "hub.url") for topic in dict.fromkeys(topics)))
    if mode in ("subscribe", "unsubscribe"):
        return _subscription_request(mode, values)
    raise _bad("hub.mode must be subscribe, unsubscribe or publish")


def _subscription_request(mode: str, values: dict[str, str]) -> SubscriptionRequest:
    return SubscriptionRequest(
        mode=mode,
        topic=check_url(values.get("hub.topic", ""), "hub.topic"),
        callback=check_url(values.get("hub.callback", ""), "hub.callback"),
        lease=_lease(values.get("hub.lease_seconds", "")) if mode == "subscribe" else None,
        secret=check_secret(secret) if (secret := values.get("hub.secret")) else None,
    )


def _lease(text: str) -> int | None:
    if not text:
        return None
    digits = text.lstrip("0")
    if not (text.isascii() and text.isdigit() and digits):
        raise _bad("hub.lease_seconds is not a positive whole number")
    return int(digits) if len(digits) <= _MAX_LEASE_DIGITS else _LONGEST_LEASE


def check_secret(secret: str) -> str:
    """Return a secret unchanged, or raise `Refusal` if it is invalid (WebSub §5.1)."""
    if not 0 < len(secret.encode()) <= MAX_SECRET_BYTES:
        raise _bad("hub.secret must have 1 to 199 bytes")
    return secret


def verification_url(request: SubscriptionRequest, *, challenge: str, lease: int) -> str:
    """Return the URL that the hub GETs to verify a request (WebSub §5.3)."""
    query = [("hub.mode", request.mode), ("hub.topic", request.topic), ("hub.challenge", challenge)]
    if request.mode == "subscribe":
        query.append(("hub.lease_seconds", str(lease)))
    return _with_query(request.callback, query)


def denial_url(topic: str, callback: str, *, reason: str) -> str:
    """Return the URL that the hub GETs to deny a subscription (WebSub §5.2)."""
    query = [("hub.mode", "denied"), ("hub.topic", topic), ("hub.reason", reason)]
    return _with_query(callback, query)


def _with_query(callback: str, query: list[tuple[str, str]]) -> str:
    # The callback's own query is kept unchanged, even if it has the same names (WebSub §5.1).
    joint = "?" if "?" not in callback else "" if callback.endswith(("?", "&")) else "&"
    return callback + joint + urlencode(query, quote_via=quote, safe="")


def _bad(reason: str) -> Refusal:
    return Refusal(Code.BAD_REQUEST, reason)
