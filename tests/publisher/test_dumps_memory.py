"""Memory stays flat, however many resources are packed and however large they are."""

from __future__ import annotations

import tracemalloc
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rsnotify.format.model import ChangeType, Resource
from rsnotify_publisher.documents.dump_writer import DumpWriter

BASE = "http://source.example/data/"
AT = datetime(2026, 11, 20, 12, tzinfo=UTC)
MB = 1_000_000


def peak_of(folder: Path, count: int, *, size: int, max_resources: int) -> int:
    """Pack tiny resources, and one large file among them; return the peak of memory in bytes."""
    large = folder / "large"
    with large.open("wb") as file:
        file.truncate(size)  # a hole, which takes no space

    def resources() -> Iterator[Resource]:
        for number in range(count):
            yield Resource(f"{BASE}{number}.ttl", type="text/turtle")
        yield Resource(BASE + "large", type="video/mp4")

    writer = DumpWriter(folder, BASE, BASE + "up", max_resources=max_resources)
    tracemalloc.start()
    try:
        packages = writer.resource_packages(
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
    assert peak_of(tmp_path, 1, size=100 * MB, max_resources=1_000) < 4 * MB


def test_many_resources_take_no_more_memory_than_those_of_one_package(tmp_path: Path):
    few = peak_of(tmp_path, 600, size=1, max_resources=200)
    many = peak_of(tmp_path, 2_400, size=1, max_resources=200)
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
        writer = DumpWriter(tmp_path, BASE, BASE + "up", max_resources=200)
        until = AT + timedelta(seconds=count)
        tracemalloc.start()
        try:
            writer.change_packages("dump", AT, until, changes(count), lambda change: b"tiny")
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = peak(600), peak(2_400)
    assert many < 1.3 * few
