"""What may be published: a fragment, or a topic's whole content (WebSub is for any resource).

A topic is about changes where its content is XML with a root of the sitemap namespace; then
it must be a fragment. All else is passed on as it is, and a newer content takes the place of
the one before it.
"""

from __future__ import annotations

from xml.parsers import expat

from rsnotify.errors import MalformedDocument, TooLarge
from rsnotify.format.datetimes import Instant, from_microseconds
from rsnotify.format.reader import DEFAULT_LIMITS, DocumentLimits
from rsnotify.format.vocabulary import SITEMAP_NS
from rsnotify.format.xml_parser import expat_parser
from rsnotify_hub.log.fragments import Fragment, check_content_type, read_fragment

#: A whole content leaves out nothing that came before it.
_ALWAYS = from_microseconds(0)

#: Between the namespace and the name of an element; no URI holds it.
_PART = " "
#: How much is parsed at a time, so that other threads get their turn in between; and how long a
#: tag or comment may be, as Expat reads one again with each piece.
_PIECE = 262_144
_TOKEN_BYTES = 10_000_000


def read_content(
    body: bytes, *, content_type: str, received: Instant, limits: DocumentLimits = DEFAULT_LIMITS
) -> Fragment:
    """Read and check what was published.

    Args:
        body: The content.
        content_type: What it came as.
        received: When it came, which is where a whole content stands among others.
        limits: What is refused of a fragment for its size.

    Raises:
        DocumentError: It is XML that is not well-formed; or it is of the sitemap namespace, and
            no fragment, or one that would make a Destination wrong.
    """
    if is_xml(content_type) and is_sitemap(body):
        return read_fragment(body, content_type=content_type, limits=limits)
    return whole_content(body, content_type, received)


def whole_content(body: bytes, content_type: str, received: Instant) -> Fragment:
    """Make what stands in a log for a topic's whole content.

    Raises:
        InvalidDocument: The Content-Type cannot stand in a header.
    """
    return Fragment(
        body=body,
        content_type=check_content_type(content_type),
        from_=None,
        until=received,
        begins=_ALWAYS,
        heartbeat=False,
        whole=True,
    )


def is_xml(content_type: str) -> bool:
    """Tell whether a media type is one of XML (RFC 7303)."""
    essence = content_type.partition(";")[0].strip().lower()
    return essence in ("application/xml", "text/xml") or essence.endswith("+xml")


class _IsSitemap(Exception):
    """The root is of the sitemap namespace: another reader does the rest."""


def is_sitemap(body: bytes) -> bool:
    """Tell whether the root of an XML document is of the sitemap namespace.

    Raises:
        MalformedDocument: It is not well-formed, which is looked for to the end of what is no
            sitemap; or it declares entities, which could grow without bound.
        TooLarge: One of its tags or comments is.
    """
    parser = expat_parser(_PART)
    parser.StartDoctypeDeclHandler = _refuse_declarations

    def start(name: str, attributes: dict[str, str]) -> None:
        parser.StartElementHandler = None
        if name.rpartition(_PART)[0] == SITEMAP_NS:
            raise _IsSitemap

    parser.StartElementHandler = start
    try:
        for at in range(0, len(body), _PIECE):
            parser.Parse(body[at : at + _PIECE], False)
            if at - parser.CurrentByteIndex > _TOKEN_BYTES:
                raise TooLarge(f"it has a tag or a comment of more than {_TOKEN_BYTES} bytes")
        parser.Parse(b"", True)
    except _IsSitemap:
        return True
    except expat.ExpatError as error:
        raise MalformedDocument(f"not well-formed XML: {error}") from None
    except (ValueError, LookupError):
        raise MalformedDocument("its encoding is not known here; send it in UTF-8") from None
    return False


def _refuse_declarations(name: str, system: str | None, public: str | None, inside: bool) -> None:
    if inside:
        raise MalformedDocument("its DOCTYPE has declarations, which are refused; remove them")


def is_text(fragment: Fragment) -> bool:
    """Tell whether a WebSocket text frame can carry it, and nobody take it for a control frame."""
    if not fragment.whole:
        return True  # a fragment is XML in UTF-8
    if fragment.body.startswith(b"{"):
        return False
    try:
        fragment.body.decode()
    except UnicodeDecodeError:
        return False
    return True
