"""A subscriber's callback: what it was asked and sent, and what it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import parse_qsl

from msgspec import Struct
from multidict import CIMultiDictProxy


class ReceivedVerification(Struct, frozen=True):
    """A GET of a callback.

    Args:
        target: The request target, exactly as it came.
        appended: The parameters that the hub added.
    """

    target: str
    appended: dict[str, str]

    @property
    def challenge(self) -> str:
        """The challenge; empty if there is none."""
        return self.appended.get("hub.challenge", "")


class ReceivedDelivery(Struct, frozen=True):
    """A POST to a callback."""

    target: str
    headers: CIMultiDictProxy[str]
    body: bytes


class CallbackReply(Struct, frozen=True):
    """What a callback answers."""

    status: int = 200
    body: str = ""
    headers: dict[str, str] = {}


def echo(verification: ReceivedVerification) -> CallbackReply:
    """Confirm."""
    return CallbackReply(body=verification.challenge)


def decline(verification: ReceivedVerification) -> CallbackReply:
    """Say that the subscriber does not want this (WebSub §5.3.1)."""
    return CallbackReply(status=404)


class SimulatedCallback:
    """A subscriber's callback.

    Attributes:
        url: Its URL, as the hub is told.
        target: Its path and query.
        reply: How it answers a verification.
        answers: What it answers to the next deliveries, one after another.
        answer: What it answers to all after them.
        drops: Whether it hangs up without an answer.
        open: Answers wait for it.
        verifications: Every GET so far.
        deliveries: Every POST so far.
        subscribed: The topics whose subscription it confirmed, and whose end it did not.
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
        """Take a verification apart: what it adds to the callback's own query."""
        added = target[len(self.target) :] if target.startswith(self.target) else target
        query = added.lstrip("?&") if added is not target else target.partition("?")[2]
        return ReceivedVerification(target, dict(parse_qsl(query, keep_blank_values=True)))

    def verify(self, verification: ReceivedVerification) -> CallbackReply:
        """Answer a verification."""
        self.verifications.append(verification)
        reply = self.reply(verification)
        if 200 <= reply.status < 300 and reply.body == verification.challenge:
            begins = verification.appended.get("hub.mode") == "subscribe"
            change = self.subscribed.add if begins else self.subscribed.discard
            change(verification.appended.get("hub.topic", ""))
        return reply
