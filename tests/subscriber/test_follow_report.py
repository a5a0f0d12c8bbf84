"""What `rsnotify follow` says of a copy, and whether it may call it right."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from rsnotify.runtime.settings import SettingsFile
from rsnotify_subscriber import ActivityKind, PushState, Status, SyncActivity
from rsnotify_subscriber.commands.follow_options import FollowArguments
from rsnotify_subscriber.commands.follow_report import SubscriberReport
from rsnotify_subscriber.fleet.configuration import parse

sentence = SubscriberReport().sentence
outcome = SubscriberReport().outcome
COMPARED = datetime(2026, 1, 2, 3, 4, 5, 600, tzinfo=UTC)


def test_only_a_copy_without_doubts_is_in_step() -> None:
    level = Status(level=True, compared=COMPARED)
    assert ", level, " in sentence(level)
    assert "compared with the whole set at 2026-01-02T03:04:05Z" in sentence(level)
    doubted = Status(doubts=("one reason", "another\nreason"))
    assert ", not level, " in sentence(doubted)
    assert sentence(doubted).endswith(": one reason; another�reason")
    assert "never compared with the whole set" in sentence(doubted)


def test_how_often_everything_is_compared_is_an_option_and_a_setting() -> None:
    assert FollowArguments().options(None).pace.compare == 86_400
    assert FollowArguments(compare=60).options(None).pace.compare == 60
    source: dict[str, object] = {"url": "http://source.example/", "dest": "copy"}
    given = {"compare": 30}  # on the command line
    found = parse(SettingsFile("fleet.json", json.dumps({"source": [source]})), given)
    assert found.sources[0].compare == 30
    source["compare"] = 60
    found = parse(SettingsFile("fleet.json", json.dumps({"source": [source]})), given)
    assert found.sources[0].compare == 60


def test_a_line_is_written_when_something_changes_and_else_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = SubscriberReport()
    level = Status(resources=5_000, applied=5_000, level=True, push=PushState.UP)
    for _ in range(100):
        report.show(level)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("5,000 resources, 5,000 changes applied, level, ")
    for applied in range(5_001, 5_101):
        report.show(replace(level, applied=applied))
    assert len(capsys.readouterr().out.splitlines()) == 10
    report.show(replace(level, push=PushState.DOWN))
    assert "push down" in capsys.readouterr().out


def test_the_last_sentence_says_what_was_compared_and_when() -> None:
    level = Status(resources=5_000, level=True, through=COMPARED, compared=COMPARED)
    at = "2026-01-02T03:04:05"
    assert outcome(level) == (
        f"level: 5,000 resources, synced through {at}.000600Z, compared with the whole set at {at}Z"
    )
    assert outcome(replace(level, resources=1)).startswith("level: 1 resource, ")
    other = replace(level, in_step=False, difference="one differs")
    assert (
        SubscriberReport().outcome(other).startswith("different from the Source: 5,000 resources, ")
    )
    assert outcome(other).endswith("; one differs")
    assert outcome(Status()) == sentence(Status())


NOW = datetime.now(UTC)
UP = Status(resources=5_000, applied=5_012, copied=5_000, level=True, push=PushState.UP)
BEHIND = replace(UP, level=False, through=NOW - timedelta(seconds=30), pending=37)


def active(kind: ActivityKind, *figures: Any, error: str | None = None) -> Status:
    return Status(activity=SyncActivity(kind, *figures), error=error)


@pytest.mark.parametrize(
    ("status", "drawn", "written"),
    [
        (
            active(ActivityKind.FINDING, error="no\nanswer"),
            ["looking for the Source", "  error: no\N{REPLACEMENT CHARACTER}answer"],
            "looking for the Source: no\N{REPLACEMENT CHARACTER}answer",
        ),
        (
            active(ActivityKind.READING, "Resource List", 0, None, False, 2_000_000),
            ["reading the Resource List · 2.0 MB"],
            "reading the Resource List: 2.0 MB",
        ),
        (
            active(ActivityKind.DOWNLOADING, "", 5_000_000, 20_000_000),
            ["downloading a package ━━━━━━────────────────── 5.0 MB of 20.0 MB"],
            "downloading a package: 5.0 MB of 20.0 MB",
        ),
        (
            active(ActivityKind.COPYING, "", 2_500, 5_000, True, 1_000),
            ["copying ━━━━━━━━━━━━──────────── 2,500 of about 5,000 · 1.0 kB"],
            "copying: 2,500 of about 5,000 resources, 1.0 kB",
        ),
        (
            active(ActivityKind.VERIFYING, "", 10, 40, error="x" * 200),
            ["verifying ━━━━━━────────────────── 10 of 40", f"  error: {'x' * 87}…"],
            "verifying: 10 of 40 files",
        ),
        (
            replace(UP, lag_ms=4.2),
            ["5,000 resources copied · up to date · push up · 12 changes · lag 4 ms"],
            "level",
        ),
        (
            replace(UP, push=PushState.DOWN),
            [
                "5,000 resources copied · up to date at the last poll "
                "· push down: polling · 12 changes"
            ],
            "push down",
        ),
        (
            replace(BEHIND, doubts=("37 resources have changes that are not applied yet",)),
            [
                "5,000 resources copied · behind by 37 changes, 30 s · push up · 12 changes",
                "  doubt: 37 resources have changes that are not applied yet",
            ],
            "37 pending",
        ),
        (
            replace(BEHIND, pending=0),
            ["5,000 resources copied · may be behind by 30 s · push up · 12 changes"],
            "not level",
        ),
        (
            replace(BEHIND, through=None, pending=3),
            ["5,000 resources copied · not complete, 3 resources to copy · push up · 12 changes"],
            "3 pending",
        ),
        (
            replace(UP, foreign=1, foreign_files=("mine",), limits=("no dates",)),
            [
                "5,000 resources copied · up to date · push up · 12 changes",
                "  doubt: 1 file here is not part of the copy: mine",
                "  limit: no dates",
            ],
            "but 1 file here is not part of the copy",
        ),
        (
            replace(UP, in_step=False, difference="3, and not 4"),
            [
                "5,000 resources copied · differs from the Source · push up · 12 changes",
                "  doubt: 3, and not 4",
            ],
            "different from the Source",
        ),
    ],
)
def test_a_status_is_one_line_that_a_newcomer_understands(
    status: Status,
    drawn: list[str],
    written: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Clock(datetime):
        """A clock that stands still."""

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return NOW

    monkeypatch.setattr("rsnotify_subscriber.commands.follow_report.datetime", Clock)
    report = SubscriberReport()
    report.show(status)
    console = Console(width=100)
    with console.capture() as shown:
        console.print(report.display(status))
    assert shown.get().splitlines() == drawn
    assert written in (capsys.readouterr().out or report.sentence(status))


def test_only_long_work_is_written_as_lines(capsys: pytest.CaptureFixture[str]) -> None:
    report = SubscriberReport()
    for done in range(9):
        report.show(active(ActivityKind.COPYING, "", done, 100))
    report.show(active(ActivityKind.COMPARING, "", 5, 100))
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("comparing: 5 of 100 resources")
    for done in range(9):
        report.show(active(ActivityKind.COMPARING, "", done, 100))
    assert capsys.readouterr().out == ""
    report.show(UP)
    assert ", level, " in capsys.readouterr().out


def test_the_doubts_that_a_terminal_does_not_show_are_counted() -> None:
    doubted = Status(doubts=tuple("abcd"), error="e")
    console = Console(width=100)
    with console.capture() as shown:
        console.print(SubscriberReport().display(doubted))
    assert shown.get().splitlines()[1:] == ["  doubt: a", "  doubt: b", "  and 3 more"]


def test_a_quiet_report_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    SubscriberReport(quiet=True).show(UP)
    assert capsys.readouterr() == ("", "")
