"""The origin of a response: its URIs after redirects, and its time."""

from __future__ import annotations

import aiohttp

from rsnotify.format.datetimes import Instant
from rsnotify_subscriber.fetching.responses import sent_at

_PERMANENT = frozenset({301, 308})


class ResponseOrigin:
    """The URIs and the time of the response to a request for a URI."""

    def __init__(self, uri: str) -> None:
        #: The URI to request next time: the target of permanent redirects (RFC 9110 §15.4).
        self.place = uri
        #: The base URI of relative references in the response (RFC 3986 §5.1.3).
        self.base = uri
        #: When the response was generated, by the clock of the server, if it has a `Date`.
        self.sent: Instant | None = None
        #: Whether a cache answered.
        self.cached = False
        self._permanent = True

    def redirected(self, status: int, target: str) -> None:
        self._permanent = self._permanent and status in _PERMANENT
        self.base = target
        if self._permanent:
            self.place = target.partition("#")[0]

    def answered(self, response: aiohttp.ClientResponse) -> None:
        self.sent = sent_at(response)
        self.cached = response.headers.get("Age", "0").strip() != "0"
