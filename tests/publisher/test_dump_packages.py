"""Resource Dumps: what is in a package, where a package ends, and what the documents list."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rsnotify.format.model import Capability, Document, Link, Resource
from rsnotify.format.reader import read_document
from rsnotify_validation import Finding, validate
from tests.publisher.packed import (
    AT,
    BASE,
    COMPLETED,
    STEM,
    UP,
    files,
    manifest,
    pack,
    sha256,
    unpacked,
    writer,
)

HEAD = Document(Capability.RESOURCE_DUMP, at=AT, completed=COMPLETED)


def faults(folder: Path) -> list[Finding]:
    return [finding for path in folder.rglob("*.xml") for finding in validate(path.read_bytes())]


def test_a_package_contains_every_resource_and_a_manifest(tmp_path: Path):
    (tmp_path / "b").write_bytes(b"of a file")
    contents = {"a.ttl": b"of the callback", "b": tmp_path / "b", "empty": b""}
    [package] = pack(tmp_path / "out", contents)
    assert unpacked(tmp_path / "out", [package]) == {
        BASE + "a.ttl": b"of the callback",
        BASE + "b": b"of a file",
        BASE + "empty": b"",
    }
    document = manifest(tmp_path / "out", package)
    assert document.capability == "resourcedump-manifest"
    assert (document.at, document.completed) == (AT, COMPLETED)
    assert document.links == (Link("up", UP),)


ABOUT = (Link("describedby", BASE + "about"), Link("collection", BASE + "all"))
PATCH = Link("http://www.openarchives.org/rs/terms/patch", BASE + "p", type="text/x-diff")
MD5 = hashlib.md5(b"1", usedforsecurity=False).hexdigest()
#: The Source's entry for a resource with the content `1`, and the entry in the manifest.
ENTRIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "metadata is kept": (
        {"lastmod": AT, "hash": sha256(b"1"), "length": 1, "type": "text/csv", "links": ABOUT},
        {"lastmod": AT, "type": "text/csv", "links": ABOUT, "path": "/resources/000001-a.csv"},
    ),
    "of the bytes in the package, and nobody knows when they became what they are": (
        {"lastmod": AT, "hash": sha256(b"older"), "length": 5},
        {"lastmod": None, "hash": sha256(b"1"), "length": 1},
    ),
    "the algorithms of the Source are kept": (
        {"lastmod": AT, "hash": f"md5:{MD5.upper()}"},
        {"lastmod": AT, "hash": f"{sha256(b'1')} md5:{MD5}"},
    ),
    "a hash that cannot be compared is no other": (
        {"lastmod": AT, "hash": "tiger:0123"},
        {"lastmod": AT, "hash": sha256(b"1")},
    ),
    "a patch is of a change": ({"links": (PATCH, *ABOUT)}, {"links": ABOUT}),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_describes_the_packed_content(tmp_path: Path, name: str):
    given, expected = ENTRIES[name]
    [package] = pack(tmp_path, {"a": b"1"}, resources=[Resource(BASE + "a", **given)])
    [entry] = manifest(tmp_path, package).resources
    assert {field: getattr(entry, field) for field in expected} == expected


def test_a_resource_without_content_is_omitted(tmp_path: Path):
    contents = {"a": b"1", "told": None, "untold": tmp_path / "removed", "z": b"26"}
    packages = pack(tmp_path, contents)
    assert unpacked(tmp_path, packages) == {BASE + "a": b"1", BASE + "z": b"26"}


def test_a_file_that_grows_while_it_is_read_is_packed_up_to_its_initial_size(tmp_path: Path):
    growing = tmp_path / "log"
    growing.write_bytes(b"")

    def grow() -> None:
        with growing.open("ab") as file:
            file.write(b"x" * 300_000)

    out = tmp_path / "out"
    assert unpacked(out, pack(out, {"log": growing}, check=grow)) == {BASE + "log": b"x" * 300_000}
    assert growing.stat().st_size > 300_000


def test_a_file_that_shrinks_while_it_is_read_is_packed_up_to_that_point(tmp_path: Path):
    shrinking = tmp_path / "log"
    shrinking.write_bytes(b"x" * 1_000_000)
    calls = iter(range(1_000))

    def shrink() -> None:
        if next(calls) == 1:  # the first piece has been read
            os.truncate(shrinking, 0)

    out = tmp_path / "out"
    [content] = unpacked(out, pack(out, {"log": shrinking}, check=shrink)).values()
    assert 0 < len(content) < 1_000_000


def test_packages_are_split_by_number(tmp_path: Path):
    packages = pack(tmp_path, {str(number): b"." for number in range(7)}, max_entries=3)
    assert [package.count for package in packages] == [3, 3, 1]
    assert len(unpacked(tmp_path, packages)) == 7


def test_packages_are_split_by_size_and_a_large_resource_has_its_own(tmp_path: Path):
    sizes = [4, 4, 4, 25, 0, 10, 1]
    contents = {str(number): b"." * size for number, size in enumerate(sizes)}
    packages = pack(tmp_path, contents, max_content=10)
    assert [package.count for package in packages] == [2, 1, 1, 2, 1]
    assert unpacked(tmp_path, packages) == {BASE + name: c for name, c in contents.items()}


def test_an_empty_set_has_one_empty_package(tmp_path: Path):
    [package] = pack(tmp_path, {})
    assert package.count == 0
    assert unpacked(tmp_path, [package]) == {}


def test_the_dump_describes_its_packages(tmp_path: Path):
    packages = pack(tmp_path, {"a": b"1", "b": b"2"}, max_entries=1)
    archives = Link("archives", BASE + "resourcedump-archive.xml")
    entries = [package.entry for package in packages]
    head = replace(HEAD, links=(archives,))
    parts = writer(tmp_path).write_document("resourcedump.xml", head, entries)
    assert parts == []
    document = read_document((tmp_path / "resourcedump.xml").read_bytes())
    assert (document.capability, document.index) == ("resourcedump", False)
    assert (document.at, document.completed) == (AT, COMPLETED)
    assert document.links == (Link("up", UP), archives)
    assert list(document.resources) == entries
    for entry, package in zip(document.resources, packages, strict=True):
        name, copy = package.files
        content = (tmp_path / name).read_bytes()
        assert entry.uri == BASE + name
        assert (entry.type, entry.length) == ("application/zip", len(content))
        assert (entry.at, entry.completed) == (AT, COMPLETED)
        assert entry.hash == sha256(content)
        assert entry.links == (Link("contents", BASE + copy, type="application/xml"),)


def test_too_many_packages_for_one_document_get_an_index(tmp_path: Path):
    packages = pack(tmp_path, {str(number): b"." for number in range(7)}, max_entries=1)
    entries = [package.entry for package in packages]
    parts = writer(tmp_path, max_entries=3).write_document("resourcedump.xml", HEAD, entries)
    index = read_document((tmp_path / "resourcedump.xml").read_bytes())
    assert (index.capability, index.index) == ("resourcedump", True)
    assert [entry.uri for entry in index.resources] == [BASE + name for name in parts]
    assert {(entry.at, entry.completed) for entry in index.resources} == {(AT, COMPLETED)}
    documents = [read_document((tmp_path / name).read_bytes()) for name in parts]
    assert [len(document.resources) for document in documents] == [3, 3, 1]
    assert [entry for document in documents for entry in document.resources] == entries
    for document in documents:
        assert (document.capability, document.index) == ("resourcedump", False)
        assert document.links == (Link("up", UP), Link("index", BASE + "resourcedump.xml"))


@pytest.mark.parametrize("max_entries", [2, 50])
def test_all_documents_are_valid(tmp_path: Path, max_entries: int):
    contents = {"a.ttl": b"1", "b": b"2", "gone": None, "c": b"3"}
    resources = [Resource(BASE + name, type="text/turtle") for name in contents]
    packages = pack(tmp_path, contents, resources=resources, max_entries=1)
    writer(tmp_path, max_entries=max_entries).write_document(
        "resourcedump.xml", HEAD, [package.entry for package in packages]
    )
    assert len(list(tmp_path.rglob("*.xml"))) > 3
    assert faults(tmp_path) == []


class Stop(Exception):
    pass


@pytest.mark.parametrize("calls", [1, 3, 5, 8, 13])
def test_a_stopped_dump_leaves_no_files_behind(tmp_path: Path, calls: int):
    (tmp_path / "large").write_bytes(b"x" * 1_000_000)
    left = [calls]

    def check() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Stop

    contents = {"a": b"1", "b": tmp_path / "large", "c": b"3", "d": tmp_path / "large"}
    with pytest.raises(Stop):
        pack(tmp_path / "out", contents, check=check, max_entries=1)
    assert files(tmp_path / "out") == []


def test_an_unreadable_set_leaves_no_files_behind(tmp_path: Path):
    def failing() -> Iterator[Resource]:
        yield Resource(BASE + "a")
        yield Resource(BASE + "b")
        raise Stop

    with pytest.raises(Stop):
        writer(tmp_path, max_entries=1).resource_packages(
            STEM, AT, failing(), lambda resource: b"1", now=lambda: AT
        )
    assert files(tmp_path) == []


def test_unreadable_content_aborts_the_dump(tmp_path: Path):
    with pytest.raises(IsADirectoryError):
        pack(tmp_path / "out", {"a": b"1", "b": tmp_path})
    assert files(tmp_path / "out") == []


def test_readers_see_only_complete_packages(tmp_path: Path):
    seen: list[list[str]] = []

    def read_documents() -> None:
        seen.append([name for name in files(tmp_path) if not Path(name).name.startswith(".")])

    pack(tmp_path, {"a": b"1", "b": b"2"}, check=read_documents)
    assert seen
    assert not any(seen)


# The packages as ZIP files: how members are stored and named, and which programs can read them.


def test_large_content_is_stored_as_zip64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 1_000)  # bytes; writing 2 GiB takes too long
    content = os.urandom(2_000)
    (tmp_path / "large").write_bytes(content)
    packages = pack(tmp_path, {"large": tmp_path / "large"})
    assert unpacked(tmp_path, packages) == {BASE + "large": content}


def test_equal_contents_result_in_equal_packages(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"1")
    first = pack(tmp_path / "1", {"a": tmp_path / "a", "b": b"2"})
    (tmp_path / "a").touch()
    second = pack(tmp_path / "2", {"a": tmp_path / "a", "b": b"2"})
    assert first == second


def test_members_are_regular_files_dated_with_the_snapshot(tmp_path: Path):
    [package] = pack(tmp_path, {"a": b"1"})
    with zipfile.ZipFile(tmp_path / package.files[0]) as zip:
        for info in zip.infolist():
            assert datetime(*info.date_time, tzinfo=UTC) == AT.replace(second=0)
            assert info.external_attr >> 16 == 0o100644


@pytest.mark.parametrize("year", [1970, 2200])
def test_a_year_that_zip_cannot_store_is_no_error(tmp_path: Path, year: int):
    at = AT.replace(year=year)
    packages = writer(tmp_path).resource_packages(
        STEM, at, [Resource(BASE + "a")], lambda resource: b"1", now=lambda: at
    )
    assert unpacked(tmp_path, packages) == {BASE + "a": b"1"}


def test_compressed_content_is_stored_without_compression(tmp_path: Path):
    text = b"as it was " * 100
    resources = [
        Resource(BASE + "a", type="image/jpeg"),
        Resource(BASE + "b", type="text/plain", encoding="gzip"),
        Resource(BASE + "c", type="text/plain; charset=utf-8"),
        Resource(BASE + "d"),
        Resource(BASE + "e", type="application/epub+zip"),
        Resource(BASE + "f", type="image/svg+xml", encoding="identity"),
    ]
    [package] = pack(tmp_path, dict.fromkeys("abcdef", text), resources=resources)
    with zipfile.ZipFile(tmp_path / package.files[0]) as zip:
        stored = {
            info.filename[-1] if "." not in info.filename else info.filename[17]
            for info in zip.infolist()
            if info.compress_type == zipfile.ZIP_STORED
        }
    assert stored == {"a", "b", "e"}


@pytest.mark.parametrize(
    ("uri", "kind", "path"),
    [
        ("http://x/dir/res1.ttl", None, "000001-res1.ttl"),
        ("http://x/res1", "text/html; charset=utf-8", "000001-res1.html"),
        ("http://x/res1", "Text/Turtle", "000001-res1.ttl"),
        ("http://x/res1", "application/xml", "000001-res1.xml"),
        ("http://x/", None, "000001"),
        ("http://x/?q=1", "application/json", "000001.json"),
        ("http://x/..", None, "000001-_"),
        ("http://x/%2E%2E%2F%2E%2E%2Fetc%2Fpasswd", None, "000001-_etc_passwd"),
        ("http://x/con:aux|%00%0a.txt.", None, "000001-con_aux_.txt"),
        ("http://x/" + "%C3%A4" * 1_000 + ".nt", None, "000001-_.nt"),
        ("http://x/" + "long" * 2_000 + ".nt", None, "000001-" + ("long" * 25 + ".nt")[-100:]),
        ("http://[x/a", None, "000001-a"),
        ("urn:isbn:0-486-27557-4", None, "000001-urn_isbn_0-486-27557-4"),
    ],
)
def test_paths_are_safe_on_any_system(tmp_path: Path, uri: str, kind: str | None, path: str):
    [package] = writer(tmp_path).resource_packages(
        STEM, AT, [Resource(uri, type=kind)], lambda resource: b"1", now=lambda: AT
    )
    [entry] = manifest(tmp_path, package).resources
    assert (entry.uri, entry.path) == (uri, "/resources/" + path)


@pytest.mark.parametrize(
    "command", [["unzip", "-tq"], [sys.executable, "-m", "zipfile", "-t"]], ids=["unzip", "python"]
)
def test_other_programs_accept_the_packages(tmp_path: Path, command: list[str]):
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    contents = {f"{number}.ttl": b"<a> <b> <c> .\n" * number for number in range(20)}
    for package in pack(tmp_path, contents, max_entries=8):
        done = subprocess.run(
            [*command, str(tmp_path / package.files[0])], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
