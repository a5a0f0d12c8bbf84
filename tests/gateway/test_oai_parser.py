from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.errors import DocumentError, InvalidDocument, MalformedDocument, TooLarge
from rsnotify_gateway.adapters.oai_pmh import OaiError, OaiParser, OaiRecord, parse_response

DATE = "<responseDate>2026-11-02T10:00:00Z</responseDate>"


def response(body: str) -> bytes:
    namespace = 'xmlns="http://www.openarchives.org/OAI/2.0/"'
    return f"<OAI-PMH {namespace}>{DATE}<request>u</request>{body}</OAI-PMH>".encode()


def record(metadata: str = "<m>text</m>", header: str = "") -> str:
    return (
        f"<record><header{header}><identifier>oai:a</identifier>"
        "<datestamp>2026-11-01</datestamp><setSpec>maps</setSpec><setSpec>old</setSpec></header>"
        f"<metadata>{metadata}</metadata><about><x><identifier>no</identifier></x></about></record>"
    )


def only(data: bytes) -> OaiRecord:
    (found,) = parse_response(data).records
    return found


def test_a_record_has_its_header_and_a_digest_of_its_metadata() -> None:
    found = only(response(f"<ListRecords>{record()}</ListRecords>"))
    assert (found.identifier, found.datestamp) == ("oai:a", "2026-11-01")
    assert found.sets == ("maps", "old")
    assert not found.deleted
    assert found.digest


@pytest.mark.parametrize(
    "other", ["<m>text </m>", "<n>text</n>", "<m a='1'>text</m>", "<m/>text", "<m>t<i/>ext</m>"]
)
def test_any_difference_of_the_metadata_changes_the_digest(other: str) -> None:
    first, second = (
        only(response(f"<ListRecords>{record(metadata)}</ListRecords>"))
        for metadata in ("<m>text</m>", other)
    )
    assert first.digest != second.digest


@given(st.lists(st.integers(1, 40), min_size=1))
def test_the_digest_does_not_depend_on_how_the_response_arrives(sizes: list[int]) -> None:
    data = response("<ListRecords>" + record("<m b='1'>täxt</m>") + "</ListRecords>")
    parser, start, number = OaiParser(), 0, 0
    while start < len(data):
        size = sizes[number % len(sizes)]
        parser.feed(data[start : start + size])
        start, number = start + size, number + 1
    assert parser.close() == parse_response(data)


def test_headers_of_list_identifiers_are_records() -> None:
    fields = "<identifier>oai:a</identifier><datestamp>2026</datestamp>"
    header = f"<header status='deleted'>{fields}</header>"
    found = only(response(f"<ListIdentifiers>{header}</ListIdentifiers>"))
    assert found.deleted


@pytest.mark.parametrize(
    ("element", "token"),
    [
        ("<resumptionToken cursor='0'> next </resumptionToken>", "next"),
        ("<resumptionToken/>", ""),
        ("", None),
    ],
)
def test_the_resumption_token_is_read(element: str, token: str | None) -> None:
    data = response(f"<ListRecords>{record()}{element}</ListRecords>")
    assert parse_response(data).token == token


def test_errors_are_read() -> None:
    data = response('<error code="noRecordsMatch">None</error><error code="badVerb"/>')
    expected = (OaiError("noRecordsMatch", "None"), OaiError("badVerb", ""))
    assert parse_response(data).errors == expected


def test_the_fields_of_identify_are_read() -> None:
    data = response("<Identify><granularity>YYYY-MM-DD</granularity></Identify>")
    assert parse_response(data).fields == {"granularity": "YYYY-MM-DD"}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (response("<ListRecords>")[:-20], MalformedDocument),
        (b'<!DOCTYPE a [<!ENTITY b "c">]>' + response(""), MalformedDocument),
        (response("").replace(DATE.encode(), b""), InvalidDocument),
        (response("<ListRecords><record><header/></record></ListRecords>"), InvalidDocument),
        (
            response(f"<ListRecords>{record().replace('2026', 'now')}</ListRecords>"),
            InvalidDocument,
        ),
        (response(f"<error>{'x' * 10_000}</error>"), TooLarge),
        (response("<a>" * 300 + "</a>" * 300), TooLarge),
        (b"<urlset/>", DocumentError),
    ],
)
def test_what_cannot_be_accepted_is_refused(data: bytes, error: type[DocumentError]) -> None:
    with pytest.raises(error):
        parse_response(data)
