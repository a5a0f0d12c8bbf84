"""What a gateway states about the origin that it follows (docs/protocol.md)."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from rsnotify.errors import FetchError
from rsnotify_subscriber.fetching.responses import body, check_status
from rsnotify_subscriber.fetching.sessions import Sessions

#: The end of the URI of a gateway's document about an origin.
ORIGIN_PATH = "/origin.json"
_MOST_BYTES = 100_000


class FollowedOrigin(Struct):
    """The members of the document that a reader needs."""

    origin: str
    protocol: str
    deletions: str
    limits: tuple[str, ...] = ()
    checked: str | None = None
    failing_since: str | None = None
    problem: str | None = None


async def origin_statements(sessions: Sessions, uri: str) -> tuple[str, ...]:
    """Return what a gateway cannot see at its origin, as sentences."""
    data = bytearray()
    try:
        async with sessions.get(uri, {"Accept-Encoding": "gzip"}) as response:
            check_status(uri, response)
            async for chunk in body(uri, response):
                data += chunk
                if len(data) > _MOST_BYTES:
                    return (f"{uri} is too long to be read",)
        found = msgspec.json.decode(data, type=FollowedOrigin)
    except (FetchError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return (f"what is known of the origin cannot be read: {error}",)
    statements = [f"follows {found.origin} by {found.protocol}", found.deletions, *found.limits]
    if found.problem is not None:
        statements.append(
            f"the origin was last checked at {found.checked}, and cannot be checked since "
            f"{found.failing_since}: {found.problem}"
        )
    return tuple(statements)
