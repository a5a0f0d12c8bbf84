"""The topics that a prefix grants.

A topic is compared byte for byte, as subscribers name it. But the hub fetches topics, and servers
and clients resolve dot segments and decode escapes. So a topic with a dot segment, in any
spelling, is granted by no prefix.
"""

from __future__ import annotations

from collections.abc import Sequence

from rsnotify_hub.urls import has_dot_segments


def is_granted(prefix: str, topic: str) -> bool:
    """Return whether a topic is the prefix or below it: `/a` grants `/a/b`, never `/ab`."""
    if not topic.startswith(prefix):
        return False
    if topic != prefix and not prefix.endswith("/") and topic[len(prefix)] not in "/?":
        return False
    return not has_dot_segments(topic)


def granted_ranges(prefixes: Sequence[str]) -> list[tuple[str, str]]:
    """Return the ranges of names that some prefixes grant, in order and without overlaps.

    A range is its first name and the name that ends it (exclusive).
    """
    found: list[tuple[str, str]] = []
    for begin, end in sorted(each for prefix in prefixes for each in _ranges(prefix)):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def _ranges(prefix: str) -> list[tuple[str, str]]:
    if prefix.endswith("/"):
        return [(prefix, prefix[:-1] + "0")]  # "0" follows "/" in the order
    return [(prefix, prefix + "\0"), (prefix + "/", prefix + "0"), (prefix + "?", prefix + "@")]
