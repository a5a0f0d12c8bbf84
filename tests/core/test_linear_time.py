"""Every reader of documents takes time in proportion to what it reads, whatever that is.

`test_reading_takes_steps_in_proportion` counts instead of measuring: the lines of `rsnotify.format`
that are executed, and the bytes that are joined, decoded and parsed. What a regular expression does
within one call is left to `tests/test_regular_expressions.py`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from rsnotify.errors import DocumentError
from rsnotify.format import plain_form
from rsnotify.format.model import RS_NS, SITEMAP_NS
from rsnotify.format.plain_form import FastReader
from rsnotify.format.reader import SitemapReader, read_document
from rsnotify.format.xml_parser import DocumentLimits
from rsnotify_validation.validator import validate
from tests.cases import case
from tests.core.test_fast_reader import PIECES, PLAIN, cut
from tests.growth import TIMES, check_growth

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
    "an indented entry with a foreign element": ("",
        f"\n    <url>\n        <loc>a:b</loc>\n        {FOREIGN}\n    </url>", ""),
    "plain entries": ("", PLAIN, ""),
    "plain entries and others": ("", f"{PLAIN}<url><loc>&#97;</loc></url>{PLAIN * 9}", ""),
    "entries with references": ("", "<url><loc>a:?b&amp;c</loc></url>", ""),
    "entries with links": ("", '<url><loc>a:b</loc><rs:ln href="b:c" rel="a"/></url>', ""),
    "entries with foreign elements": ("",
        f"<url><loc>a:b</loc>{FOREIGN}<rs:md xmlns:x='urn:x' x:y='z'/>{FOREIGN}</url>", ""),
    "foreign attributes": ("<url><loc>a:b</loc><rs:md", ' i:a="b"', "/></url>"),
    "entries of another prefix": ("", f"<x:url xmlns:x='{SITEMAP_NS}'></x:url>", ""),
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
}  # fmt: skip
FORMAT = str(Path(plain_form.__file__).parent)
#: With these limits a location is long, and a level deep, that is not with the usual ones.
SHORT = 60
LIMITS = DocumentLimits(uri_length=SHORT, depth=5)


def read(chunks: Iterable[bytes]) -> None:
    with suppress(DocumentError):
        read_document(chunks)


@pytest.mark.parametrize(
    # A document in a single piece is read in another way, so the shorter one has several, too.
    ("work", "size", "shorter"),
    [(read, 65_536, 120_000), (validate, 1, 12_000), (validate, 65_536, 120_000)],
)
def test_reading_and_validating_take_linear_time(
    work: Callable[[Iterable[bytes]], object], size: int, shorter: int
) -> None:
    def work_on(shape: str, length: int) -> None:
        work(chunks_of(shape, length, size))

    for shape in SHAPES:
        with case(shape):
            check_growth(partial(work_on, shape), shorter)


def chunks_of(shape: str, length: int, size: int) -> Iterable[bytes]:
    before, repeated, after = SHAPES[shape]
    body = before + repeated * (length // len(repeated)) + after
    return cut(f"{OPENING}{body}</urlset>".encode(), size)


@pytest.mark.parametrize(("size", "length"), [(7, 4_000), (1_000, 20_000), (65_536, 60_000)])
def test_reading_takes_steps_in_proportion(
    size: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(monkeypatch)
    for shape in SHAPES:
        large, small = (chunks_of(shape, times * length, size) for times in (TIMES, 1))
        count = steps.of(partial(read_document, large))
        assert count <= 1.5 * TIMES * steps.of(partial(read_document, small)), shape


class Steps:
    """Counts executed lines of `rsnotify.format`, and bytes that it joins, decodes or parses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._count = 0

        def add_lengths(owner: object, name: str, length: Callable[..., int]) -> None:
            original = getattr(owner, name)

            def counting(*arguments: Any) -> Any:
                self._count += length(*arguments)
                return original(*arguments)

            monkeypatch.setattr(owner, name, counting)

        add_lengths(SitemapReader, "_parse", lambda _, data: len(data))
        add_lengths(FastReader, "_read", lambda reader, _: sum(map(len, reader._pending)))
        add_lengths(FastReader, "_begin", lambda reader: sum(map(len, reader._pending)))
        add_lengths(plain_form, "is_well_formed", len)

    def of(self, work: Callable[[], object]) -> int:
        """Return the number of steps of a work, which may refuse the document."""
        self._count = 0
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            with suppress(DocumentError):
                work()
        finally:
            sys.settrace(before)
        return self._count

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._count_line if frame.f_code.co_filename.startswith(FORMAT) else None

    def _count_line(self, frame: FrameType, event: str, argument: object) -> Any:
        self._count += event == "line"
        return self._count_line


def test_a_document_that_is_cut_at_every_byte_is_read_in_the_end() -> None:
    for piece in PIECES:
        with case(piece):
            # What is too long is so by one character, since each cut is one reading of all of it.
            short = re.sub(r"(.)\1{8000,}", lambda found: found[1] * (SHORT + 1), piece)
            short = re.sub(r"(</?i:i>)\1{100}", lambda found: found[1] * (LIMITS.depth + 1), short)
            data = f"{OPENING}{PLAIN}{short * 2}{PLAIN}</urlset>".encode()
            wholes = [_outcome([data])]
            wholes += [_outcome([data[:at], data[at:]]) for at in range(1, len(data))]
            assert len(set(wholes)) == 1


def _outcome(chunks: list[bytes]) -> str:
    """Read a document; where it is refused, which of two faults is met first may differ."""
    try:
        return repr(read_document(chunks, limits=LIMITS))
    except DocumentError:
        return "refused"
