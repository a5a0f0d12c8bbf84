"""Inline content: the content of a resource inside its entry, as a link with a `data:` URI."""

from __future__ import annotations

from base64 import b64decode, b64encode
from functools import lru_cache
from urllib.parse import quote, unquote_to_bytes

from msgspec.structs import replace

from rsnotify.format.hashes import matches
from rsnotify.format.model import INLINE_LIMIT, Link, Rel, Resource


def is_inline(link: Link) -> bool:
    return link.href[:5].lower() == "data:"


def may_be_inline(change: Resource) -> bool:
    """Return whether a change may have inline content: it has a hash and is not too large."""
    return (
        change.change != "deleted"
        and change.hash is not None
        and (change.length is None or change.length <= INLINE_LIMIT)
    )


def with_inline_content(change: Resource, content: bytes | None) -> Resource:
    """Return the change with inline content, or unchanged if that is too large or has changed."""
    if content is None or len(content) > INLINE_LIMIT or not matches(change.hash, [content]):
        return change
    data = b64encode(content).decode()
    link = Link(Rel.DUPLICATE, f"data:{_quoted(change.type)};base64,{data}")
    return replace(change, links=(*change.links, link))


@lru_cache(maxsize=256)
def _quoted(media_type: str | None) -> str:
    return quote(media_type or "application/octet-stream", safe="/;=+.-_!#$&^*")


def decode_inline_content(uri: str) -> bytes | None:
    """Return the content of a `data:` URI (RFC 2397); None if it is malformed."""
    header, comma, data = uri[5:].partition(",")
    if not comma:
        return None
    content = unquote_to_bytes(data)
    if not header.lower().endswith(";base64"):
        return content
    try:
        return b64decode(content, validate=True)
    except ValueError:
        return None
