"""ResourceSync documents as values: frozen, comparable, without behaviour.

Names follow core §7. `from` is a keyword of Python, so the field is `from_`.
"""

from __future__ import annotations

from msgspec import Struct

from rsnotify.format.datetimes import Instant
from rsnotify.format.vocabulary import ChangeType

#: Attributes of other namespaces, as (Clark name, value) in document order.
Attributes = tuple[tuple[str, str], ...]


class Link(Struct, frozen=True, omit_defaults=True, gc=False):
    """An `rs:ln`: a related resource (core §7, §14).

    Args:
        rel: A registered relation type, or a URI.
        href: The related resource.
        pri: Priority among links of one relation, 1 (first) to 999,999; None means last.
    """

    rel: str
    href: str
    encoding: str | None = None
    hash: str | None = None
    length: int | None = None
    modified: Instant | None = None
    path: str | None = None
    pri: int | None = None
    type: str | None = None
    attributes: Attributes = ()


class Resource(Struct, frozen=True, omit_defaults=True, gc=False):
    """A `<url>` or `<sitemap>`: a resource that plays a role in ResourceSync (core §7).

    The attributes of its `rs:md` are fields beside `lastmod`; each kind of document uses some.

    Args:
        uri: `<loc>`.
        lastmod: `<lastmod>`; in a 1.0 change document, the datetime of the change.
        change: The type of change, in a change document.
        datetime: The datetime of the change, in a 1.1 change document.
        hash: White-space separated `algorithm:digest` pairs.
    """

    uri: str
    lastmod: Instant | None = None
    changefreq: str | None = None
    change: ChangeType | None = None
    datetime: Instant | None = None
    at: Instant | None = None
    completed: Instant | None = None
    from_: Instant | None = None
    until: Instant | None = None
    capability: str | None = None
    encoding: str | None = None
    hash: str | None = None
    length: int | None = None
    path: str | None = None
    type: str | None = None
    links: tuple[Link, ...] = ()
    attributes: Attributes = ()

    @property
    def changed_at(self) -> Instant | None:
        """The datetime of the change: 1.1's `datetime`, else 1.0's `lastmod`."""
        return self.datetime or self.lastmod


class Document(Struct, frozen=True, omit_defaults=True):
    """A whole ResourceSync document: a `urlset`, or a `sitemapindex` when `index` is true.

    Args:
        capability: `rs:md/@capability`; None in a plain Sitemap, which has no `rs:md`.
        resources: The `<url>` or `<sitemap>` children, in document order.
        index: Whether the root is `sitemapindex`.
    """

    capability: str | None
    resources: tuple[Resource, ...] = ()
    index: bool = False
    at: Instant | None = None
    completed: Instant | None = None
    from_: Instant | None = None
    until: Instant | None = None
    links: tuple[Link, ...] = ()
    attributes: Attributes = ()

    @property
    def changed_at(self) -> Instant | None:
        """The datetime of the last change in the document."""
        return self.resources[-1].changed_at if self.resources else None

    def link(self, rel: str) -> str | None:
        """Return the target of the first link with this relation; None if there is none."""
        return next((link.href for link in self.links if link.rel == rel), None)
