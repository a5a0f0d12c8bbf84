"""Following a part of a set: by URI, media type, type of change and collection."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from rsnotify.errors import ConfigurationError
from rsnotify.format.model import ChangeType, Link
from rsnotify.runtime.command_line import application
from rsnotify.selection import Selection
from rsnotify_subscriber import FolderMirror, audit, default_state
from rsnotify_subscriber.following.copy_check import FileScan
from rsnotify_subscriber.storage.destination_state import DestinationState
from tests.subscriber.destination import Destination
from tests.subscriber.processes import run
from tests.subscriber.source import SmallSource, path_of, status

TURTLE = Selection(types=("text/turtle",))


@pytest.fixture(autouse=True)
def several_kinds(source: SmallSource) -> None:
    source.put("maps/a.ttl", b"a", type="text/turtle")
    source.put("maps/b.html", b"b", type="text/html")
    source.put("c", b"c", type="text/turtle")


def member_of(*collections: str) -> tuple[Link, ...]:
    return tuple(Link("collection", uri) for uri in collections)


async def test_only_selected_resources_are_fetched_and_t_covers_the_whole_set(
    source: SmallSource, destination: Destination
) -> None:
    await destination.catch_up(selection=Selection(only=("maps/",), excluded=("*.html",)))
    assert set(destination.files()) == {"maps/a.ttl"}
    assert not source.gets[path_of("c")]
    source.put("c", b"c2", type="text/turtle")
    source.put("maps/b.html", b"b2", type="text/html")
    await destination.catch_up(selection=Selection(only=("maps/",), excluded=("*.html",)))
    assert set(destination.files()) == {"maps/a.ttl"}
    state = DestinationState(destination.folder.with_name("mirror.rsnotify"))
    progress = state.progress()
    state.close()
    assert progress is not None
    assert progress.through == source.last


async def test_pushed_changes_that_are_not_selected_are_skipped(
    source: SmallSource, destination: Destination
) -> None:
    subscriber = destination.subscriber(selection=TURTLE)
    async with subscriber:
        await subscriber.until(lambda status: status.level)
        source.put("d.png", b"d", type="image/png")
        last = source.put("e.ttl", b"e", type="text/turtle")
        await destination.until(lambda: "e.ttl" in destination.files())
        await subscriber.until(lambda status: status.through == last.datetime)
    assert set(destination.files()) == {"maps/a.ttl", "c", "e.ttl"}
    assert not source.gets[path_of("d.png")]


async def test_a_resource_whose_type_changes_leaves_and_returns_and_a_deletion_needs_no_type(
    source: SmallSource, destination: Destination
) -> None:
    await destination.catch_up(selection=TURTLE)
    source.put("c", b"<p>", type="text/html")
    await destination.catch_up(selection=TURTLE)
    assert set(destination.files()) == {"maps/a.ttl"}
    source.put("c", b"<a> <b> <c> .", type="text/turtle")
    await destination.catch_up(selection=TURTLE)
    assert destination.files()["c"] == b"<a> <b> <c> ."
    source.delete("c")
    await destination.catch_up(selection=TURTLE)
    assert set(destination.files()) == {"maps/a.ttl"}


@pytest.mark.parametrize("listed", [True, False], ids=["with Resource List", "without"])
async def test_another_selection_corrects_the_copy(
    source: SmallSource, destination: Destination, listed: bool
) -> None:
    url = source.url if listed else source.base + "changelist.xml"
    if not listed:
        source.answers[path_of("capabilitylist.xml")] = status(404)
    await destination.catch_up(url, selection=TURTLE)
    assert set(destination.files()) == {"maps/a.ttl", "c"}
    await destination.catch_up(url, selection=Selection(only=("maps/",)))
    assert set(destination.files()) == {"maps/a.ttl", "maps/b.html"}
    await destination.become_equal(url)


async def test_what_is_not_selected_any_more_is_removed_although_no_list_names_it(
    source: SmallSource, destination: Destination
) -> None:
    url = source.base + "changelist.xml"
    source.answers[path_of("capabilitylist.xml")] = status(404)
    source.archive = False
    await destination.catch_up(url)
    source.rotate()
    source.put("d", b"d")
    await destination.catch_up(url)
    await destination.catch_up(url, selection=Selection(only=("maps/", "d")))
    assert set(destination.files()) == {"maps/a.ttl", "maps/b.html", "d"}


async def test_a_check_of_the_files_does_not_keep_what_another_selection_excludes(
    source: SmallSource, destination: Destination
) -> None:
    await destination.catch_up()
    mirror, place = FolderMirror(destination.folder), default_state(destination.folder)
    with closing(DestinationState(place)) as state:
        identity = state.identity()
        assert identity is not None
        mirror.prepare(identity.base, place)
        state.store_identity(replace(identity, selection=Selection(only=("maps/",))))
        assert state.lost == 1
        assert FileScan(mirror, state, verify=False).compare_next() == ([], [])


async def test_the_same_selection_needs_no_baseline(
    source: SmallSource, destination: Destination
) -> None:
    await destination.catch_up(selection=TURTLE)
    await destination.catch_up(selection=TURTLE)
    assert source.gets[path_of("resourcelist.xml")] == 1


async def test_the_audit_compares_only_the_selection(
    source: SmallSource, destination: Destination
) -> None:
    await destination.catch_up(selection=TURTLE)
    found = await audit(source.url, destination.folder, pause=0)
    assert found.in_step is True
    assert found.resources == 2
    source.put("c", b"c2", type="text/html")
    found = await audit(source.url, destination.folder, pause=0)
    assert found.deleted == ("c",)
    assert not found.created


async def test_the_audit_does_not_miss_changes_of_a_type_that_is_not_followed(
    source: SmallSource, destination: Destination
) -> None:
    created = Selection(changes=(ChangeType.CREATED,))
    await destination.catch_up(selection=created)
    source.put("c", b"c2")
    source.delete("maps/a.ttl")
    assert (await audit(source.url, destination.folder, pause=0)).in_step is True
    source.put("d", b"d")
    found = await audit(source.url, destination.folder, pause=0)
    assert (found.created, found.updated, found.deleted) == ((source.base + "d",), (), ())


async def test_the_options_of_the_command_select(
    source: SmallSource, destination: Destination
) -> None:
    source.put("maps/c.ttl", b"c", type="text/turtle", links=member_of("http://c.example/1"))
    follow = ("follow", source.site, destination.folder, "--once")
    options = ("--only", "maps/", "--only", "*.html", "--except", "a.ttl", "--type", "text/*")
    done = await run(*follow, *options)
    assert done[0] == 0, done
    assert set(destination.files()) == {"maps/b.html", "maps/c.ttl"}
    done = await run(*follow, "--collection", "http://c.example/1")
    assert done[0] == 0, done
    assert set(destination.files()) == {"maps/c.ttl"}


@pytest.mark.parametrize(
    "slip",
    [("--type", "html"), ("--collection", "maps"), ("--only", ""), ("--except", "")],
    ids=" ".join,
)
async def test_a_typo_in_a_selection_does_not_empty_the_copy(
    source: SmallSource, destination: Destination, slip: tuple[str, str]
) -> None:
    await destination.catch_up()
    ended = follow(source, destination, *slip)
    assert isinstance(ended.exception, ConfigurationError)
    said = str(ended.exception)
    assert "is no" in said or "must not be empty" in said
    assert destination.equals_source()


def test_an_unknown_type_of_change_is_refused(
    source: SmallSource, destination: Destination
) -> None:
    assert follow(source, destination, "--change", "renamed").exit_code == 2


def follow(source: SmallSource, destination: Destination, *options: str) -> Any:
    """Run the command, which refuses its options before it does anything."""
    arguments = ["follow", source.url, str(destination.folder), *options]
    return CliRunner().invoke(application(), arguments)


async def test_a_selection_that_matches_nothing_is_logged(
    source: SmallSource, destination: Destination, caplog: pytest.LogCaptureFixture
) -> None:
    source.put("a.txt", b"1")
    told = "no resource that the Source lists is selected by only *.tll"
    nothing = Selection(only=("*.tll",))
    for _ in range(2):  # also in a run that finds nothing new
        caplog.clear()
        await destination.catch_up(selection=nothing)
        assert told in caplog.text
    caplog.clear()
    await destination.catch_up(selection=Selection(only=("*.txt",)))
    source.put("b.txt", b"2")
    await destination.catch_up(selection=Selection(only=("*.txt",)))
    assert told not in caplog.text
