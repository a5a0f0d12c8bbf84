"""The client of PyPI's `resync`, a Destination that only pulls, follows our Source."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.format.model import MAX_ENTRIES, Capability, Rel
from rsnotify.format.reader import read_document
from tests.interop.clients import ResyncClient, contents, follow, is_in_step
from tests.publisher.helpers import FakeHub, SourceProcess, Start, eventually, put
from tests.reader import Reader, stories
from tests.subscriber.source import SmallSource, path_of

OFTEN = ("--resource-list-every", "0.1")


def write(folder: Path, *numbers: int, text: str = "first") -> None:
    (folder / "sub").mkdir(exist_ok=True)
    for number in numbers:
        put(folder / "sub" / f"{number}.ttl", f"<{text}> <b> {number} .")


def listed_through(process: SourceProcess) -> Instant:
    at = read_document(process.get("resourcelist.xml")).at
    assert at is not None
    return at


@pytest.mark.parametrize(
    "options",
    [(), ("--profile", "1.0", "--gzip"), ("--resource-dump-every", "1", "--change-dump")],
    ids=["as it is", "profile 1.0 and gzip", "with dumps"],
)
def test_it_copies_follows_and_audits(
    folder: Path, source: Start, client: ResyncClient, options: tuple[str, ...]
):
    write(folder, *range(10))
    process = source(*OFTEN, *options)
    client.baseline(process.url)
    assert contents(client.copy) == contents(folder)
    assert client.is_in_sync(process.url)

    put(folder / "new.ttl", "<new> <b> <c> .")
    write(folder, 1, text="changed")
    (folder / "sub" / "2.ttl").unlink()
    for change in (("created", "new.ttl"), ("updated", "sub/1.ttl"), ("deleted", "sub/2.ttl")):
        process.wait_for_change(*change)
    version = ("--spec-version", "1.0") if "1.0" in options else ()
    client.incremental(process.url, *version)
    assert contents(client.copy) == contents(folder)

    told = read_document(process.get("changelist.xml")).resources[-1].changed_at
    assert told is not None
    eventually(lambda: listed_through(process) >= told)
    assert client.is_in_sync(process.url)


def test_rotation_takes_nothing_from_a_client_that_polls_now_and_then(
    folder: Path, source: Start, client: ResyncClient
):
    write(folder, 0)
    process = source("--rotate", "8 changes")
    client.baseline(process.url)
    # The older half of a list is closed, so that what came since the last poll stays open.
    for begin in (1, 4, 7, 10):
        for number in range(begin, begin + 3):
            write(folder, number)
            process.wait_for_change("created", f"sub/{number}.ttl")
        client.incremental(process.url)
        assert contents(client.copy) == contents(folder)
    eventually(lambda: b"changelist-2" in process.get("changelist-archive.xml"))
    assert len(process.changes()) < 12


@pytest.mark.slow
def test_fifty_thousand_resources_are_one_list_and_one_more_makes_an_index(
    folder: Path, source: Start, client: ResyncClient
):
    for number in range(MAX_ENTRIES):
        if number % 1_000 == 0:
            (folder / f"{number:05}").mkdir()
        (folder / f"{number - number % 1_000:05}" / f"{number}.ttl").write_bytes(b"%d" % number)
    process = source("--resource-list-every", "1")
    assert not read_document(process.get("resourcelist.xml")).index
    # All but one are there already: the client GETs one after the other.
    shutil.copytree(folder, client.copy, copy_function=os.link, dirs_exist_ok=True)
    missing = client.copy / "07000/7777.ttl"
    missing.unlink()
    assert "same=49999, to create=1, to update=0" in client.baseline(process.url)
    assert missing.read_text() == "7777"

    put(folder / "more.ttl", "x")
    eventually(lambda: read_document(process.get("resourcelist.xml")).index)
    assert "same=50000, to create=1, to update=0" in client.baseline(process.url)
    assert (client.copy / "more.ttl").read_text() == "x"


# What a Source sends to others does no harm to a Destination that only pulls.


async def test_it_follows_a_source_that_sends_notices_and_content_to_others(
    folder: Path, source: Start, hub: FakeHub, client: ResyncClient
):
    rotating = ("--rotate", "10 changes", "--resource-list-every", "0.5")
    process = await asyncio.to_thread(source, "--hub", hub.url, *rotating)
    described = read_document(await asyncio.to_thread(process.get, ".well-known/resourcesync"))
    assert described.link(Rel.MONITOR_GROUP) == process.url + "resourcesync/framework.xml"
    # It takes a second entry for a second set, and stops.
    assert len(described.resources) == 1
    for number in range(12):
        put(folder / f"file{number}", str(number))
    await hub.until(lambda: Capability.CHANGE_LIST_ARCHIVE in _kinds(hub))
    await asyncio.to_thread(eventually, lambda: _listed(process) == 12)
    await asyncio.to_thread(client.baseline, process.url)
    put(folder / "file0", "changed")
    put(folder / "last", "1")
    await hub.has(process.url + "last")
    entries = [entry for fragment in hub.fragments for entry in fragment.resources]
    assert any(link.href.startswith("data:") for entry in entries for link in entry.links)
    for change, name in (("updated", "file0"), ("created", "last")):
        await asyncio.to_thread(process.wait_for_change, change, name)
    await asyncio.to_thread(client.incremental, process.url)
    assert contents(client.copy) == contents(folder)


def _listed(process: SourceProcess) -> int:
    return len(read_document(process.get("resourcelist.xml")).resources)


def _kinds(hub: FakeHub) -> set[str | None]:
    return {entry.capability for notice in hub.notices for entry in notice.resources}


async def test_it_follows_a_change_list_that_carries_content(client: ResyncClient):
    source = SmallSource()
    await source.server.start()
    try:
        for name in ("b", "a"):
            source.put(name, name.encode())
        await asyncio.to_thread(client.baseline, source.base)
        since = format_datetime(source.last)
        source.put_inline("a", b"changed")
        source.put_inline("c", b"new")
        source.delete("b")
        # It reads no other time of a change.
        source.changes = [replace(one, lastmod=one.datetime) for one in source.changes]
        source.gets.clear()
        await asyncio.to_thread(client.incremental, source.base, "--from", since)
        assert contents(client.copy) == {"a": b"changed", "c": b"new"}
        assert all(source.gets[path_of(name)] == 1 for name in ("a", "c"))
    finally:
        await source.server.stop()


# Its copy is taken over.


@pytest.mark.slow
def test_its_copy_is_taken_over_without_fetching_it_again(
    folder: Path, source: Start, client: ResyncClient
):
    write(folder, *range(10))
    process = source(*OFTEN)
    client.baseline(process.url)
    (client.copy / "sub/1.ttl").write_text("damaged")
    (client.copy / "sub/3.ttl").unlink()
    (client.copy / "mine").write_text("of somebody else")
    assert "must be empty" in follow(process.url, client.copy)
    said = follow(process.url, client.copy, "--adopt")
    assert f"1 file here is not part of the copy: {client.copy / 'mine'}" in said
    assert contents(client.copy) == {**contents(folder), "mine": b"of somebody else"}
    assert said.count("because the existing file differs") == 1
    assert is_in_step(process.url, client.copy, "--repair", "--remove-foreign")
    assert contents(client.copy) == contents(folder)


def test_the_way_to_rsnotify_is_as_its_page_describes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    programs = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", programs, prepend=os.pathsep)
    (story,) = stories("docs/recipes/from-resync.md")
    audited = "resync-sync --audit --hash sha-256 http://127.0.0.1:8000 copy"
    taken_over = "rsnotify follow http://127.0.0.1:8000/ copy --adopt --once"
    shows = {audited: "same=2, to create=0, to update=0", taken_over: "level: 2 resources"}
    with Reader(tmp_path / "here") as reader:
        reader.do(story, shows)
