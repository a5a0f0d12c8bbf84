"""The packages of dumps as ZIP files: how members are stored and named, and who can read them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rsnotify.format.model import Resource
from tests.publisher.packed import AT, BASE, STEM, manifest, pack, unpacked, writer


def test_what_is_too_large_for_a_zip_makes_it_a_zip64(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 1_000)  # bytes; to write 2 GiB takes too long
    content = os.urandom(2_000)
    (tmp_path / "large").write_bytes(content)
    packages = pack(tmp_path, {"large": tmp_path / "large"})
    assert unpacked(tmp_path, packages) == {BASE + "large": content}


def test_equal_contents_give_equal_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    first = pack(tmp_path / "1", {"a": tmp_path / "a", "b": b"2"})
    (tmp_path / "a").touch()
    second = pack(tmp_path / "2", {"a": tmp_path / "a", "b": b"2"})
    assert first == second


def test_members_show_the_instant_of_the_snapshot_and_are_plain_files(tmp_path: Path) -> None:
    [package] = pack(tmp_path, {"a": b"1"})
    with zipfile.ZipFile(tmp_path / package.files[0]) as zip:
        for info in zip.infolist():
            assert datetime(*info.date_time, tzinfo=UTC) == AT.replace(second=0)
            assert info.external_attr >> 16 == 0o100644


@pytest.mark.parametrize("year", [1970, 2200])
def test_an_instant_that_a_zip_cannot_show_is_no_obstacle(tmp_path: Path, year: int) -> None:
    at = AT.replace(year=year)
    packages = writer(tmp_path).resource_packages(
        STEM, at, [Resource(BASE + "a")], lambda resource: b"1", now=lambda: at
    )
    assert unpacked(tmp_path, packages) == {BASE + "a": b"1"}


def test_what_is_compressed_already_is_stored_as_it_is(tmp_path: Path) -> None:
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
def test_paths_are_safe_on_any_system(
    tmp_path: Path, uri: str, kind: str | None, path: str
) -> None:
    [package] = writer(tmp_path).resource_packages(
        STEM, AT, [Resource(uri, type=kind)], lambda resource: b"1", now=lambda: AT
    )
    [entry] = manifest(tmp_path, package).resources
    assert (entry.uri, entry.path) == (uri, "/resources/" + path)


@pytest.mark.parametrize(
    "command",
    [["unzip", "-tq"], [sys.executable, "-m", "zipfile", "-t"]],
    ids=["unzip", "python"],
)
def test_other_programs_accept_the_packages(tmp_path: Path, command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    contents = {f"{number}.ttl": b"<a> <b> <c> .\n" * number for number in range(20)}
    for package in pack(tmp_path, contents, max_resources=8):
        done = subprocess.run(
            [*command, str(tmp_path / package.files[0])], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
