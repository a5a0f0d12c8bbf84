from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import pytest
from aiohttp import ClientSession

from rsnotify.errors import ConfigurationError, DocumentError, Unavailable
from rsnotify.format.model import Capability, ChangeType, Document, Resource
from rsnotify.format.reader import read_document
from rsnotify_publisher import Options, Publisher
from tests.gateway.checking import Checking, origin
from tests.gateway.generators import PullOnlySource, at, numbered
from tests.gateway.origin_server import SITE, Site
from tests.interop.site import Site as ResyncSite
from tests.interop.site import served
from tests.publisher.helpers import PATIENCE
from tests.subscriber.test_simulator import simulator

A, B, C, D = (SITE + name for name in "abcd")
HASH, OTHER_HASH = "md5:" + "a" * 32, "md5:" + "b" * 32


@pytest.fixture
def source(site: Site) -> PullOnlySource:
    return PullOnlySource(site)


@pytest.fixture
async def checking(source: PullOnlySource, tmp_path: Path) -> AsyncIterator[Checking]:
    async with Checking(tmp_path, origin("resourcesync", source.url())) as checking:
        yield checking


def hash_of(content: bytes) -> str:
    return f"sha-256:{sha256(content).hexdigest()}"


def hashes(checking: Checking) -> dict[str, str | None]:
    return {uri: resource.hash for uri, resource in checking.resources().items()}


async def test_changes_since_the_resource_list_are_seen(source: PullOnlySource, checking: Checking):
    source.play("a", "b", start=1)
    source.list_resources(at(2))
    source.play("c", "-b", start=3)
    assert await checking.check() == {A: "created", C: "created"}
    source.play("a", "-c", start=5)
    assert await checking.check() == {A: "updated", C: "deleted"}
    assert await checking.check() == {}
    assert checking.resources()[A].lastmod == at(5)


async def test_an_unchanged_source_costs_no_content(
    site: Site, source: PullOnlySource, checking: Checking
):
    source.put("a", at(1))
    await checking.check()
    sent = site.sent.copy()
    await checking.check()
    assert site.requests["/rs/changelist.xml"] >= 2
    assert site.sent == sent
    assert "/rs/resourcelist.xml" not in site.sent - sent


async def test_archived_lists_are_read_after_a_long_outage(
    source: PullOnlySource, checking: Checking
):
    await checking.check()
    for number in range(1, 7):
        source.put(f"r{number}", at(number))
        if number % 2 == 0:
            source.rotate(at(number + 0.5))
            source.write()
    assert set(await checking.check()) == {f"{SITE}r{number}" for number in range(1, 7)}
    assert "missed" not in checking.limits


async def test_changes_of_one_second_are_seen_though_they_come_in_two_checks(
    source: PullOnlySource, checking: Checking
):
    source.put("a", at(1), HASH)
    await checking.check()
    source.put("b", at(1), HASH)
    assert await checking.check() == {B: "created"}
    source.put("a", at(1), OTHER_HASH)
    assert await checking.check() == {A: "updated"}


async def test_a_lost_archive_leads_to_a_comparison_with_the_resource_list(
    source: PullOnlySource, checking: Checking
):
    source.put("a", at(1))
    source.put("b", at(1))
    await checking.check()
    source.play("c", "-b", start=2)
    source.rotate(at(4))
    source.closed.clear()
    source.list_resources(at(5))
    source.put("d", at(6))
    assert await checking.check() == {C: "created", D: "created", B: "deleted"}
    assert "missed" not in checking.limits


async def test_a_gap_that_nothing_covers_is_stated(source: PullOnlySource, checking: Checking):
    source.put("a", at(1))
    source.list_resources(at(1))
    source.put("b", at(2))
    await checking.check()
    source.put("c", at(3))
    source.rotate(at(4))
    source.closed.clear()
    source.put("d", at(5))
    # The Resource List is older than what is known, so it deletes and changes nothing.
    assert await checking.check() == {D: "created"}
    assert "may have been missed" in checking.limits
    source.list_resources(at(5))
    checking.compare_next()
    assert await checking.check() == {C: "created"}
    assert "missed" not in checking.limits


async def test_a_resource_that_the_list_leaves_out_is_deleted_at_a_comparison(
    source: PullOnlySource, checking: Checking
):
    source.put("a", at(1))
    source.put("b", at(1))
    await checking.check()
    del source.present["b"]
    source.list_resources(at(2))
    source.put("c", at(3))
    assert await checking.check() == {C: "created"}
    checking.compare_next()
    assert await checking.check() == {B: "deleted"}


async def test_a_change_that_no_change_list_has_is_seen_at_a_comparison(
    source: PullOnlySource, checking: Checking
):
    source.put("a", at(1), HASH)
    source.list_resources(at(1))
    await checking.check()
    source.put("a", at(2), OTHER_HASH)
    source.put("b", at(3))
    del source.open[1]
    source.write()
    source.list_resources(at(3))
    assert await checking.check() == {B: "created"}
    assert "Changes that no Change List contains" in checking.limits
    checking.compare_next()
    assert await checking.check() == {A: "updated"}
    assert hashes(checking)[A] == OTHER_HASH


async def test_a_change_that_is_dated_before_its_list_is_seen(
    source: PullOnlySource, checking: Checking
):
    source.put("a", at(1), HASH)
    source.put("b", at(2))
    await checking.check()
    source.open.insert(0, Resource(A, at(-1000), change=ChangeType.UPDATED, hash=OTHER_HASH))
    del source.open[1]
    source.put("c", at(3))
    assert await checking.check() == {A: "updated", C: "created"}
    assert await checking.check() == {}


async def test_a_length_that_is_corrected_is_an_update(source: PullOnlySource, checking: Checking):
    def listed(length: int | None, when: float) -> None:
        entry = Resource(A, lastmod=at(1), hash=HASH, length=length)
        source.set("resourcelist.xml", Document(Capability.RESOURCE_LIST, (entry,), at=at(when)))

    listed(7, 1)
    assert await checking.check() == {A: "created"}
    checking.compare_next()
    listed(63, 2)
    assert await checking.check() == {A: "updated"}
    assert checking.resources()[A].length == 63
    # An entry without a length does not contradict one with it.
    listed(None, 3)
    assert await checking.check() == {}


async def test_a_comparison_invents_no_change(source: PullOnlySource, checking: Checking):
    source.play(*numbered(4))
    source.list_resources(at(3))
    source.play("-r1", "r2", "new", start=4)
    await checking.check()
    checking.compare_next()
    assert await checking.check() == {}


async def test_a_source_that_was_restored_is_compared(source: PullOnlySource, checking: Checking):
    source.put("a", at(1), HASH)
    source.list_resources(at(1))
    source.put("a", at(5), OTHER_HASH)
    source.put("b", at(6))
    await checking.check()
    # A backup of an instant before the last changes.
    source.open = source.open[:1]
    source.present = {"a": Resource(A, lastmod=at(1), hash=HASH)}
    source.write()
    assert await checking.check() == {A: "updated", B: "deleted"}
    source.put("c", at(2))
    assert await checking.check() == {C: "created"}


async def test_a_resource_list_of_several_files_that_changes_meanwhile_deletes_nothing(
    site: Site, source: PullOnlySource, checking: Checking
):
    def part(*names: str) -> Document:
        entries = tuple(Resource(SITE + name, lastmod=at(1)) for name in names)
        return Document(Capability.RESOURCE_LIST, entries, at=at(1))

    parts = tuple(Resource(source.url(f"part-{number}.xml")) for number in range(2))
    index = Document(Capability.RESOURCE_LIST, parts, index=True, at=at(1))
    source.set("resourcelist.xml", index)
    source.set("part-0.xml", part("a", "b"))
    source.set("part-1.xml", part("c"))
    assert await checking.check() == {A: "created", B: "created", C: "created"}
    moves = iter([("a", "c"), ("a", "b"), ("a", "c"), ("a", "b")])

    def move(path: str) -> None:
        """Change both files whenever the second is read."""
        if path.endswith("part-1.xml"):
            source.set("part-0.xml", part(*next(moves)))
            source.set("part-1.xml", part("d"))

    site.before = move
    checking.compare_next()
    with pytest.raises(Unavailable, match="changing during reading"):
        await checking.check()
    assert {A, B, C} <= set(checking.resources())


async def test_a_file_of_the_list_that_is_older_than_the_whole_deletes_nothing(
    source: PullOnlySource, checking: Checking
):
    source.put("a", at(1))
    source.put("b", at(4))
    await checking.check()
    index = Document(
        Capability.RESOURCE_LIST, (Resource(source.url("part.xml")),), index=True, at=at(5)
    )
    source.set("resourcelist.xml", index)
    part = Document(Capability.RESOURCE_LIST, (Resource(A, lastmod=at(1)),), at=at(3))
    source.set("part.xml", part)
    checking.compare_next()
    assert await checking.check() == {}


async def test_a_stable_list_of_several_files_shows_deletions(
    source: PullOnlySource, checking: Checking
):
    def write(*names: str) -> None:
        parts = [Resource(source.url(f"part-{name}.xml")) for name in names]
        index = Document(Capability.RESOURCE_LIST, tuple(parts), index=True)
        source.set("resourcelist.xml", index)
        for name in names:
            entries = (Resource(SITE + name, lastmod=at(1)),)
            source.set(f"part-{name}.xml", Document(Capability.RESOURCE_LIST, entries, at=at(1)))

    write("a", "b", "c")
    assert await checking.check() == {A: "created", B: "created", C: "created"}
    write("a", "c")
    checking.compare_next()
    assert await checking.check() == {B: "deleted"}
    assert "missed" not in checking.limits


async def test_a_list_until_the_present_may_get_earlier_changes(
    source: PullOnlySource, checking: Checking
):
    now = datetime.now(UTC)
    changes = [
        Resource(SITE + name, now - timedelta(seconds=10 - number), change=ChangeType.CREATED)
        for number, name in enumerate("ab")
    ]
    source.offered = ["changelist"]
    source.write()
    source.set("changelist.xml", Document(Capability.CHANGE_LIST, (changes[0],), until=now))
    assert await checking.check() == {A: "created"}
    later = now + timedelta(seconds=1)
    source.set("changelist.xml", Document(Capability.CHANGE_LIST, tuple(changes), until=later))
    assert await checking.check() == {B: "created"}


async def test_a_restored_source_without_a_resource_list_states_the_gap(
    source: PullOnlySource, checking: Checking
):
    source.offered = ["changelist"]
    source.put("a", at(1), HASH)
    source.put("a", at(5), OTHER_HASH)
    await checking.check()
    source.open = source.open[:1]
    source.write()
    assert await checking.check() == {A: "updated"}
    assert "may have been missed" in checking.limits


async def test_a_truncated_list_fails_the_check_and_deletes_nothing(
    site: Site, source: PullOnlySource, checking: Checking
):
    source.put("a", at(1))
    source.list_resources(at(1))
    await checking.check()
    whole = site.pages["/rs/changelist.xml"]
    site.pages["/rs/changelist.xml"] = whole[: len(whole) // 2]
    site.pages.pop("/rs/changelist-archive.xml")
    with pytest.raises(DocumentError, match=r"changelist\.xml"):
        await checking.check()
    assert set(checking.resources()) == {A}


async def test_pages_that_lead_in_a_circle_end_the_check(
    source: PullOnlySource, checking: Checking
):
    archive = Document(
        Capability.CHANGE_LIST_ARCHIVE,
        (Resource(source.url("changelist-archive.xml"), from_=at(0)),),
    )
    await checking.check()
    source.rotate(at(9))
    source.write()
    source.set("changelist-archive.xml", archive)
    await checking.check()
    assert "may have been missed" in checking.limits


async def test_without_a_resource_list_only_what_was_mentioned_is_known(
    source: PullOnlySource, checking: Checking
):
    source.offered = ["changelist"]
    source.put("a", at(1))
    assert await checking.check() == {A: "created"}
    assert "There is no Resource List" in checking.limits
    source.delete("a", at(2))
    assert await checking.check() == {A: "deleted"}


async def test_a_source_without_lists_of_changes_is_refused(
    source: PullOnlySource, checking: Checking
):
    source.offered = ["resourcelist"]
    source.write()
    with pytest.raises(ConfigurationError, match='type = "sitemap"'):
        await checking.check()


async def test_robots_txt_is_respected(site: Site, source: PullOnlySource, checking: Checking):
    site.pages["/robots.txt"] = b"User-agent: *\nDisallow: /rs/\n"
    with pytest.raises(Unavailable, match=r"robots\.txt"):
        await checking.check()
    assert site.requests["/rs/capabilitylist.xml"] == 0


@pytest.mark.parametrize("resource_list_every", [0.01, 3_600], ids=["new list", "old list"])
async def test_our_own_publisher_without_a_hub_is_followed(
    site: Site, tmp_path: Path, resource_list_every: float
):
    options = Options(refresh=0.01, resource_list_every=resource_list_every, rotate="2 changes")
    folder = tmp_path / "source"
    base = site.url("/own/")

    def serve(path: str) -> None:
        name = path.removeprefix("/own/")
        file = folder / "documents" / name
        if path.startswith("/own/") and file.is_file():
            site.pages[path] = file.read_bytes()

    site.before = serve
    with Publisher(folder, base, options=options) as publisher:
        for name in "abc":
            publisher.created(f"{base}{name}", content=name.encode())
        await publisher.await_published()
        settings = origin("resourcesync", base + "capabilitylist.xml")
        async with Checking(tmp_path / "state", settings) as checking:
            assert set(await checking.check()) == {f"{base}{name}" for name in "abc"}
            for number in range(5):
                publisher.updated(f"{base}a", content=str(number).encode())
            publisher.deleted(f"{base}b")
            async with asyncio.timeout(PATIENCE):
                while hashes(checking) != {f"{base}a": hash_of(b"4"), f"{base}c": hash_of(b"c")}:
                    await checking.watch.check()
            checking.changes_since_now()
            checking.compare_next()
            assert await checking.check() == {}


async def test_documents_of_the_resync_tools_are_followed(tmp_path: Path):
    folder = tmp_path / "site"
    folder.mkdir()
    with served(folder) as url:
        documents = ResyncSite(folder, url)
        for name in "abc":
            (documents.data / name).write_text(name)
        documents.offer("resourcelist", "changelist")
        first = tmp_path / "first.xml"
        first.write_bytes(documents.list_resources().read_bytes())
        documents.build("--write-changelist", "--empty", out="changelist.xml")
        settings = origin("resourcesync", documents.capability_list)
        async with Checking(tmp_path / "state", settings) as checking:
            created = await checking.check()
            assert {uri.rpartition("/")[2] for uri in created} == set("abc")
            (documents.data / "a").write_text("another")
            (documents.data / "b").unlink()
            (documents.data / "d").write_text("new")
            documents.list_changes(first)
            changes = {
                uri.rpartition("/")[2]: change for uri, change in (await checking.check()).items()
            }
            assert changes == {"a": "updated", "b": "deleted", "d": "created"}
            documents.list_resources()
            checking.compare_next()
            assert await checking.check() == {}


async def test_a_running_simulator_is_followed_to_an_equal_state(
    tmp_path: Path, unused_tcp_port: int
):
    base = f"http://127.0.0.1:{unused_tcp_port}"
    async with (
        simulator(tmp_path, unused_tcp_port) as simulated,
        Checking(tmp_path / "state", origin("resourcesync", base)) as checking,
        asyncio.timeout(PATIENCE),
    ):
        assert simulated.stdout is not None
        simulated.stdin.write(b"begin\n")
        done = asyncio.create_task(simulated.stdout.readline())
        while not done.done():
            # It has no Change List before the first change.
            with suppress(Unavailable):
                await checking.watch.check()
        # It may build its Resource List while a resource changes, and date it later than that.
        checking.compare_next()
        await checking.watch.check()
        async with ClientSession() as session, session.get(f"{base}/resourcelist.xml") as answer:
            listed = read_document(await answer.read())
        assert hashes(checking) == {one.uri: one.hash for one in listed.resources}
