"""Which topics a prefix grants, however they are spelled.

A topic is compared as it was written, byte for byte, because that is also how subscribers name
it. But the hub fetches topics, and servers and clients resolve dots and decode escapes: a topic
that could be taken for one elsewhere is granted by no prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

#: How often an escape may itself be escaped (`%252e`) before the topic is no honest one.
_DECODINGS = 4


def is_granted(prefix: str, topic: str) -> bool:
    """Tell whether a topic is the prefix, or lies below it: `/a` grants `/a/b`, never `/ab`."""
    if not topic.startswith(prefix):
        return False
    if topic != prefix and not prefix.endswith("/") and topic[len(prefix)] not in "/?":
        return False
    return not has_dot_segments(topic)


def granted_ranges(prefixes: Sequence[str]) -> list[tuple[str, str]]:
    """Return where the topics that some prefixes grant stand in the order of all.

    Returns:
        From and up to which name, which is not among them; in order, none overlapping another.
    """
    found: list[tuple[str, str]] = []
    for begin, end in sorted(one for prefix in prefixes for one in _ranges(prefix)):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def _ranges(prefix: str) -> list[tuple[str, str]]:
    if prefix.endswith("/"):
        return [(prefix, prefix[:-1] + "0")]  # what comes after / in the order
    return [(prefix, prefix + "\0"), (prefix + "/", prefix + "0"), (prefix + "?", prefix + "@")]


def has_dot_segments(topic: str) -> bool:
    """Tell whether the path of a URL has a dot segment, in whatever spelling."""
    path = urlsplit(topic).path
    for _ in range(_DECODINGS):
        if any(_is_dots(segment) for segment in path.replace("\\", "/").split("/")):
            return True
        decoded = unquote(path)
        if decoded == path:
            return False
        path = decoded
    return True


def _is_dots(segment: str) -> bool:
    # Some servers drop what follows a semicolon before they resolve the path.
    return segment.partition(";")[0] in (".", "..")
