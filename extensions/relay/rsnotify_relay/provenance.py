"""The entries that a relay publishes: the attributes of its copy, and their provenance.

The link `via` names the resource at the original Source, with its hash, length and time there
(core §14.8). In a chain of relays it is kept as it is. Time attributes are those of the publishing
Source, so `lastmod` is not copied. Other links are inherited only where they remain appropriate.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

from rsnotify.errors import ConfigurationError
from rsnotify.format.model import Link, Resource
from rsnotify.format.vocabulary import ChangeType, Rel
from rsnotify_publisher.changes import check_resource
from rsnotify_subscriber import Received

#: Relations of the original at its own URI: its sets and collections, its canonical URI, its
#: other versions, and other places of its current content.
_NOT_INHERITED = frozenset(
    {
        Rel.CANONICAL,
        Rel.COLLECTION,
        Rel.CONTENTS,
        Rel.DUPLICATE,
        Rel.HUB,
        Rel.INDEX,
        Rel.MEMENTO,
        Rel.PATCH,
        Rel.RESOURCESYNC,
        Rel.SELF,
        Rel.TIMEGATE,
        Rel.TIMEMAP,
        Rel.UP,
        Rel.VIA,
    }
)
#: Characters that may occur in a URI; others are escaped, since Sources make mistakes.
_URI = "%/:?#[]@!$&'()*+,;="


def republished(change: Received, uri: str, known: Resource | None) -> Resource:
    """Return the entry that the relay publishes under a URI for a change that it has applied.

    `known` is the last published entry of the resource, if the relay has it.
    """
    if change.change is ChangeType.DELETED:
        via = _usable(uri, _origin_of_deletion(change.resource, known))
        return Resource(uri, change=ChangeType.DELETED, links=via)
    entry = change.resource
    inherited = (link for link in entry.links if link.rel not in _NOT_INHERITED)
    return Resource(
        uri,
        change=ChangeType.CREATED if known is None else ChangeType.UPDATED,
        changefreq=entry.changefreq,
        hash=change.hash,
        length=change.length,
        type=change.alternate.type if change.alternate else entry.type,
        links=_usable(uri, (*_origin(change), *inherited)),
    )


def _vias(entry: Resource | None) -> list[Link]:
    return [link for link in (entry.links if entry else ()) if link.rel == Rel.VIA]


def _origin(change: Received) -> list[Link]:
    entry = change.resource
    described = change.alternate or entry
    return _vias(entry) or [
        Link(
            Rel.VIA,
            quote(change.alternate.href if change.alternate else entry.uri, safe=_URI),
            hash=described.hash,
            length=described.length,
            modified=entry.lastmod or entry.datetime,
            type=described.type,
        )
    ]


def _origin_of_deletion(entry: Resource, known: Resource | None) -> list[Link]:
    """Return links to the original; if a Resource List just lacks it, only its URI is known."""
    named = [Link(Rel.VIA, link.href) for link in _vias(known)]
    return _vias(entry) or named or [Link(Rel.VIA, quote(entry.uri, safe=_URI))]


def _usable(uri: str, links: Iterable[Link]) -> tuple[Link, ...]:
    """Return the links that are valid in a document of the relay."""
    return tuple(link for link in links if _is_usable(Resource(uri, links=(link,))))


def _is_usable(resource: Resource) -> bool:
    try:
        check_resource(resource)
    except ConfigurationError:
        return False
    return True
