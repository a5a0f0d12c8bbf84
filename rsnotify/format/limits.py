"""The limits beyond which the reader refuses a document."""

from __future__ import annotations

from msgspec import Struct


class DocumentLimits(Struct, frozen=True):
    """The limits beyond which the reader refuses a document; they protect memory and time.

    They are several times those of the specification (50,000 entries and 50 MB, core §7), so that
    a list which is only a little too long can still be read.

    Args:
        document_bytes: Bytes of XML, after decompression.
        entries: `<url>` or `<sitemap>` elements.
        entry_length: Characters of all texts and attributes within one entry, and outside of
            all entries.
        entry_elements: Elements of any kind within one entry, and outside of all entries.
        uri_length: Characters of a URI or another text, except a `data:` URI.
        inline_length: Characters of a `data:` URI in a link.
        links: `rs:ln` elements in one entry, or outside of all entries.
        depth: Levels of elements below one that is ignored.
    """

    document_bytes: int = 100_000_000
    entries: int = 200_000
    entry_length: int = 4_000_000
    entry_elements: int = 10_000
    uri_length: int = 8_192
    inline_length: int = 1_000_000
    links: int = 1_000
    depth: int = 100


DEFAULT_LIMITS = DocumentLimits()
