"""The grants: which topics a token may publish on, and whether it may administer the hub.

A token is in the settings, or is a JSON Web Token with the claim `rsnotify`:
`{"publish": ["https://…/"], "admin": false}`. When a settings file changes, `reload_grants`
replaces the configured grants without a restart.

A grant lists prefixes of topics. Topics are compared byte for byte, but servers resolve dot
segments and decode escapes. Therefore no prefix grants a topic with a dot segment, however it is
written.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from time import time

import msgspec
from msgspec import Struct

from rsnotify.runtime.settings import digest
from rsnotify_hub.config.configuration import AdminGrant, HubConfig, PublisherGrant
from rsnotify_hub.urls import has_dot_segments

#: How long before its `nbf` and `iat` a token is accepted, in seconds, because the issuer's clock
#: may be ahead. The expiry has no such leeway.
_CLOCK_LEEWAY_SECONDS = 30


def prefix_grants(prefix: str, topic: str) -> bool:
    """Return whether a topic equals a prefix or is below it: `/a` grants `/a/b`, but not `/ab`."""
    if not topic.startswith(prefix):
        return False
    if topic != prefix and not prefix.endswith("/") and topic[len(prefix)] not in "/?":
        return False
    return not has_dot_segments(topic)


def prefixes_grant(prefixes: Iterable[str], topic: str) -> bool:
    return any(prefix_grants(prefix, topic) for prefix in prefixes)


def granted_ranges(prefixes: Sequence[str]) -> list[tuple[str, str]]:
    """Return the ranges of topics that the prefixes grant, sorted and without overlaps.

    A range consists of its first topic and its end (exclusive).
    """
    found: list[tuple[str, str]] = []
    for begin, end in sorted(each for prefix in prefixes for each in _ranges(prefix)):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def _ranges(prefix: str) -> list[tuple[str, str]]:
    if prefix.endswith("/"):
        return [(prefix, prefix[:-1] + "0")]  # "0" is the character after "/"
    return [(prefix, prefix + "\0"), (prefix + "/", prefix + "0"), (prefix + "?", prefix + "@")]


class Grant(Struct, frozen=True):
    """The rights of one token, which expires at `until`, in seconds since 1970."""

    topics: tuple[str, ...] = ()
    everything: bool = False
    admin: bool = False
    until: float = inf

    def allows(self, topic: str) -> bool:
        return self.everything or prefixes_grant(self.topics, topic)


@dataclass(eq=False, repr=False)
class Grants:
    """All configured grants. They contain digests of tokens, but no tokens.

    Args:
        open_topics: Topics that anyone may make the hub fetch.
        mqtt_topics: Topics published through an MQTT broker, which decides who may publish.
        anonymous: Whether programs on this machine need no token. Always false if there are
            publishers, admins or JSON Web Tokens.
        internal: Grants for the hub's own publications. They do not affect `anonymous`.
    """

    publishers: Sequence[PublisherGrant] = ()
    admins: Sequence[AdminGrant] = ()
    open_topics: Sequence[str] = ()
    web_tokens: JsonWebTokens | None = None
    mqtt_topics: Sequence[str] = ()
    anonymous: bool = field(kw_only=True)
    internal: Sequence[PublisherGrant] = ()

    def __post_init__(self) -> None:
        if self.publishers or self.admins or self.web_tokens is not None:
            self.anonymous = False

    def grant_of(self, token: str) -> Grant:
        """Return the grant of a token. An unknown token has an empty grant."""
        digest_of_token = digest(token)
        topics: tuple[str, ...] = ()
        admin = False
        # Compare every token, in constant time, so that timing reveals nothing about any of them.
        for publisher in (*self.publishers, *self.internal):
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
        """Return whether anyone may make the hub fetch a topic."""
        return prefixes_grant(self.open_topics, topic)

    def is_served(self, topic: str) -> bool:
        """Return whether any client may publish on a topic, so that subscribing makes sense."""
        if self.anonymous or self.web_tokens is not None:
            return True  # a JSON Web Token can grant any topic
        publishers = (*self.publishers, *self.internal)
        served = (self.open_topics, self.mqtt_topics, *(each.topics for each in publishers))
        return any(prefixes_grant(prefixes, topic) for prefixes in served)


def configured_grants(configuration: HubConfig, *, anonymous: bool) -> Grants:
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


class Claims(Struct, frozen=True):
    """The rights in the claim `rsnotify` of a JSON Web Token."""

    publish: tuple[str, ...] = ()
    admin: bool = False
    until: float = 0.0


@dataclass(eq=False, repr=False)
class JsonWebTokens:
    """Verifies JSON Web Tokens. Any issuer is accepted if `issuer` is None."""

    algorithms: Sequence[str]
    key: str
    audience: str
    issuer: str | None

    def claims(self, token: str) -> Claims | None:
        import jwt  # an optional dependency, which the check of the settings has found

        try:
            payload = jwt.decode(
                token,
                self.key,
                algorithms=list(self.algorithms),
                audience=self.audience,
                issuer=self.issuer,
                leeway=_CLOCK_LEEWAY_SECONDS,
                options={"require": ["exp", "aud"]},
            )
            granted = msgspec.convert(payload.get("rsnotify", {}), Claims)
        except (jwt.PyJWTError, msgspec.ValidationError, UnicodeError):
            return None
        until = float(payload["exp"])
        return None if until <= time() else msgspec.structs.replace(granted, until=until)
