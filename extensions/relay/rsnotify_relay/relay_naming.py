"""The URIs of a relay's resources.

A resource below the base of the Source has the same relative URI below the base of the relay:

    http://a.example/data/maps/1.ttl     maps/1.ttl
    http://b.example/x?y                 @@http/b.example/x?y       not below the base
    http://a.example/data/channel.xml    @@http/a.example/data/...  the name of a document
    http://a.example/data/a/../b         @@/<escaped URI>           clients resolve the dots
"""

from __future__ import annotations

import re
from contextlib import suppress
from urllib.parse import quote, unquote

from msgspec import Struct

from rsnotify.errors import ConfigurationError
from rsnotify_publisher.changes import check_uri
from rsnotify_publisher.source_documents import RESERVED

_MARK = "@@"
_OTHER_URI = re.compile(r"@@(https?)/([^/].*)", re.DOTALL)
_WEB = re.compile(r"(https?)://([^/?#]+/.*)", re.DOTALL)
#: Relative URIs that clients alter: they drop the fragment, and resolve dot segments.
_ALTERED = re.compile(r"#|(?:^|/)(?:\.|%2[eE]){1,2}(?:[/?]|$)")
#: Names below the base URL that are reserved for documents.
_DOCUMENTS = RESERVED | {".well-known", "robots.txt"}


class RelayNaming(Struct, frozen=True):
    """A one-to-one mapping between URIs at the Source and at the relay.

    `base` and `base_url` are their base URIs, which end with a slash.
    """

    base: str
    base_url: str

    def relay_uri(self, uri: str) -> str | None:
        """Return the URI of a resource at the relay; None if it would be too long."""
        for relative in self._candidates(uri):
            if not _ALTERED.search(relative):
                with suppress(ConfigurationError):
                    check_uri(self.base_url + relative)
                    return self.base_url + relative
        return None

    def _candidates(self, uri: str) -> list[str]:
        found = []
        relative = uri.removeprefix(self.base)
        first = re.split("[/?]", relative, maxsplit=1)[0]
        is_below = uri.startswith(self.base) and relative
        if is_below and first not in _DOCUMENTS and not first.startswith(_MARK):
            found.append(relative)
        if web := _WEB.fullmatch(uri):
            found.append(f"{_MARK}{web[1]}/{web[2]}")
        return [*found, f"{_MARK}/{quote(uri, safe='')}"]

    def source_uri(self, uri: str) -> str:
        """Return the URI at the Source of a resource of the relay."""
        relative = uri.removeprefix(self.base_url)
        if other := _OTHER_URI.fullmatch(relative):
            return f"{other[1]}://{other[2]}"
        if relative.startswith(_MARK + "/"):
            return unquote(relative.removeprefix(_MARK + "/"))
        return self.base + relative
