"""What comes back from a callback, and when there is nothing that could."""

from __future__ import annotations

from msgspec import Struct

from rsnotify.errors import RsnotifyError


class HttpReply(Struct, frozen=True):
    """An answer.

    Args:
        status: Its status, never a 1xx.
        retry_after: The value of its `Retry-After` header; empty where it has none.
        excerpt: The first bytes of its body, if it is a failure.
    """

    status: int
    retry_after: str = ""
    excerpt: bytes = b""


class NoReply(RsnotifyError):
    """The callback was reached, and does not answer as HTTP has it."""


class Unreachable(RsnotifyError):
    """No connection could be made; the cause says why."""


class Stale(NoReply):
    """A connection had ended before; nothing says whether the request came there."""
