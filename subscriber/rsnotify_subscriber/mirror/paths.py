"""The mapping from URIs to paths in a mirror, which is injective and stays inside the root.

A URI below the base keeps its path, percent-decoded: `a%20b.ttl` is `a b.ttl`. That is
injective because only one spelling of a name is decoded: every character that may stand raw
in a path segment (RFC 3986, pchar) is raw in it, and every other is percent-encoded in upper
case. Any other segment (`..`, an empty one, `%2F`, `%41`) is percent-encoded once more as it is
written, behind `@@`, with which no decoded name begins:

    data/a%20b.ttl      a b.ttl                 below the base http://example.com/data/
    data/a/             a/@@
    data/%2e%2e/b       @@%252e%252e/b
    http://other/x      @@http/other/x          not below the base
    too long            @@@/@<sha-256>
    in the way          @@@/<escaped URI>       of a directory: `a`, where there is `a/b`

Where the file system ignores case, or is that of Windows, a name is decoded only if it consists
of lower-case letters and other harmless characters, and is not the name of a device.
"""

from __future__ import annotations

import re
from hashlib import sha256
from urllib.parse import quote, unquote, unquote_to_bytes

from msgspec import Struct

_MARK = "@@"
_PCHAR = "!$&'()*+,;=:@"  # beside the unreserved characters, which `quote` never encodes
_ELSEWHERE = re.compile(r"(https?)://([^/?#]+)/(.*)", re.DOTALL)
#: The folder of resources that cannot be at their natural paths; no other name is equal to it.
FALLBACKS = _MARK + "@"
#: The longest name and path in bytes that file systems allow, less a margin for the root.
_NAME_BYTES = 240
_PATH_BYTES = 800
#: Segments that are their own names, as nearly all are.
_PLAIN = re.compile(r"(?!\.{1,2}\Z|@@)[A-Za-z0-9_.~!$&'()*+,;=:@-]++")
_HARMLESS = re.compile(r"[a-z0-9 !#$&'()+,;=@_.-]*[a-z0-9!#$&'()+,;=@_-]")
_DEVICE = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9])(?:[ .].*)?")

#: A path below the root, as the names that lead to it.
PathNames = tuple[str, ...]


class MirrorLayout(Struct, frozen=True):
    """The mapping from URIs to paths.

    Args:
        base: The URI, ending in `/`, that the root stands for.
        portable: Whether names must differ in more than case, and suit Windows.
    """

    base: str
    portable: bool = False

    def natural(self, uri: str) -> PathNames | None:
        """Return the path of a resource; None if it would be too long."""
        if uri.startswith(self.base):
            names = self._names(uri.removeprefix(self.base))
        else:
            match = _ELSEWHERE.fullmatch(uri)
            if match is None:
                return None
            scheme, host, path = match.groups()
            names = (_MARK + scheme, self._name(host), *self._names(path))
        sizes = [len(name.encode()) for name in names]
        fits = max(sizes) <= _NAME_BYTES and sum(sizes) + len(sizes) <= _PATH_BYTES
        return names if fits else None

    def fallback(self, uri: str) -> PathNames:
        """Return the path of a resource whose natural path cannot be used."""
        name = _escaped(uri, self.portable)
        if len(name) > _NAME_BYTES or "://" not in uri:
            name = "@" + sha256(uri.encode("utf-8", "surrogatepass")).hexdigest()
        return (FALLBACKS, name)

    @staticmethod
    def uri_of_fallback(name: str) -> str | None:
        """Return the URI whose fallback path has this name; None if the name is a digest."""
        return None if name.startswith("@") else unquote(name, errors="strict")

    def is_plain(self, name: str) -> bool:
        """Return whether the last segment of a URI is the name of its file."""
        return (
            _PLAIN.fullmatch(name) is not None
            and len(name) <= _NAME_BYTES
            and (not self.portable or _is_portable(name))
        )

    def _names(self, path: str) -> PathNames:
        return tuple(self._name(segment) for segment in path.split("/"))

    def _name(self, segment: str) -> str:
        name = _decoded(segment)
        if name is not None and (not self.portable or _is_portable(name)):
            return name
        return _MARK + _escaped(segment, self.portable)


def _decoded(segment: str) -> str | None:
    """Decode a segment if it is the one spelling of a name that all file systems allow."""
    if _PLAIN.fullmatch(segment):
        return segment
    try:
        name = unquote_to_bytes(segment).decode()
    except UnicodeError:
        return None
    if name in ("", ".", "..") or name.startswith(_MARK) or "/" in name or "\0" in name:
        return None
    return name if quote(name, safe=_PCHAR) == segment else None


def _is_portable(name: str) -> bool:
    return _HARMLESS.fullmatch(name) is not None and _DEVICE.fullmatch(name) is None


def _escaped(segment: str, portable: bool) -> str:
    data = segment.encode("utf-8", "surrogatepass")
    if portable:
        return re.sub(rb"[^a-z0-9_-]", lambda m: b"%%%02x" % m.group()[0], data).decode()
    return quote(data, safe="")
