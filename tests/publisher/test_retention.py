"""A line of text says when changes are closed and how long what is closed is kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.errors import ConfigurationError
from rsnotify_publisher import Options, Publisher
from rsnotify_publisher.retention import (
    FinishedDocument,
    Floor,
    Retention,
    Rotation,
    parse_retention,
    parse_rotation,
)
from tests.publisher.helpers import BASE

SECOND = 1_000_000
HOUR = 3_600 * SECOND
DAY = 24 * HOUR


def volumes(*ends: int, size: int = 100) -> list[FinishedDocument]:
    return [FinishedDocument("changelist", end - 1, end, 1, size, (f"{end}.xml",)) for end in ends]


def ends(of: list[FinishedDocument]) -> list[int]:
    return [volume.end for volume in of]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("500 changes or 1 h", Rotation(changes=500, age=HOUR)),
        ("10,000 changes or 25 MB", Rotation(changes=10_000, size=25_000_000)),
        ("1 h", Rotation(age=HOUR)),
        ("1.5kB", Rotation(size=1_500)),
        ("90 s, 1_000 changes, 2 GB", Rotation(1_000, 2_000_000_000, 90 * SECOND)),
        ("15 MIN and 1 change", Rotation(changes=1, age=HOUR // 4)),
    ],
)
def test_when_changes_are_closed_is_one_line(text: str, meant: Rotation) -> None:
    assert parse_rotation(text) == meant


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("30 days, 1000 lists, 2 GB", Retention(30 * DAY, 1_000, 2_000_000_000)),
        ("2 GB, 30d", Retention(age=30 * DAY, size=2_000_000_000)),
        ("4 weeks", Retention(age=28 * DAY)),
        ("4 dumps", Retention(count=4)),
        ("1 TB or 3 documents", Retention(count=3, size=10**12)),
    ],
)
def test_how_long_documents_are_kept_is_one_line(text: str, meant: Retention) -> None:
    assert parse_retention(text) == meant


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "'' is no count, time or size"),
        ("always", "'always' is no count"),
        ("30 days, ", "'30 days,' is no count"),
        ("30 moons", "'30 moons' is no count"),
        ("-3 days", "'-3 days' is no count"),
        ("3 days, 2 weeks", "'2 weeks' is a second age"),
        ("3 lists, 0 MB", "'0 MB' is nothing"),
        ("30 days 1000 lists", "is no count"),
    ],
)
def test_a_wrong_policy_is_refused_with_an_example(text: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse_retention(text)
    assert complaint in str(raised.value)
    assert 'write it like "30 days, 1000 lists, 2 GB"' in str(raised.value)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (Options(rotate="often"), "rotate is 'often'"),
        (Options(keep="for ever"), "keep is 'for ever'"),
        (Options(profile="2.0"), "profile '2.0' is unknown; write 1.1 or 1.0"),
        (Options(change_dump=True), "give `content`"),
        (Options(resource_dump_every=60), "give `content`"),
        (Options(resource_dump_archive=True), "resource_dump_archive needs resource_dump_every"),
        (Options(change_dump_archive=True), "change_dump_archive needs change_dump"),
    ],
)
def test_a_wrong_option_stops_before_the_start(options: Options, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        Publisher("never-made", BASE, options=options)


def test_with_a_count_alone_the_newest_stay() -> None:
    assert ends(Retention(count=2).expired(volumes(1, 2, 3, 4), now=10**9)) == [1, 2]
    assert Retention(count=9).expired(volumes(1, 2), now=10**9) == []


def test_with_a_size_alone_the_newest_that_fit_stay() -> None:
    assert ends(Retention(size=250).expired(volumes(1, 2, 3, 4), now=10**9)) == [1, 2]
    assert ends(Retention(size=99).expired(volumes(1, 2), now=10**9)) == [1, 2]


def test_with_an_age_alone_what_is_older_goes() -> None:
    assert ends(Retention(age=10).expired(volumes(80, 90, 91, 99), now=100)) == [80, 90]


def test_an_age_wins_over_count_and_size() -> None:
    policy = Retention(age=10, count=1, size=100)
    assert ends(policy.expired(volumes(80, 91, 95, 99), now=100)) == [80]


def test_what_is_older_than_the_age_stays_while_there_is_room() -> None:
    assert Retention(age=10, count=5).expired(volumes(1, 2, 3), now=100) == []


@given(
    st.lists(st.integers(1, 100), unique=True).map(sorted),
    st.builds(
        Retention,
        st.none() | st.integers(1, 120),
        st.none() | st.integers(1, 9),
        st.none() | st.integers(1, 900),
    ),
)
def test_whoever_was_away_for_less_than_the_age_misses_nothing(
    at: list[int], policy: Retention
) -> None:
    kept = volumes(*at)
    gone = policy.expired(kept, now=100)
    assert gone == kept[: len(gone)], "only the oldest go"
    if policy.age is not None:
        assert all(volume.end <= 100 - policy.age for volume in gone)


def test_nothing_is_closed_before_a_limit_is_reached() -> None:
    policy = Rotation(changes=10, size=1_000, age=HOUR)
    assert policy.floor(9, 999, oldest=1, now=HOUR) is None
    assert policy.floor(0, 0, oldest=0, now=10 * HOUR) is None


def test_half_of_the_limit_that_was_reached_stays_open() -> None:
    policy = Rotation(changes=10, size=1_000, age=HOUR)
    assert policy.floor(10, 0, oldest=1, now=HOUR) == Floor(5, None, None)
    assert policy.floor(1, 1_200, oldest=1, now=HOUR) == Floor(None, 500, None)
    assert policy.floor(1, 0, oldest=0, now=HOUR) == Floor(None, None, HOUR // 2)
    assert policy.floor(10, 1_000, oldest=0, now=HOUR) == Floor(5, 500, HOUR // 2)


def test_any_reached_limit_permits_to_close() -> None:
    floor = Floor(changes=5, size=None, since=50)
    assert floor.permits(changes=5, size=0, gone=99)
    assert floor.permits(changes=0, size=0, gone=50)
    assert not floor.permits(changes=4, size=10**9, gone=51)
