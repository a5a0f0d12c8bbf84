"""Who may publish on which topic."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from rsnotify_hub.configuration import Publisher


def is_granted(prefix: str, topic: str) -> bool:
    """Tell whether a topic is the prefix, or lies below it: `/a` grants `/a/b`, never `/ab`."""
    if not topic.startswith(prefix):
        return False
    return topic == prefix or prefix.endswith("/") or topic[len(prefix)] in "/?"


class Grants:
    """The grants of the configuration.

    Args:
        publishers: The tokens, and the topics each may publish on.
        anonymous: Whether a local peer may publish without a token. It may not once there
            are publishers.
    """

    def __init__(self, publishers: Sequence[Publisher], *, anonymous: bool) -> None:
        self._publishers = publishers
        self._anonymous = anonymous and not publishers

    def may_publish(self, topic: str, *, token: str | None, local: bool) -> bool:
        """Decide on one request.

        Args:
            topic: What it wants to publish on.
            token: The bearer token it brought, if any.
            local: Whether it came from this machine, directly.
        """
        if token is None:
            return self._anonymous and local
        brought = token.encode(errors="surrogateescape")  # a header may hold any bytes
        allowed = False
        # Every token is compared, in constant time, so that timing tells nothing about any.
        for publisher in self._publishers:
            same = hmac.compare_digest(brought, publisher.token.encode())
            granted = any(is_granted(prefix, topic) for prefix in publisher.topics)
            allowed |= same and granted
        return allowed

    def is_served(self, topic: str) -> bool:
        """Tell whether somebody may publish on a topic, so that subscribing makes sense."""
        return self._anonymous or any(
            is_granted(prefix, topic)
            for publisher in self._publishers
            for prefix in publisher.topics
        )
