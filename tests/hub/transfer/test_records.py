"""The format of an export: what is written is read again, and anything else is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError
from rsnotify.format.xml_parser import DocumentLimits
from rsnotify_hub.export_file import (
    Exported,
    ExportedBroker,
    ExportedFragment,
    ExportedSubscription,
    ExportEnd,
    ExportHeader,
    content_of,
    decode,
    encode,
    exported_content,
    exported_subscription,
    subscription_of,
)
from rsnotify_hub.fragments import Fragment
from rsnotify_hub.intake import whole_content
from rsnotify_hub.websub_subscription import Subscription
from tests.examples_count import examples
from tests.hub.helpers import TOPIC, at, fragment
from tests.hub.storing import made

instants = st.datetimes(timezones=st.just(UTC))
positions = st.integers(0, 2**63 - 1)
urls = st.integers(0, 99).map("https://one.example/{}?a=%20b".format)
texts = st.text(st.characters(exclude_categories=["Cs"]))

subscriptions = st.builds(
    Subscription,
    topic=urls,
    callback=urls,
    secret=st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=49),
    expires=instants,
    position=positions,
    suspended=st.booleans(),
    client=texts,
)
brokers = st.builds(
    ExportedBroker,
    broker=texts,
    cursors=st.dictionaries(urls | st.just(""), st.integers(-1, 2**63 - 1)),
)
contents = st.builds(
    whole_content,
    st.binary(),
    st.sampled_from(["image/png", "text/plain; charset=utf-8", "application/octet-stream"]),
    instants,
)

HEADER = encode(ExportHeader(exported=at(0), hub="1.0"))
SUBSCRIPTION = exported_subscription(
    Subscription(TOPIC, "https://one.example/callback", "secret", at(9), 5)
)
CONTENT = exported_content(TOPIC, 5, whole_content(b"\xff\x00", "image/png", at(2)))


@st.composite
def exports(draw: st.DrawFn) -> list[Exported]:
    found: list[Exported] = [
        *map(
            exported_subscription,
            draw(st.lists(subscriptions, unique_by=lambda each: (each.topic, each.callback))),
        ),
        *draw(st.lists(brokers, unique_by=lambda each: each.broker)),
    ]
    topics = draw(st.lists(urls, unique=True))
    return [*found, *(exported_content(each, draw(positions), draw(contents)) for each in topics)]


def written(*records: Exported) -> list[bytes]:
    return [HEADER, *map(encode, records), encode(ExportEnd(records=len(records)))]


def refused(*lines: bytes) -> str:
    with pytest.raises(ConfigurationError) as caught:
        list(decode(lines))
    return str(caught.value)


@given(exports())
@settings(max_examples=examples(30))
def test_what_is_written_is_read_again(records: list[Exported]) -> None:
    lines = written(*records)
    assert list(decode(lines)) == records
    assert all(line.count(b"\n") == 1 for line in lines)


@given(subscriptions)
def test_a_subscription_is_the_same_afterwards(subscription: Subscription) -> None:
    (record,) = decode(written(exported_subscription(subscription)))
    assert isinstance(record, ExportedSubscription)
    assert record.position == subscription.position
    assert subscription_of(record) == replace(subscription, position=0)


@given(urls, contents)
def test_a_content_is_the_same_afterwards(topic: str, content: Fragment) -> None:
    (record,) = decode(written(exported_content(topic, 7, content)))
    assert isinstance(record, ExportedFragment)
    assert (record.topic, record.position, content_of(record)) == (topic, 7, content)


@given(st.lists(st.sampled_from([SUBSCRIPTION, CONTENT]), unique_by=type), st.data())
def test_a_part_of_an_export_is_refused(records: list[Exported], data: st.DataObject) -> None:
    whole = b"".join(written(*records))
    part = whole[: data.draw(st.integers(0, len(whole) - 2))]
    assert refused(*part.splitlines(keepends=True))


@given(st.binary(), st.integers(0, 3))
def test_any_other_line_is_refused(line: bytes, number: int) -> None:
    lines = written(SUBSCRIPTION, CONTENT)
    lines[number] = line
    assert refused(*lines)


def test_a_record_of_a_later_version_may_have_more_fields() -> None:
    lines = written(SUBSCRIPTION)
    lines[1] = lines[1].replace(b'"topic"', b'"colour":"red","topic"')
    assert list(decode(lines)) == [SUBSCRIPTION]


def test_a_datetime_may_have_another_zone() -> None:
    local = at(9).astimezone(timezone(timedelta(hours=2))).isoformat().encode()
    lines = written(SUBSCRIPTION)
    utc = encode(SUBSCRIPTION).partition(b'"expires":"')[2].partition(b'"')[0]
    lines[1] = lines[1].replace(utc, local)
    (record,) = decode(lines)
    assert isinstance(record, ExportedSubscription)
    assert subscription_of(record).expires == at(9)
    lines[1] = lines[1].replace(local, datetime(2026, 1, 1).isoformat().encode())
    assert "line 2 is invalid" in refused(*lines)


def test_each_refusal_says_what_is_wrong() -> None:
    assert refused() == "it is not an export of a hub"
    assert refused(b"<urlset/>\n") == "it is not an export of a hub"
    later = encode(ExportHeader(version=2, exported=at(0), hub="9.0"))
    assert "it has version 2, and this hub reads version 1" in refused(later)
    assert "its last line is missing" in refused(*written(SUBSCRIPTION)[:-1])
    assert "line 3 is invalid: the end" in refused(
        HEADER, encode(SUBSCRIPTION), encode(ExportEnd(records=2))
    )
    assert "line 2 is invalid: the end" in refused(*written(), HEADER)
    assert "line 2 is invalid: a second header" in refused(HEADER, HEADER)
    duplicates = written(SUBSCRIPTION, SUBSCRIPTION)
    assert "line 3 is invalid: a second subscription" in refused(*duplicates)
    assert "line 3 is invalid: a second content" in refused(*written(CONTENT, CONTENT))
    elsewhere = exported_subscription(Subscription(TOPIC, "file:///etc/passwd", None, at(9), 5))
    assert "line 2 is invalid: callback is not an absolute http or https URL" in refused(
        *written(elsewhere)
    )
    broker = ExportedBroker(broker="one", cursors={f"{TOPIC} not a selection": 1})
    assert "line 2 is invalid" in refused(*written(broker))


#: As a hub of version 0.2 exports a change.
CHANGES = exported_content(TOPIC, 5, made(0, 1, 2))


def test_changes_in_an_export_of_an_earlier_version_are_not_checked() -> None:
    wrong = replace(CHANGES, topic="file:///etc/passwd", body=b"<urlset/>")
    assert list(decode(written(CHANGES, wrong))) == [CHANGES, wrong]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (replace(CONTENT, topic="https://one.example/\r\nX: 1"), "topic contains characters"),
        (replace(CONTENT, topic="file:///etc/passwd"), "topic is not an absolute"),
        (replace(CONTENT, topic="https://one.example/" + "x" * 3000), "topic is longer"),
        (replace(CONTENT, content_type=""), "no content type"),
        (replace(CONTENT, content_type="text/plain\r\nSet-Cookie: a=b"), "Content-Type is not"),
        (replace(CONTENT, body=bytes(1001)), "larger than 1000 bytes; raise max_fragment_bytes"),
        (replace(CHANGES, whole=True), "not the whole content"),
        (replace(CHANGES, whole=True, body=CHANGES.body[:-9]), "is truncated"),
        (replace(CHANGES, whole=True, body=fragment(0, 2, 1)), "order"),
        (replace(SUBSCRIPTION, secret=""), "hub.secret"),
        (replace(SUBSCRIPTION, secret="x" * 200), "hub.secret"),
        (replace(SUBSCRIPTION, topic="https://a@one.example/"), "user name"),
        (ExportedBroker(broker="one", cursors={"file:///etc": 1}), "topic is not an absolute"),
    ],
)
def test_what_could_not_be_published_is_not_imported(record: Exported, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"line 2 is invalid: .*{reason}"):
        list(decode(written(record), DocumentLimits(document_bytes=1000)))


def test_a_datetime_before_the_year_1_is_refused() -> None:
    for record, field in ((SUBSCRIPTION, b"expires"), (CONTENT, b"until")):
        lines = written(record)
        before, _, rest = lines[1].partition(b'"%s":"' % field)
        lines[1] = before + b'"%s":"0001-01-01T00:00:00+14:00"' % field + rest.partition(b'"')[2]
        assert "line 2 is invalid" in refused(*lines)
