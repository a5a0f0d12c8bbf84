"""Writing sitemaps: values in, bytes out, in pieces, so that a list need not fit into memory.

A document is `opening(head)`, then `entry(resource)` for each, then `closing(head)`. Text
templates are five times as fast as an XML library, and the format has no nesting that would
require one. Every text is escaped; one with a character that XML cannot represent raises
`ValueError`.
"""

from __future__ import annotations

import re
from enum import StrEnum

from rsnotify.format.datetimes import format_datetime
from rsnotify.format.model import Attributes, Document, Link, Resource
from rsnotify.format.vocabulary import RS_NS, SITEMAP_NS


class Profile(StrEnum):
    """The version of ResourceSync to write, which decides where the datetime of a change goes.

    V1_1 writes it as `rs:md/@datetime` and, where the model has no `lastmod`, also there, for 1.0
    readers. V1_0 writes it as `lastmod` alone. Without a profile an entry is written exactly as
    the model has it.
    """

    V1_0 = "1.0"
    V1_1 = "1.1"


# XML 1.0 §2.2: these cannot be written at all, not even escaped.
_ILLEGAL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
# The ampersand first, as the others are written with one.
_ESCAPES = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    '"': "&quot;",
    "\t": "&#9;",
    "\n": "&#10;",
    "\r": "&#13;",
}
#: ASCII characters that may need an escape.
_SUSPECT = bytes(range(32)) + b'&<>"'


def _escape(text: str) -> str:
    # Nearly every text is plain, and this is the quickest test for it.
    if text.isascii() and len(text.encode().translate(None, _SUSPECT)) == len(text):
        return text
    if _ILLEGAL.search(text):
        raise ValueError(f"{text!r} has a character that XML cannot carry; percent-encode it")
    for character, escaped in _ESCAPES.items():
        text = text.replace(character, escaped)
    return text


def _foreign(attributes: Attributes) -> str:
    """Return attributes of other namespaces, each prefix declared in place (core §7)."""
    if not attributes:
        return ""
    parts = []
    prefixes = {"http://www.w3.org/XML/1998/namespace": "xml"}
    for name, value in attributes:
        namespace, _, local = name[1:].partition("}")
        if namespace not in prefixes:
            prefixes[namespace] = prefix = f"a{len(prefixes) - 1}"
            parts.append(f' xmlns:{prefix}="{_escape(namespace)}"')
        parts.append(f' {prefixes[namespace]}:{local}="{_escape(value)}"')
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
    written = ""
    if item.at is not None:
        written += f' at="{format_datetime(item.at)}"'
    if item.completed is not None:
        written += f' completed="{format_datetime(item.completed)}"'
    if item.from_ is not None:
        written += f' from="{format_datetime(item.from_)}"'
    if item.until is not None:
        written += f' until="{format_datetime(item.until)}"'
    return written


def opening(head: Document) -> bytes:
    """Return everything in a document before its entries (core §7)."""
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


def entry(resource: Resource, *, index: bool = False, profile: Profile | None = None) -> bytes:
    """Return one `<url>`, or `<sitemap>` when `index` is true."""
    tag = "sitemap" if index else "url"
    written = f"<{tag}><loc>{_escape(resource.uri)}</loc>"
    changed = None if resource.datetime is None else format_datetime(resource.datetime)
    lastmod = None if resource.lastmod is None else format_datetime(resource.lastmod)
    if profile is not None and changed is not None:
        lastmod = changed if profile is Profile.V1_0 else lastmod or changed
        changed = None if profile is Profile.V1_0 else changed
    if lastmod is not None:
        written += f"<lastmod>{lastmod}</lastmod>"
    if resource.changefreq is not None:
        written += f"<changefreq>{_escape(resource.changefreq)}</changefreq>"
    attributes = _resource_md(resource, changed)
    if attributes:
        written += f"<rs:md{attributes}/>"
    for link in resource.links:
        written += _link(link)
    return f"{written}</{tag}>\n".encode()


def _resource_md(resource: Resource, changed: str | None) -> str:
    written = ""
    if resource.capability is not None:
        written += f' capability="{_escape(resource.capability)}"'
    if resource.change is not None:
        written += f' change="{resource.change.value}"'
    if changed is not None:
        written += f' datetime="{changed}"'
    written += _interval(resource)
    if resource.encoding is not None:
        written += f' encoding="{_escape(resource.encoding)}"'
    if resource.hash is not None:
        written += f' hash="{_escape(resource.hash)}"'
    if resource.length is not None:
        written += f' length="{resource.length}"'
    if resource.path is not None:
        written += f' path="{_escape(resource.path)}"'
    if resource.type is not None:
        written += f' type="{_escape(resource.type)}"'
    if resource.attributes:
        written += _foreign(resource.attributes)
    return written


def closing(head: Document) -> bytes:
    """Return everything in a document after its last entry."""
    return b"</sitemapindex>\n" if head.index else b"</urlset>\n"


def write_document(document: Document, *, profile: Profile | None = None) -> bytes:
    written = bytearray(opening(document))
    for resource in document.resources:
        written += entry(resource, index=document.index, profile=profile)
    written += closing(document)
    return bytes(written)
