"""Who may publish on which topic, and who may administer the hub."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from msgspec import Struct

from rsnotify_hub.access.json_web_tokens import JsonWebTokens
from rsnotify_hub.access.topic_prefixes import is_granted
from rsnotify_hub.config.configuration import AdminGrant, HubConfiguration, PublisherGrant
from rsnotify_hub.config.tokens import digest


class Grant(Struct, frozen=True):
    """The rights of one token.

    Args:
        topics: Topics, or prefixes of topics, that it may publish on.
        until: When it expires, in seconds since 1970.
    """

    topics: tuple[str, ...] = ()
    everything: bool = False
    admin: bool = False
    until: float = inf

    def covers(self, topic: str) -> bool:
        return self.everything or _covers(self.topics, topic)


@dataclass(eq=False, repr=False)
class Grants:
    """The grants of the configuration, which hold only digests of tokens.

    Args:
        open_topics: Topics that anybody may ask the hub to fetch.
        over_mqtt: Topics that are published through a broker, which decides who may.
        anonymous: Whether programs on this machine need no token. They do once there are
            publishers, admins or JSON Web Tokens.
        own: What the hub itself publishes, which makes it no publisher of the configuration.
    """

    publishers: Sequence[PublisherGrant] = ()
    admins: Sequence[AdminGrant] = ()
    open_topics: Sequence[str] = ()
    web_tokens: JsonWebTokens | None = None
    over_mqtt: Sequence[str] = ()
    anonymous: bool = field(kw_only=True)
    own: Sequence[PublisherGrant] = ()

    def __post_init__(self) -> None:
        if self.publishers or self.admins or self.web_tokens is not None:
            self.anonymous = False

    def grant(self, token: str) -> Grant:
        """Return the rights of a token; a token that is not known has none."""
        digest_of_token = digest(token)
        topics: tuple[str, ...] = ()
        admin = False
        # Every token is compared, in constant time, so timing reveals nothing about any.
        for publisher in (*self.publishers, *self.own):
            same = hmac.compare_digest(digest_of_token, publisher.token_sha256)
            topics += publisher.topics if same else ()
        for each in self.admins:
            admin |= hmac.compare_digest(digest_of_token, each.token_sha256)
        if topics or admin or self.web_tokens is None:
            return Grant(topics, admin=admin)
        claims = self.web_tokens.claims(token)
        if claims is None:
            return Grant()
        return Grant(claims.publish, admin=claims.admin, until=claims.until)

    def is_open(self, topic: str) -> bool:
        """Return whether anybody may ask the hub to fetch a topic."""
        return _covers(self.open_topics, topic)

    def is_served(self, topic: str) -> bool:
        """Return whether anybody may publish on a topic, so that subscribing makes sense."""
        if self.anonymous or self.web_tokens is not None:
            return True  # a JSON Web Token may grant any
        publishers = (*self.publishers, *self.own)
        served = (self.open_topics, self.over_mqtt, *(each.topics for each in publishers))
        return any(_covers(prefixes, topic) for prefixes in served)


def grants_of(configuration: HubConfiguration, *, anonymous: bool) -> Grants:
    access, web_tokens = configuration.access, None
    if access.jwt_algorithms:
        assert access.jwt_key is not None
        assert access.jwt_audience is not None
        web_tokens = JsonWebTokens(
            access.jwt_algorithms, access.jwt_key, access.jwt_audience, access.jwt_issuer
        )
    return Grants(
        access.publishers,
        access.admins,
        access.open_topics,
        web_tokens,
        configuration.mqtt.channels,
        anonymous=anonymous,
    )


def _covers(prefixes: Iterable[str], topic: str) -> bool:
    return any(is_granted(prefix, topic) for prefix in prefixes)
