from __future__ import annotations

import pytest

from rsnotify_hub.admin.hub_readings import WINDOW_SECONDS, TopicRates
from rsnotify_hub.fragments import read_fragment
from rsnotify_hub.store.interface import LogEntry
from tests.hub.helpers import TOPIC, Clock, fragment

ENTRY = LogEntry(1, read_fragment(fragment(0, 1)))


@pytest.fixture
def rates(clock: Clock) -> TopicRates:
    return TopicRates(clock)


def test_a_rate_is_the_average_of_the_last_ten_seconds(rates: TopicRates, clock: Clock):
    for _ in range(WINDOW_SECONDS):
        rates.deliver(TOPIC, [ENTRY, ENTRY])
        rates.deliver(TOPIC, [ENTRY])
        clock.advance(seconds=1)
    clock.advance(seconds=-1)
    assert rates.rate(TOPIC) == 3.0
    assert rates.rate("https://other.example/") == 0.0


def test_quiet_topics_are_forgotten(rates: TopicRates, clock: Clock):
    for number in range(100):
        rates.deliver(f"https://a.example/{number}", [ENTRY])
    clock.advance(seconds=WINDOW_SECONDS // 2)
    rates.deliver("https://a.example/7", [ENTRY])
    clock.advance(seconds=WINDOW_SECONDS // 2)
    rates.deliver(TOPIC, [ENTRY])
    assert len(rates) == 2
    assert rates.rate("https://a.example/7") == 0.1


def test_a_rate_decreases_without_new_fragments(rates: TopicRates, clock: Clock):
    rates.deliver(TOPIC, [ENTRY] * 5)
    clock.advance(seconds=WINDOW_SECONDS - 1)
    rates.deliver(TOPIC, [ENTRY] * 5)
    assert rates.rate(TOPIC) == 1.0
    clock.advance(seconds=1)
    assert rates.rate(TOPIC) == 0.5
    clock.advance(seconds=WINDOW_SECONDS)
    assert rates.rate(TOPIC) == 0.0
    rates.deliver(TOPIC, [ENTRY])
    assert rates.rate(TOPIC) == 0.1


def test_a_rate_does_not_last_until_a_clock_that_was_set_back_is_there_again(
    rates: TopicRates, clock: Clock
):
    rates.deliver(TOPIC, [ENTRY] * 10)
    assert rates.rate(TOPIC) == 10 / WINDOW_SECONDS
    clock.advance(days=-1)
    assert rates.rate(TOPIC) == 0
    for number in range(100):
        clock.advance(seconds=2)
        rates.deliver(f"{TOPIC}{number}", [ENTRY])
    assert len(rates) <= WINDOW_SECONDS
