"""The URLs that strangers name: topics, callbacks, and where either leads."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from rsnotify_hub.refusals import Code, Refusal

MAX_URL_LENGTH = 2048
_PORTS = {"http": 80, "https": 443}
# What would break out of a header or of a Link header's <>, or is no URI character at all.
_UNSAFE = re.compile(r"[^\x21-\x7e]|[<>\"\\^`{|}]")


def check_url(url: str, name: str) -> str:
    """Check a topic or callback.

    Args:
        url: What was sent.
        name: What to call it in the reason.

    Returns:
        The same, unchanged.

    Raises:
        Refusal: It is not an absolute http(s) URL that can stand in a header.
    """
    if not url:
        raise Refusal(Code.BAD_REQUEST, f"{name} is missing")
    if len(url) > MAX_URL_LENGTH:
        raise Refusal(Code.BAD_REQUEST, f"{name} is longer than {MAX_URL_LENGTH} characters")
    if _UNSAFE.search(url):
        raise Refusal(Code.BAD_REQUEST, f"{name} has a character that must be percent-encoded")
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise Refusal(Code.BAD_REQUEST, f"{name} is not an absolute http or https URL")
    if parts.fragment or "@" in parts.netloc:
        raise Refusal(Code.BAD_REQUEST, f"{name} has a fragment or a user name")
    return url


def host_of(url: str) -> str:
    """Return the host of a URL, which may be shown where the rest of a callback may not."""
    return (urlsplit(url).hostname or "").rstrip(".")  # the dot of the root says nothing


def authority_of(url: str) -> str:
    """Return the host and port that a URL leads to, one way to write them."""
    parts = urlsplit(url)
    return f"{host_of(url)}:{parts.port or _PORTS[parts.scheme]}"
