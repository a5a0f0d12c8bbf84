"""W3C Datetimes: every form in, UTC with microseconds out (core §7)."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.format.datetimes import (
    dates_from_list_order,
    end_of_unit,
    format_datetime,
    from_microseconds,
    is_undecided,
    parse_datetime,
    parse_http_date,
    time_span,
    to_microseconds,
)

INSTANTS = st.datetimes(timezones=st.just(UTC))
ZONES = st.integers(-14 * 60, 14 * 60).map(lambda m: timezone(timedelta(minutes=m)))
SAFE = {"min_value": datetime(2, 1, 1), "max_value": datetime(9998, 12, 31)}


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2013", datetime(2013, 1, 1, tzinfo=UTC)),
        ("2013-03", datetime(2013, 3, 1, tzinfo=UTC)),
        ("2013-03-04", datetime(2013, 3, 4, tzinfo=UTC)),
        ("2013-03-04T05:06Z", datetime(2013, 3, 4, 5, 6, tzinfo=UTC)),
        ("2013-03-04T05:06:07Z", datetime(2013, 3, 4, 5, 6, 7, tzinfo=UTC)),
        ("2013-03-04T05:06:07.8Z", datetime(2013, 3, 4, 5, 6, 7, 800_000, tzinfo=UTC)),
        ("2013-03-04T05:06:07.1234567Z", datetime(2013, 3, 4, 5, 6, 7, 123_456, tzinfo=UTC)),
        ("2013-03-04T05:06:07+02:30", datetime(2013, 3, 4, 2, 36, 7, tzinfo=UTC)),
        ("2013-03-04T05:06:07-05:00", datetime(2013, 3, 4, 10, 6, 7, tzinfo=UTC)),
        ("  2013-03-04T05:06:07Z\n", datetime(2013, 3, 4, 5, 6, 7, tzinfo=UTC)),
    ],
)
def test_every_w3c_form_is_read_as_its_first_instant(text: str, instant: datetime) -> None:
    assert parse_datetime(text) == instant
    assert parse_datetime(text).tzinfo is UTC


@pytest.mark.parametrize(
    ("text", "begin", "end"),
    [
        ("2013", "2012-12-31T10:00:00Z", "2014-01-01T12:00:00Z"),
        ("2013-11", "2013-10-31T10:00:00Z", "2013-12-01T12:00:00Z"),
        ("2013-12", "2013-11-30T10:00:00Z", "2014-01-01T12:00:00Z"),
        ("2013-03-04", "2013-03-03T10:00:00Z", "2013-03-05T12:00:00Z"),
        ("2013-03-04T05Z", "2013-03-04T05:00:00Z", "2013-03-04T05:01:00Z"),
        ("2013-03-04T00:06Z", "2013-03-04T00:06:00Z", "2013-03-04T00:07:00Z"),
        ("9999-11", "9999-10-31T10:00:00Z", "9999-12-01T12:00:00Z"),
    ],
)
def test_a_form_without_seconds_denotes_a_span_of_time(text: str, begin: str, end: str) -> None:
    coarse = parse_datetime(text.replace("05Z", "05:00Z"))
    assert time_span(coarse) == (parse_datetime(begin), parse_datetime(end))
    assert is_undecided(coarse, parse_datetime(begin))
    assert not is_undecided(coarse, parse_datetime(end))
    assert end_of_unit(coarse).fold == 0


@pytest.mark.parametrize("text", ["2013-03-04T05:06:07.8Z", "2013-03-04T05:06:07+02:30"])
def test_a_form_with_seconds_denotes_an_instant(text: str) -> None:
    assert parse_datetime(text).fold == 0


@pytest.mark.parametrize(("seconds", "expected"), [(60, None), (61, [30, 30])])
def test_only_an_entry_dated_a_minute_after_its_list_was_sent_is_dated_by_the_next(
    seconds: int, expected: list[int] | None
) -> None:
    sent = datetime(2013, 3, 4, tzinfo=UTC)
    times = [sent + timedelta(seconds=each) for each in (seconds, 30)]
    found = dates_from_list_order(times, sent)
    assert found == (expected and [sent + timedelta(seconds=each) for each in expected])


def test_a_time_without_a_zone_which_sloppy_sources_write_means_utc() -> None:
    assert parse_datetime("2013-03-04T05:06:07") == datetime(2013, 3, 4, 5, 6, 7, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        "", "yesterday", "2013-13-01T00:00:00Z", "2013-02-30", "2013-01-01T24:01:00Z",
        "2013-01-01T00:00:00+99:99", "13-01-01", "2013-W01-1T00:00:00Z",
        "2013-01-01T00:00:00,123456Z", "20130101T000000Z", "2013-01-01T00:00:00Zjunk",
        "0001-01-01T00:00:00+14:00", "٢٠١٣-01-01T00:00:00Z", "2013-01-01T09203107Z",
        "2013-01-01T0850,100Z", "2013-01-01T0850,500Z", "2013-01-01T09:00.00Z",
    ],
)  # fmt: skip
def test_the_message_for_a_malformed_datetime_quotes_it(text: str) -> None:
    with pytest.raises(ValueError, match=r"[Dd]atetime") as caught:
        parse_datetime(text)
    assert repr(text.strip()) in str(caught.value)


@given(INSTANTS)
def test_what_is_written_is_read_back(instant: datetime) -> None:
    text = format_datetime(instant)
    assert text.endswith("Z")
    assert len(text) == 27
    assert parse_datetime(text) == instant


@given(st.datetimes(**SAFE), ZONES)
def test_an_instant_of_any_zone_is_written_in_utc(naive: datetime, zone: timezone) -> None:
    instant = naive.replace(tzinfo=zone)
    assert parse_datetime(format_datetime(instant)) == instant


@given(INSTANTS, INSTANTS)
def test_written_datetimes_sort_as_text_as_they_do_in_time(one: datetime, two: datetime) -> None:
    assert (format_datetime(one) < format_datetime(two)) == (one < two)


def test_the_zone_of_the_machine_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    instant = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    with monkeypatch.context() as context:
        context.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        written = format_datetime(instant)
    time.tzset()
    assert written == "2026-01-01T10:00:00.000000Z"


def test_a_naive_datetime_denotes_no_instant_and_is_not_written() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        format_datetime(datetime(2013, 1, 1))


@given(INSTANTS)
def test_microseconds_are_exact(instant: datetime) -> None:
    assert from_microseconds(to_microseconds(instant)) == instant


def test_a_datetime_of_the_usual_length_is_read_by_the_same_rules() -> None:
    assert parse_datetime("2013-01-03T09:00:00.1234567") == parse_datetime(
        "2013-01-03T09:00:00.123456Z"
    )
    for wrong in ("2013-01-03x09:00:00Z", "2013-01-03_09:00:00.000000Z"):
        with pytest.raises(ValueError, match="W3C Datetime"):
            parse_datetime(wrong)


@pytest.mark.parametrize(
    "text", ["Thu, 01 Jan 2026 00:00:00 GMT", "Thu, 01 Jan 2026 02:00:00 +0200"]
)
def test_the_date_of_a_response_is_an_instant_in_utc(text: str) -> None:
    instant = parse_http_date(text)
    assert instant == datetime(2026, 1, 1, tzinfo=UTC)
    assert instant.tzinfo is UTC


@pytest.mark.parametrize("text", ["", " ", "soon", "Thu, 01 Jan 2026 00:00:00 -0000"])
def test_a_date_that_denotes_no_instant_is_ignored(text: str) -> None:
    assert parse_http_date(text) is None
