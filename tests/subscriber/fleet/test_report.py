"""What is shown of many Sources: in a terminal, as lines, as JSON."""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from rsnotify_subscriber import Fleet, FolderMirror, PushState, Status, Subscriber
from rsnotify_subscriber.commands.follow_fleet import FleetReport, name_sources
from rsnotify_subscriber.fleet import FollowedSourceStatus, Phase
from rsnotify_subscriber.fleet.fleet import SOURCE_NAME

#: What stands for a control character.
UNPRINTABLE = "\N{REPLACEMENT CHARACTER}"
WELL = FollowedSourceStatus(Phase.FOLLOWED, Status(resources=3, push=PushState.UP, level=True))
BEHIND = FollowedSourceStatus(Phase.FOLLOWED, Status(resources=3, pending=2))
WRONG = FollowedSourceStatus(Phase.FAILED, Status(), "https://a.example/: no answer\x1b[2J in time")


def test_a_terminal_shows_first_the_sources_that_need_attention() -> None:
    console = Console(width=100, record=True, file=StringIO())
    statuses = {f"well{n}": WELL for n in range(50)} | {"[red]behind": BEHIND, "wrong": WRONG}
    console.print(FleetReport().display(statuses))
    lines = console.export_text().splitlines()
    assert lines[1].split()[:4] == ["wrong", "https://a.example/:", "no", f"answer{UNPRINTABLE}[2J"]
    assert lines[2].split()[:2] == ["[red]behind", "behind"]
    assert "50 of 52 Sources level · 1 failing · 50 by push" in lines[-1]
    assert len(lines) < 25
    console.print(FleetReport().display({"well": WELL}))
    assert len(console.export_text().splitlines()[-1]) < 98  # there is room for a ^C


def test_lines_report_sources_that_fail_and_recover(capsys: pytest.CaptureFixture[str]) -> None:
    report = FleetReport()
    report.show({"a": WELL, "b": WRONG})
    report.show({"a": WELL, "b": WRONG})
    report.show({"a": BEHIND, "b": WELL})
    sums = "1 of 2 Sources level{}, 1 by push, {} resources, 0 changes applied, {} pending"
    assert capsys.readouterr().out.splitlines() == [
        f"b: https://a.example/: no answer{UNPRINTABLE}[2J in time",
        sums.format(", 1 failing", 3, 0),
        "b: recovered",
        sums.format("", 6, 2),
    ]


def test_json_has_the_sources_that_changed(capsys: pytest.CaptureFixture[str]) -> None:
    report = FleetReport(json=True)
    for statuses in ({"a": WELL, "b": WRONG}, {"a": WELL, "b": WELL}, {"b": WELL}):
        report.show(statuses)
    first, second, third = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["sources"], first["wrong"]) == (2, 1)
    wrong = first["changed"]["b"]
    assert (wrong["phase"], wrong["error"]) == ("failed", WRONG.error)
    assert set(second["changed"]) == {"b"}
    assert (third["changed"], third["gone"]) == ({}, ["a"])


def test_a_subscriber_is_made_without_loading_what_it_may_never_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssl, "create_default_context", pytest.fail)
    fleet = Fleet()
    mirror = FolderMirror(tmp_path / "copy")
    fleet.add("a", Subscriber("https://a.example/", mirror, state=tmp_path, shared=fleet.shared))
    assert fleet.status["a"].phase is Phase.WAITING


def test_a_copy_that_is_not_what_the_source_says_is_in_trouble(tmp_path: Path) -> None:
    class Differing(Subscriber):
        """One whose last audit found a difference."""

        status = Status(level=True, in_step=False, difference="3 resources, and not 4")

    fleet = Fleet()
    mirror = FolderMirror(tmp_path / "copy")
    fleet.add("a", Differing("https://a.example/", mirror, state=tmp_path, shared=fleet.shared))
    assert fleet.status["a"].error == "3 resources, and not 4"


# Lines of many Sources in one log.


@pytest.fixture
def of_a_source() -> Iterator[None]:
    token = SOURCE_NAME.set("https://a.example/100%d")
    with name_sources():
        yield
    SOURCE_NAME.reset(token)


@pytest.mark.usefixtures("of_a_source")
def test_a_line_begins_with_the_name_of_its_source(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("a").warning("%d of %s", 3, "5%")
    logging.getLogger("a").warning("100%")
    assert caplog.messages == ["https://a.example/100%d: 3 of 5%", "https://a.example/100%d: 100%"]


@pytest.mark.usefixtures("of_a_source")
def test_a_wrong_log_call_of_a_handler_does_not_end_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caplog.handler, "level", logging.CRITICAL)  # it fails at such a line
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logging.getLogger("a").warning("%d", "no number")
