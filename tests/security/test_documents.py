"""XML: no reader expands an entity, opens a file or a URL, or accepts what is not well-formed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import unescape

import pytest
from lxml import etree
from msgspec import Struct

from rsnotify.errors import RsnotifyError
from rsnotify.format.links import xml_links
from rsnotify.format.model import SITEMAP_NS
from rsnotify.format.reader import read_document
from rsnotify_gateway.adapters.feeds import parse_feed
from rsnotify_gateway.adapters.oai_pmh import OaiParser
from rsnotify_patching.xml_patch import xml_patch
from rsnotify_validation import Severity, validate
from rsnotify_xmpp.xmpp_connection import payload_of
from tests.hub.helpers import TOPIC, RunHub, callback_server
from tests.security.corpus import vectors
from tests.security.network import PORTS, Network

URI = "http://example.com/a"
SITEMAP = (
    '<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'
    ' xmlns:rs="http://www.openarchives.org/rs/terms/" {attributes}>{inner}'
    '<rs:md capability="change-notification" from="2026-01-01T00:00:00Z"'
    ' until="2026-01-01T00:00:01Z"/><url><loc>{uri}</loc>'
    '<rs:md change="updated" datetime="2026-01-01T00:00:01Z"/></url></urlset>'
)
OAI = (
    '<OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/" {attributes}>'
    "<responseDate>2026-01-01T00:00:00Z</responseDate>{inner}<ListIdentifiers><header>"
    "<identifier>{uri}</identifier><datestamp>2026-01-01</datestamp></header></ListIdentifiers>"
    "</OAI-PMH>"
)
ATOM = (
    '<feed xmlns="http://www.w3.org/2005/Atom" {attributes}>{inner}<title>t</title>'
    "<entry><id>{uri}</id><title>t</title></entry></feed>"
)
LINKS = (
    '<feed xmlns="http://www.w3.org/2005/Atom" {attributes}>{inner}'
    '<link rel="hub" href="{uri}"/></feed>'
)


class DocumentVector(Struct, frozen=True, forbid_unknown_fields=True):
    """A vector of `documents.toml`, where the fields are explained."""

    why: str
    declaration: str = "<?xml version='1.0' encoding='UTF-8'?>"
    encoding: str = "utf-8"
    raw: str = ""
    prolog: str = ""
    attributes: str = ""
    inner: str = ""
    times: int = 1
    uri: str = URI
    tail: str = ""
    cut: int = 0
    text_only: bool = False
    read: str | None = None
    but: list[str] = []
    read_by_others: str | None = None

    def made(self, template: str, file: Path) -> bytes:
        text = self.declaration + self.prolog + template + self.tail
        parts = {"attributes": self.attributes, "inner": self.inner * self.times, "uri": self.uri}
        for name, value in parts.items():
            text = text.replace(f"{{{name}}}", value)
        root = re.search("<([A-Za-z-]+)", template)
        text = text.replace("{root}", root[1]).replace("{file}", file.as_uri())
        text = text.replace("{url}", f"http://127.0.0.1:{PORTS}/dtd")
        data = bytes.fromhex(self.raw) + text.encode(self.encoding)
        return data[: max(0, len(data) - self.cut)]


VECTORS = vectors("documents", DocumentVector)


def by_reader(data: bytes) -> str | None:
    return read_document(data).resources[0].uri


def by_reader_in_pieces(data: bytes) -> str | None:
    return read_document([data[at : at + 7] for at in range(0, len(data), 7)]).resources[0].uri


def by_validator(data: bytes) -> str | None:
    """It finds nothing wrong in what is read."""
    found = [one for one in validate(data) if one.severity is Severity.ERROR]
    return None if found else by_reader(data)


def by_oai_parser(data: bytes) -> str | None:
    parser = OaiParser()
    for at in range(0, len(data), 99):
        parser.feed(data[at : at + 99])
    return parser.close().records[0].identifier


def by_feed_parser(data: bytes) -> str | None:
    return parse_feed(data, "http://example.com/feed").entries[0].uri


def by_links(data: bytes) -> str | None:
    (link,) = xml_links(data)
    return link[1]


def by_stanza(data: bytes) -> str | None:
    text = payload_of(data, 10_000_000)
    found = re.search("loc>([^<]*)</", text)
    return found and unescape(found[1])


def by_patch(data: bytes) -> str | None:
    root = etree.fromstring(xml_patch(data, b"<diff/>"), etree.XMLParser(remove_comments=True))
    return "".join(root.find(f".//{{{SITEMAP_NS}}}loc").itertext())


#: Each reader, with its template, and the exceptions by which it refuses.
READERS: dict[str, tuple[Callable[[bytes], str | None], str, type[Exception]]] = {
    "documents": (by_reader, SITEMAP, RsnotifyError),
    "documents in pieces": (by_reader_in_pieces, SITEMAP, RsnotifyError),
    "validator": (by_validator, SITEMAP, RsnotifyError),
    "oai": (by_oai_parser, OAI, RsnotifyError),
    "feed": (by_feed_parser, ATOM, RsnotifyError),
    "links": (by_links, LINKS, ValueError),
    "stanza": (by_stanza, SITEMAP, ValueError),
    "patch": (by_patch, SITEMAP, RsnotifyError),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text("secret")
    return file


@pytest.mark.parametrize("name", READERS)
def test_every_document_is_read_or_refused(name: str, file: Path, network: Network):
    read, template, refusals = READERS[name]
    wrong = {}
    for vector in VECTORS:
        if vector.text_only and template is LINKS:
            continue
        expected = vector.read_by_others if name in vector.but else vector.read
        try:
            found = read(vector.made(template, file))
        except refusals:
            found = None
        if found != expected:
            wrong[vector.why] = found
    assert not wrong
    assert not network.dialled


async def test_a_hub_accepts_what_is_read_and_refuses_the_rest(run_hub: RunHub, file: Path):
    async with run_hub() as hub, callback_server() as source:
        source.headers = {"Content-Type": "application/xml"}
        for number, vector in enumerate(VECTORS):
            data = vector.made(SITEMAP, file)
            read = vector.read_by_others if "hub" in vector.but else vector.read
            status, reason = await hub.publish(data, topic=f"{TOPIC}?{number}")
            assert status == (400 if read is None else 202), (vector, status, reason)
            source.document = data
            status, reason = await hub.form(mode="publish", url=f"{source.url}?{number}")
            assert status == (502 if read is None else 202), (vector, status, reason)
            assert "secret" not in reason
