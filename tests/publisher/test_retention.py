"""A line of text says when changes are closed and how long what is closed is kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.errors import ConfigurationError
from rsnotify_publisher import Options, Publisher
from rsnotify_publisher.options import (
    FinishedDocument,
    MinimumOpen,
    RetentionPolicy,
    RotationPolicy,
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
        ("500 changes or 1 h", RotationPolicy(changes=500, age=HOUR)),
        ("10,000 changes or 25 MB", RotationPolicy(changes=10_000, size=25_000_000)),
        ("1 h", RotationPolicy(age=HOUR)),
        ("1.5kB", RotationPolicy(size=1_500)),
        ("90 s, 1_000 changes, 2 GB", RotationPolicy(1_000, 2_000_000_000, 90 * SECOND)),
        ("15 MIN and 1 change", RotationPolicy(changes=1, age=HOUR // 4)),
    ],
)
def test_when_changes_are_closed_is_one_line(text: str, meant: RotationPolicy) -> None:
    assert parse_rotation(text) == meant


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("30 days, 1000 lists, 2 GB", RetentionPolicy(30 * DAY, 1_000, 2_000_000_000)),
        ("2 GB, 30d", RetentionPolicy(age=30 * DAY, size=2_000_000_000)),
        ("4 weeks", RetentionPolicy(age=28 * DAY)),
        ("4 dumps", RetentionPolicy(count=4)),
        ("1 TB or 3 documents", RetentionPolicy(count=3, size=10**12)),
    ],
)
def test_how_long_documents_are_kept_is_one_line(text: str, meant: RetentionPolicy) -> None:
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
    assert ends(RetentionPolicy(count=2).expired(volumes(1, 2, 3, 4), now=10**9)) == [1, 2]
    assert RetentionPolicy(count=9).expired(volumes(1, 2), now=10**9) == []


def test_with_a_size_alone_the_newest_that_fit_stay() -> None:
    assert ends(RetentionPolicy(size=250).expired(volumes(1, 2, 3, 4), now=10**9)) == [1, 2]
    assert ends(RetentionPolicy(size=99).expired(volumes(1, 2), now=10**9)) == [1, 2]


def test_with_an_age_alone_what_is_older_goes() -> None:
    assert ends(RetentionPolicy(age=10).expired(volumes(80, 90, 91, 99), now=100)) == [80, 90]


def test_an_age_wins_over_count_and_size() -> None:
    policy = RetentionPolicy(age=10, count=1, size=100)
    assert ends(policy.expired(volumes(80, 91, 95, 99), now=100)) == [80]


def test_documents_older_than_the_age_stay_within_count_and_size() -> None:
    assert RetentionPolicy(age=10, count=5).expired(volumes(1, 2, 3), now=100) == []


@given(
    st.lists(st.integers(1, 100), unique=True).map(sorted),
    st.builds(
        RetentionPolicy,
        st.none() | st.integers(1, 120),
        st.none() | st.integers(1, 9),
        st.none() | st.integers(1, 900),
    ),
)
def test_a_destination_offline_for_less_than_the_age_misses_nothing(
    at: list[int], policy: RetentionPolicy
) -> None:
    kept = volumes(*at)
    gone = policy.expired(kept, now=100)
    assert gone == kept[: len(gone)], "only the oldest go"
    if policy.age is not None:
        assert all(volume.end <= 100 - policy.age for volume in gone)


def test_nothing_is_closed_before_a_limit_is_reached() -> None:
    policy = RotationPolicy(changes=10, size=1_000, age=HOUR)
    assert policy.minimum_open(9, 999, oldest=1, now=HOUR) is None
    assert policy.minimum_open(0, 0, oldest=0, now=10 * HOUR) is None


def test_half_of_the_limit_that_was_reached_stays_open() -> None:
    policy = RotationPolicy(changes=10, size=1_000, age=HOUR)
    assert policy.minimum_open(10, 0, oldest=1, now=HOUR) == MinimumOpen(5, None, None)
    assert policy.minimum_open(1, 1_200, oldest=1, now=HOUR) == MinimumOpen(None, 500, None)
    assert policy.minimum_open(1, 0, oldest=0, now=HOUR) == MinimumOpen(None, None, HOUR // 2)
    assert policy.minimum_open(10, 1_000, oldest=0, now=HOUR) == MinimumOpen(5, 500, HOUR // 2)


def test_any_reached_limit_permits_to_close() -> None:
    floor = MinimumOpen(changes=5, size=None, since=50)
    assert floor.allows(changes=5, size=0, last_closed=99)
    assert floor.allows(changes=0, size=0, last_closed=50)
    assert not floor.allows(changes=4, size=10**9, last_closed=51)
