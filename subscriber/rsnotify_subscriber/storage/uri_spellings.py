"""Different spellings of one URI (RFC 3986 §6.2.2).

A Source may write `~` when it creates a resource and `%7E` when it deletes it. A URI is stored in
the first spelling in which it came; the others are found by a few look-ups.
"""

from __future__ import annotations

import re

_TRIPLET = re.compile("%[0-9A-Fa-f]{2}")
_UNRESERVED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~")


def normal(uri: str) -> str:
    """Return the normal form: case of scheme and host, percent-encoding of letters and its case."""
    end = uri.find("/", uri.find("://") + 3)
    head = uri if end < 0 else uri[:end]
    if not head.islower():
        uri = head.lower() + uri[len(head) :]
    return _TRIPLET.sub(_normal_triplet, uri) if "%" in uri else uri


def _normal_triplet(match: re.Match[str]) -> str:
    character = chr(int(match.group()[1:], 16))
    return character if character in _UNRESERVED else match.group().upper()


def other_spellings(uri: str) -> list[str]:
    """Return other spellings that Sources use; none for nearly every URI."""
    form = normal(uri)
    found = {form}
    if "~" in form:
        found.add(form.replace("~", "%7E"))
    if "%" in form or "~" in form:
        lower = [_TRIPLET.sub(lambda match: match[0].lower(), spelling) for spelling in found]
        found.update(lower)
    found.discard(uri)
    return sorted(found)
