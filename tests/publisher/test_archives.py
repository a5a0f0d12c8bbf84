"""Closed documents: how indexes and archives list them, and when they are dropped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError
from rsnotify_publisher import FinishedDocument, Options, Publisher
from rsnotify_publisher.documents.archives import Archives
from rsnotify_publisher.files import write_atomically
from rsnotify_publisher.journal import Journal, Recorder
from rsnotify_publisher.rotation_and_retention import (
    MinimumOpen,
    RetentionPolicy,
    RotationPolicy,
    parse_retention,
    parse_rotation,
)
from tests.ports import free_port
from tests.publisher.helpers import BASE, eventually
from tests.publisher.published import QUIET, Published, join, names, recorded, uris


def test_an_open_period_larger_than_a_document_gets_an_index(tmp_path: Path):
    with Published(tmp_path, rotate="1000 changes", max_entries=10) as source:
        source.update(*range(35))
    top = source.read("changelist.xml")
    assert top.index
    assert (top.capability, top.until) == ("changelist", None)
    assert top.link("up") == BASE + "capabilitylist.xml"
    assert top.link("archives") == BASE + "changelist-archive.xml"
    *closed, opened = source.parts("changelist.xml")
    assert len(closed) == 3
    join([*closed, opened])
    assert opened.until is None
    assert names([*closed, opened]) == [str(number) for number in range(35)]
    assert {part.link("index") for part in [*closed, opened]} == {BASE + "changelist.xml"}
    for entry, part in zip(top.resources, [*closed, opened], strict=True):
        assert (entry.from_, entry.until) == (part.from_, part.until)
    assert top.from_ == closed[0].from_
    assert source.read("channel.xml") == opened
    assert source.read("changelist-archive.xml").resources == ()


def test_an_open_period_with_too_many_bytes_gets_an_index(tmp_path: Path):
    with Published(tmp_path, rotate="1000 changes", max_bytes=4_000) as source:
        source.update(*range(40))
    assert source.read("changelist.xml").index
    assert names(source.parts("changelist.xml")) == [str(number) for number in range(40)]
    sizes = [path.stat().st_size for path in (source.folder / "resourcesync").glob("changelist-*")]
    assert len(sizes) > 3
    assert max(sizes) <= 4_000


def test_parts_of_an_index_move_to_the_archive_unchanged(tmp_path: Path):
    with Published(tmp_path, rotate="40 changes", max_entries=10) as source:
        source.update(*range(35))
        source.wait_written()
        top = source.read("changelist.xml")
        assert (top.index, len(top.resources)) == (True, 4)
        first = source.folder / top.resources[0].uri.removeprefix(BASE)
        before = first.stat()
        source.update(*range(35, 62))
    archive = source.read("changelist-archive.xml")
    top = source.read("changelist.xml")
    assert archive.resources
    assert archive.resources[0].uri.endswith(first.name)
    assert (first.stat().st_ino, first.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    everything = [source.read(entry.uri) for entry in archive.resources]
    everything += source.parts("changelist.xml")
    join(everything)
    assert names(everything) == [str(number) for number in range(62)]
    assert sum(len(part.resources) for part in source.parts("changelist.xml")) >= 20
    assert top.from_ == archive.resources[-1].until


def test_an_open_period_may_shrink_to_one_document(tmp_path: Path):
    with Published(tmp_path, rotate="30 changes or 1 h", max_entries=10) as source:
        source.update(*range(15))
        eventually(lambda: source.read("changelist.xml").index)
        source.clock.pass_seconds(3_601)
        source.update("new")
        eventually(lambda: not source.read("changelist.xml").index)
    assert source.read("changelist.xml").resources[-1].uri == BASE + "new"
    # Clients that poll the open part find the open list there.
    assert source.read("resourcesync/changelist-open.xml") == source.read("changelist.xml")


def test_changes_are_closed_by_age(tmp_path: Path):
    with Published(tmp_path, rotate="1 h") as source:
        source.update("a", "b")
        source.clock.pass_seconds(2_400)
        source.update("c")
        source.clock.pass_seconds(1_300)
        eventually(lambda: bool(source.read("changelist-archive.xml").resources))
    closed = source.read("changelist-archive.xml").resources
    assert [names([source.read(entry.uri)]) for entry in closed] == [["a", "b"]]
    assert names([source.read("changelist.xml")]) == ["c"]


def test_closed_lists_are_offered_and_deleted_on_time(tmp_path: Path):
    source = Published(
        tmp_path, rotate="4 changes", keep="1 h", linger=600, resource_list_every=0.05
    )

    def archived() -> list[str]:
        return uris(source.read("changelist-archive.xml"))

    with source:
        source.update(*range(8))
        eventually(lambda: bool(archived()))
        closed = archived()
        source.clock.pass_seconds(3_500)
        source.update("x")
        eventually(lambda: "x" in names([source.read("changelist.xml")]))
        assert archived()[: len(closed)] == closed
        source.clock.pass_seconds(200)
        source.update("y")
        eventually(lambda: not set(closed) & set(archived()))
        eventually(lambda: not source.keeps(closed))
        assert all(source.has(uri) for uri in closed)
        source.clock.pass_seconds(601)
        eventually(lambda: not any(source.has(uri) for uri in closed))


def test_old_changes_leave_the_open_list_even_if_there_are_few(tmp_path: Path):
    with Published(tmp_path, keep="1 h", linger=0, resource_list_every=0.05) as source:
        source.update("a")
        eventually(lambda: names([source.read("changelist.xml")]) == ["a"])
        source.clock.pass_seconds(3_700)
        eventually(lambda: names([source.read("changelist.xml")]) == [])
        eventually(lambda: not source.read("changelist-archive.xml").resources)
        source.update("b")
    assert names([source.read("changelist.xml")]) == ["b"]


def test_changes_since_the_baseline_are_not_dropped(tmp_path: Path):
    # The Resource List stays as it was at the start, so each later change is needed.
    with Published(tmp_path, rotate="4 changes", keep="1 list", refresh=0.01) as source:
        source.update(*range(40))
        source.clock.pass_seconds(10)
    archive = source.read("changelist-archive.xml").resources
    at = source.read("resourcelist.xml").at
    assert len(archive) > 3
    assert archive[0].from_ <= at


def test_changes_are_not_kept_forever_for_an_unreachable_hub(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    options = replace(QUIET, rotate="4 changes", keep="1 list", resource_list_every=0.05)
    hub = f"http://127.0.0.1:{free_port()}/"
    with Publisher(tmp_path, BASE, options=options, hubs=[hub]) as publisher:
        for number in range(40):
            publisher.updated(f"{BASE}{number}")
        eventually(lambda: "will have a gap" in caplog.text)
        assert caplog.text.count("will have a gap") == 1

        eventually(lambda: len(recorded(publisher)) < 20)


@pytest.mark.parametrize("max_entries", [50_000, 2])
def test_former_resource_lists_are_archived(tmp_path: Path, max_entries: int):
    with Published(
        tmp_path, resource_list_archive=True, max_entries=max_entries, resource_list_every=0.05
    ) as source:
        seen = []
        for number in range(3):
            source.update(f"{number}a", f"{number}b")
            source.wait_listed()
            assert f"{number}b" in names(source.parts("resourcelist.xml"))
            seen.append(source.read("resourcelist.xml"))
        eventually(lambda: len(source.read("resourcelist-archive.xml").resources) >= 2)
    assert source.offered()["resourcelist-archive"] == "resourcelist-archive.xml"
    assert seen[0].link("archives") == BASE + "resourcelist-archive.xml"
    former = [
        entry for part in source.parts("resourcelist-archive.xml") for entry in part.resources
    ]
    assert [entry.at for entry in former] == sorted(entry.at for entry in former if entry.at)
    lists = {entry.at: source.read(entry.uri) for entry in former}
    assert lists[seen[0].at] == seen[0]
    assert all(lists[entry.at].completed == entry.completed for entry in former)
    assert seen[-1].at not in lists, "the live one is no former one"
    for entry in former:
        for part in source.parts(entry.uri):
            assert part.capability == "resourcelist"
            assert part.link("index") in (None, entry.uri)


def test_an_archive_larger_than_a_document_gets_an_index(tmp_path: Path):
    with Published(tmp_path, rotate="2 changes", max_entries=5) as source:
        source.update(*range(30))
    top = source.read("changelist-archive.xml")
    assert top.index
    assert top.capability == "changelist-archive"
    assert top.link("up") == BASE + "capabilitylist.xml"
    parts = source.parts("changelist-archive.xml")
    assert len(parts) > 1
    assert {part.link("index") for part in parts} == {BASE + "changelist-archive.xml"}
    assert {part.capability for part in parts} == {"changelist-archive"}
    lists = [source.read(entry.uri) for part in parts for entry in part.resources]
    join([*lists, source.read("changelist.xml")])
    assert names([*lists, source.read("changelist.xml")]) == [str(n) for n in range(30)]


@pytest.mark.parametrize("max_entries", [10, 50_000])
def test_readers_never_find_a_gap_between_list_and_archive(tmp_path: Path, max_entries: int):
    source = Published(tmp_path, rotate="60 changes", max_entries=max_entries, refresh=0.001)
    gaps: list[object] = []
    done = threading.Event()

    def read_documents() -> None:
        while not done.is_set():
            top = source.read("changelist.xml")
            archive = source.parts("changelist-archive.xml")
            covered = {entry.until for part in archive for entry in part.resources} | {origin}
            if top.from_ not in covered:
                gaps.append(top.from_)
            if top.index:
                last = source.read(top.resources[-1].uri)
                # The next version of the index shows what has just left the open part.
                again = source.read("changelist.xml")
                reported = again.resources[-1].from_ if again.index else again.from_
                if last.from_ > reported:
                    gaps.append((last.from_, reported))

    with source:
        origin = source.read("changelist.xml").from_
        reading = threading.Thread(target=read_documents)
        reading.start()
        source.update(*range(400))
        done.set()
        reading.join()
    assert gaps == []
    assert source.read("changelist-archive.xml").index == (max_entries == 10)
    assert len(names(source.parts("changelist-archive.xml"))) > 3


def test_long_documents_may_be_compressed(tmp_path: Path):
    with Published(
        tmp_path, gzip=True, rotate="10 changes", max_entries=12, resource_list_every=0.05
    ) as source:
        source.update(*(f"{number:02}" for number in range(20)))
        eventually(lambda: len(names(source.parts("resourcelist.xml"))) == 20)
    archive = source.read("changelist-archive.xml")
    parts = source.read("resourcelist.xml")
    assert all(entry.uri.endswith(".xml.gz") for entry in archive.resources)
    assert all(entry.uri.endswith(".xml.gz") for entry in parts.resources)
    assert len(archive.resources) > 1
    assert len(parts.resources) == 2
    closed = [source.read(entry.uri) for entry in archive.resources]
    assert names([*closed, source.read("changelist.xml")]) == [f"{n:02}" for n in range(20)]
    assert {part.link("up") for part in closed} == {BASE + "capabilitylist.xml"}


def test_the_profile_1_0_has_the_datetime_of_changes_only_in_lastmod(tmp_path: Path):
    with Published(tmp_path, profile="1.0", rotate="4 changes") as source:
        change = source.publisher.updated(BASE + "a", lastmod=datetime(2013, 1, 3, tzinfo=UTC))
        source.update(*range(5))
    archived = source.read("changelist-archive.xml").resources
    entries = [entry for item in archived for entry in source.read(item.uri).resources]
    entries += source.read("changelist.xml").resources
    assert [entry.datetime for entry in entries] == [None] * 6
    assert entries[0].lastmod == change.datetime


def test_disabled_documents_are_not_offered(tmp_path: Path):
    with Published(tmp_path) as source:
        pass
    # The channel is not offered either, since there is no hub, but its document exists.
    assert set(source.offered()) == {"resourcelist", "changelist", "changelist-archive"}
    assert source.has("channel.xml")
    assert source.read("resourcelist.xml").link("archives") is None


def test_a_disabled_archive_is_removed(tmp_path: Path):
    with Published(
        tmp_path, resource_list_archive=True, resource_list_every=0.05, linger=0
    ) as source:
        source.update("a")
        eventually(lambda: bool(source.read("resourcelist-archive.xml").resources))
    with Published(tmp_path, linger=0) as without:
        dated = source.folder / "resourcesync"
        eventually(lambda: not list(dated.glob("resourcelist-*")))
    assert not without.has("resourcelist-archive.xml")
    assert "resourcelist-archive" not in without.offered()


def test_temporary_files_from_a_crash_are_deleted_at_once(tmp_path: Path):
    source = Published(tmp_path)
    names = [".resourcelist.xml.1-1.tmp", "resourcesync/.changedump-1.zip.1-1.tmp"]
    for name in (*names, ".well-known/.resourcesync.1-1.tmp"):
        (source.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (source.folder / name).write_text("half")
    with source:
        assert not list(source.folder.rglob(".*.tmp"))


def test_a_file_being_deleted_is_rewritten_only_afterwards(tmp_path: Path):
    name = "resourcesync/changedump-20200101T000000000000Z.xml"
    source = Published(tmp_path).publisher.source
    recorder = Recorder(source.open_journal, lambda _: None, ThreadPoolExecutor(1))
    recorder.start()
    archives = Archives(source, recorder)

    def rewrite() -> None:
        archives.reclaim(name)
        write_atomically(source.documents_folder / name, [b"new"])

    writing = threading.Thread(target=rewrite)

    class Slow(Journal):
        def discarded(self, before: int) -> list[str]:
            found = super().discarded(before)
            writing.start()
            writing.join(0.1)  # not enough, because `reclaim` waits for the lock
            return found

    with Slow(source.folder / "journal.sqlite3", BASE) as journal:
        with journal.transaction():
            journal.discard([name])
        archives.delete_discarded(journal, source.clock() + 10**9)
    writing.join()
    recorder.close()
    assert (source.documents_folder / name).exists()


def test_files_from_a_crash_are_deleted_later(tmp_path: Path):
    source = Published(tmp_path)
    lost = (
        source.folder / "resourcesync/changelist-20200101T000000000000Z-20200102T000000000000Z.xml"
    )
    lost.parent.mkdir(parents=True)
    lost.write_text("half")
    with source:
        assert lost.exists()
        source.clock.pass_seconds(601)
        eventually(lambda: not lost.exists())


# Policies: when changes are closed, and how long closed documents are kept.


SECOND = 1_000_000
HOUR = 3_600 * SECOND
DAY = 24 * HOUR


def volumes(*ends: int, size: int = 100) -> list[FinishedDocument]:
    return [FinishedDocument("changelist", end - 1, end, 1, size, (f"{end}.xml",)) for end in ends]


@pytest.mark.parametrize(
    ("parse", "text", "meant"),
    [
        (parse_rotation, "500 changes or 1 h", RotationPolicy(changes=500, age=HOUR)),
        (
            parse_rotation,
            "10,000 changes or 25 MB",
            RotationPolicy(changes=10_000, size=25 * 10**6),
        ),
        (parse_rotation, "1 h", RotationPolicy(age=HOUR)),
        (parse_rotation, "1.5kB", RotationPolicy(size=1_500)),
        (
            parse_rotation,
            "90 s, 1_000 changes, 2 GB",
            RotationPolicy(1_000, 2 * 10**9, 90 * SECOND),
        ),
        (parse_rotation, "15 MIN and 1 change", RotationPolicy(changes=1, age=HOUR // 4)),
        (parse_retention, "30 days, 1000 lists, 2 GB", RetentionPolicy(30 * DAY, 1_000, 2 * 10**9)),
        (parse_retention, "2 GB, 30d", RetentionPolicy(age=30 * DAY, size=2 * 10**9)),
        (parse_retention, "4 weeks", RetentionPolicy(age=28 * DAY)),
        (parse_retention, "4 dumps", RetentionPolicy(count=4)),
        (parse_retention, "1 TB or 3 documents", RetentionPolicy(count=3, size=10**12)),
    ],
)
def test_policies_are_parsed(parse: Callable[[str], object], text: str, meant: object):
    assert parse(text) == meant


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "'' is not a count, time or size"),
        ("always", "'always' is not a count"),
        ("30 days, ", "'30 days,' is not a count"),
        ("30 moons", "'30 moons' is not a count"),
        ("-3 days", "'-3 days' is not a count"),
        ("3 days, 2 weeks", "'2 weeks' is a second age"),
        ("3 lists, 0 MB", "'0 MB' is not above 0"),
        ("30 days 1000 lists", "is not a count"),
    ],
)
def test_invalid_policies_are_refused_with_an_example(text: str, complaint: str):
    with pytest.raises(ConfigurationError) as raised:
        parse_retention(text)
    assert complaint in str(raised.value)
    assert 'write it like "30 days, 1000 lists, 2 GB"' in str(raised.value)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (Options(rotate="often"), "rotate is 'often'"),
        (Options(keep="for ever"), "keep is 'for ever'"),
        (Options(profile="2.0"), "profile '2.0' is unknown; use 1.1 or 1.0"),
        (Options(change_dump=True), "require the callback `content`"),
        (Options(resource_dump_every=60), "require the callback `content`"),
        (Options(resource_dump_archive=True), "resource_dump_archive requires resource_dump_every"),
        (Options(change_dump_archive=True), "change_dump_archive requires change_dump"),
        (Options(views=("atom",)), "views: the view 'atom' is not installed"),
        (Options(max_entries=50_001), "max_entries"),
        (Options(max_bytes=50_000_001), "max_bytes"),
        (Options(heartbeat=0), "heartbeat"),
    ],
)
def test_invalid_options_are_refused(options: Options, complaint: str):
    with pytest.raises(ConfigurationError, match=complaint):
        Publisher("never-made", BASE, options=options)


@pytest.mark.parametrize(
    ("policy", "kept", "expired"),
    [
        (RetentionPolicy(count=2), (1, 2, 3, 4), [1, 2]),
        (RetentionPolicy(count=9), (1, 2), []),
        (RetentionPolicy(size=250), (1, 2, 3, 4), [1, 2]),
        (RetentionPolicy(size=99), (1, 2), [1, 2]),
        (RetentionPolicy(age=10), (80, 90, 91, 99), [80, 90]),
        # Documents within the age stay, regardless of count and size.
        (RetentionPolicy(age=10, count=1, size=100), (80, 91, 95, 99), [80]),
        (RetentionPolicy(age=10, count=5), (1, 2, 3), []),
    ],
)
def test_the_oldest_documents_expire(
    policy: RetentionPolicy, kept: tuple[int, ...], expired: list[int]
):
    assert [volume.end for volume in policy.expired(volumes(*kept), now=100)] == expired


@given(
    st.lists(st.integers(1, 100), unique=True).map(sorted),
    st.builds(
        RetentionPolicy,
        st.none() | st.integers(1, 120),
        st.none() | st.integers(1, 9),
        st.none() | st.integers(1, 900),
    ),
)
def test_a_destination_offline_for_less_than_the_age_misses_nothing(
    at: list[int], policy: RetentionPolicy
):
    kept = volumes(*at)
    gone = policy.expired(kept, now=100)
    assert gone == kept[: len(gone)], "only the oldest go"
    if policy.age is not None:
        assert all(volume.end <= 100 - policy.age for volume in gone)


@pytest.mark.parametrize(
    ("changes", "size", "oldest", "now", "stays"),
    [
        (9, 999, 1, HOUR, None),
        (0, 0, 0, 10 * HOUR, None),
        (10, 0, 1, HOUR, MinimumOpen(5, None, None)),
        (1, 1_200, 1, HOUR, MinimumOpen(None, 500, None)),
        (1, 0, 0, HOUR, MinimumOpen(None, None, HOUR // 2)),
        (10, 1_000, 0, HOUR, MinimumOpen(5, 500, HOUR // 2)),
    ],
)
def test_half_of_the_reached_limit_stays_open(
    changes: int, size: int, oldest: int, now: int, stays: MinimumOpen | None
):
    policy = RotationPolicy(changes=10, size=1_000, age=HOUR)
    assert policy.minimum_open(changes, size, oldest=oldest, now=now) == stays


def test_one_reached_limit_is_enough_to_close():
    floor = MinimumOpen(changes=5, size=None, since=50)
    assert floor.allows(changes=5, size=0, last_closed=99)
    assert floor.allows(changes=0, size=0, last_closed=50)
    assert not floor.allows(changes=4, size=10**9, last_closed=51)
