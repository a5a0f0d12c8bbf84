"""Reading packages; `tests/security/packages.toml` has what is refused."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

import rsnotify_subscriber.content.packages as zipped_module
from rsnotify.errors import MalformedDocument
from rsnotify.format.model import Capability
from rsnotify_subscriber.content.packages import ZipPackage
from tests.subscriber.catching_up.absences import LISTS, fetched
from tests.subscriber.destination import Destination
from tests.subscriber.packed_source import PackedSource, zipped

URI = "http://source.example/a.zip"
NAME = "resources/0"


def opened(folder: Path, data: bytes) -> ZipPackage:
    path = folder / "package"
    path.write_bytes(data)
    return ZipPackage(path, URI)


def test_a_member_is_read_in_chunks(tmp_path: Path) -> None:
    content = Random(1).randbytes(500_000)
    package = opened(tmp_path, zipped(None, {NAME: content}))
    pieces = list(package.pieces("/" + NAME))
    assert b"".join(pieces) == content
    assert len(pieces) > 1
    package.close()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zipped_module, "_DIRECTORY_BYTES", 10_000)
    data = zipped(None, {f"{n}": b"" for n in range(300)})
    with pytest.raises(MalformedDocument, match="directory is larger"):
        opened(tmp_path, data)


async def test_no_member_of_many_small_packages_is_fetched_by_its_own_uri(
    source: PackedSource, destination: Destination
) -> None:
    source.offered = (*LISTS, Capability.RESOURCE_DUMP)
    source.pack_resources(per_package=1)
    await destination.become_equal()
    assert fetched(source) == set()
