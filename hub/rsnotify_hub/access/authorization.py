"""The one place that decides whether a request may do what it asks for."""

from __future__ import annotations

from math import inf
from time import time

from aiohttp import HttpVersion11, web

from rsnotify.runtime.web.aiohttp_server import host_in
from rsnotify_hub.access.clients import is_loopback
from rsnotify_hub.access.grants import Grant, Grants
from rsnotify_hub.access.limits import RateLimiter, TopicQuota
from rsnotify_hub.refusals import Code, Refusal

#: Header fields that proxies add, and programs on this machine do not.
_PROXY_HEADERS = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")


class Authorizer:
    """Checks requests against the grants, which are replaced when the settings change.

    Checks raise `Refusal`.
    """

    def __init__(self, grants: Grants, failures: RateLimiter | None = None) -> None:
        self.grants = grants
        self.topic_quota: TopicQuota | None = None
        self._failures = failures

    def check_publisher(self, request: web.Request, topic: str) -> Permission:
        """Return the permission to publish on a topic, which an open connection checks again."""
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

        Anybody may on open topics; on others those who may publish.
        """
        if not self.grants.is_open(topic):
            self.check_publisher(request, topic)

    def is_admin(self, request: web.Request) -> bool:
        """Return whether a request may read and change everything; refuse too many wrong tokens."""
        token = _bearer(request)
        if token is None:
            return self.grants.anonymous and _is_direct(request) and _is_own_page(request)
        if self.grants.grant(token).admin:
            return True
        self._count_failure(request, token)
        return False

    def check_admin(self, request: web.Request) -> None:
        if not self.is_admin(request):
            raise Refusal(Code.FORBIDDEN, "this needs the token of an admin")

    def check_name(self, request: web.Request) -> None:
        """Check that a request to a hub for this machine alone names this machine.

        Otherwise a page of another site could read and publish here as a page of the hub.
        """
        if self.grants.anonymous and not _has_local_name(request):
            raise Refusal(Code.MISDIRECTED, "this hub answers to localhost and 127.0.0.1 only")

    def _count_failure(self, request: web.Request, token: str | None) -> None:
        # A right token always passes, so a client is not locked out by others at its address.
        if token is not None and self._failures is not None:
            self._failures.check(request.remote)


class Permission:
    """The permission of a client to publish on a topic; it can end while a connection is open.

    A client that may not publish gets none: making it raises `Refusal`.
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
        """Check that it still holds, which costs next to nothing while the grants are the same."""
        self._check_grant(self._authorizer.grants)
        if self._authorizer.topic_quota is not None and not self._grant.everything:
            self._authorizer.topic_quota.check(self._topic, self._grant.topics)

    def _check_grant(self, grants: Grants) -> None:
        until = self._grant.until
        if self._seen is grants and (until == inf or time() < until):
            return
        grant = self._granted(grants)
        if not grant.covers(self._topic):
            raise Refusal(Code.FORBIDDEN, "publishing on this topic needs a token that grants it")
        self._seen, self._grant = grants, grant

    def _granted(self, grants: Grants) -> Grant:
        if self._token is not None:
            return grants.grant(self._token)
        return Grant(everything=grants.anonymous and self._local)


def _bearer(request: web.Request) -> str | None:
    """Return the bearer token of a request (RFC 6750 §2.1), if it has one."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _is_direct(request: web.Request) -> bool:
    """Return whether a request is from this machine without a proxy, which may act for anybody.

    A proxy that adds no header field speaks HTTP/1.0, the default of nginx.
    """
    if request.version < HttpVersion11 or any(name in request.headers for name in _PROXY_HEADERS):
        return False
    return is_loopback(request.remote or "")


def _is_program(request: web.Request) -> bool:
    """Return whether a request is not from a browser, which may act for any page."""
    return "Origin" not in request.headers and "Sec-Fetch-Site" not in request.headers


def _has_local_name(request: web.Request) -> bool:
    """Return whether the `Host` of a request is a name of this machine.

    A page whose name was made to resolve to this machine (DNS rebinding) sends that name, and is
    of the hub's own origin for its browser.
    """
    host = host_in(request.host) or ""
    return host == "localhost" or is_loopback(host)


def _is_own_page(request: web.Request) -> bool:
    """Return whether a request is from a program, or a page of this hub under a local name."""
    if not _has_local_name(request):
        return False
    if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        return False
    origin = request.headers.get("Origin")
    return origin is None or origin.lower() == f"http://{request.host}".lower()
