"""How a hub under test is asked, and how long is waited for it."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class PublishMethod(StrEnum):
    """How a publisher tells the hub of a change, which WebSub leaves to the two of them (§6)."""

    PING = "ping"
    URL = "url"
    TOPIC = "topic"
    CONTENT = "content"


class CheckSettings(Struct, frozen=True, kw_only=True):
    """How the hub is asked, and how long is waited for it.

    Args:
        hub: Its URL.
        publish: Where it is told of changes; by default at its URL.
        way: How: by a form with `hub.url` or `hub.topic` or both, or by the content itself.
        token: A bearer token for publishing, if the hub asks for one.
        patience: The seconds in which it must do what it does at once.
        quiet: The seconds without anything that count as nothing.
        settle: The seconds it may take over what was just verified.
        retry: The seconds in which it tries a failed delivery again.
        unserved: A topic for which it denies subscriptions, if there is one.
    """

    hub: str
    publish: str | None = None
    way: PublishMethod = PublishMethod.PING
    token: str | None = None
    patience: float = 10.0
    quiet: float = 2.0
    settle: float = 1.0
    retry: float = 60.0
    unserved: str | None = None
