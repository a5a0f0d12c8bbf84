"""Who may publish on which topic, and who may administer the hub."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from hashlib import sha256

from rsnotify_hub.access.prefixes import is_granted
from rsnotify_hub.configuration import Admin, Publisher


class Grants:
    """The grants of the configuration. Only digests of tokens are kept.

    Args:
        publishers: The tokens, and the topics each may publish on.
        admins: The tokens of those who administer the hub.
        open_topics: What anybody may ask the hub to fetch.
        anonymous: Whether a local peer may do all that without a token. It may not once there
            are publishers or admins.
    """

    def __init__(
        self,
        publishers: Sequence[Publisher] = (),
        admins: Sequence[Admin] = (),
        open_topics: Sequence[str] = (),
        *,
        anonymous: bool,
    ) -> None:
        self._publishers = publishers
        self._admins = admins
        self._open_topics = open_topics
        self.anonymous = anonymous and not publishers and not admins

    def may_publish(self, topic: str, token: str) -> bool:
        """Tell whether a token grants a topic."""
        brought = _digest(token)
        allowed = False
        # Every token is compared, in constant time, so that timing tells nothing about any.
        for publisher in self._publishers:
            same = hmac.compare_digest(brought, publisher.token_sha256)
            granted = any(is_granted(prefix, topic) for prefix in publisher.topics)
            allowed |= same and granted
        return allowed

    def may_administer(self, token: str) -> bool:
        """Tell whether a token is an admin's."""
        brought = _digest(token)
        allowed = False
        for admin in self._admins:
            allowed |= hmac.compare_digest(brought, admin.token_sha256)
        return allowed

    def is_open(self, topic: str) -> bool:
        """Tell whether anybody may ask the hub to fetch a topic."""
        return any(is_granted(prefix, topic) for prefix in self._open_topics)

    def is_served(self, topic: str) -> bool:
        """Tell whether somebody may publish on a topic, so that subscribing makes sense."""
        return (
            self.anonymous
            or self.is_open(topic)
            or any(
                is_granted(prefix, topic)
                for publisher in self._publishers
                for prefix in publisher.topics
            )
        )


def _digest(token: str) -> str:
    return sha256(token.encode(errors="surrogateescape")).hexdigest()
