"""Properties of dumps: packages contain exactly what was packed, however it is split."""

from __future__ import annotations

import tempfile
import tracemalloc
import zipfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from rsnotify.format.model import ChangeType, Resource
from rsnotify_publisher.documents.dump_packages import WrittenPackage
from tests.publisher.packed import AT, BASE, bitstreams, sha256, writer

_NAMES = st.text(st.sampled_from("aB.~/%2E2F?#=&;:@!$'()*+,[]-_Ω\\\"<>|"), min_size=1, max_size=30)
URIS = _NAMES.map(lambda name: BASE + name)
TYPES = st.none() | st.sampled_from(["text/turtle", "image/png", "text/html; charset=x", "x/y", ""])
BOUNDS = st.fixed_dictionaries(
    {"max_entries": st.integers(1, 5), "max_content": st.integers(1, 60)}
)
CONTENTS = st.binary(max_size=40)


def read(
    folder: Path, packages: list[WrittenPackage], bounds: dict[str, int]
) -> list[tuple[Resource, bytes | None]]:
    """Check names and limits, and return the entries of the manifests with their bitstreams."""
    for package in packages:
        with zipfile.ZipFile(folder / package.files[0]) as archive:
            names = archive.namelist()
            sizes = sum(info.file_size for info in archive.infolist()[:-1])
        assert len(set(map(str.casefold, names))) == len(names)
        assert all(len(name) <= 200 and ".." not in name for name in names)
        assert package.count <= bounds["max_entries"]
        assert sizes <= bounds["max_content"] or package.count == 1
    return [pair for package in packages for pair in bitstreams(folder, package)]


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(URIS, st.tuples(CONTENTS, TYPES, st.booleans()), max_size=12), BOUNDS)
def test_a_resource_dump_contains_the_set(
    resources: dict[str, tuple[bytes, str | None, bool]], bounds: dict[str, int]
):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files: dict[str, bytes | Path] = {}
        for number, (uri, (content, _, as_file)) in enumerate(resources.items()):
            files[uri] = content
            if as_file:
                path = folder / f"file-{number}"
                path.write_bytes(content)
                files[uri] = path
        packages = writer(folder, **bounds).resource_packages(
            "dump",
            AT,
            [Resource(uri, type=kind) for uri, (_, kind, _) in resources.items()],
            lambda resource: files[resource.uri],
            now=lambda: AT,
        )
        found = read(folder, packages, bounds)
        assert [(entry.uri, content) for entry, content in found] == [
            (uri, content) for uri, (content, _, _) in resources.items()
        ]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(URIS.map(lambda uri: uri[:29]), st.none() | CONTENTS)), BOUNDS)
def test_a_change_dump_has_every_change_and_no_bitstream_of_another(
    history: list[tuple[str, bytes | None]], bounds: dict[str, int]
):
    """Only the newest content is available, as if nothing was captured."""
    now = dict(history)
    changes = [
        Resource(
            uri,
            change=ChangeType.DELETED if content is None else ChangeType.UPDATED,
            datetime=AT + timedelta(seconds=number + 1),
            hash=None if content is None else sha256(content),
        )
        for number, (uri, content) in enumerate(history)
    ]
    until = AT + timedelta(seconds=len(history) + 1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        packages = writer(folder, **bounds).change_packages(
            "dump", AT, until, changes, lambda change: now[change.uri]
        )
        copy: dict[str, bytes | None] = {}
        through = AT
        for package in packages:
            assert package.entry.from_ == through
            through = package.entry.until
        found = read(folder, packages, bounds)
        assert [(e.uri, e.change, e.datetime, e.hash) for e, _ in found] == [
            (one.uri, one.change, one.datetime, one.hash) for one in changes
        ]
        assert through == until
        copy |= {entry.uri: content for entry, content in found}
        assert copy == now


# The memory use does not grow with the number and size of the resources.


MB = 1_000_000


def peak_of(folder: Path, count: int, *, size: int, max_entries: int) -> int:
    """Pack many small resources and one large file. Return the peak memory use in bytes."""
    large = folder / "large"
    with large.open("wb") as file:
        file.truncate(size)  # a sparse file, which takes no space

    def resources() -> Iterator[Resource]:
        for number in range(count):
            yield Resource(f"{BASE}{number}.ttl", type="text/turtle")
        yield Resource(BASE + "large", type="video/mp4")

    dumps = writer(folder, max_entries=max_entries)
    tracemalloc.start()
    try:
        packages = dumps.resource_packages(
            "dump",
            AT,
            resources(),
            lambda resource: large if resource.uri.endswith("large") else b"tiny",
            now=lambda: AT,
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(package.count for package in packages) == count + 1
    with zipfile.ZipFile(folder / packages[-1].files[0]) as archive:
        assert size in [info.file_size for info in archive.infolist()]
    return peak


def test_a_large_file_is_copied_in_pieces(tmp_path: Path):
    assert peak_of(tmp_path, 1, size=100 * MB, max_entries=1_000) < 4 * MB


def test_many_resources_take_no_more_memory_than_those_of_one_package(tmp_path: Path):
    few = peak_of(tmp_path, 300, size=1, max_entries=100)
    many = peak_of(tmp_path, 1_200, size=1, max_entries=100)
    assert many < 1.3 * few


def test_many_changes_take_no_more_memory_than_those_of_one_package(tmp_path: Path):
    def changes(count: int) -> Iterator[Resource]:
        for number in range(count):
            yield Resource(
                f"{BASE}{number}",
                change=ChangeType.UPDATED,
                datetime=AT + timedelta(seconds=number + 1),
                hash="md5:00000000000000000000000000000000",
            )

    def peak(count: int) -> int:
        dumps = writer(tmp_path, max_entries=200)
        until = AT + timedelta(seconds=count)
        tracemalloc.start()
        try:
            dumps.change_packages("dump", AT, until, changes(count), lambda change: b"tiny")
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = peak(600), peak(2_400)
    assert many < 1.3 * few
