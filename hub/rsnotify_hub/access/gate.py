"""The one place that says whether a request may do what it asks for."""

from __future__ import annotations

from aiohttp import web

from rsnotify_hub.access.grants import Grants
from rsnotify_hub.access.sender import bearer, is_direct, is_own_page, is_program
from rsnotify_hub.refusals import Code, Refusal


class Gate:
    """Checks requests against the grants.

    Args:
        grants: Who may do what.
    """

    def __init__(self, grants: Grants) -> None:
        self._grants = grants

    def check_publisher(self, request: web.Request, topic: str) -> None:
        """Check that a request may publish on a topic.

        Raises:
            Refusal: It may not.
        """
        token = bearer(request)
        if token is None:
            allowed = self._grants.anonymous and is_direct(request) and is_program(request)
        else:
            allowed = self._grants.may_publish(topic, token)
        if not allowed:
            raise Refusal(Code.FORBIDDEN, "publishing on this topic needs a token that grants it")

    def check_ping(self, request: web.Request, topic: str) -> None:
        """Check that a request may have a topic fetched: who may publish may, and on open topics
        anybody.

        Raises:
            Refusal: It may not.
        """
        if not self._grants.is_open(topic):
            self.check_publisher(request, topic)

    def is_admin(self, request: web.Request) -> bool:
        """Tell whether a request may see and change everything."""
        token = bearer(request)
        if token is not None:
            return self._grants.may_administer(token)
        return self._grants.anonymous and is_direct(request) and is_own_page(request)

    def check_admin(self, request: web.Request) -> None:
        """Check that a request may see and change everything.

        Raises:
            Refusal: It may not.
        """
        if not self.is_admin(request):
            raise Refusal(Code.FORBIDDEN, "this needs the token of an admin")

    def is_served(self, topic: str) -> bool:
        """Tell whether somebody may publish on a topic, so that subscribing makes sense."""
        return self._grants.is_served(topic)
