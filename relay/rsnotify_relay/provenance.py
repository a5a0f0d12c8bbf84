"""What a relay says of a resource: what is so of its copy, and where that came from.

Core §14.8: the link `via` tells the resource at the original Source, with its own hash, length
and time. In a chain it is kept as it is. Time attributes are those of who publishes, so
`lastmod` is not taken over. Other links are inherited only where they remain appropriate.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

from rsnotify.errors import ConfigurationError
from rsnotify.format.model import Link, Resource
from rsnotify.format.vocabulary import ChangeType, Rel
from rsnotify_publisher.changes import check_resource
from rsnotify_subscriber import Received

#: Relations that tell of the original at its own place: of what it belongs to, which of its
#: URIs counts, what its other versions are, where else its present content is.
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
#: Characters that may stand in a URI; others are escaped, since an origin may be sloppy.
_URI = "%/:?#[]@!$&'()*+,;="


def republished(change: Received, uri: str, known: Resource | None) -> Resource:
    """Tell what the relay publishes of a change that it has applied.

    Args:
        change: The change.
        uri: The URI of the resource at the relay.
        known: What was published of the resource last, if it is there.
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
    told = change.alternate or entry
    return _vias(entry) or [
        Link(
            Rel.VIA,
            quote(change.alternate.href if change.alternate else entry.uri, safe=_URI),
            hash=told.hash,
            length=told.length,
            modified=entry.lastmod or entry.datetime,
            type=told.type,
        )
    ]


def _origin_of_deletion(entry: Resource, known: Resource | None) -> list[Link]:
    """Name the original; a Resource List from which it has vanished tells no more."""
    named = [Link(Rel.VIA, link.href) for link in _vias(known)]
    return _vias(entry) or named or [Link(Rel.VIA, quote(entry.uri, safe=_URI))]


def _usable(uri: str, links: Iterable[Link]) -> tuple[Link, ...]:
    """Leave out what could not stand in a document of ours."""
    return tuple(link for link in links if _is_usable(Resource(uri, links=(link,))))


def _is_usable(resource: Resource) -> bool:
    try:
        check_resource(resource)
    except ConfigurationError:
        return False
    return True
