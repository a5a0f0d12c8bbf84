"""How much one document may hold before it is refused."""

from __future__ import annotations

from msgspec import Struct


class DocumentLimits(Struct, frozen=True):
    """How much one document may hold before it is refused.

    These protect memory and time. They are several times what the specification allows (50,000
    entries and 50 MB, core §7), so that a list which is only somewhat too long can still be read.

    Args:
        document_bytes: Bytes of XML, after decompression.
        entries: `<url>` or `<sitemap>` elements.
        entry_length: Characters of all texts and attributes within one entry, and within all
            that stands outside of entries.
        entry_elements: Elements within one entry, and outside of entries, whatever they are.
        uri_length: Characters of a URI or another text. A `data:` URI may have `inline_length`.
        inline_length: Characters of a `data:` URI in a link.
        links: `rs:ln` elements in one entry, or outside of entries.
        depth: Nested elements below one that is passed over.
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
