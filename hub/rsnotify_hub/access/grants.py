"""Who may publish on which topic, and who may administer the hub."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from math import inf

from msgspec import Struct

from rsnotify_hub.access.json_web_tokens import JsonWebTokens
from rsnotify_hub.access.topic_prefixes import is_granted
from rsnotify_hub.config.configuration import AdminGrant, HubConfiguration, PublisherGrant
from rsnotify_hub.config.tokens import digest


class Grant(Struct, frozen=True):
    """What one token grants.

    Args:
        topics: Topics, or prefixes of them, to publish on.
        admin: Whether it is an admin's.
        everything: Whether it may publish on any topic.
        until: When it ends, in seconds since 1970.
    """

    topics: tuple[str, ...] = ()
    everything: bool = False
    admin: bool = False
    until: float = inf

    def covers(self, topic: str) -> bool:
        """Tell whether a topic may be published on."""
        return self.everything or _covers(self.topics, topic)


class Grants:
    """The grants of the configuration. Only digests of tokens are kept.

    Args:
        publishers: The tokens, and the topics each may publish on.
        admins: The tokens of those who administer the hub.
        open_topics: What anybody may ask the hub to fetch.
        web_tokens: Verifies JSON Web Tokens; None if there are none.
        over_mqtt: What is published through a broker, which says who may.
        anonymous: Whether a local peer may do all that without a token. It may not once there
            are publishers, admins or JSON Web Tokens.
    """

    def __init__(
        self,
        publishers: Sequence[PublisherGrant] = (),
        admins: Sequence[AdminGrant] = (),
        open_topics: Sequence[str] = (),
        web_tokens: JsonWebTokens | None = None,
        over_mqtt: Sequence[str] = (),
        *,
        anonymous: bool,
    ) -> None:
        self._publishers = publishers
        self._admins = admins
        self._open_topics = open_topics
        self._web_tokens = web_tokens
        self._over_mqtt = over_mqtt
        self.anonymous = anonymous and not publishers and not admins and web_tokens is None

    def grant(self, token: str) -> Grant:
        """Return what a token grants, which may be nothing."""
        brought = digest(token)
        topics: tuple[str, ...] = ()
        admin = False
        # Every token is compared, in constant time, so that timing tells nothing about any.
        for publisher in self._publishers:
            same = hmac.compare_digest(brought, publisher.token_sha256)
            topics += publisher.topics if same else ()
        for each in self._admins:
            admin |= hmac.compare_digest(brought, each.token_sha256)
        if topics or admin or self._web_tokens is None:
            return Grant(topics, admin=admin)
        claims = self._web_tokens.claims(token)
        if claims is None:
            return Grant()
        return Grant(claims.publish, admin=claims.admin, until=claims.until)

    def is_open(self, topic: str) -> bool:
        """Tell whether anybody may ask the hub to fetch a topic."""
        return _covers(self._open_topics, topic)

    def comes_over_mqtt(self, topic: str) -> bool:
        """Tell whether a topic may be published on through the broker."""
        return _covers(self._over_mqtt, topic)

    def is_served(self, topic: str) -> bool:
        """Tell whether somebody may publish on a topic, so that subscribing makes sense."""
        if self.anonymous or self._web_tokens is not None:
            return True  # a JSON Web Token may grant any
        if self.is_open(topic) or self.comes_over_mqtt(topic):
            return True
        return any(_covers(one.topics, topic) for one in self._publishers)


def grants_of(configuration: HubConfiguration, *, anonymous: bool) -> Grants:
    """Make the grants that a configuration has.

    Args:
        configuration: Checked settings.
        anonymous: Whether a local peer may do without a token if there are none.
    """
    web_tokens = None
    if configuration.jwt_algorithms:
        assert configuration.jwt_key is not None
        assert configuration.jwt_audience is not None
        web_tokens = JsonWebTokens(
            configuration.jwt_algorithms,
            configuration.jwt_key,
            configuration.jwt_audience,
            configuration.jwt_issuer,
        )
    return Grants(
        configuration.publishers,
        configuration.admins,
        configuration.open_topics,
        web_tokens,
        configuration.mqtt_channels,
        anonymous=anonymous,
    )


def _covers(prefixes: Iterable[str], topic: str) -> bool:
    return any(is_granted(prefix, topic) for prefix in prefixes)
