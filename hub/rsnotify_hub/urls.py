"""Checks of URLs in requests: topics and callbacks."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from rsnotify_hub.refusals import Code, Refusal

MAX_URL_LENGTH = 2048
#: Minimum length of a secret in a callback. Shorter parts cannot be secrets, and occur in any text.
SHORTEST_SECRET = 4
_PORTS = {"http": 80, "https": 443}
#: Maximum number of times that an escape may be escaped itself (`%252e`).
_MAX_DECODINGS = 4
# Characters that could end a header or the <> in a Link header, or that no URI contains.
_UNSAFE = re.compile(r"[^\x21-\x7e]|[<>\"\\^`{|}]")


def check_url(url: str, name: str) -> str:
    """Return a topic or callback unchanged if it is an http(s) URL that is safe in a header.

    Raise a `Refusal` with `name` in its reason if it is not.
    """
    if not url:
        raise Refusal(Code.BAD_REQUEST, f"{name} is missing")
    if len(url) > MAX_URL_LENGTH:
        raise Refusal(Code.BAD_REQUEST, f"{name} is longer than {MAX_URL_LENGTH} characters")
    if _UNSAFE.search(url):
        raise Refusal(Code.BAD_REQUEST, f"{name} contains characters that must be percent-encoded")
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
    """Return the host of a URL, which is the only part of a callback that may be logged."""
    return (urlsplit(url).hostname or "").rstrip(".")  # without the dot of the DNS root


def authority_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{host_of(url)}:{parts.port or _PORTS[parts.scheme]}"


def redacted_callback(url: str) -> str:
    """Return a callback that is still recognizable, but without its possible secrets (WebSub §8.2).

    A path segment that is too short to be a secret is kept. A long segment keeps only its first two
    characters, and any other segment keeps none.
    """
    parts = urlsplit(url)
    path = "/".join(_redacted(part) for part in parts.path.split("/"))
    return f"{parts.scheme}://{parts.netloc}{path}" + ("?…" if parts.query else "")


def _redacted(part: str) -> str:
    if len(part) < SHORTEST_SECRET:
        return part
    return (part[:2] if len(part) >= 2 * SHORTEST_SECRET else "") + "…"


def has_dot_segments(url: str) -> bool:
    """Return whether the path of a URL has a dot segment, in any encoding."""
    path = urlsplit(url).path
    for _ in range(_MAX_DECODINGS):
        if any(_is_dots(segment) for segment in path.replace("\\", "/").split("/")):
            return True
        decoded = unquote(path)
        if decoded == path:
            return False
        path = decoded
    return True


def _is_dots(segment: str) -> bool:
    # Some servers drop the part after a semicolon before they resolve the path.
    return segment.partition(";")[0] in (".", "..")
