"""What `rsnotify follow` says of a copy, and whether it may call it right."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace
from rich.console import Console

from rsnotify.runtime.settings import SettingsFile
from rsnotify_subscriber import PushState, Status
from rsnotify_subscriber.commands.follow_options import FollowArguments
from rsnotify_subscriber.commands.report import SubscriberReport
from rsnotify_subscriber.fleet.configuration import parse
from tests.subscriber.destination import Destination
from tests.subscriber.processes import run
from tests.subscriber.source import SmallSource, status

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
        SubscriberReport()
        .outcome(other)
        .startswith("other than the Source says: 5,000 resources, ")
    )
    assert outcome(other).endswith("; one differs")
    assert outcome(Status()) == sentence(Status())


async def test_a_run_that_catches_up_ends_with_how_the_copy_stands(
    source: SmallSource, destination: Destination
) -> None:
    source.put("a", b"1")
    arguments = ("follow", source.url, destination.folder, "--once")
    code, output, errors = await run(*arguments)
    assert (code, errors) == (0, "")
    last = output.splitlines()[-1]
    assert last.startswith("level: 1 resource, synced through 20")
    assert "compared with the whole set at 20" in last
    source.answers["/data/capabilitylist.xml"] = status(503)
    code, output, errors = await run(*arguments)
    assert code == 1
    assert ", not level, " in output.splitlines()[-1]
    assert "capabilitylist.xml: the server says 503" in errors


def test_a_terminal_shows_a_progress_bar_while_all_files_are_read() -> None:
    view = SubscriberReport()
    status = Status(resources=40, verified=10)
    console = Console(width=200)
    with console.capture() as shown:
        console.print(view.display(status))
        console.print(view.display(Status(baseline=True, applied=3, pending=5)))
        console.print(view.display(Status()))
    verifying, copying, idle = shown.get().splitlines()
    assert "files verified" in verifying
    assert "10/40" in verifying
    assert "baseline" in copying
    assert "3/8" in copying
    assert idle.startswith("0 resources")
