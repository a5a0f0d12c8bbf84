"""Hostile and huge documents cost neither memory nor trust."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.format.model import Document
from rsnotify.format.reader import DocumentLimits
from rsnotify.format.writer import write_document
from rsnotify_validation import Finding, Validator, validate
from tests.core.documents import DOCUMENTS
from tests.core.validation.valid import UP, VALID, urlset

_BOMB = """<?xml version="1.0"?>
<!DOCTYPE urlset [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">
<!ATTLIST rs:md capability CDATA "changelist"><!ENTITY x SYSTEM "file:///etc/passwd">]>
<urlset>&b;&x;</urlset>"""
HEAD = '<rs:md capability="changelist" from="2013-01-03T00:00:00Z"/>\n'
ENTRY = "<url>\n<loc>http://example.com/%d</loc>\n<rs:md change='updated'/>\n</url>\n"


def only(data: bytes, limits: DocumentLimits) -> Finding:
    (finding,) = validate(data, limits=limits)
    return finding


def test_a_doctype_is_a_finding_and_nothing_after_it_is_read() -> None:
    (finding,) = validate(_BOMB.encode())
    assert (finding.rule, finding.line) == ("doctype", 2)


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (DocumentLimits(document_bytes=100), VALID["changelist"]),
        (DocumentLimits(uri_length=5), VALID["changelist"]),
        (DocumentLimits(links=3), urlset(UP + HEAD + f"<url>{UP * 4}</url>")),
        (DocumentLimits(depth=10), urlset("<x xmlns='x'>" * 20)),
    ],
)
def test_reading_stops_beyond_the_limits(limits: DocumentLimits, text: str) -> None:
    assert only(text.encode(), limits).rule == "limit"


def test_reading_stops_in_an_endless_tag() -> None:
    validator = Validator()
    found = validator.feed(urlset(UP + HEAD).removesuffix("</urlset>\n").encode() + b"<url a='")
    for _ in range(1_000):
        found += validator.feed(b"a" * 100_000)
    assert [finding.rule for finding in [*found, *validator.close()]] == ["limit"]


def test_lines_are_right_however_long_the_document_is() -> None:
    body = "".join(ENTRY % number for number in range(49_998))
    document = urlset(
        UP + HEAD + body + "<url>\n<loc>here</loc>\n<rs:md change='updated'/>\n</url>\n"
    )
    (finding,) = validate(document.encode())
    assert (finding.rule, finding.line) == ("uri-relative", 4 + 4 * 49_998 + 2)


def test_memory_stays_flat() -> None:
    validator = Validator()
    validator.feed(urlset(UP + HEAD).removesuffix("</urlset>\n").encode())
    tracemalloc.start()
    for number in range(20_000):
        validator.feed((ENTRY % number).encode())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 500_000


@pytest.mark.parametrize("text", ["", "{}", "<urlset", VALID["changelist"][:-30], urlset("")[:-9]])
def test_a_truncated_document_has_no_findings_about_its_end(text: str) -> None:
    text = text.replace(UP, "")
    assert [finding.rule for finding in validate(text.encode())] == ["not-well-formed"]


@pytest.mark.parametrize("encoding", ["U-F-8", "shift_jis", "hex", "idna", "punycode", "cp037"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_an_unknown_encoding_is_one_finding(encoding: str, mark: bytes) -> None:
    data = mark + f'<?xml version="1.0" encoding="{encoding}"?><urlset/>'.encode()
    assert "not-well-formed" in [finding.rule for finding in validate(data)]


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_input_makes_it_raise(data: bytes) -> None:
    assert validate(data)


@given(DOCUMENTS)
def test_no_document_of_the_model_makes_it_raise(document: Document) -> None:
    validate(write_document(document))


@given(st.sampled_from(sorted(VALID)), st.integers(0, 2_000), st.binary(min_size=1, max_size=4))
def test_no_damage_makes_it_raise(kind: str, place: int, damage: bytes) -> None:
    data = VALID[kind].encode()
    validate(data[:place] + damage + data[place + len(damage) :])
