"""Decides whether a request may publish on a topic, ping it, or administer the hub."""

from __future__ import annotations

import asyncio
import logging
from math import inf
from time import time

from aiohttp import HttpVersion11, web

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.serving import host_in
from rsnotify.runtime.settings import FileWatch
from rsnotify_hub.access.client_addresses import is_loopback
from rsnotify_hub.access.grants import Grant, Grants, configured_grants
from rsnotify_hub.access.limits import RateLimiter, TopicQuota
from rsnotify_hub.config.configuration import HubConfig
from rsnotify_hub.config.loading import ConfigurationSource
from rsnotify_hub.refusals import Code, Refusal

logger = logging.getLogger("rsnotify.hub.access")

#: Header fields that proxies add, but programs on this machine do not.
_PROXY_HEADERS = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")


class Authorizer:
    """Checks requests against the grants, which `reload_grants` replaces when the settings change.

    A failed check raises `Refusal`. `failures` limits how often a client may send wrong tokens.
    """

    def __init__(
        self,
        grants: Grants,
        failures: RateLimiter | None = None,
        topic_quota: TopicQuota | None = None,
    ) -> None:
        self.grants = grants
        self.topic_quota = topic_quota
        self._failures = failures

    def check_publisher(self, request: web.Request, topic: str) -> Permission:
        """Return the client's permission to publish on a topic.

        A connection that stays open checks the permission again before each publication.
        """
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

        Anybody may ping an open topic. Pinging any other topic requires permission to publish on
        it.
        """
        if not self.is_open(topic):
            self.check_publisher(request, topic)

    def is_open(self, topic: str) -> bool:
        """Return whether anyone may make the hub fetch a topic."""
        return self.grants.is_open(topic)

    def is_admin(self, request: web.Request) -> bool:
        """Return whether a request comes from an admin.

        Raises:
            Refusal: The client has sent too many wrong tokens.
        """
        token = _bearer(request)
        if token is None:
            return self.grants.anonymous and _is_direct(request) and _is_own_page(request)
        if self.grants.grant_of(token).admin:
            return True
        self._count_failure(request, token)
        return False

    def check_admin(self, request: web.Request) -> None:
        if not self.is_admin(request):
            reason = "this requires an admin's token"
            if not (self.grants.admins or self.grants.anonymous or self.grants.web_tokens):
                reason += ", but this hub has no admins; add one with `rsnotify hub token`"
            raise Refusal(Code.FORBIDDEN, reason)

    def check_host(self, request: web.Request) -> None:
        """Refuse a request for another host name, if only this machine may use the hub.

        Otherwise, DNS rebinding would let a page of another site read and publish here.
        """
        if self.grants.anonymous and not _has_local_name(request):
            raise Refusal(
                Code.MISDIRECTED, "this hub only answers requests to localhost and 127.0.0.1"
            )

    def _count_failure(self, request: web.Request, token: str | None) -> None:
        # Correct tokens are never limited, so clients at one address cannot lock each other out.
        if token is not None and self._failures is not None:
            self._failures.check(request.remote)


class Permission:
    """A client's permission to publish on a topic, which can end while a connection is open.

    Raises:
        Refusal: The client may not publish on the topic.
    """

    def __init__(
        self, authorizer: Authorizer, topic: str, token: str | None, *, local: bool
    ) -> None:
        self._authorizer = authorizer
        self._topic = topic
        self._token = token
        self._local = local
        self._checked_grants: Grants | None = None
        self._grant = Grant(until=-inf)
        self.check()

    def check(self) -> None:
        """Check that the permission still holds. This is cheap unless the grants have changed."""
        grants, until = self._authorizer.grants, self._grant.until
        if self._checked_grants is not grants or (until != inf and time() >= until):
            if self._token is not None:
                grant = grants.grant_of(self._token)
            else:
                grant = Grant(everything=grants.anonymous and self._local)
            if not grant.allows(self._topic):
                reason = "publishing on this topic needs a token that grants it"
                raise Refusal(Code.FORBIDDEN, reason)
            self._checked_grants, self._grant = grants, grant
        if self._authorizer.topic_quota is not None and not self._grant.everything:
            self._authorizer.topic_quota.check(self._topic, self._grant.topics)


def _bearer(request: web.Request) -> str | None:
    """Return the bearer token of a request (RFC 6750 §2.1), if it has one."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _is_direct(request: web.Request) -> bool:
    """Return whether a request comes from this machine, and not through a proxy.

    A proxy may act for anyone. A proxy that adds no header field, such as nginx by default, is
    recognized by its use of HTTP/1.0.
    """
    if request.version < HttpVersion11 or any(name in request.headers for name in _PROXY_HEADERS):
        return False
    return is_loopback(request.remote or "")


def _is_program(request: web.Request) -> bool:
    """Return whether a request comes from a program, and not from a browser.

    A browser may act for any page.
    """
    return "Origin" not in request.headers and "Sec-Fetch-Site" not in request.headers


def _has_local_name(request: web.Request) -> bool:
    """Return whether the `Host` of a request is a name of this machine.

    If an attacker's domain resolves to this machine (DNS rebinding), a browser treats the
    attacker's pages as the hub's own, but still sends the attacker's domain.
    """
    host = host_in(request.host) or ""
    return host == "localhost" or is_loopback(host)


def _is_own_page(request: web.Request) -> bool:
    """Return whether a request to a local name comes from a program or a page of this hub."""
    if not _has_local_name(request):
        return False
    if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        return False
    origin = request.headers.get("Origin")
    return origin is None or origin.lower() == f"http://{request.host}".lower()


async def reload_grants(
    authorizer: Authorizer, source: ConfigurationSource, configuration: HubConfig
) -> None:
    """Replace the grants whenever a file of the settings changes."""
    watch = FileWatch(source.files(configuration))
    while watch.files:
        await watch.changed()
        try:
            changed = await asyncio.to_thread(source.load)
        except ConfigurationError as error:
            logger.error("cannot reload the grants, so the current ones stay in effect: %s", error)
            continue
        except Exception:
            logger.exception("cannot reload the grants, so the current ones stay in effect")
            continue
        if changed == configuration:
            continue
        configuration = changed
        # Removing the last token must not give everybody access.
        current = authorizer.grants
        grants = configured_grants(configuration, anonymous=current.anonymous)
        grants.internal = current.internal
        authorizer.grants = grants
        watch.watch(source.files(configuration))
        logger.info("reloaded the grants")
