"""One subscription as its callback sees it: values in, decisions out; others do the I/O.

Theory of operation. Who knows a callback may send it anything, so it only ever answers to what
was asked for, and for a while only: a question about another topic or another intent is not
confirmed (WebSub §5.3.1), and neither is the same one later. A hub may put its question
again meanwhile, as an answer can be lost.

    state     subscribe wanted   confirmed   unsubscribe wanted   confirmed   denied
    new       asked              -           -                    -           -
    asked     -                  active      over                 -           over
    active    -                  active      leaving              -           over
    leaving   -                  -           -                    over        over

Content is taken while it is active or leaving, if its signature is right. What comes for one
that is over is told so, by 410, that the hub may end it too (WebSub §7).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, StrEnum, auto

from rsnotify.format.signatures import signed_by

#: Hubs grant less; a number that is longer need not be computed with.
_LONGEST_LEASE = 30 * 86_400
_MOST_DIGITS = 18
#: What is longer is no challenge, but somebody who wants to see it sent.
_LONGEST_CHALLENGE = 4096
_LONGEST_REASON = 200
_LONGEST_SHOWN = 100


class SubscriptionMode(StrEnum):
    """What is wanted of a hub."""

    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"


class SubscriptionState(Enum):
    """Where a subscription stands."""

    NEW = auto()
    ASKED = auto()
    ACTIVE = auto()
    LEAVING = auto()
    OVER = auto()


class CallbackDecision(Enum):
    """What becomes of content."""

    TAKEN = auto()
    FORGED = auto()
    WEAK = auto()
    EARLY = auto()
    OVER = auto()


class CallbackSubscription:
    """A subscription that is wanted, and what became of it.

    Args:
        topic: What it is for.
        callback: The URL at which nothing else arrives.
        secret: What content has to be signed with, if anything.
        signatures: The methods that are taken.
        lease: The lease in seconds that is asked for.

    Attributes:
        state: Where it stands.
        expires: When the lease ends, in the seconds of the clock of `verify`.
        denial: Why the hub does not want it, if it said so.
        weak: The method by which the hub signs, if it is none that is taken.
        refused: What was wrong with the last question that was not confirmed.
    """

    def __init__(
        self,
        topic: str,
        callback: str,
        *,
        secret: str | None,
        signatures: tuple[str, ...],
        lease: int,
    ) -> None:
        self.topic = topic
        self.state = SubscriptionState.NEW
        self.expires = 0.0
        self.denial: str | None = None
        self.weak: str | None = None
        self.refused: str | None = None
        self._callback = callback
        self._secret = secret
        self._signatures = signatures
        self._lease = lease
        self._wanted: tuple[SubscriptionMode, float] | None = None

    def __repr__(self) -> str:
        """Return what may be logged: neither the secret nor the callback."""
        return f"Subscription(topic={self.topic!r}, state={self.state.name})"

    @property
    def is_active(self) -> bool:
        """Whether the hub delivers."""
        return self.state is SubscriptionState.ACTIVE

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.state is SubscriptionState.OVER

    def want(self, mode: SubscriptionMode, until: float) -> dict[str, str]:
        """Begin to want something of the hub.

        Args:
            mode: What.
            until: When its question is too late.

        Returns:
            The form of the request (WebSub §5.1).
        """
        self._wanted = (mode, until)
        form = {"hub.mode": mode, "hub.topic": self.topic, "hub.callback": self._callback}
        if mode is SubscriptionMode.UNSUBSCRIBE:
            self.state = SubscriptionState.LEAVING if self.is_active else SubscriptionState.OVER
            return form
        self.state = SubscriptionState.ASKED
        form["hub.lease_seconds"] = str(self._lease)
        return form if self._secret is None else form | {"hub.secret": self._secret}

    def question(self, query: Mapping[str, str], now: float) -> str | None:
        """Answer a question of the hub (WebSub §5.2, §5.3).

        Args:
            query: What it asks.
            now: The time.

        Returns:
            The body of the answer; None where the answer is 404.
        """
        if self.is_over:
            return None
        if query.get("hub.topic") != self.topic:
            return self._refuse("hub.topic", query)
        if query.get("hub.mode") == "denied":
            return self._deny(query.get("hub.reason", ""))
        challenge = query.get("hub.challenge", "")
        if not self._is_wanted(query.get("hub.mode"), now):
            return self._refuse("hub.mode", query)
        if len(challenge) > _LONGEST_CHALLENGE:
            return self._refuse("hub.challenge", query)
        if self._confirm(query.get("hub.lease_seconds", ""), now) is None:
            return self._refuse("hub.lease_seconds", query)
        return challenge

    def _refuse(self, name: str, query: Mapping[str, str]) -> str | None:
        """Remember which parameter was wrong, for whoever waits for the confirmation."""
        value = query.get(name)
        what = f"without {name}" if value is None else f"with {name}={value[:_LONGEST_SHOWN]!r}"
        self.refused = what
        return None

    def _is_wanted(self, mode: str | None, now: float) -> bool:
        return self._wanted is not None and self._wanted[0] == mode and now <= self._wanted[1]

    def _deny(self, reason: str) -> str | None:
        if self.state is SubscriptionState.NEW:
            return None
        self.denial = reason[:_LONGEST_REASON]
        self.state = SubscriptionState.OVER
        return ""

    def _confirm(self, granted: str, now: float) -> str | None:
        if self.state is SubscriptionState.LEAVING:
            self.state = SubscriptionState.OVER
            return "confirmed"
        lease = self._seconds(granted)
        if lease is None:
            return None
        self.state = SubscriptionState.ACTIVE
        self.expires = now + lease
        return "confirmed"

    def _seconds(self, granted: str) -> int | None:
        """Read a lease; some hubs say none, though they must (WebSub §5.3)."""
        if not granted:
            return self._lease
        if not (granted.isascii() and granted.isdigit()) or len(granted) > _MOST_DIGITS:
            return None
        return min(int(granted), _LONGEST_LEASE) or None

    def judge(self, signature: str | None, body: bytes) -> CallbackDecision:
        """Decide about content.

        Args:
            signature: Its `X-Hub-Signature`, if it has one.
            body: The content.
        """
        if self.is_over:
            return CallbackDecision.OVER
        if self.state not in (SubscriptionState.ACTIVE, SubscriptionState.LEAVING):
            return CallbackDecision.EARLY
        if self._secret is None:
            return CallbackDecision.TAKEN
        method = signed_by(signature or "", self._secret, body)
        if method is None:
            return CallbackDecision.FORGED
        if method not in self._signatures:
            self.weak = method
            return CallbackDecision.WEAK
        return CallbackDecision.TAKEN
