"""Every reader of documents takes time in proportion to what it reads, whatever that is."""

from __future__ import annotations

from contextlib import suppress

import pytest

from rsnotify.errors import DocumentError
from rsnotify.format.reader import read_document
from rsnotify.format.vocabulary import RS_NS, SITEMAP_NS
from rsnotify.validation.validator import validate
from tests.core.test_fast_reader import PIECES, PLAIN, cut
from tests.growth import check_growth

OPENING = (
    f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="{SITEMAP_NS}" xmlns:rs="{RS_NS}">'
)
FOREIGN = "<image:image xmlns:image='urn:i'><image:loc>http://e.example/</image:loc></image:image>"

#: What a document may hold a number of times: how it begins, what is repeated, how it ends.
SHAPES = {
    "blanks in an entry": ("<url>", " ", ""),
    "blanks in an entry that ends": ("<url>", " ", f"{FOREIGN}</url>"),
    "blanks between elements": ("<url><loc>a:b</loc>", "\n        ", "<x/></url>"),
    "blanks between entries": (PLAIN, "\r\n\t ", PLAIN),
    "blanks in a tag": ("<url><loc>a:b</loc><rs:md", " ", "/></url>"),
    "an indented entry": ("", "\n    <url>\n        <loc>a:b</loc>\n    </url>", ""),
    "an indented entry with a foreign element": (
        "",
        f"\n    <url>\n        <loc>a:b</loc>\n        {FOREIGN}\n    </url>",
        "",
    ),
    "comments in an entry": ("<url>", "<!-- -->", "<loc>a:b</loc></url>"),
    "a comment that has entries": ("<!--", PLAIN, "-->"),
    "a comment that does not end": ("<!--", " -", ""),
    "an instruction that does not end": ("<?pi ", "?", ""),
    "foreign elements in an entry": ("<url><loc>a:b</loc>", FOREIGN, "</url>"),
    "a long location": ("<url><loc>", "a", "</loc></url>"),
    "a location that does not end": ("<url><loc>", "a", ""),
    "references in a datetime": ("<url><lastmod>", "&#48;", "</lastmod></url>"),
    "a long attribute": ('<url><loc>a:b</loc><rs:md type="', "a ", '"/></url>'),
    "an attribute that does not end": ('<url><loc>a:b</loc><rs:md type="', "a", ""),
    "a tag that does not end": ("<url><loc>a:b</loc><rs:md ", "a", ""),
    "a long name": ("<url><loc>a:b</loc><", "x", "/></url>"),
    "many attributes": ("<url><loc>a:b</loc><rs:md", ' type="', "/></url>"),
    "many elements rs:md": ("<url><loc>a:b</loc>", "<rs:md xmlns:x='urn:x' x:y='z'/>", "</url>"),
    "many links": ("<url><loc>a:b</loc>", '<rs:ln rel="a" href="b:c"/>', "</url>"),
    "links of many attributes": ("<url><loc>a:b</loc><rs:ln", ' rel="a"', "/></url>"),
    "entries that do not end": ("", "<url>", ""),
    "ends without a beginning": ("", "</url>", ""),
    "ends in a comment": ("<!--", "</url>", ""),
    "nested elements": ("", "<x>", ""),
    "text": ("", "a", ""),
}
SIZES = (1, 7, 1_000, 65_536)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", SHAPES)
def test_reading_takes_linear_time(shape: str, size: int) -> None:
    before, repeated, after = SHAPES[shape]

    def read(length: int) -> None:
        body = before + repeated * (length // len(repeated)) + after
        with suppress(DocumentError):
            read_document(cut(f"{OPENING}{body}</urlset>".encode(), size))

    check_growth(read, 12_000 if size < 1_000 else 60_000)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", SHAPES)
def test_validating_takes_linear_time(shape: str, size: int) -> None:
    before, repeated, after = SHAPES[shape]

    def read(length: int) -> None:
        body = before + repeated * (length // len(repeated)) + after
        validate(cut(f"{OPENING}{body}</urlset>".encode(), size))

    check_growth(read, 12_000 if size < 1_000 else 60_000)


@pytest.mark.parametrize("piece", PIECES)
def test_a_document_that_is_cut_at_every_byte_is_read_in_the_end(piece: str) -> None:
    data = f"{OPENING}{PLAIN}{piece * 3}{PLAIN}</urlset>".encode()
    wholes = [_outcome([data])]
    wholes += [_outcome([data[:at], data[at:]]) for at in range(1, len(data))]
    assert len(set(wholes)) == 1


def _outcome(chunks: list[bytes]) -> str:
    """Read a document; where it is refused, which of two faults is met first may differ."""
    try:
        return repr(read_document(chunks))
    except DocumentError:
        return "refused"
