"""A simulated callback: it records verifications and deliveries, and answers them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import parse_qsl

from msgspec import Struct
from multidict import CIMultiDictProxy


class ReceivedVerification(Struct, frozen=True):
    """A GET of a callback, and the parameters that the hub appended."""

    target: str
    appended: dict[str, str]

    @property
    def challenge(self) -> str:
        return self.appended.get("hub.challenge", "")


class ReceivedDelivery(Struct, frozen=True):
    target: str
    headers: CIMultiDictProxy[str]
    body: bytes


class CallbackReply(Struct, frozen=True):
    status: int = 200
    body: str = ""
    headers: dict[str, str] = {}


def echo(verification: ReceivedVerification) -> CallbackReply:
    """Confirm the intent, by repeating the challenge."""
    return CallbackReply(body=verification.challenge)


def decline(verification: ReceivedVerification) -> CallbackReply:
    """Answer that the subscriber does not agree (WebSub §5.3.1)."""
    return CallbackReply(status=404)


class SimulatedCallback:
    """A subscriber's callback.

    Attributes:
        target: Its path and query.
        reply: Returns the answer to a verification.
        answers: The answers to the next deliveries, one after another.
        answer: The answer to all later deliveries.
        drops: Whether it closes the connection without an answer.
        open: An event that answers wait for.
        subscribed: The topics whose subscription it confirmed, except those it unsubscribed from.
    """

    def __init__(self, base: str, token: str, query: str, path: str) -> None:
        self.token = token
        self.target = f"/callback/{self.token}{path}" + (f"?{query}" if query else "")
        self.url = base + self.target
        self.reply: Callable[[ReceivedVerification], CallbackReply] = echo
        self.answers: list[CallbackReply] = []
        self.answer = CallbackReply()
        self.drops = False
        self.open = asyncio.Event()
        self.open.set()
        self.verifications: list[ReceivedVerification] = []
        self.deliveries: list[ReceivedDelivery] = []
        self.subscribed: set[str] = set()

    def read(self, target: str) -> ReceivedVerification:
        """Return a verification, with the parameters appended to the callback's own query."""
        added = target[len(self.target) :] if target.startswith(self.target) else target
        query = added.lstrip("?&") if added is not target else target.partition("?")[2]
        return ReceivedVerification(target, dict(parse_qsl(query, keep_blank_values=True)))

    def verify(self, verification: ReceivedVerification) -> CallbackReply:
        self.verifications.append(verification)
        reply = self.reply(verification)
        if 200 <= reply.status < 300 and reply.body == verification.challenge:
            begins = verification.appended.get("hub.mode") == "subscribe"
            change = self.subscribed.add if begins else self.subscribed.discard
            change(verification.appended.get("hub.topic", ""))
        return reply
