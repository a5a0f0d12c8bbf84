"""Options for push: the transport, and the terms of WebSub subscriptions.

Commands import this module at startup, so it imports nothing slow.
"""

from __future__ import annotations

from enum import StrEnum
from typing import cast

from msgspec import Struct

from rsnotify.runtime.extensions import offered
from rsnotify.sync.retry import Retry


class Via(StrEnum):
    """How changes arrive: by any available transport, by one specific transport, or by polling."""

    AUTO = "auto"
    WEBSOCKET = "websocket"
    MQTT = "mqtt"
    XMPP = "xmpp"
    WEBSUB = "websub"
    POLL = "poll"

    @classmethod
    def _missing_(cls, value: object) -> Via | None:
        """Return the member for a transport from an installed package, by its URL scheme."""
        if not isinstance(value, str) or value not in offered("transports"):
            return None
        member = str.__new__(cls, value)
        member._name_, member._value_ = value.upper(), value
        return cast(Via, cls._value2member_map_.setdefault(value, member))


#: The values that need no extension.
BUILT_IN = (Via.AUTO, Via.WEBSOCKET, Via.MQTT, Via.WEBSUB, Via.POLL)
_NAMES = {Via.WEBSOCKET: "WebSocket", Via.MQTT: "MQTT", Via.XMPP: "XMPP", Via.WEBSUB: "WebSub"}


def protocol_of(via: Via) -> str | None:
    """Return the name of the protocol that a hub must support, or None if push is optional."""
    return None if via in (Via.AUTO, Via.POLL) else _NAMES.get(via, via)


class WebSubTerms(Struct, frozen=True, kw_only=True):
    """The terms of WebSub subscriptions. Times are in seconds.

    Args:
        lease: The lease to request. A hub may grant another.
        shortest_lease: The shortest lease to accept, because renewing shorter ones burdens the hub.
        secret: Whether each subscription has a secret. Without one, anybody who knows the URL of a
            callback can send content to it.
        signatures: The accepted signature methods: `sha1`, `sha256`, `sha384` or `sha512`.
        refuse: Whether the response to content with a missing or wrong signature is 403 instead of
            2xx (WebSub §7.1.2). Such content is never used.
        patience: Timeout for a hub to verify a subscription, and to send a whole request.
        settle: Time for a hub to begin delivering after the verification.
        quiet: Time without content, or twice the longest such time so far if that is longer, after
            which the subscription is renewed to check whether the hub is up.
        retry: The delays between attempts to renew a lease.
    """

    lease: int = 86_400
    shortest_lease: float = 10.0
    secret: bool = True
    signatures: tuple[str, ...] = ("sha256", "sha384", "sha512")
    refuse: bool = True
    patience: float = 30.0
    settle: float = 2.0
    quiet: float = 15.0
    retry: Retry = Retry(first=1.0, most=300.0)


DEFAULT_TERMS = WebSubTerms()
