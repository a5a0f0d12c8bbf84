"""The mapping between the URIs of resources at the Source and at the relay.

A resource below the base of the Source is below that of the relay, in the same spelling:

    http://a.example/data/maps/1.ttl     maps/1.ttl
    http://b.example/x?y                 @@http/b.example/x?y       not below the base
    http://a.example/data/channel.xml    @@http/a.example/data/...  the name of a document
    http://a.example/data/a/../b         @@/<escaped URI>           clients resolve the dots
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from msgspec import Struct

from rsnotify.errors import ConfigurationError
from rsnotify_publisher.changes import check_uri
from rsnotify_publisher.source_documents import RESERVED

_MARK = "@@"
_ELSEWHERE = re.compile(r"@@(https?)/([^/].*)", re.DOTALL)
_WEB = re.compile(r"(https?)://([^/?#]+/.*)", re.DOTALL)
#: Clients do not send fragments, and resolve dots.
_ALTERED = re.compile(r"#|(?:^|/)(?:\.|%2[eE]){1,2}(?:[/?]|$)")
#: Names below any base that are documents, not resources.
_DOCUMENTS = RESERVED | {".well-known", "robots.txt"}


class RelayNaming(Struct, frozen=True):
    """A mapping of URIs, one to one.

    Args:
        base: The URI below which the Source describes its resources; ends in a slash.
        base_url: The URI below which the relay does; ends in a slash.
    """

    base: str
    base_url: str

    def at_relay(self, uri: str) -> str | None:
        """Return the URI of a resource at the relay; None if it would be too long."""
        for relative in self._candidates(uri):
            if not _ALTERED.search(relative) and _is_uri(self.base_url + relative):
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

    def at_source(self, uri: str) -> str:
        relative = uri.removeprefix(self.base_url)
        if elsewhere := _ELSEWHERE.fullmatch(relative):
            return f"{elsewhere[1]}://{elsewhere[2]}"
        if relative.startswith(_MARK + "/"):
            return unquote(relative.removeprefix(_MARK + "/"))
        return self.base + relative


def _is_uri(text: str) -> bool:
    try:
        check_uri(text)
    except ConfigurationError:
        return False
    return True
