"""The at of a Resource List, and the clocks of Sources and Destinations, are not right."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.wild.documents import entry, index, md, member, resource_list, urlset
from tests.wild.hub import Hub, offer_hub
from tests.wild.running import (
    Copy,
    Recorder,
    Synchronize,
    assert_honest,
    audited,
    pushed,
    run_honest,
    run_right,
    until_right,
)
from tests.wild.source import Source

# A Resource List's `at` lies ahead of the clock by which the Change List is dated.
#
# Two machines write the two lists and their clocks differ, by seconds or by an hour; or `at` is the
# time at which writing the list ended, while core §5.2.1 wants that at which it began. Changes
# dated between the true time and `at` are missing from the Resource List, and look old beside it.
# No time in a document that lies after the Date of its answer (RFC 9110 §6.6.1) can be right.


@pytest.fixture(params=[12, 3600], ids=["by 12 s", "by an hour"])
def ahead(request: pytest.FixtureRequest, source: Source) -> float:
    """Put a set whose Resource List was made at 100, and says that it was later."""
    source.offer()
    source.files("a", "b", "c")
    source.clock = source.t(100.5)
    source.list_resources(at=100 + request.param)
    source.list_changes()
    return float(request.param)


def change_at(source: Source, when: float) -> None:
    """Change all there is to change, within seconds, and list it."""
    source.clock = source.t(when + 3.5)
    created = source.create("d", when + 2, b"d")
    source.list_changes(source.update("a", when), source.delete("b", when + 1), created)


async def test_changes_after_it_are_applied(source: Source, synchronize: Synchronize, ahead: float):
    await synchronize()
    change_at(source, 104)
    await synchronize()


async def test_changes_that_the_list_already_had_are_applied(
    source: Source, copy: Copy, ahead: float
):
    """The Change List had them at the first copy already, and the Resource List did not."""
    change_at(source, 104)
    await run_right(source, copy)


async def test_without_a_date_nothing_is_believed_either(source: Source, copy: Copy, ahead: float):
    source.list_resources(at=100 + ahead, headers={"Date": None})
    source.list_changes(headers={"Date": None})
    await run_honest(source, copy)
    change_at(source, 104)
    await run_right(source, copy)


async def test_audit_does_not_call_a_copy_right_that_lacks_the_changes(
    source: Source, folder: Path, ahead: float
):
    folder.mkdir()
    for name, content in source.resources.items():
        (folder / name).write_bytes(content)
    change_at(source, 104)
    outcome = await audited(source, folder)
    assert outcome.code in (1, 2), outcome
    assert_honest(folder, source, outcome)


# `at` is the time at which writing the Resource List ended, while core §5.2.1 wants its beginning.
#
# What changed while it was written may be missing from it, though its datetime lies before `at`. No
# Date shows this, so a first copy compares every entry of the Change List with what it holds.


@pytest.fixture
def written_while_things_change(source: Source) -> None:
    """List `a` and `b` at 1; then create `d`, delete `b`; finish the list at 60."""
    source.offer()
    source.files("a", "b", "c")
    listed = source.listed("abc")
    source.file("d", b"d", 30)
    source.remove("b")
    source.file("c", b"changed", 32)
    source.list_entries(*listed, at=60)
    source.list_changes(
        source.changed("d", "created", 30),
        source.changed("b", "deleted", 31),
        source.changed("c", "updated", 32),
        from_=0,
    )


@pytest.mark.usefixtures("written_while_things_change")
async def test_a_copy_has_what_changed_meanwhile(source: Source, copy: Copy):
    await run_right(source, copy)
    listed = source.listed("acd")
    source.file("e", b"e", 500)
    source.list_entries(*listed, at=600)
    source.list_changes(source.changed("e", "created", 500), from_=400)
    await run_right(source, copy)


@pytest.mark.usefixtures("written_while_things_change")
async def test_audit_does_not_believe_it_either(source: Source, folder: Path):
    folder.mkdir()
    for name in "abc":
        (folder / name).write_text(name)
    assert (await audited(source, folder)).code in (1, 2)


# The same, and the Change List that lists these changes was closed by then.
#
# A Resource List without `at` is dated by HTTP, and so may be too late, too. Such a list may lack
# every change after the latest `lastmod` in it, so the closed lists since then are read.


@pytest.fixture(params=["index", "archive"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["at", "Last-Modified", "Date"])
def closed_while_things_change(request: pytest.FixtureRequest, source: Source, form: str) -> None:
    """List `a` to `c`; then create `d`, delete `b`, update `c`; close the Change List, and finish.

    An earlier closed list has only what the Resource List shows.
    """
    source.offer(**{"changelist-archive": "archive.xml"} if form == "archive" else {})
    source.files("a", "b", "c")
    source.clock = source.t(100)
    listed = source.listed("abc", lastmod=source.t(-1000))
    listing = resource_list(listed, at=source.t(60) if request.param == "at" else None)
    modified = f"{source.t(60):%a, %d %b %Y %X} GMT" if request.param == "Last-Modified" else None
    source.put("resourcelist.xml", listing, headers={"Last-Modified": modified})
    updated = source.changed("a", "updated", -150_000)
    source.list_changes(updated, from_=-200_000, until=-100_000, name="0.xml")
    source.file("d", b"d", 30)
    source.remove("b")
    source.file("c", b"changed", 32)
    source.list_changes(
        source.changed("d", "created", 30),
        source.changed("b", "deleted", 31),
        source.changed("c", "updated", 32),
        from_=-100_000,
        until=50,
        name="1.xml",
    )
    bounds = [(source.t(-200_000), source.t(-100_000)), (source.t(-100_000), source.t(50))]
    members = [
        member(source.uri(f"{number}.xml"), from_=from_, until=until)
        for number, (from_, until) in enumerate(bounds)
    ]
    if form == "archive":
        source.list_changes(from_=50)
        members = [one.replace("sitemap>", "url>") for one in members]
        source.put("archive.xml", urlset(members, md(capability="changelist-archive")))
    else:
        source.list_changes(from_=50, name="2.xml")
        members.append(member(source.uri("2.xml"), from_=source.t(50)))
        source.put("changelist.xml", index("changelist", members, from_=source.t(-200_000)))


@pytest.mark.usefixtures("closed_while_things_change")
async def test_a_copy_has_what_a_closed_list_shows(source: Source, copy: Copy):
    await run_right(source, copy)
    assert not source.requests("0.xml")


@pytest.mark.usefixtures("closed_while_things_change")
async def test_audit_reads_the_closed_list(source: Source, folder: Path):
    folder.mkdir()
    for name in "abc":
        (folder / name).write_text(name)
    assert (await audited(source, folder)).code in (1, 2)


# A resource that is created milliseconds after the `at` of the Resource List that has it.
#
# `at` is taken when a list is begun (core §10.1), so that the list may have what came later, and
# the Change List tells it once more.


async def test_a_handler_receives_it_once(source: Source, tmp_path: Path):
    source.offer()
    content = source.file("a", b"1", 0.005)
    listed = entry(source.uri("a"), content=content)
    created = entry(source.uri("a"), "created", datetime=source.t(0.005), content=content)
    source.list_entries(listed, at=0)
    source.list_changes(created, from_=-1)
    copy = Recorder(source.base, tmp_path / "state")
    await run_right(source, copy)
    assert copy.calls == [("created", "a")]
    assert len(source.requests("a")) == 1


# The Destination's clock is wrong: ahead of or behind the Source's, by a day or by years.
#
# Nothing that the Source says is compared with it; a Date of the Source's own answers is what its
# documents are held against. Here the Source's clock is moved instead, which is the same.


BY = {
    "a day behind": timedelta(days=1),
    "an hour behind": timedelta(hours=1),
    "an hour ahead": -timedelta(hours=1),
    "years ahead": -timedelta(days=3000),
}


@pytest.fixture(params=BY.values(), ids=list(BY))
def clock_differs(request: pytest.FixtureRequest, source: Source, hub: Hub) -> None:
    source.start = datetime.now(UTC).replace(microsecond=0) + request.param
    source.clock = source.t(20.5)
    source.begin("a", "b", "c")
    offer_hub(source, hub)


def change(source: Source) -> list[str]:
    source.clock = source.t(65.5)
    changes = [source.update("a", 60), source.delete("b", 61)]
    source.list_changes(*changes)
    return changes


@pytest.mark.usefixtures("clock_differs")
async def test_runs_are_right(source: Source, copy: Copy):
    await run_right(source, copy)
    change(source)
    await run_right(source, copy)


@pytest.mark.usefixtures("clock_differs")
async def test_push_is_followed(source: Source, hub: Hub, copy: Copy):
    async with pushed(hub, source, copy) as subscriber:
        changes = change(source)
        await hub.push(changes, source.t(10), source.t(61))
        await until_right(subscriber, copy, source)
