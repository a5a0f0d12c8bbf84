"""Which representation of a resource is wanted, and by which ways it may be had (core §14)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec
from msgspec import Struct

from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import Instant
from rsnotify.format.media_types import essence
from rsnotify.format.model import Link, Resource
from rsnotify.format.vocabulary import ChangeType, Rel

#: A link without `pri` comes last (core §7).
_LAST = 999_999


class RepresentationSource(Struct, frozen=True):
    """Where a representation may be had with a GET.

    Args:
        uri: What to GET.
        moment: The instant to ask a TimeGate for; None where it is none.
    """

    uri: str
    moment: Instant | None = None


class WantedRepresentation(Struct, frozen=True):
    """A representation, and all that is told of how to have it.

    Args:
        entry: What is announced of it: hash, length, path, type, lastmod.
        home: The place that is its own; what it answers counts if no place has it.
        places: Where it may be had, the one to be tried first in front.
        inline: `data:` URIs that hold it.
        package: The URI of the package whose manifest had the entry; it has the representation
            at `entry.path`, if there is one, and a patch at the `path` of its link.
        patches: Documents that make it from the version before.
        alternate: The link by which it was chosen, if it is not that of `loc`.
        at: When it was made, as far as that is announced: the datetime of the change, or the
            last modification that a Resource List tells. None where nothing is announced.
    """

    entry: Resource
    home: RepresentationSource
    places: tuple[RepresentationSource, ...]
    inline: tuple[str, ...] = ()
    package: str | None = None
    patches: tuple[Link, ...] = ()
    alternate: Link | None = None
    at: Instant | None = None


def wanted_representation(
    change: Change,
    prefer: Sequence[str] = (),
    *,
    exact: bool = False,
    random: Random | None = None,
) -> WantedRepresentation:
    """Tell what to bring for a change that is no deletion.

    Args:
        change: The change.
        prefer: Media types, the best first; if none of them is offered, `loc` is wanted.
        exact: Whether a URI of this very version goes before those of the current one.
        random: Mixes mirrors of one priority, so that not everybody asks the same; None keeps
            the order of the document.
    """
    resource = change.resource
    alternate = preferred_alternate(resource, prefer)
    if alternate is not None:
        entry = _as_linked(resource, alternate)
        at = _made(change, entry)
        return _linked(entry, alternate, change.package, alternate=alternate, at=at)
    home = RepresentationSource(resource.uri)
    return WantedRepresentation(
        resource,
        home,
        _places(resource, home, exact, random),
        inline=tuple(link.href for link in _links(resource, Rel.DUPLICATE) if _is_data(link)),
        package=change.package,
        patches=_links(resource, Rel.PATCH),
        at=_made(change, resource),
    )


def _made(change: Change, entry: Resource) -> Instant:
    return change.at if change.resource.change is not None else entry.lastmod or change.at


def has_inline_content(change: Change) -> bool:
    """Tell whether a change may need no GET, by what its entry has inline."""
    return change.change is ChangeType.DELETED or any(map(_is_data, change.resource.links))


def wanted_link_target(link: Link, package: str | None = None) -> WantedRepresentation:
    """Tell how to bring what a link leads to, a patch for instance.

    Args:
        link: The link.
        package: The URI of the package whose manifest had the link, if it was one.
    """
    entry = Resource(link.href, hash=link.hash, length=link.length, path=link.path, type=link.type)
    return _linked(entry, link, package)


def describe_representation(resource: Resource, prefer: Sequence[str]) -> Resource:
    """Return an entry as it describes the representation that is wanted of it.

    It keeps the URI of the resource; hash, length and so on are those of the alternate.
    """
    alternate = preferred_alternate(resource, prefer)
    return resource if alternate is None else _as_linked(resource, alternate)


def preferred_alternate(resource: Resource, prefer: Sequence[str]) -> Link | None:
    """Return the alternate to be held instead of `loc` (core §14.3), if there is a better one.

    Args:
        resource: The entry.
        prefer: Media types, the best first.
    """
    if not prefer:
        return None
    offered = _links(resource, Rel.ALTERNATE)
    for wish in map(essence, prefer):
        if resource.type is not None and essence(resource.type) == wish:
            return None
        for link in offered:
            if link.type is not None and essence(link.type) == wish:
                return link
    return None


def _as_linked(resource: Resource, link: Link) -> Resource:
    return msgspec.structs.replace(
        resource,
        lastmod=link.modified or resource.lastmod,
        encoding=link.encoding,
        hash=link.hash,
        length=link.length,
        path=link.path,
        type=link.type,
    )


def _linked(
    entry: Resource,
    link: Link,
    package: str | None,
    *,
    alternate: Link | None = None,
    at: Instant | None = None,
) -> WantedRepresentation:
    home = RepresentationSource(link.href)
    return WantedRepresentation(
        entry,
        home,
        () if _is_data(link) else (home,),
        inline=(link.href,) if _is_data(link) else (),
        package=package,
        alternate=alternate,
        at=at,
    )


def _places(
    resource: Resource, home: RepresentationSource, exact: bool, random: Random | None
) -> tuple[RepresentationSource, ...]:
    """Order the places: mirrors that state a priority, `loc`, the other mirrors (core §14.2).

    A mirror is not the Source. Where no hash tells whether it is up to date it is not asked.
    """
    mirrors = _links(resource, Rel.DUPLICATE, random) if resource.hash is not None else ()
    first = [
        RepresentationSource(link.href)
        for link in mirrors
        if _is_web(link) and link.pri is not None
    ]
    last = [
        RepresentationSource(link.href) for link in mirrors if _is_web(link) and link.pri is None
    ]
    current = (*first, home, *last)
    versions = _versions(resource) if exact else ()
    # Without a hash nothing would tell that what is there now is another version.
    return (*versions, *current) if resource.hash is not None or not versions else versions


def _versions(resource: Resource) -> tuple[RepresentationSource, ...]:
    """Return where this very version may be had (core §14.6)."""
    mementos = [
        RepresentationSource(link.href) for link in _links(resource, Rel.MEMENTO) if _is_web(link)
    ]
    gates = [link for link in _links(resource, Rel.TIMEGATE) if _is_web(link)]
    if resource.lastmod is not None:
        mementos += [RepresentationSource(link.href, resource.lastmod) for link in gates]
    return tuple(mementos)


def _links(resource: Resource, rel: str, random: Random | None = None) -> tuple[Link, ...]:
    found = [link for link in resource.links if link.rel == rel]
    if random is not None:
        random.shuffle(found)
    return tuple(sorted(found, key=lambda link: link.pri or _LAST))


def _is_data(link: Link) -> bool:
    return link.href[:5].lower() == "data:"


def _is_web(link: Link) -> bool:
    return link.href.partition(":")[0].lower() in ("http", "https")
