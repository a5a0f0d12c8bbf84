"""The one place that says whether a request may do what it asks for."""

from __future__ import annotations

from math import inf
from time import time

from aiohttp import web

from rsnotify_hub.access.grants import Grant, Grants
from rsnotify_hub.access.limits import RateLimiter
from rsnotify_hub.access.sender import bearer, has_local_name, is_direct, is_own_page, is_program
from rsnotify_hub.access.topic_room import TopicQuota
from rsnotify_hub.refusals import Code, Refusal


class Gate:
    """Checks requests against the grants.

    Args:
        grants: Who may do what.
        failures: Limits how often a client may bring a token that grants nothing.

    Attributes:
        grants: Who may do what.
        room: Says how many topics there may be; None for any number.
    """

    def __init__(self, grants: Grants, failures: RateLimiter | None = None) -> None:
        self.grants = grants
        self.room: TopicQuota | None = None
        self._failures = failures

    def check_publisher(self, request: web.Request, topic: str) -> Permission:
        """Check that a request may publish on a topic.

        Returns:
            What a connection that goes on publishing has to check again.

        Raises:
            Refusal: It may not.
        """
        token = bearer(request)
        local = is_direct(request) and is_program(request)
        try:
            return Permission(self, topic, token, local=local)
        except Refusal as refusal:
            if refusal.code is Code.FORBIDDEN:
                self._count_failure(request, token)
            raise

    def check_ping(self, request: web.Request, topic: str) -> None:
        """Check that a request may have a topic fetched: who may publish may, and on open topics
        anybody.

        Raises:
            Refusal: It may not.
        """
        if not self.grants.is_open(topic):
            self.check_publisher(request, topic)

    def is_admin(self, request: web.Request) -> bool:
        """Tell whether a request may see and change everything.

        Raises:
            Refusal: Too many such requests brought a wrong token.
        """
        token = bearer(request)
        if token is None:
            return self.grants.anonymous and is_direct(request) and is_own_page(request)
        if self.grants.grant(token).admin:
            return True
        self._count_failure(request, token)
        return False

    def check_admin(self, request: web.Request) -> None:
        """Check that a request may see and change everything.

        Raises:
            Refusal: It may not.
        """
        if not self.is_admin(request):
            raise Refusal(Code.FORBIDDEN, "this needs the token of an admin")

    def is_served(self, topic: str) -> bool:
        """Tell whether somebody may publish on a topic, so that subscribing makes sense."""
        return self.grants.is_served(topic)

    def check_name(self, request: web.Request) -> None:
        """Check that a hub for this machine alone was asked for by a name of this machine.

        Else a stranger's page could read what it serves, and publish, as a page of its own.

        Raises:
            Refusal: It was asked for by another.
        """
        if self.grants.anonymous and not has_local_name(request):
            raise Refusal(Code.MISDIRECTED, "this hub answers to localhost and 127.0.0.1 only")

    def _count_failure(self, request: web.Request, token: str | None) -> None:
        # A right token always passes: whoever shares an address with a guesser is not shut out.
        if token is not None and self._failures is not None:
            self._failures.check(request.remote)


class Permission:
    """That somebody may publish on a topic; it can end while a connection is open.

    Args:
        gate: What gave it.
        topic: What it is for.
        token: What was brought.
        local: Whether a program of this machine sent it.

    Raises:
        Refusal: There is no such permission.
    """

    def __init__(self, gate: Gate, topic: str, token: str | None, *, local: bool) -> None:
        self._gate = gate
        self._topic = topic
        self._token = token
        self._local = local
        self._seen: Grants | None = None
        self._grant = Grant(until=-inf)
        self.check()

    def check(self) -> None:
        """Check that it still holds, which costs next to nothing while nothing has changed.

        Raises:
            Refusal: The token was withdrawn, or has ended, or the topic would be one too many.
        """
        self._check_grant(self._gate.grants)
        if self._gate.room is not None and not self._grant.everything:
            self._gate.room.check(self._topic, self._grant.topics)

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
