"""The events of the demo: when a gap opens, how large it becomes, and what closes it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rsnotify_demo.monitor import EventLog

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@pytest.fixture
def log() -> EventLog:
    return EventLog(rate=25)


def texts(log: EventLog) -> list[str]:
    return [event.text for event in log.events]


def test_changes_in_transit_are_no_gap(log: EventLog) -> None:
    for second in range(100):
        log.update_behind(at(second), second % 10)
    assert not log.open
    assert texts(log) == []


def test_a_gap_opens_and_is_closed_by_push(log: EventLog) -> None:
    for second, behind in enumerate([0, 30, 400, 200, 0, 1, 0, 0]):
        log.update_behind(at(second), behind)
    assert not log.open
    assert texts(log) == [
        "A gap opens",
        "The gap is closed after 6.0 s. The copy lacked at most 400 changes; all came by push",
    ]


def test_a_gap_that_reopens_at_once_was_not_closed(log: EventLog) -> None:
    for second, behind in enumerate([30, 0, 0, 30, 0, 0, 30]):
        log.update_behind(at(second), behind)
    assert log.open
    assert texts(log) == ["A gap opens"]


def test_the_event_names_the_documents_that_closed_a_gap(log: EventLog) -> None:
    log.update_behind(at(0), 50)
    log.add_message(at(1), "50 changes from the Change List http://127.0.0.1:1/changelist.xml")
    for second in range(1, 5):
        log.update_behind(at(second), 0)
    assert texts(log)[-1].endswith("the others came from the Change List")
    assert log.pulled == 50


def test_pulls_within_five_seconds_share_one_event(log: EventLog) -> None:
    for tenth in range(100):
        log.add_message(at(tenth / 10), "3 changes from the Change List http://127.0.0.1:1/c.xml")
        log.update_behind(at(tenth / 10), 50)
    pulls = [event.text for event in log.events if event.kind == "pull"]
    assert pulls == ["The Destination reads 150 changes from the Change List"]


def test_the_beginning_and_the_end_of_push_are_events(log: EventLog) -> None:
    for second, state in enumerate(["down", "up", "up", "down", "down", "up", None, "up"]):
        log.update_push(at(second), state)
    assert [(event.at, event.text.partition(":")[0]) for event in log.events] == [
        (at(1), "Push is up"),
        (at(3), "Push is down"),
        (at(5), "Push is up"),
        (at(7), "Push is up"),
    ]


def test_other_messages_of_the_destination_are_events_unless_they_repeat_one(log: EventLog) -> None:
    log.add_message(at(0), "push is down; polling the lists: no answer in time")
    log.add_message(at(1), "could not apply a change (attempt 1): 404")
    log.add_message(at(2), "baseline from the Resource List http://127.0.0.1:1/resourcelist.xml")
    assert [text.partition(" http")[0] for text in texts(log)] == [
        "Destination: baseline from the Resource List"
    ]


def test_only_the_latest_events_are_kept_and_all_are_counted(log: EventLog) -> None:
    for number in range(1000):
        log.add(at(number), "note", str(number))
    assert len(log.events) < 100
    assert log.events[-1].number == 1000
