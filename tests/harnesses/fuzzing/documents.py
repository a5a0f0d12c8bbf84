"""The surfaces of documents: sitemaps of each kind, fragments, links, patches and packages."""

from __future__ import annotations

import io
import tempfile
import zipfile
import zlib
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from jsonpatch import JsonPatchException
from jsonpointer import JsonPointerException

from rsnotify.errors import ContentMismatch, DocumentError, InvalidDocument
from rsnotify.format.coverage import change_list_coverage, package_coverage
from rsnotify.format.hashes import parse_hashes, set_digest
from rsnotify.format.inline_content import decode_inline_content
from rsnotify.format.links import html_links, xml_links
from rsnotify.format.model import (
    RS_NS,
    SITEMAP_NS,
    Capability,
    ChangeType,
    Document,
    Link,
    Resource,
)
from rsnotify.format.offer import read_offer
from rsnotify.format.reader import SitemapReader, read_document, with_resources
from rsnotify.format.writer import write_document
from rsnotify.format.xml_parser import DEFAULT_LIMITS, DocumentLimits
from rsnotify.selection import PushSelection, wanted_representation
from rsnotify_hub.change_memory import UnknownChanges, make_page
from rsnotify_hub.event_streams import JsonEvents, XmlEvents
from rsnotify_hub.filtering import filter_fragment
from rsnotify_hub.fragments import FragmentKind, merge_fragments
from rsnotify_hub.intake import read_content
from rsnotify_hub.statistics import DeliveryTransport
from rsnotify_patching.json_patch import json_merge_patch, json_patch
from rsnotify_patching.xml_patch import xml_patch
from rsnotify_subscriber.content.packages import ZipPackage
from rsnotify_subscriber.fetching.responses import Inflater
from rsnotify_subscriber.mirror.paths import MirrorLayout
from rsnotify_validation.validator import validate
from tests.core.test_fast_reader import PIECES
from tests.harnesses.fuzzing.surface import Surface

_AT = datetime(2013, 1, 3, 9, tzinfo=UTC)
_LATER = datetime(2013, 1, 3, 10, 0, 0, 250, tzinfo=UTC)
_LINKS = (
    Link("up", "http://e.example/capabilitylist.xml"),
    Link("hub", "http://e.example/websub"),
    Link("self", "http://e.example/channel"),
)
_RESOURCE = Resource(
    "http://e.example/a?b=1&c=2",
    lastmod=_AT,
    changefreq="daily",
    change=ChangeType.UPDATED,
    datetime=_AT,
    hash="sha-256:" + "0a" * 32,
    length=17,
    type="text/turtle",
    links=(
        Link("duplicate", "data:text/plain;base64,YQ==", pri=1),
        Link("http://www.openarchives.org/rs/terms/patch", "http://e.example/p", modified=_AT),
    ),
)
_GONE = Resource("http://e.example/b", change=ChangeType.DELETED, datetime=_LATER)


def _document(capability: Capability, **fields: object) -> bytes:
    resources = (_RESOURCE, _GONE)
    document = Document(capability, resources=resources, links=_LINKS, **fields)  # type: ignore[arg-type]
    return write_document(document)


_ROOT = f'<urlset xmlns="{SITEMAP_NS}" xmlns:rs="{RS_NS}" xmlns:i="urn:i">'
_FRAGMENT = _document(Capability.CHANGE_NOTIFICATION, from_=_AT, until=_LATER)
SITEMAPS = (
    _FRAGMENT,
    _document(Capability.RESOURCE_LIST, at=_AT, completed=_LATER),
    _document(Capability.CHANGE_LIST, from_=_AT),
    _document(Capability.CHANGE_LIST, from_=_AT, index=True),
    _document(Capability.CAPABILITY_LIST),
    _document(Capability.CHANGE_DUMP_MANIFEST, from_=_AT, until=_LATER),
    write_document(Document(Capability.CHANGE_NOTIFICATION, from_=_AT, until=_LATER)),
    *(f"{_ROOT}{piece}</urlset>".encode() for piece in PIECES if len(piece) < 1_000),
    f"<urlset xmlns='{SITEMAP_NS}'><url><loc>a:b</loc></url></urlset>".encode("utf-16"),
)
#: Limits that short input can exceed.
_NARROW = DocumentLimits(
    document_bytes=20_000, entries=20, entry_length=300_000, entry_elements=40, uri_length=40,
    inline_length=200, links=4, depth=5,
)  # fmt: skip


def _outcome(data: bytes, limits: DocumentLimits, size: int, *, only_parser: bool) -> str:
    reader = SitemapReader(limits)
    reader._fast._ended = only_parser
    resources = []
    try:
        for at in range(0, len(data), size):
            resources += reader.feed(data[at : at + size])
        return repr(with_resources(reader.close(), resources))
    except DocumentError:
        return "refused"  # which of two faults is met first may differ


def _agree(data: bytes) -> None:
    """Read a document with and without the shortcut, whole and in pieces."""
    for limits in (DEFAULT_LIMITS, _NARROW):
        parsed = _outcome(data, limits, len(data) or 1, only_parser=True)
        for size in (len(data) or 1, 61):
            assert _outcome(data, limits, size, only_parser=False) == parsed


def _document_in(data: bytes) -> None:
    """Read a document, and make of it what a Destination makes of it."""
    document = read_document(data)
    for attempt in (
        lambda: change_list_coverage(document, _LATER),
        lambda: package_coverage(document, "http://e.example/p.zip"),
        lambda: set_digest(document),
        lambda: read_offer(document, "http://e.example/c.xml"),
    ):
        with suppress(DocumentError):
            attempt()
    layout = MirrorLayout("http://e.example/", portable=True)
    for resource in document.resources:
        parse_hashes(resource.hash)
        names = layout.natural(resource.uri) or layout.fallback(resource.uri)
        assert not {"", ".", ".."} & {*names}
        assert not any("/" in name or "\0" in name for name in names)
    with suppress(DocumentError):
        for change in change_list_coverage(document).changes:
            wanted_representation(change, ("text/html",), exact=True)
    # What was read can be written, and is the same when it is read again.
    with suppress(ValueError):  # a document can have what no profile writes
        again = write_document(document)
        if len(again) < 2 * len(data):
            assert read_document(again) == document


def _fragment(data: bytes) -> None:
    """Read what is published, and make of it all that subscribers receive."""
    fragment = read_content(data, content_type="application/xml", received=_LATER)
    for encoding in (XmlEvents, JsonEvents):
        encoding(DeliveryTransport.SSE).encode([fragment])
    if fragment.kind is FragmentKind.WHOLE:
        return
    filter_fragment(fragment, PushSelection(prefixes=("http://e.example/a",)))
    if fragment.from_ is not None:
        merge_fragments([fragment, fragment])
    with suppress(UnknownChanges):
        make_page([fragment], since=None, limit=1)


def _halves(data: bytes) -> tuple[bytes, bytes]:
    before, _, patch = data.partition(b"\0")
    return before, patch


def _package(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm", delete=False) as file:
        file.write(data)
    package = None
    try:
        package = ZipPackage(Path(file.name), "http://e.example/p.zip")
        for name in package.names:
            with suppress(ContentMismatch):
                for piece in package.pieces(name):
                    assert len(piece) <= 131_072
        package.manifest()
    finally:
        if package is not None:
            package.close()
        else:
            Path(file.name).unlink()


def _zip(**members: bytes) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as written:
        for name, content in members.items():
            written.writestr(name.replace("_", "."), content)
    return data.getvalue()


def _inflate(data: bytes) -> None:
    inflater = Inflater()
    for piece in inflater.feed(data):
        assert len(piece) <= 131_072
    inflater.close()


_JSON = b'{"a": [1, {"b": null}], "c": "d"}\0'
_XML = b"<a xmlns:p='urn:p' id='1'>text<b p:c='d'>e</b><!-- f --><?g h?></a>\0"
_XML_PATCH = (
    b"<diff xmlns:p='urn:p'><add sel='a/b' type='@x'>y</add><replace sel='a/b/@p:c'>z</replace>"
    b"<add sel='a' pos='prepend'><n/>t</add><remove sel='a/b[1]'/>"
    b"<add sel='a' pos='prepend'> <n/></add><remove sel='a/n[1]' ws='before'/>"
    b"<replace sel='a/text()[1]'>u</replace><add sel='a' type='namespace::q'>urn:q</add></diff>"
)
DOCUMENTS = {
    "document": Surface(_document_in, SITEMAPS, (DocumentError,)),
    "two-readers": Surface(_agree, SITEMAPS, ()),
    "validator": Surface(validate, SITEMAPS, ()),
    "fragment": Surface(
        _fragment,
        (*SITEMAPS, b"<feed xmlns='http://www.w3.org/2005/Atom'><!-- --></feed>"),
        (DocumentError,),
    ),
    "html-links": Surface(
        lambda data: html_links(data.decode(errors="replace")),
        (
            b"<!doctype html><title>a</title><link rel='hub self' href=' /b '><body>"
            b"<link rel=c href=d>",
        ),
        (),
    ),
    "xml-links": Surface(
        xml_links,
        (
            b"<feed xmlns='http://www.w3.org/2005/Atom'><link rel='hub' href='a'/></feed>",
            b"<rss xmlns:a='http://www.w3.org/2005/Atom'><channel><a:link rel='self' href='b'/>"
            b"</channel></rss>",
            _FRAGMENT,
        ),
        (),
    ),
    "zip": Surface(
        _package,
        (
            _zip(manifest_xml=_FRAGMENT, a_txt=b"a" * 100),
            _zip(manifest_xml=_document(Capability.RESOURCE_DUMP_MANIFEST, at=_AT), a_ttl=b""),
        ),
        (DocumentError, ContentMismatch),
    ),
    "gzip": Surface(
        _inflate, (zlib.compress(_FRAGMENT), zlib.compress(b"a" * 9_000)), (zlib.error,)
    ),
    "data-uri": Surface(
        lambda data: decode_inline_content("data:" + data.decode("utf-8", "replace")),
        (b"text/plain;base64,YWJj", b",a%20b", b";charset=utf-8,\xc3\xa9"),
        (),
    ),
    "json-patch": Surface(
        lambda data: json_patch(*_halves(data)),
        (
            _JSON + b'[{"op": "add", "path": "/a/-", "value": 1}, {"op": "remove", "path": "/c"}]',
            _JSON + b'[{"op": "copy", "from": "/a", "path": "/e"}, {"op": "test", "path": "/c", '
            b'"value": "d"}, {"op": "move", "from": "/a/1", "path": "/f"}]',
        ),
        (InvalidDocument, ValueError, JsonPatchException, JsonPointerException, RecursionError),
    ),
    "json-merge-patch": Surface(
        lambda data: json_merge_patch(*_halves(data)),
        (_JSON + b'{"a": null, "g": {"h": [1]}}',),
        (InvalidDocument, ValueError, RecursionError),
    ),
    "xml-patch": Surface(
        lambda data: xml_patch(*_halves(data)), (_XML + _XML_PATCH,), (InvalidDocument,)
    ),
}
