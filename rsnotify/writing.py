"""Writing sitemaps: values in, bytes out, in pieces, so that memory need not hold a list.

A document is `opening(head)`, then `entry(resource)` for each, then `closing(head)`. A text
template is five times as fast as an XML library, and the format has no nesting that would
need one; whatever could need escaping is escaped.
"""

from __future__ import annotations

import re
from enum import StrEnum

from rsnotify.datetimes import format_datetime
from rsnotify.model import Attributes, Document, Link, Resource
from rsnotify.vocabulary import RS_NS, SITEMAP_NS


class Profile(StrEnum):
    """Which ResourceSync is written.

    V1_1 carries the datetime of a change as `rs:md/@datetime` and, for 1.0 readers, as
    `lastmod` too; V1_0 leaves the attribute out.
    """

    V1_0 = "1.0"
    V1_1 = "1.1"


_NEEDS_ESCAPE = re.compile(r"[&<>\"\t\n\r]")
# XML 1.0 §2.2: these cannot be written at all, not even escaped.
_ILLEGAL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_ESCAPES = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    '"': "&quot;",
    "\t": "&#9;",
    "\n": "&#10;",
    "\r": "&#13;",
}


def _escape(text: str) -> str:
    if text.isalnum():
        return text
    if _ILLEGAL.search(text):
        raise ValueError(f"{text!r} has a character that XML cannot carry; percent-encode it")
    if _NEEDS_ESCAPE.search(text):
        return _NEEDS_ESCAPE.sub(lambda match: _ESCAPES[match.group()], text)
    return text


def _foreign(attributes: Attributes) -> str:
    """Write attributes of other namespaces, each with a prefix declared in place (core §7)."""
    parts = []
    for number, (name, value) in enumerate(attributes):
        namespace, _, local = name[1:].partition("}")
        if namespace == "http://www.w3.org/XML/1998/namespace":
            parts.append(f' xml:{local}="{_escape(value)}"')
        else:
            parts.append(
                f' xmlns:a{number}="{_escape(namespace)}" a{number}:{local}="{_escape(value)}"'
            )
    return "".join(parts)


def _link(link: Link) -> str:
    parts = [f'<rs:ln rel="{_escape(link.rel)}" href="{_escape(link.href)}"']
    if link.encoding is not None:
        parts.append(f' encoding="{_escape(link.encoding)}"')
    if link.hash is not None:
        parts.append(f' hash="{_escape(link.hash)}"')
    if link.length is not None:
        parts.append(f' length="{link.length}"')
    if link.modified is not None:
        parts.append(f' modified="{format_datetime(link.modified)}"')
    if link.path is not None:
        parts.append(f' path="{_escape(link.path)}"')
    if link.pri is not None:
        parts.append(f' pri="{link.pri}"')
    if link.type is not None:
        parts.append(f' type="{_escape(link.type)}"')
    parts.append(_foreign(link.attributes))
    parts.append("/>")
    return "".join(parts)


def _interval(item: Document | Resource) -> str:
    parts = []
    if item.at is not None:
        parts.append(f' at="{format_datetime(item.at)}"')
    if item.completed is not None:
        parts.append(f' completed="{format_datetime(item.completed)}"')
    if item.from_ is not None:
        parts.append(f' from="{format_datetime(item.from_)}"')
    if item.until is not None:
        parts.append(f' until="{format_datetime(item.until)}"')
    return "".join(parts)


def opening(head: Document) -> bytes:
    """Write all of a document that stands before its entries (core §7).

    Raises:
        ValueError: A text holds a character that XML cannot carry.
    """
    root = "sitemapindex" if head.index else "urlset"
    parts = [
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<{root} xmlns="{SITEMAP_NS}" xmlns:rs="{RS_NS}">\n'
    ]
    parts += [_link(link) + "\n" for link in head.links]
    attributes = _interval(head) + _foreign(head.attributes)
    if head.capability is not None:
        parts.append(f'<rs:md capability="{_escape(head.capability)}"{attributes}/>\n')
    elif attributes:
        parts.append(f"<rs:md{attributes}/>\n")
    return "".join(parts).encode()


def entry(resource: Resource, *, index: bool = False, profile: Profile = Profile.V1_1) -> bytes:
    """Write one `<url>`, or `<sitemap>` when `index` is true.

    In the 1.1 profile a change's datetime stands in `lastmod` too where that is not set; in
    the 1.0 profile it stands there alone.

    Raises:
        ValueError: A text holds a character that XML cannot carry.
    """
    tag = "sitemap" if index else "url"
    parts = [f"<{tag}><loc>{_escape(resource.uri)}</loc>"]
    lastmod = resource.lastmod
    if resource.datetime is not None and (lastmod is None or profile is Profile.V1_0):
        lastmod = resource.datetime
    if lastmod is not None:
        parts.append(f"<lastmod>{format_datetime(lastmod)}</lastmod>")
    if resource.changefreq is not None:
        parts.append(f"<changefreq>{_escape(resource.changefreq)}</changefreq>")
    attributes = _resource_md(resource, profile)
    if attributes:
        parts.append(f"<rs:md{attributes}/>")
    parts += [_link(link) for link in resource.links]
    parts.append(f"</{tag}>\n")
    return "".join(parts).encode()


def _resource_md(resource: Resource, profile: Profile) -> str:
    parts = []
    if resource.capability is not None:
        parts.append(f' capability="{_escape(resource.capability)}"')
    if resource.change is not None:
        parts.append(f' change="{resource.change}"')
    if resource.datetime is not None and profile is Profile.V1_1:
        parts.append(f' datetime="{format_datetime(resource.datetime)}"')
    parts.append(_interval(resource))
    if resource.encoding is not None:
        parts.append(f' encoding="{_escape(resource.encoding)}"')
    if resource.hash is not None:
        parts.append(f' hash="{_escape(resource.hash)}"')
    if resource.length is not None:
        parts.append(f' length="{resource.length}"')
    if resource.path is not None:
        parts.append(f' path="{_escape(resource.path)}"')
    if resource.type is not None:
        parts.append(f' type="{_escape(resource.type)}"')
    parts.append(_foreign(resource.attributes))
    return "".join(parts)


def closing(head: Document) -> bytes:
    """Write what stands after the last entry."""
    return b"</sitemapindex>\n" if head.index else b"</urlset>\n"


def write_document(document: Document, *, profile: Profile = Profile.V1_1) -> bytes:
    """Write a whole document.

    Raises:
        ValueError: A text holds a character that XML cannot carry.
    """
    entries = [
        entry(resource, index=document.index, profile=profile) for resource in document.resources
    ]
    return b"".join([opening(document), *entries, closing(document)])
