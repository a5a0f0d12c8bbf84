"""Where the answer to a request came from."""

from __future__ import annotations

import aiohttp

from rsnotify.format.datetimes import Instant
from rsnotify_subscriber.fetching.responses import sent_at

_PERMANENT = frozenset({301, 308})


class ResponseOrigin:
    """Where the answer to a request came from, and when.

    Args:
        uri: What is requested.
    """

    def __init__(self, uri: str) -> None:
        #: What to request next time: the target of permanent redirects (RFC 9110 §15.4).
        self.place = uri
        #: What relative references in the answer are relative to (RFC 3986 §5.1.3).
        self.base = uri
        #: When the answer was generated, by the clock of the server; None if it does not say.
        self.sent: Instant | None = None
        #: Whether a cache answered.
        self.cached = False
        self._permanent = True

    def redirected(self, status: int, target: str) -> None:
        """Record a redirect."""
        self._permanent = self._permanent and status in _PERMANENT
        self.base = target
        if self._permanent:
            self.place = target.partition("#")[0]

    def answered(self, response: aiohttp.ClientResponse) -> None:
        """Record the answer."""
        self.sent = sent_at(response)
        self.cached = response.headers.get("Age", "0").strip() != "0"
