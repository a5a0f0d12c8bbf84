"""Change Dumps: an entry for each change, and its content if that is available."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rsnotify.errors import StorageError
from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Capability, ChangeType, Document, Link, Rel, Resource
from rsnotify.format.reader import read_document
from rsnotify.format.writer import Profile
from rsnotify_publisher.documents.dump_packages import WrittenPackage
from rsnotify_publisher.source_contents import CapturedContent
from rsnotify_validation import validate
from tests.publisher.packed import BASE, UP, bitstreams, manifest, sha256, writer

START = datetime(2026, 11, 20, 12, tzinfo=UTC)
OPEN = Document(Capability.CHANGE_DUMP, from_=START)
STEM = "resourcesync/changedump-1"


def instant(seconds: float) -> Instant:
    return START + timedelta(seconds=seconds)


def change(
    name: str, at: float, content: bytes | None = b"", *, kind: ChangeType = ChangeType.UPDATED
) -> Resource:
    """Return a change as the journal returns it; a deletion if `content` is None."""
    uri = BASE + name
    if content is None:
        return Resource(uri, change=ChangeType.DELETED, datetime=instant(at))
    return Resource(
        uri, change=kind, datetime=instant(at), hash=sha256(content), length=len(content)
    )


def pack(
    folder: Path,
    changes: list[Resource],
    content: Callable[[Resource], bytes | Path | None],
    *,
    until: float = 1_000,
    **settings: Any,
) -> list[WrittenPackage]:
    return writer(folder, **settings).change_packages(STEM, START, instant(until), changes, content)


def manifests(folder: Path, packages: list[WrittenPackage]) -> list[Document]:
    return [manifest(folder, package) for package in packages]


def contents(folder: Path, packages: list[WrittenPackage]) -> list[tuple[str, bytes | None]]:
    """Return the name of each changed resource, and the content in its package."""
    pairs = [pair for package in packages for pair in bitstreams(folder, package)]
    return [(entry.uri.removeprefix(BASE), content) for entry, content in pairs]


def test_each_change_has_the_content_after_it(tmp_path: Path):
    changes = [
        change("a", 1, b"first", kind=ChangeType.CREATED),
        change("b", 2, b"b"),
        change("a", 3, b"second"),
        change("b", 4, None),
    ]
    versions = {changes[0]: b"first", changes[1]: b"b", changes[2]: b"second"}
    [package] = packages = pack(tmp_path, changes, versions.get)
    assert contents(tmp_path, packages) == [
        ("a", b"first"),
        ("b", b"b"),
        ("a", b"second"),
        ("b", None),
    ]
    [document] = manifests(tmp_path, packages)
    assert (document.capability, document.links) == ("changedump-manifest", (Link("up", UP),))
    assert (document.from_, document.until) == (START, instant(1_000))
    as_in_the_list = [
        replace(entry, path=None, lastmod=None, hash=reported.hash, length=reported.length)
        for entry, reported in zip(document.resources, changes, strict=True)
    ]
    assert as_in_the_list == changes
    assert [entry.lastmod for entry in document.resources] == [
        reported.datetime for reported in changes
    ]
    assert package.count == 4


def test_packages_join_without_a_gap(tmp_path: Path):
    changes = [change(str(number), number, b".") for number in range(1, 8)]
    packages = pack(tmp_path, changes, lambda change: b".", max_entries=3)
    intervals = [(package.entry.from_, package.entry.until) for package in packages]
    assert intervals == [
        (START, instant(3)),
        (instant(3), instant(6)),
        (instant(6), instant(1_000)),
    ]
    for document, interval in zip(manifests(tmp_path, packages), intervals, strict=True):
        assert (document.from_, document.until) == interval
        begin, end = interval
        for entry in document.resources:
            assert begin < entry.datetime <= end


def test_an_interval_without_changes_has_one_package(tmp_path: Path):
    [package] = pack(tmp_path, [], lambda change: None)
    assert package.count == 0
    assert (package.entry.from_, package.entry.until) == (START, instant(1_000))


def test_an_entry_whose_content_is_lost_keeps_its_metadata(tmp_path: Path):
    changes = [change("a", at, b"version %d" % at) for at in (1, 2, 3)]
    [package] = packages = pack(tmp_path, changes, lambda change: b"version 3")
    assert contents(tmp_path, packages) == [("a", None), ("a", None), ("a", b"version 3")]
    [document] = manifests(tmp_path, packages)
    assert [entry.hash for entry in document.resources] == [one.hash for one in changes]
    with zipfile.ZipFile(tmp_path / package.files[0]) as archive:
        assert len(archive.namelist()) == 2


def test_content_of_a_change_without_a_hash_is_not_packed(tmp_path: Path):
    changes = [replace(change("a", at), hash=None, length=None) for at in (1, 2)]
    packages = pack(tmp_path, changes, lambda change: b"newest")
    assert contents(tmp_path, packages) == [("a", None)] * 2


def test_a_file_that_changes_while_it_is_copied_has_no_path(tmp_path: Path):
    file, content = tmp_path / "a", b"1" * 300_000  # copied in two pieces
    file.write_bytes(content)
    checks = iter([False, True])

    def check() -> None:
        if next(checks, False):  # after the first piece was read
            file.write_bytes(b"2" * len(content))

    packages = pack(tmp_path, [change("a", 1, content)], lambda change: file, check=check)
    assert contents(tmp_path, packages) == [("a", None)]


def test_changes_of_deleted_resources_are_in_the_manifest(tmp_path: Path):
    changes = [change("a", 1, b"a"), change("b", 2, b"b"), change("a", 3, None)]
    packages = pack(tmp_path, changes, {changes[1]: b"b"}.get)
    assert contents(tmp_path, packages) == [("a", None), ("b", b"b"), ("a", None)]


def patched(patch: Link) -> Resource:
    return replace(change("a", 1, b"new"), links=(Link("via", BASE + "origin"), patch))


def links_in_package(tmp_path: Path, entry: Resource, contents: dict[str, bytes]) -> list[Link]:
    packages = pack(tmp_path, [entry], lambda entry: contents.get(entry.uri.removeprefix(BASE)))
    [document] = manifests(tmp_path, packages)
    with zipfile.ZipFile(tmp_path / packages[0].files[0]) as archive:
        for link in document.resources[0].links:
            if link.path is not None:
                content = archive.read(link.path.removeprefix("/"))
                assert (link.hash, link.length) == (sha256(content), len(content))
    return list(document.resources[0].links)


def test_a_patch_is_in_the_package(tmp_path: Path):
    patch = Link(Rel.PATCH, BASE + "a-1.diff", hash=sha256(b"+new"), type="text/x-diff")
    via, packed = links_in_package(tmp_path, patched(patch), {"a": b"new", "a-1.diff": b"+new"})
    assert via == Link("via", BASE + "origin")
    assert packed.path == "/changes/000002-a-1.diff"
    assert replace(packed, path=None, length=None) == patch


@pytest.mark.parametrize(
    "contents",
    [{"a": b"new"}, {"a": b"new", "a-1.diff": b"another"}, {"a": b"newer", "a-1.diff": b"+new"}],
    ids=["the patch is gone", "it is another", "the content is another"],
)
def test_an_unusable_patch_is_omitted(tmp_path: Path, contents: dict[str, bytes]):
    patch = Link(Rel.PATCH, BASE + "a-1.diff", hash=sha256(b"+new"), type="text/x-diff")
    assert links_in_package(tmp_path, patched(patch), contents) == [Link("via", BASE + "origin")]


def test_no_content_is_requested_for_an_inline_patch(tmp_path: Path):
    patch = Link(Rel.PATCH, "data:text/x-diff,+new", type="text/x-diff")
    requested: list[str] = []

    def content(entry: Resource) -> bytes:
        requested.append(entry.uri)
        return b"new"

    packages = pack(tmp_path, [patched(patch)], content)
    [document] = manifests(tmp_path, packages)
    assert document.resources[0].links == (Link("via", BASE + "origin"),)
    assert requested == [BASE + "a"]


def test_a_1_0_manifest_has_the_datetime_only_in_lastmod(tmp_path: Path):
    packages = pack(tmp_path, [change("a", 1)], lambda change: b"", profile=Profile.V1_0)
    [document] = manifests(tmp_path, packages)
    assert document.resources[0].datetime is None
    assert document.resources[0].lastmod == instant(1)


def test_an_open_dump_can_be_extended_and_closed(tmp_path: Path):
    dumps = writer(tmp_path)
    [one] = dumps.change_packages("p/1", START, instant(5), [], lambda change: None)
    dumps.write_document("changedump.xml", OPEN, [one.entry])
    [two] = dumps.change_packages("p/2", instant(5), instant(9), [], lambda change: None)
    before = read_document((tmp_path / "changedump.xml").read_bytes())
    assert (before.capability, before.from_, before.until) == ("changedump", START, None)
    closed = replace(OPEN, until=instant(9))
    dumps.write_document("changedump.xml", closed, [*before.resources, two.entry])
    after = read_document((tmp_path / "changedump.xml").read_bytes())
    assert (after.from_, after.until) == (START, instant(9))
    assert list(after.resources) == [one.entry, two.entry]


@pytest.mark.parametrize("closed", [False, True])
def test_only_the_last_part_of_an_indexed_dump_may_be_open(tmp_path: Path, closed: bool):
    changes = [change(str(number), number, b".") for number in range(1, 6)]
    packages = pack(tmp_path, changes, lambda change: b".", max_entries=1, until=5)
    until = instant(5) if closed else None
    entries = [package.entry for package in packages]
    head = replace(OPEN, until=until)
    parts = writer(tmp_path, max_entries=2).write_document("changedump.xml", head, entries)
    index = read_document((tmp_path / "changedump.xml").read_bytes())
    assert (index.index, index.from_, index.until) == (True, START, until)
    intervals = [(START, instant(2)), (instant(2), instant(4)), (instant(4), until)]
    assert [(entry.from_, entry.until) for entry in index.resources] == intervals
    documents = [read_document((tmp_path / name).read_bytes()) for name in parts]
    assert [(document.from_, document.until) for document in documents] == intervals
    assert {document.link("index") for document in documents} == {BASE + "changedump.xml"}


@pytest.mark.parametrize("profile", list(Profile))
@pytest.mark.parametrize("max_entries", [2, 50])
def test_all_documents_are_valid(tmp_path: Path, profile: Profile, max_entries: int):
    history = [("a", b"1"), ("gone", b"2"), ("a", None), ("b", b"3"), ("gone", None), ("b", b"4")]
    changes = [
        replace(change(name, at, content), type="text/plain" if content else None)
        for at, (name, content) in enumerate(history, 1)
    ]
    versions = {one: content for one, (_, content) in zip(changes, history, strict=True)}
    packages = pack(tmp_path, changes, versions.get, max_entries=1, profile=profile)
    assert [content for _, content in contents(tmp_path, packages)] == list(versions.values())
    entries = [package.entry for package in packages]
    writer(tmp_path, max_entries=max_entries).write_document("changedump.xml", OPEN, entries)
    for path in tmp_path.rglob("*.xml"):
        assert validate(path.read_bytes(), spec=profile) == []


def test_captured_content_survives_further_changes(tmp_path: Path):
    now: dict[str, bytes | Path] = {}
    captured = CapturedContent(tmp_path / "captured", now.get)
    changes = []
    for at, content in enumerate([b"first", b"second", b"third"], 1):
        (tmp_path / "a").write_bytes(content)
        now[BASE + "a"] = tmp_path / "a"
        changes.append(change("a", at, content))
        captured.keep(changes)
    del now[BASE + "a"]
    changes.append(change("a", 4, None))
    captured.keep(changes)
    packages = pack(tmp_path / "out", changes, captured.content)
    assert [content for _, content in contents(tmp_path / "out", packages)] == [
        b"first",
        b"second",
        b"third",
        None,
    ]


def test_captured_content_is_not_requested_again(tmp_path: Path):
    requested: list[str] = []

    def content(uri: str) -> bytes:
        requested.append(uri)
        return b"1"

    captured = CapturedContent(tmp_path / "captured", content)
    for _ in range(2):
        captured.keep([change("a", 1, b"1")])
    assert requested == [BASE + "a"]


def test_content_with_another_hash_than_the_change_is_not_captured(tmp_path: Path):
    now: dict[str, bytes | Path] = {}
    captured = CapturedContent(tmp_path / "captured", now.get)
    now[BASE + "a"] = b"newer"
    captured.keep([change("a", 1, b"older"), replace(change("a", 2, b"newer"), hash=None)])
    assert list((tmp_path / "captured").iterdir()) == []
    assert captured.content(change("a", 1, b"older")) is None


def test_damaged_content_is_not_used(tmp_path: Path):
    now: dict[str, bytes | Path] = {}
    captured = CapturedContent(tmp_path / "captured", now.get)
    now[BASE + "a"] = b"first"
    first = change("a", 1, b"first")
    captured.keep([first])
    [kept] = (tmp_path / "captured").iterdir()
    kept.write_bytes(b"\0\0\0\0\0")
    packages = pack(tmp_path / "out", [first], captured.content)
    assert contents(tmp_path / "out", packages) == [("a", None)]


def test_packed_content_is_deleted(tmp_path: Path):
    now: dict[str, bytes | Path] = {}
    captured = CapturedContent(tmp_path / "captured", now.get)
    changes = [change(str(at), at, b"%d" % at) for at in (1, 2, 3)]
    now |= {change.uri: b"%d" % at for at, change in enumerate(changes, 1)}
    captured.keep(changes)
    now.clear()
    captured.forget(instant(2))
    kept = [captured.content(change) for change in changes]
    assert [content is not None for content in kept] == [False, False, True]


def test_an_error_does_not_prevent_capturing_other_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    def content(uri: str) -> bytes:
        if uri.endswith("b"):
            raise StorageError("the database is away")
        return b"1"

    captured = CapturedContent(tmp_path / "captured", content)
    changes = [change(name, at, b"1") for at, name in enumerate("abc", 1)]
    captured.keep(changes)
    assert [captured.content(change) is not None for change in changes] == [True, False, True]
    assert "of 1 change could not be kept" in caplog.text


def test_nothing_is_deleted_if_nothing_was_captured(tmp_path: Path):
    CapturedContent(tmp_path / "never made", lambda uri: None).forget(instant(1))
