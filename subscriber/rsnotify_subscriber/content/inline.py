"""Content inside a document, as a link with a `data:` URI (RFC 2397)."""

from __future__ import annotations

from base64 import b64decode
from urllib.parse import unquote_to_bytes

from rsnotify.selection.representations import WantedRepresentation
from rsnotify_subscriber.fetching.digests import parse_hashes, verifies


def inline_content(wanted: WantedRepresentation, *, needs_hash: bool = True) -> bytes | None:
    """Return the content inside a document, if it has the announced hash and length.

    None if the entry has no hash, or the content has another: it is fetched from its own URI.
    By the hash, a list of the Source can confirm or contradict content that came by a hub.
    A patch need not have a hash, as its result has one.
    """
    entry = wanted.entry
    if needs_hash and not parse_hashes(entry.hash):
        return None
    for uri in wanted.inline:
        content = _decode(uri)
        if content is not None and verifies(content, entry.hash, entry.length):
            return content
    return None


def _decode(uri: str) -> bytes | None:
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
