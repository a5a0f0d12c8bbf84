"""Which representation of a resource a copy holds, and the sources of its content (core §14)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import Instant
from rsnotify.format.media_types import essence
from rsnotify.format.model import ChangeType, Link, Rel, Resource

#: A link without `pri` comes last (core §7).
_LAST = 999_999


class RepresentationSource(Struct, frozen=True):
    """A URI to GET a representation from; `moment` is for `Accept-Datetime` if it is a TimeGate."""

    uri: str
    moment: Instant | None = None


class WantedRepresentation(Struct, frozen=True):
    """A representation, and all announced sources of its content.

    Args:
        entry: Its announced hash, length, path, type and lastmod.
        home: Its own URI; the response there counts if no source has the content.
        sources: The URIs to fetch it from, in the order in which to try them.
        inline: `data:` URIs with the content.
        package: The URI of the package whose manifest had the entry. The package has the content
            at `entry.path`, if there is one, and a patch at the `path` of its link.
        patches: Links to documents that make it from the previous version.
        alternate: The link to it, if it is not the representation at `loc`.
        at: The announced datetime of its creation: that of the change, or the last modification
            in a Resource List. None if nothing is announced.
    """

    entry: Resource
    home: RepresentationSource
    sources: tuple[RepresentationSource, ...]
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
    """Return the representation to fetch for a change that is not a deletion.

    Args:
        change: The change.
        prefer: Media types, the best first; if none of them is offered, the one at `loc` is used.
        exact: Whether URIs of this very version come before those of the current version.
        random: Shuffles mirrors of equal priority, to spread the load; None keeps the order of the
            document.
    """
    resource = change.resource
    if not resource.links:  # as most, so only this has to be fast
        home = RepresentationSource(resource.uri)
        at = _made(change, resource)
        return WantedRepresentation(resource, home, (home,), package=change.package, at=at)
    alternate = preferred_alternate(resource, prefer)
    if alternate is not None:
        entry = _as_linked(resource, alternate)
        wanted = wanted_link_target(alternate, change.package)
        return replace(wanted, entry=entry, alternate=alternate, at=_made(change, entry))
    home = RepresentationSource(resource.uri)
    return WantedRepresentation(
        resource,
        home,
        _sources(resource, home, exact, random),
        inline=tuple(link.href for link in _links(resource, Rel.DUPLICATE) if _is_data(link)),
        package=change.package,
        patches=_links(resource, Rel.PATCH),
        at=_made(change, resource),
    )


def _made(change: Change, entry: Resource) -> Instant:
    return change.at if change.resource.change is not None else entry.lastmod or change.at


def has_inline_content(change: Change) -> bool:
    """Return whether a change needs no GET: it is a deletion, or has inline content."""
    return change.change is ChangeType.DELETED or any(map(_is_data, change.resource.links))


def wanted_link_target(link: Link, package: str | None = None) -> WantedRepresentation:
    """Return the representation that a link leads to, for instance a patch.

    `package` is the URI of the package whose manifest had the link, if there is one.
    """
    home = RepresentationSource(link.href)
    return WantedRepresentation(
        Resource(link.href, hash=link.hash, length=link.length, path=link.path, type=link.type),
        home,
        () if _is_data(link) else (home,),
        inline=(link.href,) if _is_data(link) else (),
        package=package,
    )


def describe_representation(resource: Resource, prefer: Sequence[str]) -> Resource:
    """Return an entry with the hash, length and so on of the representation that a copy holds."""
    alternate = preferred_alternate(resource, prefer)
    return resource if alternate is None else _as_linked(resource, alternate)


def preferred_alternate(resource: Resource, prefer: Sequence[str]) -> Link | None:
    """Return the link to an alternate that is preferred to `loc` (core §14.3); None if none is."""
    if not prefer:
        return None
    offered = _links(resource, Rel.ALTERNATE)
    for media_type in map(essence, prefer):
        if resource.type is not None and essence(resource.type) == media_type:
            return None
        for link in offered:
            if link.type is not None and essence(link.type) == media_type:
                return link
    return None


def _as_linked(resource: Resource, link: Link) -> Resource:
    return replace(
        resource,
        lastmod=link.modified or resource.lastmod,
        encoding=link.encoding,
        hash=link.hash,
        length=link.length,
        path=link.path,
        type=link.type,
    )


def _sources(
    resource: Resource, home: RepresentationSource, exact: bool, random: Random | None
) -> tuple[RepresentationSource, ...]:
    """Return the sources in order: mirrors with a priority, `loc`, other mirrors (core §14.2).

    Without a hash nothing shows whether a mirror is up to date, so mirrors are not used.
    """
    mirrors = _web_links(resource, Rel.DUPLICATE, random) if resource.hash is not None else []
    first = [RepresentationSource(link.href) for link in mirrors if link.pri is not None]
    last = [RepresentationSource(link.href) for link in mirrors if link.pri is None]
    current = (*first, home, *last)
    versions = _versions(resource) if exact else ()
    # Without a hash nothing would show that the current content is another version.
    return (*versions, *current) if resource.hash is not None or not versions else versions


def _versions(resource: Resource) -> tuple[RepresentationSource, ...]:
    mementos = [RepresentationSource(link.href) for link in _web_links(resource, Rel.MEMENTO)]
    if resource.lastmod is not None:
        gates = _web_links(resource, Rel.TIMEGATE)
        mementos += [RepresentationSource(link.href, resource.lastmod) for link in gates]
    return tuple(mementos)


def _links(resource: Resource, rel: str, random: Random | None = None) -> tuple[Link, ...]:
    found = [link for link in resource.links if link.rel == rel]
    if len(found) < 2:
        return tuple(found)
    if random is not None:
        random.shuffle(found)
    return tuple(sorted(found, key=lambda link: link.pri or _LAST))


def _is_data(link: Link) -> bool:
    return link.href[:5].lower() == "data:"


def _web_links(resource: Resource, rel: str, random: Random | None = None) -> list[Link]:
    links = _links(resource, rel, random)
    return [link for link in links if link.href.partition(":")[0].lower() in ("http", "https")]
