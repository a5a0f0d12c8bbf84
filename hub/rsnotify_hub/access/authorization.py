"""Decides whether a request may publish on a topic, ping it, or administer the hub.

The rights belong to tokens. When a settings file changes, the hub replaces the configured tokens
without a restart (`reload_grants`). A JSON Web Token carries its rights in the claim `rsnotify`:
`{"publish": ["https://…/"], "admin": false}`. A hub that only this machine can reach needs no
token.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from time import time

import msgspec
from aiohttp import HttpVersion11, web
from msgspec import Struct

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.serving import host_in
from rsnotify.runtime.settings import FileWatch, digest
from rsnotify_hub.access.limits import RateLimiter, TopicQuota, covers, is_loopback
from rsnotify_hub.config.configuration import AdminGrant, HubConfiguration, PublisherGrant
from rsnotify_hub.config.loading import ConfigurationSource
from rsnotify_hub.refusals import Code, Refusal

log = logging.getLogger("rsnotify.hub.access")

#: How long before its `nbf` and `iat` a token is accepted, in seconds, because the issuer's clock
#: may be ahead. The expiry has no such leeway.
_LEEWAY = 30

#: Header fields that proxies add, but programs on this machine do not.
_PROXY_HEADERS = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")


class Authorizer:
    """Checks requests against the grants. The grants are replaced when the settings change.

    A failing check raises `Refusal`.
    """

    def __init__(self, grants: Grants, failures: RateLimiter | None = None) -> None:
        self.grants = grants
        self.topic_quota: TopicQuota | None = None
        self._failures = failures

    def check_publisher(self, request: web.Request, topic: str) -> Permission:
        """Return the permission to publish on a topic. An open connection checks it again later."""
        token = _bearer(request)
        local = _is_direct(request) and _is_program(request)
        try:
            return Permission(self, topic, token, local=local)
        except Refusal as refusal:
            if refusal.code is Code.FORBIDDEN:
                self._count_failure(request, token)
            raise

    def check_ping(self, request: web.Request, topic: str) -> None:
        """Check that a request may make the hub fetch a topic.

        Anybody may ping an open topic. Other topics may be pinged only by clients that may publish
        on them.
        """
        if not self.is_open(topic):
            self.check_publisher(request, topic)

    def is_open(self, topic: str) -> bool:
        """Return whether anybody may ask the hub to fetch a topic."""
        return self.grants.is_open(topic)

    def is_admin(self, request: web.Request) -> bool:
        """Return whether a request may read and change everything.

        Raises:
            Refusal: The client has sent too many wrong tokens.
        """
        token = _bearer(request)
        if token is None:
            return self.grants.anonymous and _is_direct(request) and _is_own_page(request)
        if self.grants.grant(token).admin:
            return True
        self._count_failure(request, token)
        return False

    def check_admin(self, request: web.Request) -> None:
        if not self.is_admin(request):
            reason = "this needs the token of an admin"
            if not (self.grants.admins or self.grants.anonymous or self.grants.web_tokens):
                reason += ", and this hub has none; `rsnotify hub token` makes one for `[[admins]]`"
            raise Refusal(Code.FORBIDDEN, reason)

    def check_name(self, request: web.Request) -> None:
        """Check that a request to a hub for this machine alone names this machine as its host.

        Otherwise, a page from another site could read and publish here as if it were the hub's own.
        """
        if self.grants.anonymous and not _has_local_name(request):
            raise Refusal(Code.MISDIRECTED, "this hub answers to localhost and 127.0.0.1 only")

    def _count_failure(self, request: web.Request, token: str | None) -> None:
        # A correct token always passes, so clients at the same address cannot lock each other out.
        if token is not None and self._failures is not None:
            self._failures.check(request.remote)


class Permission:
    """A client's permission to publish on a topic. It can end while a connection is open.

    The constructor raises `Refusal` if the client may not publish.
    """

    def __init__(
        self, authorizer: Authorizer, topic: str, token: str | None, *, local: bool
    ) -> None:
        self._authorizer = authorizer
        self._topic = topic
        self._token = token
        self._local = local
        self._seen: Grants | None = None
        self._grant = Grant(until=-inf)
        self.check()

    def check(self) -> None:
        """Check that the permission still holds. This is cheap while the grants are unchanged."""
        grants, until = self._authorizer.grants, self._grant.until
        if self._seen is not grants or (until != inf and time() >= until):
            if self._token is not None:
                grant = grants.grant(self._token)
            else:
                grant = Grant(everything=grants.anonymous and self._local)
            if not grant.covers(self._topic):
                reason = "publishing on this topic needs a token that grants it"
                raise Refusal(Code.FORBIDDEN, reason)
            self._seen, self._grant = grants, grant
        if self._authorizer.topic_quota is not None and not self._grant.everything:
            self._authorizer.topic_quota.check(self._topic, self._grant.topics)


def _bearer(request: web.Request) -> str | None:
    """Return the bearer token of a request (RFC 6750 §2.1), if it has one."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _is_direct(request: web.Request) -> bool:
    """Return whether a request comes from this machine, and not through a proxy.

    A proxy may act for anybody. A proxy that adds no header field is recognized by HTTP/1.0, which
    is nginx's default.
    """
    if request.version < HttpVersion11 or any(name in request.headers for name in _PROXY_HEADERS):
        return False
    return is_loopback(request.remote or "")


def _is_program(request: web.Request) -> bool:
    """Return whether a request comes from a program. A browser may act for any page."""
    return "Origin" not in request.headers and "Sec-Fetch-Site" not in request.headers


def _has_local_name(request: web.Request) -> bool:
    """Return whether the `Host` of a request is a name of this machine.

    If an attacker makes the name of another site resolve to this machine (DNS rebinding), the
    browser treats that site's pages as the hub's own, but still sends the site's name.
    """
    host = host_in(request.host) or ""
    return host == "localhost" or is_loopback(host)


def _is_own_page(request: web.Request) -> bool:
    """Return whether a request to a local name comes from a program or from a page of this hub."""
    if not _has_local_name(request):
        return False
    if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        return False
    origin = request.headers.get("Origin")
    return origin is None or origin.lower() == f"http://{request.host}".lower()


class Grant(Struct, frozen=True):
    """The rights of one token, which expires at `until`, in seconds since 1970."""

    topics: tuple[str, ...] = ()
    everything: bool = False
    admin: bool = False
    until: float = inf

    def covers(self, topic: str) -> bool:
        return self.everything or covers(self.topics, topic)


@dataclass(eq=False, repr=False)
class Grants:
    """The configured grants. They hold only digests of tokens.

    Args:
        open_topics: Topics that anybody may ask the hub to fetch.
        over_mqtt: Topics that are published through a broker. The broker decides who may publish.
        anonymous: Whether programs on this machine need no token. Always false if there are
            publishers, admins or JSON Web Tokens.
        own: The grants for the hub's own publications. They do not count as configured publishers.
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
        """Return the rights of a token. An unknown token has none."""
        digest_of_token = digest(token)
        topics: tuple[str, ...] = ()
        admin = False
        # Compare every token, in constant time, so that timing reveals nothing about any of them.
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
        return covers(self.open_topics, topic)

    def is_served(self, topic: str) -> bool:
        """Return whether some client may publish on a topic, so that subscribing makes sense."""
        if self.anonymous or self.web_tokens is not None:
            return True  # a JSON Web Token may grant any topic
        publishers = (*self.publishers, *self.own)
        served = (self.open_topics, self.over_mqtt, *(each.topics for each in publishers))
        return any(covers(prefixes, topic) for prefixes in served)


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


class Claims(Struct, frozen=True):
    """The rights that a JSON Web Token claims (`Grant`)."""

    publish: tuple[str, ...] = ()
    admin: bool = False
    until: float = 0.0


@dataclass(eq=False, repr=False)
class JsonWebTokens:
    """Verifies JSON Web Tokens with the given algorithms only. `issuer` None accepts any issuer."""

    algorithms: Sequence[str]
    key: str
    audience: str
    issuer: str | None

    def claims(self, token: str) -> Claims | None:
        import jwt  # part of an extra; without it, the settings were refused

        try:
            payload = jwt.decode(
                token,
                self.key,
                algorithms=list(self.algorithms),
                audience=self.audience,
                issuer=self.issuer,
                leeway=_LEEWAY,
                options={"require": ["exp", "aud"]},
            )
            granted = msgspec.convert(payload.get("rsnotify", {}), Claims)
        except (jwt.PyJWTError, msgspec.ValidationError, UnicodeError):
            return None
        until = float(payload["exp"])
        return None if until <= time() else msgspec.structs.replace(granted, until=until)


async def reload_grants(
    authorizer: Authorizer, source: ConfigurationSource, configuration: HubConfiguration
) -> None:
    """Replace the grants whenever a file of the settings changes."""
    watch = FileWatch(source.files(configuration))
    while watch.files:
        await watch.changed()
        try:
            changed = await asyncio.to_thread(source.load)
        except ConfigurationError as error:
            log.error("the grants stay as they are: %s", error)
            continue
        except Exception:
            log.exception("the grants stay as they are")
            continue
        if changed == configuration:
            continue
        configuration = changed
        # Removing the last token must not open the hub to everybody.
        present = authorizer.grants
        grants = grants_of(configuration, anonymous=present.anonymous)
        grants.own = present.own
        authorizer.grants = grants
        watch.watch(source.files(configuration))
        log.info("the grants were reloaded")
