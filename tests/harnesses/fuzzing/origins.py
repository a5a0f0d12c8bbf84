"""The surfaces of a gateway: what origins of each protocol send."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import msgspec

from rsnotify.errors import DocumentError
from rsnotify.format.datetimes import format_datetime
from rsnotify_gateway.adapters.event_streams import EventMapping, EventParser, read_event
from rsnotify_gateway.adapters.feeds import parse_feed
from rsnotify_gateway.adapters.iiif import parse_collection
from rsnotify_gateway.adapters.iiif import parse_page as parse_activities
from rsnotify_gateway.adapters.ldes import StreamTerms
from rsnotify_gateway.adapters.ldes import parse_page as parse_stream
from rsnotify_gateway.adapters.oai_pmh import OaiParser
from rsnotify_gateway.change_detection import usable_uri
from rsnotify_gateway.client import parse_robots
from tests.harnesses.fuzzing.surface import Surface

_URI = "http://e.example/a"
_MAPPING = EventMapping("/meta/uri", "/meta/dt", "/type", ("delete",), {"/wiki": "enwiki"})


def _robots(data: bytes) -> None:
    rules = parse_robots(data.decode(errors="replace"))
    rules.allows("/a/b?c=%7e")
    rules.allows("/" + "a" * 1_000)


def _oai(data: bytes) -> None:
    parser = OaiParser()
    for at in range(0, len(data), 997):
        parser.feed(data[at : at + 997])
    for record in parser.close().records:
        format_datetime(record.modified)


def _feed(data: bytes) -> None:
    for entry in parse_feed(data, _URI).entries:
        usable_uri(entry.uri)
        if entry.updated is not None:
            format_datetime(entry.updated)


def _stream(media_type: str, data: bytes) -> None:
    page = parse_stream(data, media_type, _URI, StreamTerms())
    for member in page.members:
        usable_uri(member.uri)
    msgspec.json.encode(page.terms)


def _activities(data: bytes) -> None:
    for parse in (parse_collection, parse_activities):
        with suppress(DocumentError):
            parse(data, _URI)


def _events(data: bytes) -> None:
    parser = EventParser("1")
    for at in range(0, len(data), 97):
        for event in parser.feed(data[at : at + 97]):
            stated = read_event(event.data, _MAPPING)
            if stated is not None:
                format_datetime(stated.when)
                if stated.uri is not None:
                    usable_uri(stated.uri)


_TURTLE = b"""@prefix ldes: <https://w3id.org/ldes#> . @prefix tree: <https://w3id.org/tree#> .
@prefix d: <http://purl.org/dc/terms/> . @prefix as: <https://www.w3.org/ns/activitystreams#> .
<a> ldes:timestampPath d:issued ; ldes:versionOfPath ( d:isVersionOf ) ; tree:view <> ;
  ldes:versionDeleteObject as:Delete ; tree:member <m#1> , [ d:isVersionOf <n> ] .
<m#1> d:issued "2013-01-03T09:00:00Z" ; d:isVersionOf <m> ; a as:Delete .
<> tree:relation [ tree:node <b> ] .
"""
_JSON_LD = (
    b'{"@context": {"tree": "https://w3id.org/tree#"}, "@id": "a", "tree:member": [{"@id": "m"}],'
    b'"tree:relation": {"tree:node": {"@id": "b"}}}'
)
_OAI = (
    b'<OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/"><responseDate>2013-01-03T09:00:00Z'
    b'</responseDate><request verb="ListRecords">a</request><ListRecords><record><header '
    b'status="deleted"><identifier>oai:a</identifier><datestamp>2013-01-03</datestamp>'
    b"<setSpec>s</setSpec></header></record><record><header><identifier>b</identifier>"
    b"<datestamp>2013-01-03T09:00:00Z</datestamp></header><metadata><m a='b'>c</m></metadata>"
    b"<about/></record><resumptionToken>t</resumptionToken></ListRecords></OAI-PMH>"
)
_IDENTIFY = (
    b'<OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/"><responseDate>2013-01-03T09:00:00Z'
    b"</responseDate><error code='badVerb'>e</error><Identify><granularity>g</granularity>"
    b"</Identify></OAI-PMH>"
)
_ATOM = (
    b'<feed xmlns="http://www.w3.org/2005/Atom"><title>t</title><link rel="hub" href="h"/>'
    b'<link rel="next" href="n"/><entry><id>urn:a</id><link href="http://e.example/b"/><updated>'
    b"2013-01-03T09:00:00Z</updated><title>&amp;a</title><content type='html'>&lt;b></content>"
    b"</entry></feed>"
)
_RSS = (
    b'<rss version="2.0"><channel><title>t</title><item><link>http://e.example/c</link><pubDate>'
    b"Thu, 03 Jan 2013 09:00:00 GMT</pubDate><enclosure url='http://e.example/d' length='1'/>"
    b"<description>&lt;i>d</description></item></channel></rss>"
)
_COLLECTION = (
    b'{"@context":"http://iiif.io/api/discovery/1/context.json","id":"a","type":"OrderedCollection"'
    b',"last":{"id":"p/1","type":"OrderedCollectionPage"},"partOf":[[{"a":1}]]}'
)
_PAGE = (
    b'{"id":"p/1","type":"OrderedCollectionPage","prev":"p/0","orderedItems":[{"type":"Move","id":'
    b'"i","object":{"id":"o","type":"Manifest"},"target":"t","endTime":"2013-01-03T09:00:00Z"},'
    b'{"type":"Remove","object":"o","origin":{"id":"c"}}]}'
)
ORIGINS = {
    "robots": Surface(
        _robots,
        (
            b"User-agent: *\nDisallow: /a*b$ # c\nAllow: /%7e\nCrawl-delay: 2\n\nUser-agent: "
            b"rsnotify/1\nDisallow: /c*d*e\nSitemap: http://e.example/s.xml\n",
        ),
        (),
        most=512_000,
    ),
    "oai-pmh": Surface(_oai, (_OAI, _IDENTIFY), (DocumentError,)),
    "feed": Surface(_feed, (_ATOM, _RSS), (DocumentError,)),
    "ldes-turtle": Surface(partial(_stream, "text/turtle"), (_TURTLE,), (DocumentError,)),
    "ldes-json": Surface(partial(_stream, "application/ld+json"), (_JSON_LD,), (DocumentError,)),
    "iiif": Surface(_activities, (_COLLECTION, _PAGE), ()),
    "events": Surface(
        _events,
        (
            b"\xef\xbb\xbf: a\nevent: message\nid: 1\ndata: "
            b'{"meta": {"uri": "http://e.example/b", "dt": "2013-01-03T09:00:00Z"},'
            b' "type": "delete", "wiki": "enwiki"}\nretry: 10\n\n',
            b'id\r\ndata: {"meta": {"uri": "http://e.example/b",\rdata: "dt": 1357203600}}\r\n\r\n',
        ),
        (DocumentError,),
    ),
}
