"""Reads and checks what publishers send, in the same way for all transports.

XML whose root is in the sitemap namespace must be a fragment. Anything else is a topic's whole
content, since WebSub is for any resource. The hub passes it on unchanged, and a newer content
replaces it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from xml.parsers import expat

from rsnotify.errors import MalformedDocument, TooLarge
from rsnotify.format.datetimes import Instant, from_microseconds
from rsnotify.format.model import SITEMAP_NS
from rsnotify.format.reader import DEFAULT_LIMITS, DocumentLimits
from rsnotify.format.xml_parser import expat_parser
from rsnotify_hub.access.authorization import Authorizer
from rsnotify_hub.config.configuration import IntakeConfig
from rsnotify_hub.fragments import (
    Fragment,
    FragmentKind,
    check_content_type,
    is_utf_8,
    read_fragment,
)

#: Maximum size of a fragment read on the event loop, in bytes. Larger ones are read in a thread, so
#: as not to block the loop.
_MAX_INLINE_BYTES = 64 * 1024
#: Number of bytes parsed at a time, so that other threads run in between.
_PIECE_BYTES = 262_144
#: Maximum size of a tag or comment, in bytes. Expat parses an incomplete one again with each piece.
_MAX_TOKEN_BYTES = 10_000_000

#: The start of a whole content, which covers everything before it.
_BEGINNING = from_microseconds(0)

#: Separates an element's namespace from its name. No URI contains it.
_SEPARATOR = " "


class FragmentIntake:
    def __init__(
        self, authorizer: Authorizer, config: IntakeConfig, clock: Callable[[], Instant]
    ) -> None:
        self.authorizer = authorizer
        self.max_bytes = config.max_fragment_bytes
        self.request_seconds = config.request_seconds
        self._clock = clock
        self._limits = limits_of(config)

    def read_small_fragment(self, body: bytes) -> Fragment | None:
        """Read and check a fragment. Return None if this would block the event loop."""
        if len(body) > _MAX_INLINE_BYTES:
            return None
        return read_fragment(body, limits=self._limits)

    async def read_large_fragment(self, body: bytes) -> Fragment:
        """Read and check a fragment in a thread."""
        return await asyncio.to_thread(read_fragment, body, limits=self._limits)

    async def read_publication(self, body: bytes, content_type: str) -> Fragment:
        """Read and check a fragment or a whole content, in a thread if it is large."""
        read = partial(
            read_content,
            body,
            content_type=content_type,
            received=self._clock(),
            limits=self._limits,
        )
        return read() if len(body) <= _MAX_INLINE_BYTES else await asyncio.to_thread(read)


def limits_of(config: IntakeConfig) -> DocumentLimits:
    return DocumentLimits(document_bytes=config.max_fragment_bytes, links=config.max_links)


def read_content(
    body: bytes, *, content_type: str, received: Instant, limits: DocumentLimits = DEFAULT_LIMITS
) -> Fragment:
    """Read and check a fragment or a whole content.

    Raises:
        DocumentError: The body is malformed XML; or the root is in the sitemap namespace, but the
            document is not a fragment, or would corrupt a Destination's copy.
    """
    if is_xml(content_type) and is_sitemap(body):
        return read_fragment(body, content_type=content_type, limits=limits)
    return whole_content(body, content_type, received)


def whole_content(body: bytes, content_type: str, received: Instant) -> Fragment:
    return Fragment(
        body=body,
        content_type=check_content_type(content_type),
        from_=None,
        until=received,
        begins=_BEGINNING,
        heartbeat=False,
        kind=FragmentKind.WHOLE,
    )


def is_text(fragment: Fragment) -> bool:
    """Return whether a body can be sent as a text frame and not be mistaken for a control frame."""
    if fragment.kind is not FragmentKind.WHOLE:
        return True  # it is XML in UTF-8
    return not fragment.body.startswith(b"{") and is_utf_8(fragment.body)


def is_xml(content_type: str) -> bool:
    essence = content_type.partition(";")[0].strip().lower()
    return essence in ("application/xml", "text/xml") or essence.endswith("+xml")


class _IsSitemap(Exception):
    """Stops the parser when the root is in the sitemap namespace."""


def is_sitemap(body: bytes) -> bool:
    """Return whether the root of an XML document is in the sitemap namespace."""
    parser = expat_parser(_SEPARATOR)
    parser.StartDoctypeDeclHandler = _refuse_declarations

    def start(name: str, attributes: dict[str, str]) -> None:
        parser.StartElementHandler = None
        if name.rpartition(_SEPARATOR)[0] == SITEMAP_NS:
            raise _IsSitemap

    parser.StartElementHandler = start
    try:
        for at in range(0, len(body), _PIECE_BYTES):
            parser.Parse(body[at : at + _PIECE_BYTES], False)
            if at - parser.CurrentByteIndex > _MAX_TOKEN_BYTES:
                raise TooLarge(f"it has a tag or a comment of more than {_MAX_TOKEN_BYTES} bytes")
        parser.Parse(b"", True)
    except _IsSitemap:
        return True
    except expat.ExpatError as error:
        raise MalformedDocument(f"not well-formed XML: {error}") from None
    except (ValueError, LookupError):
        raise MalformedDocument("its encoding is unknown; send it in UTF-8") from None
    return False


def _refuse_declarations(name: str, system: str | None, public: str | None, inside: bool) -> None:
    if inside:
        raise MalformedDocument("its DOCTYPE contains declarations, which the hub refuses")
