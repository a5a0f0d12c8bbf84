from __future__ import annotations

import time
from random import Random

import pytest

from rsnotify_gateway.adapter import is_due
from rsnotify_gateway.client import parse_robots
from rsnotify_gateway.config import PollPace

PACE = PollPace(least=10, most=100)


def test_an_origin_that_changes_is_checked_more_often_within_limits():
    interval = 100.0
    seen = [interval := PACE.next_interval(interval, changed=True) for _ in range(5)]
    assert seen == [50, 25, 12.5, 10, 10]


def test_a_quiet_origin_is_checked_less_often_within_limits():
    interval = 10.0
    seen = [interval := PACE.next_interval(interval, changed=False) for _ in range(7)]
    assert seen[:2] == [15, 22.5]
    assert seen[-1] == 100


@pytest.mark.parametrize(
    ("ago", "due"), [(0.0, False), (50.0, False), (200.0, True), (-86_400.0, True)]
)
def test_a_comparison_is_due_after_its_interval_and_after_the_clock_was_set_back(
    ago: float, due: bool
) -> None:
    assert is_due(time.time() - ago, 100.0) is due


def test_failures_are_followed_by_growing_waits_and_retry_after():
    waits = [PACE.after_failure(failures, Random(1), None) for failures in (1, 3, 20)]
    assert waits == sorted(waits)
    assert waits[-1] <= 100
    assert PACE.after_failure(1, Random(1), 1_800.0) == 1_800
    assert PACE.after_failure(1, Random(1), 1e9) == 3_600


@pytest.mark.parametrize(
    ("rules", "path", "allowed"),
    [
        ("Disallow: /a", "/a/b", False),
        ("Disallow: /a", "/b", True),
        ("Disallow:", "/", True),
        ("Disallow: /", "/", False),
        ("Disallow: /\nAllow: /oai", "/oai?verb=Identify", True),
        ("Allow: /a\nDisallow: /a", "/a", True),
        ("Allow: /a\nDisallow: /a/b", "/a/b", False),
        ("Disallow: /*.xml$", "/s/1.xml", False),
        ("Disallow: /*.xml$", "/s/1.xml.gz", True),
        ("Disallow: /*/private*/x", "/u/private-1/x/y", False),
        ("Disallow: /*a*a", "/a", True),
        ("Disallow: /a$", "/a", False),
        ("Disallow: /a$", "/ab", True),
        ("Disallow: /%7Eme", "/~me", False),
        ("Disallow: /ä", "/%C3%A4", False),
    ],
)
def test_the_longest_pattern_decides(rules: str, path: str, allowed: bool):
    assert parse_robots(f"User-agent: *\n{rules}").allows(path) is allowed


def test_a_group_for_us_replaces_that_for_all():
    text = """
    User-agent: *
    Disallow: /

    User-agent: other
    user-agent: RSNotify/1.0   # ours
    Disallow: /private
    Crawl-delay: 7
    """
    rules = parse_robots(text)
    assert rules.allows("/public")
    assert not rules.allows("/private")
    assert rules.delay == 7


def test_groups_for_the_same_agent_are_one():
    text = "User-agent: *\nDisallow: /a\nUser-agent: x\nAllow: /\nUser-agent: *\nDisallow: /b"
    rules = parse_robots(text)
    assert not rules.allows("/a")
    assert not rules.allows("/b")


def test_sitemaps_are_found_anywhere():
    text = "\ufeffSitemap: https://a.example/1.xml\nUser-agent: x\nSITEMAP:https://a.example/2.xml"
    assert parse_robots(text).sitemaps == ("https://a.example/1.xml", "https://a.example/2.xml")


@pytest.mark.parametrize("delay", ["nan", "-1", "soon", ""])
def test_a_delay_that_is_no_number_of_seconds_is_none(delay: str):
    assert parse_robots(f"User-agent: *\nCrawl-delay: {delay}\nDisallow: /a").delay == 0


def test_a_pattern_of_many_stars_is_matched_in_linear_time():
    rules = parse_robots("User-agent: *\nDisallow: /" + "*a" * 5_000 + "b$")
    assert rules.allows("/" + "a" * 20_000)
