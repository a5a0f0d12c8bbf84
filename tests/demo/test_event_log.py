"""The demo tells of gaps: when one opens, how deep it gets, and what closes it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rsnotify_demo.event_log import EventLog

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def told(story: EventLog) -> list[str]:
    return [sentence.text for sentence in story.sentences]


def test_what_is_on_its_way_is_no_gap() -> None:
    story = EventLog(rate=25)
    for second in range(100):
        story.behind(at(second), second % 10)
    assert not story.open
    assert told(story) == []


def test_a_gap_opens_and_is_closed_by_push() -> None:
    story = EventLog(rate=25)
    for second, behind in enumerate([0, 30, 400, 200, 0, 1, 0, 0]):
        story.behind(at(second), behind)
    assert not story.open
    assert told(story) == [
        "A gap opens",
        "The gap is closed after 6.0 s. The copy lacked at most 400 changes; all came by push",
    ]


def test_a_gap_that_comes_back_at_once_was_not_closed() -> None:
    story = EventLog(rate=25)
    for second, behind in enumerate([30, 0, 0, 30, 0, 0, 30]):
        story.behind(at(second), behind)
    assert story.open
    assert told(story) == ["A gap opens"]


def test_it_says_which_documents_closed_a_gap() -> None:
    story = EventLog(rate=25)
    story.behind(at(0), 50)
    story.note(at(1), "50 changes from the Change List http://127.0.0.1:1/changelist.xml")
    for second in range(1, 5):
        story.behind(at(second), 0)
    assert told(story)[-1].endswith("what push left out is in the Change List")
    assert story.pulled == 50


def test_pulls_are_told_of_together() -> None:
    story = EventLog(rate=25)
    for tenth in range(100):
        story.note(at(tenth / 10), "3 changes from the Change List http://127.0.0.1:1/c.xml")
        story.behind(at(tenth / 10), 50)
    pulls = [sentence.text for sentence in story.sentences if sentence.kind == "pull"]
    assert pulls == ["The Destination reads of 150 changes in the Change List"]


def test_push_is_told_of_when_it_comes_and_when_it_goes() -> None:
    story = EventLog(rate=25)
    for second, state in enumerate(["down", "up", "up", "down", "down", "up", None, "up"]):
        story.push(at(second), state)
    assert [(sentence.at, sentence.text.partition(":")[0]) for sentence in story.sentences] == [
        (at(1), "Push is up"),
        (at(3), "Push is away"),
        (at(5), "Push is up"),
        (at(7), "Push is up"),
    ]


def test_what_else_the_destination_writes_is_told_and_what_is_told_already_is_not() -> None:
    story = EventLog(rate=25)
    story.note(at(0), "push is away, the lists are polled: no answer in time")
    story.note(at(1), "could not apply, try 1: 404")
    story.note(at(2), "baseline from the Resource List http://127.0.0.1:1/resourcelist.xml")
    assert [text.partition(" http")[0] for text in told(story)] == [
        "Destination: baseline from the Resource List"
    ]


def test_only_what_is_new_is_told_again_and_what_is_old_is_forgotten() -> None:
    story = EventLog(rate=25)
    for number in range(1000):
        story.tell(at(number), "note", str(number))
    assert len(story.sentences) < 100
    assert story.sentences[-1].number == 1000
