from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.errors import DocumentError, InvalidDocument, MalformedDocument, WrongDocument
from rsnotify.format.model import RS_NS, SITEMAP_NS, Document
from rsnotify.format.reader import DocumentLimits, read_document
from rsnotify.format.writer import write_document
from rsnotify_hub.fragments import (
    Fragment,
    Interval,
    count_chained,
    covers_interval,
    merge_fragments,
    read_fragment,
)
from tests.hub.helpers import at, fragment, seconds_of


def xml(inside: str) -> bytes:
    return f'<urlset xmlns="{SITEMAP_NS}" xmlns:rs="{RS_NS}">{inside}</urlset>'.encode()


ENTRY = (
    "<url><loc>https://a.example/1</loc><lastmod>2026-01-01T00:00:05Z</lastmod>"
    '<rs:md change="updated"/></url>'
)


def test_a_fragment_keeps_its_bytes_and_its_interval():
    body = fragment(0, 1, 2, until=3)
    assert read_fragment(body, content_type="text/xml") == Fragment(
        body=body, content_type="text/xml", from_=at(0), until=at(3), begins=at(0), heartbeat=False
    )


def test_a_fragment_without_root_md_reaches_to_its_last_change():
    read = read_fragment(xml(ENTRY))
    assert (read.from_, read.until, read.heartbeat) == (None, at(5), False)
    assert at(4) < read.begins < at(5)


@pytest.mark.parametrize(
    ("body", "until"),
    [
        (fragment(0, 1, capability="changelist"), 1),  # the older names of a fragment
        (fragment(0, 1, capability="changelist-notification"), 1),
        (fragment(0, 1, 1), 1),  # entries of the same instant are in order
        (fragment(1, 1), 1),  # and one may be at the instant of `from`
        (fragment(1, until=9), 9),
    ],
)
def test_a_fragment_is_accepted_and_a_heartbeat_only_without_entries(body: bytes, until: float):
    read = read_fragment(body)
    assert (read.until, read.heartbeat) == (at(until), b"<url>" not in body)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"not XML", MalformedDocument),
        (b"", MalformedDocument),
        (fragment(0, 1)[:-12], MalformedDocument),
        (b"<!DOCTYPE urlset>" + xml(ENTRY), MalformedDocument),
        (b"<urlset/>", WrongDocument),
        (fragment(0, 1, capability="resourcelist"), WrongDocument),
        (fragment(0, 1, capability="changedump"), WrongDocument),
        (write_document(Document(capability="changelist", index=True)), WrongDocument),
        (fragment(0, 2, 1, until=3), InvalidDocument),
        (fragment(2, 1, until=3), InvalidDocument),
        (fragment(0, 3, until=2), InvalidDocument),
        (fragment(5, until=4), InvalidDocument),
        (xml(""), InvalidDocument),
        (xml('<rs:md capability="changelist" from="2026-01-01T00:00:00Z"/>'), InvalidDocument),
        (xml('<rs:md capability="changelist" until="2026-01-01T00:00:00Z"/>'), InvalidDocument),
        (xml(ENTRY.replace('change="updated"', "")), InvalidDocument),
        (xml(ENTRY.replace("https://a.example/1", "")), InvalidDocument),
        (xml(ENTRY.replace("00:05Z", "00:99Z")), InvalidDocument),
        (b'<?xml version="1.0" encoding="ISO-8859-1"?>' + xml(ENTRY), MalformedDocument),
        (xml(ENTRY).replace(b"/1<", b"/\xe9<"), MalformedDocument),
    ],
)
def test_a_fragment_that_would_make_a_destination_wrong_is_refused(
    body: bytes, error: type[DocumentError]
):
    with pytest.raises(error):
        read_fragment(body)


def test_a_heartbeat_is_replaced_by_a_fragment_that_covers_it():
    beat = Interval(at(1), at(5))
    assert covers_interval(read_fragment(fragment(1, until=6)), beat)
    assert covers_interval(read_fragment(fragment(0, 1, 6)), beat)
    assert not covers_interval(read_fragment(fragment(2, until=6)), beat)
    assert not covers_interval(read_fragment(fragment(1, until=4)), beat)
    assert not covers_interval(read_fragment(xml(ENTRY)), beat)


@st.composite
def histories(draw: st.DrawFn) -> list[list[int]]:
    """Return a history of changes, divided into fragments."""
    steps = draw(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1))
    second = 0
    return [[second := second + step for step in part] for part in steps]


def chain(parts: list[list[int]]) -> list[Fragment]:
    made, from_ = [], 0
    for part in parts:
        made.append(read_fragment(fragment(from_, *part)))
        from_ = part[-1]
    return made


@given(histories())
def test_contiguous_fragments_merge_into_an_equivalent_one(parts: list[list[int]]):
    fragments = chain(parts)
    assert count_chained(fragments, max_bytes=10**9) == len(fragments)
    merged = merge_fragments(fragments)
    everything = [second for part in parts for second in part]
    assert seconds_of(merged) == everything
    document = read_document(merged)
    assert (document.from_, document.until) == (fragments[0].from_, fragments[-1].until)
    checked = read_fragment(merged)
    assert (checked.from_, checked.until) == (fragments[0].from_, fragments[-1].until)


@given(histories(), st.data())
def test_fragments_are_not_merged_across_a_lost_one(parts: list[list[int]], data: st.DataObject):
    fragments = chain([*parts, [10_000], [10_001]])
    lost = data.draw(st.integers(1, len(fragments) - 2))
    del fragments[lost]
    assert count_chained(fragments, max_bytes=10**9) == lost


def test_a_merged_fragment_does_not_exceed_the_limit():
    fragments = chain([[1], [2], [3]])
    size = len(fragments[0].body)
    assert count_chained(fragments, max_bytes=2 * size) == 2
    assert count_chained(fragments, max_bytes=1) == 1


def test_a_fragment_without_from_is_not_merged():
    unknown = read_fragment(xml(ENTRY))
    assert count_chained([unknown, read_fragment(fragment(5, 6))], max_bytes=10**9) == 1


def test_fragments_accepted_under_larger_limits_are_merged_too():
    links = b'<rs:ln rel="x" href="https://a.example/"/>' * 1500
    bodies = [fragment(at, at + 1).replace(b"</url>", links + b"</url>") for at in range(2)]
    fragments = [read_fragment(body, limits=DocumentLimits(links=2000)) for body in bodies]
    assert merge_fragments(fragments).count(b'rel="x"') == 2 * 1500


def test_a_merged_fragment_ends_with_the_heartbeat_and_keeps_its_attributes():
    beat = write_document(
        Document(
            capability="change-notification",
            from_=at(1),
            until=at(9),
            attributes=(("{urn:x}digest", "00ff"),),
        )
    )
    merged = read_document(merge_fragments([read_fragment(fragment(0, 1)), read_fragment(beat)]))
    assert (merged.from_, merged.until) == (at(0), at(9))
    assert merged.attributes == (("{urn:x}digest", "00ff"),)
    assert merged.resources == read_document(fragment(0, 1)).resources


def test_a_framework_notification_stays_one_when_merged():
    parts = [
        read_fragment(fragment(begin, begin + 1, capability="framework-notification"))
        for begin in (0, 1)
    ]
    merged = read_document(merge_fragments(parts))
    assert merged.capability == "framework-notification"
    assert (merged.from_, merged.until, len(merged.resources)) == (at(0), at(2), 2)
