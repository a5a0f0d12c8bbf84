"""The settings of a run of checks: the hub, how to publish, and how long to wait."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class PublishMethod(StrEnum):
    """How to publish: a ping, or the content. WebSub does not specify this (§6)."""

    PING = "ping"
    URL = "url"
    TOPIC = "topic"
    CONTENT = "content"


class CheckSettings(Struct, frozen=True, kw_only=True):
    """The settings of a run of checks. Times are in seconds.

    Args:
        hub: The hub's URL.
        publish_url: The URL to publish to; by default, the hub's URL.
        publish_method: A form with `hub.url`, `hub.topic` or both, or the content itself.
        token: A bearer token for publishing, if the hub requires one.
        patience: How long to wait for a request or response that the hub should send immediately.
        quiet: How long to wait for a request that the hub should not send.
        settle: How long the hub may need to process a verification.
        retry: How long to wait until the hub retries a failed delivery.
        denied_topic: A topic for which the hub denies subscriptions, if any.
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
