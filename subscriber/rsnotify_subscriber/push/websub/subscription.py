"""One subscription as its callback sees it: values in, decisions out, no I/O.

Theory of operation. Anybody who knows a callback may send it anything, so it confirms only what
was requested, and only for a while: a verification of another topic or another mode is not
confirmed (WebSub §5.3.1), and neither is a late one. A hub may repeat its verification meanwhile,
as an answer can be lost.

    state          subscribe requested  confirmed  unsubscribe requested  confirmed  denied
    new            requested            -          -                      -          -
    requested      -                    active     over                   -          over
    active         -                    active     unsubscribing          -          over
    unsubscribing  -                    -          -                      over       over

Content is accepted while the subscription is active or unsubscribing, if its signature is right.
Content for one that is over is answered with 410, so that the hub may end it, too (WebSub §7).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto

from rsnotify.format.signatures import verify_signature

#: The longest lease that is believed; a longer number is not computed with.
_LONGEST_LEASE = 30 * 86_400
_MOST_DIGITS = 18
#: A longer challenge is not repeated: it would be an attempt to make us send it.
_LONGEST_CHALLENGE = 4096
_LONGEST_REASON = 200
_LONGEST_SHOWN = 100


class SubscriptionMode(StrEnum):
    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"


class SubscriptionState(Enum):
    NEW = auto()
    REQUESTED = auto()
    ACTIVE = auto()
    UNSUBSCRIBING = auto()
    OVER = auto()


class CallbackDecision(Enum):
    """The decision about delivered content."""

    ACCEPTED = auto()
    FORGED = auto()
    WEAK = auto()
    EARLY = auto()
    OVER = auto()


@dataclass(repr=False)
class CallbackSubscription:
    """A subscription that is requested, and its result. Times are those of the clock of `verify`.

    Args:
        callback: The URL to which only the hub of this subscription delivers.
        signatures: The methods that are accepted.
        lease: The lease in seconds that is requested.
    """

    topic: str
    callback: str
    secret: str | None
    signatures: tuple[str, ...]
    lease: int
    state: SubscriptionState = SubscriptionState.NEW
    #: When the lease ends.
    expires: float = 0.0
    #: The hub's reason for denying the subscription, if it gave one.
    denial: str | None = None
    #: The method by which the hub signs, if that is not accepted.
    weak: str | None = None
    #: The parameter that was wrong in the last verification that was not confirmed.
    refused: str | None = None
    _requested: tuple[SubscriptionMode, float] | None = None

    def __repr__(self) -> str:
        """Return what may be logged: neither the secret nor the callback."""
        return f"CallbackSubscription(topic={self.topic!r}, state={self.state.name})"

    @property
    def is_active(self) -> bool:
        return self.state is SubscriptionState.ACTIVE

    @property
    def is_over(self) -> bool:
        return self.state is SubscriptionState.OVER

    def request(self, mode: SubscriptionMode, until: float) -> dict[str, str]:
        """Begin a request to the hub, and return its form (WebSub §5.1).

        After `until`, a verification of it is too late.
        """
        self._requested = (mode, until)
        form = {"hub.mode": mode, "hub.topic": self.topic, "hub.callback": self.callback}
        if mode is SubscriptionMode.UNSUBSCRIBE:
            is_active = self.is_active
            self.state = SubscriptionState.UNSUBSCRIBING if is_active else SubscriptionState.OVER
            return form
        self.state = SubscriptionState.REQUESTED
        form["hub.lease_seconds"] = str(self.lease)
        return form if self.secret is None else form | {"hub.secret": self.secret}

    def verify(self, query: Mapping[str, str], now: float) -> str | None:
        """Answer a verification of intent, or a denial (WebSub §5.2, §5.3); None stands for 404."""
        if self.is_over:
            return None
        if query.get("hub.topic") != self.topic:
            return self._refuse("hub.topic", query)
        if query.get("hub.mode") == "denied":
            return self._deny(query.get("hub.reason", ""))
        challenge = query.get("hub.challenge", "")
        if not self._is_requested(query.get("hub.mode"), now):
            return self._refuse("hub.mode", query)
        if len(challenge) > _LONGEST_CHALLENGE:
            return self._refuse("hub.challenge", query)
        if not self._confirm(query.get("hub.lease_seconds", ""), now):
            return self._refuse("hub.lease_seconds", query)
        return challenge

    def _refuse(self, name: str, query: Mapping[str, str]) -> str | None:
        """Store which parameter was wrong, for the error message of the request."""
        value = query.get(name)
        what = f"without {name}" if value is None else f"with {name}={value[:_LONGEST_SHOWN]!r}"
        self.refused = what
        return None

    def _is_requested(self, mode: str | None, now: float) -> bool:
        requested = self._requested
        return requested is not None and requested[0] == mode and now <= requested[1]

    def _deny(self, reason: str) -> str | None:
        if self.state is SubscriptionState.NEW:
            return None
        self.denial = reason[:_LONGEST_REASON]
        self.state = SubscriptionState.OVER
        return ""

    def _confirm(self, granted: str, now: float) -> bool:
        if self.state is SubscriptionState.UNSUBSCRIBING:
            self.state = SubscriptionState.OVER
            return True
        lease = self._seconds(granted)
        if lease is None:
            return False
        self.state = SubscriptionState.ACTIVE
        self.expires = now + lease
        return True

    def _seconds(self, granted: str) -> int | None:
        """Read a lease; some hubs send none, though they must (WebSub §5.3)."""
        if not granted:
            return self.lease
        if not (granted.isascii() and granted.isdigit()) or len(granted) > _MOST_DIGITS:
            return None
        return min(int(granted), _LONGEST_LEASE) or None

    def decide(self, signature: str | None, body: bytes) -> CallbackDecision:
        """Decide whether content with this `X-Hub-Signature` is accepted."""
        if self.is_over:
            return CallbackDecision.OVER
        if self.state not in (SubscriptionState.ACTIVE, SubscriptionState.UNSUBSCRIBING):
            return CallbackDecision.EARLY
        if self.secret is None:
            return CallbackDecision.ACCEPTED
        method = verify_signature(signature or "", self.secret, body)
        if method is None:
            return CallbackDecision.FORGED
        if method not in self.signatures:
            self.weak = method
            return CallbackDecision.WEAK
        return CallbackDecision.ACCEPTED
