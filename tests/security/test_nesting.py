"""Documents of other formats than XML that are nested deeply: refused, or passed over."""

from __future__ import annotations

import pytest

from rsnotify.errors import DocumentError, TooLarge, WrongDocument
from rsnotify_gateway.adapters.event_streams import EventMapping, read_event
from rsnotify_gateway.adapters.iiif import parse_page as parse_activities
from rsnotify_gateway.adapters.ldes import StreamTerms, parse_page
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_validation.inspection import origin_statements
from tests.subscriber.source import SmallSource, body

DEPTH = 100_000
URI = "http://example.com/page"


def nested(begin: str, inner: str, end: str, depth: int = DEPTH) -> bytes:
    return (begin * depth + inner + end * depth).encode()


#: Each of these ended the process, or took all of its memory, in pyoxigraph.
PAGES = {
    "arrays": (nested("[", "", "]"), "application/ld+json"),
    "objects": (nested('{"http://p.example/":', "{}", "}"), "application/ld+json"),
    "quoted triples": (
        b"<http://s.example/> <http://p.example/> "
        + nested("<<( <http://s.example/> <http://p.example/> ", "1", " )>>")
        + b" .",
        "text/turtle",
    ),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_rdf_is_refused(name: str):
    with pytest.raises(TooLarge, match="nested too deeply"):
        parse_page(*PAGES[name], URI, StreamTerms())


def test_brackets_within_texts_are_no_nesting():
    page = b'{"@id":"http://a.example/","http://p.example/":"' + b"[{\\\\" * 1_000 + b'"}'
    assert parse_page(page, "application/ld+json", URI, StreamTerms()).members == ()


def test_rdf_in_xml_is_refused():
    with pytest.raises(WrongDocument, match="not a supported RDF format"):
        parse_page(b"<rdf:RDF/>", "application/rdf+xml", URI, StreamTerms())


def test_a_page_of_activities_is_refused():
    page = b'{"type":"OrderedCollectionPage","x":' + nested("[", "", "]") + b"}"
    with pytest.raises(DocumentError, match="not well-formed JSON"):
        parse_activities(page, URI)


def test_an_event_is_passed_over():
    assert (
        read_event(nested("[", "", "]").decode(), EventMapping(uri="/uri", datetime="/at")) is None
    )


@pytest.mark.parametrize(
    "data", [nested("[", "", "]", 20_000), b'{"origin":"\xff"}'], ids=["deep", "bytes"]
)
async def test_what_is_known_of_an_origin_is_reported_as_unreadable(data: bytes):
    source = SmallSource()
    await source.server.start()
    source.answers["/origin.json"] = body(data)
    async with Sessions(source.url) as sessions:
        (found,) = await origin_statements(sessions, source.site + "origin.json")
    assert "cannot be read" in found
    await source.server.stop()
