"""Which members of packages are used, and which are refused."""

from __future__ import annotations

import io
import stat
import struct
import tracemalloc
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random

import pytest

import rsnotify_subscriber.content.zip_package as zipped_module
from rsnotify.errors import ContentMismatch, MalformedDocument
from rsnotify.format.model import Document, Resource
from rsnotify.format.vocabulary import Capability
from rsnotify.format.writer import write_document
from rsnotify_subscriber.content.zip_package import ZipPackage
from tests.subscriber.destination import Destination
from tests.subscriber.packed_source import PackedSource, zipped
from tests.subscriber.source import body

URI = "http://source.example/a.zip"
NAME = "resources/0"
GOOD = b"good content"
Make = Callable[[zipfile.ZipFile], object]


@pytest.fixture
async def source() -> AsyncIterator[PackedSource]:
    source = PackedSource()
    await source.server.start()
    yield source
    await source.server.stop()


def built(make: Make, manifest: Document | None = None) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as package:
        if manifest is not None:
            package.writestr("manifest.xml", write_document(manifest))
        make(package)
    return file.getvalue()


def member(name: str, **fields: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.compress_type = zipfile.ZIP_DEFLATED
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def twice(package: zipfile.ZipFile) -> None:
    package.writestr(NAME, GOOD)
    with pytest.warns(UserWarning, match="Duplicate"):
        package.writestr(NAME, b"other content")


def wrong_crc(data: bytes) -> bytes:
    """Change the content of a stored member without changing its checksum."""
    return data.replace(GOOD, GOOD.upper())


def encrypted(data: bytes) -> bytes:
    """Set the flag of encryption in both headers of the member."""
    local = data.index(b"PK\x03\x04")
    while data[local + 30 : local + 30 + len(NAME)] != NAME.encode():
        local = data.index(b"PK\x03\x04", local + 1)
    central = data.index(b"PK\x01\x02")
    while data[central + 46 : central + 46 + len(NAME)] != NAME.encode():
        central = data.index(b"PK\x01\x02", central + 1)
    flagged = bytearray(data)
    flagged[local + 6] |= 1
    flagged[central + 8] |= 1
    return bytes(flagged)


def same(data: bytes) -> bytes:
    return data


BAD: dict[str, tuple[Make, Callable[[bytes], bytes]]] = {
    "missing": (lambda package: None, same),
    "twice": (twice, same),
    "damaged": (
        lambda package: package.writestr(member(NAME, compress_type=zipfile.ZIP_STORED), GOOD),
        wrong_crc,
    ),
    "encrypted": (lambda package: package.writestr(NAME, GOOD), encrypted),
    "link": (
        lambda package: package.writestr(
            member(NAME, external_attr=(stat.S_IFLNK | 0o777) << 16), b"/etc/passwd"
        ),
        same,
    ),
    "too long": (lambda package: package.writestr(NAME, GOOD + b"!"), same),
    "another content": (lambda package: package.writestr(NAME, b"GOOD CONTENT"), same),
    "bomb": (lambda package: package.writestr(NAME, bytes(50_000_000)), same),
}


@pytest.mark.parametrize(("make", "spoil"), BAD.values(), ids=BAD)
async def test_a_member_that_cannot_be_trusted_is_fetched_instead(
    make: Make, spoil: Callable[[bytes], bytes], source: PackedSource, destination: Destination
) -> None:
    source.offered = (Capability.RESOURCE_DUMP,)
    source.put("a", GOOD)
    source.put("b", b"also there")
    source.pack_resources()
    entries = source.documents["resources-0.zip.xml"]
    data = spoil(built(make, entries))
    source.answers["/data/resources-0.zip"] = body(data)
    dump = source.documents["resourcedump.xml"]
    package = Resource(source.base + "resources-0.zip")
    source.documents["resourcedump.xml"] = Document(dump.capability, (package,), at=dump.at)
    await destination.catch_up()
    assert destination.equals_source()
    assert source.gets["/data/a"] == 1


def opened(folder: Path, data: bytes) -> ZipPackage:
    path = folder / "package"
    path.write_bytes(data)
    return ZipPackage(path, URI)


@pytest.mark.parametrize("name", ["/absolute", "../above", "a/../../above", "folder/"])
def test_a_member_with_an_unsafe_name_is_refused(name: str, tmp_path: Path) -> None:
    package = opened(tmp_path, built(lambda it: it.writestr(member(name), b"x")))
    with pytest.raises(ContentMismatch):
        list(package.pieces("/" + name))
    package.close()


def test_a_member_is_read_in_chunks(tmp_path: Path) -> None:
    content = Random(1).randbytes(500_000)
    package = opened(tmp_path, built(lambda it: it.writestr(NAME, content)))
    pieces = list(package.pieces("/" + NAME))
    assert b"".join(pieces) == content
    assert len(pieces) > 1
    package.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "data",
    [b"", b"PK\x05\x06", b"<html/>", zipped(None, {"a": GOOD})[:-30]],
    ids=["nothing", "no more than a mark", "a page", "the end missing"],
)
def test_a_file_that_is_no_zip_is_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(MalformedDocument, match="no usable ZIP"):
        opened(tmp_path, data)


def test_members_that_share_bytes_are_refused(tmp_path: Path) -> None:
    data = bytearray(built(lambda it: [it.writestr(name, GOOD) for name in "ab"]))
    second = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 1)
    struct.pack_into("<L", data, second + 42, 0)  # the second member is where the first one is
    with pytest.raises(MalformedDocument, match="overlaps"):
        opened(tmp_path, bytes(data))


def test_a_directory_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zipped_module, "_DIRECTORY_BYTES", 10_000)
    data = built(lambda it: [it.writestr(f"{n}", b"") for n in range(300)])
    with pytest.raises(MalformedDocument, match="directory is larger"):
        opened(tmp_path, data)


def test_a_manifest_with_a_doctype_is_refused(tmp_path: Path) -> None:
    xml = write_document(Document(Capability.RESOURCE_DUMP_MANIFEST))
    evil = xml.replace(b"?>", b"?><!DOCTYPE urlset [<!ENTITY e 'x'>]>", 1)
    package = opened(tmp_path, built(lambda it: it.writestr("manifest.xml", evil)))
    with pytest.raises(MalformedDocument, match="DOCTYPE"):
        package.manifest()
    package.close()


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_compression_method_without_a_bound_is_not_used(method: int, tmp_path: Path) -> None:
    data = bytearray(built(lambda it: it.writestr(NAME, bytes(100_000_000), method)))
    for mark, place in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        struct.pack_into("<L", data, data.index(mark) + place, 100)  # a false, small length
    package = opened(tmp_path, bytes(data))
    tracemalloc.start()
    with pytest.raises(ContentMismatch, match="another method"):
        list(package.pieces("/" + NAME))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
    package.close()
