"""The heads of POST requests: what many have alike is made once."""

from __future__ import annotations

import re
from functools import lru_cache

from rsnotify_hub.http.client import USER_AGENT

# What would end a header early (RFC 9110 §5.5).
_UNSAFE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


@lru_cache(maxsize=256)
def common_head(headers: tuple[tuple[str, str], ...], size: int) -> bytes:
    """Write the headers that do not depend on where a request goes.

    Args:
        headers: Names and values.
        size: The bytes of the body.

    Raises:
        ValueError: A value cannot stand in a header.
    """
    own = (
        ("Accept", "*/*"),
        ("Accept-Encoding", "identity"),
        ("User-Agent", USER_AGENT),
        ("Content-Length", str(size)),
    )
    return b"".join(_header(name, value) for name, value in (*headers, *own))


def _header(name: str, value: str) -> bytes:
    if _UNSAFE.search(value):
        raise ValueError(f"the value of {name} has a character that a header cannot have")
    return f"{name}: {value}\r\n".encode()
