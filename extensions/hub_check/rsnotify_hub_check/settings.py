"""The settings of a check: how to publish, and how long to wait."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class PublishMethod(StrEnum):
    """How a publisher notifies the hub, which WebSub leaves open (§6)."""

    PING = "ping"
    URL = "url"
    TOPIC = "topic"
    CONTENT = "content"


class CheckSettings(Struct, frozen=True, kw_only=True):
    """How to publish to the hub, and how long to wait for it.

    Args:
        hub: The hub's URL.
        publish_url: Where to publish; by default at the hub's URL.
        publish_method: By a form with `hub.url` or `hub.topic` or both, or the content itself.
        token: A bearer token for publishing, if the hub requires one.
        patience: Seconds in which the hub must do what it does at once.
        quiet: Seconds without any request that prove that there will be none.
        settle: Seconds that the hub may need to process a verification.
        retry: Seconds in which it repeats a failed delivery.
        denied_topic: A topic for which it denies subscriptions, if there is one.
    """

    hub: str
    publish_url: str | None = None
    publish_method: PublishMethod = PublishMethod.PING
    token: str | None = None
    patience: float = 10.0
    quiet: float = 2.0
    settle: float = 1.0
    retry: float = 60.0
    denied_topic: str | None = None
