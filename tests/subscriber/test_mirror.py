from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import pytest

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.format.model import ChangeType, Resource
from rsnotify_subscriber import FolderMirror, Received
from rsnotify_subscriber.handlers import deferred_handler, in_thread
from rsnotify_subscriber.mirror import MirrorTree
from rsnotify_subscriber.storage.destination_state import DestinationState

BASE = "http://example.com/data/"


class Mirrored:
    """A mirror that receives one change after another."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "mirror"
        self._incoming = folder / "incoming"
        self._incoming.mkdir()
        self._mirror = FolderMirror(self.root)
        self._mirror.prepare(BASE, self._incoming)
        self._count = 0

    async def put(self, *names: str, content: bytes = b"x") -> None:
        await asyncio.to_thread(self._mirror.apply, [self._change(name, content) for name in names])

    async def delete(self, *names: str) -> None:
        await asyncio.to_thread(self._mirror.apply, [self._change(name, None) for name in names])

    def _change(self, name: str, content: bytes | None) -> Received:
        path = None
        if content is not None:
            self._count += 1
            path = self._incoming / str(self._count)
            path.write_bytes(content)
        change = ChangeType.DELETED if path is None else ChangeType.UPDATED
        uri = BASE + name
        return Received(change, uri, datetime.now(UTC), Resource(uri), path)

    def files(self) -> set[str]:
        return {
            path.relative_to(self.root).as_posix()
            for path in self.root.rglob("*")
            if not path.is_dir()
        }

    def content(self, name: str) -> bytes:
        return Path(MirrorTree(self.root, BASE).find(BASE + name)).read_bytes()


@pytest.fixture
def mirrored(tmp_path: Path) -> Mirrored:
    return Mirrored(tmp_path)


async def test_files_come_and_go_with_their_folders(mirrored: Mirrored) -> None:
    await mirrored.put("a/b/c.ttl", "a/d.ttl")
    await mirrored.delete("a/b/c.ttl")
    assert mirrored.files() == {"a/d.ttl"}
    assert not (mirrored.root / "a/b").exists()
    await mirrored.delete("a/d.ttl")
    assert list(mirrored.root.iterdir()) == []


async def test_deleting_a_missing_file_is_no_error(mirrored: Mirrored) -> None:
    await mirrored.delete("a/b", "c")
    assert mirrored.files() == set()


@pytest.mark.parametrize("order", [("a", "a/b"), ("a/b", "a")])
async def test_a_resource_may_be_the_folder_of_another_and_moves_once_its_path_is_free(
    order: tuple[str, str], mirrored: Mirrored
) -> None:
    for new in (b"", b"new "):
        for name in order:
            await mirrored.put(name, content=new + name.encode())
        for name in order:
            assert mirrored.content(name) == new + name.encode()
    assert len(mirrored.files()) == 2
    await mirrored.delete(order[0])
    assert mirrored.files() == {order[1]}
    assert mirrored.content(order[1]) == b"new " + order[1].encode()
    await mirrored.delete(order[1])
    assert list(mirrored.root.iterdir()) == []


@pytest.mark.parametrize("step", [1, -1])
async def test_resources_of_one_batch_may_be_the_folders_of_others(
    step: int, mirrored: Mirrored
) -> None:
    names = ("a/b", "a", "a/c", "d", "d/e", "f g", "h/i", "h/j", "k")[::step]
    for content in (b"old", b"new"):
        await mirrored.put(*names, content=content)
        assert {mirrored.content(name) for name in names} == {content}
        assert len(mirrored.files()) == len(names)


async def test_nothing_is_put_behind_a_symbolic_link_in_place_of_a_folder(
    mirrored: Mirrored, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (mirrored.root / "a").symlink_to(outside)
    await mirrored.put("a/b", "a/c", "d", content=b"inside")
    assert list(outside.iterdir()) == []
    assert {mirrored.content(name) for name in ("a/b", "a/c", "d")} == {b"inside"}


async def test_a_symbolic_link_in_place_of_the_folder_of_fallbacks_is_refused(
    mirrored: Mirrored, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / quote(BASE + "a", safe="")).write_bytes(b"somebody's")
    (mirrored.root / "@@@").symlink_to(outside)
    await mirrored.put("b", content=b"not concerned")
    for change in (mirrored.put("b/c"), mirrored.delete("b/c")):
        with pytest.raises(StorageError, match="@@@ is a symbolic link or a file"):
            await change
    await mirrored.put("a", content=b"inside")
    await mirrored.delete("b")  # what was a fallback may now come home
    assert {path.read_bytes() for path in outside.iterdir()} == {b"somebody's"}
    assert mirrored.content("a") == b"inside"


@pytest.mark.skipif(sys.platform != "linux", reason="only /proc tells which file is flushed")
def test_the_entries_of_the_mirror_and_of_its_state_are_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: set[str] = set()
    monkeypatch.setattr(os, "fsync", lambda one: flushed.add(os.readlink(f"/proc/self/fd/{one}")))
    FolderMirror(tmp_path / "new" / "mirror").prepare(BASE, tmp_path)
    assert flushed >= {str(tmp_path), str(tmp_path / "new")}
    flushed.clear()
    DestinationState(tmp_path / "states" / "state").close()
    assert flushed >= {str(tmp_path), str(tmp_path / "states")}


@pytest.mark.parametrize(
    ("folder", "told"),
    [
        ("", "inside the mirror"),
        ("file/mirror", r"file/mirror cannot be created: a part of its path is a file"),
        pytest.param(
            "/proc",
            r"/proc cannot be written: ",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="root may write elsewhere"),
        ),
    ],
)
def test_a_mirror_that_cannot_be_prepared_is_reported_in_one_sentence(
    folder: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "state").mkdir()
    with pytest.raises(ConfigurationError, match=told):
        FolderMirror(tmp_path / folder).prepare(BASE, tmp_path / "state")


def test_preparing_a_mirror_leaves_no_file_in_it(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    FolderMirror(tmp_path / "mirror").prepare(BASE, tmp_path / "state")
    assert list((tmp_path / "mirror").iterdir()) == []


async def test_however_many_mirrors_and_changes_the_same_few_threads_flush(tmp_path: Path) -> None:
    names = [str(number) for number in range(12)]
    for folder in (tmp_path / "one", tmp_path / "other"):
        folder.mkdir()
        mirrored = Mirrored(folder)
        for _ in range(3):
            await mirrored.put(*names)
        assert mirrored.files() == set(names)
    flushing = [one for one in threading.enumerate() if one.name.startswith("rsnotify-flush")]
    assert 0 < len(flushing) <= 8


def test_a_mirror_of_another_class_may_apply_changes_in_its_own_way(tmp_path: Path) -> None:
    class Own(FolderMirror):
        def apply(self, changes: Sequence[Received]) -> None:
            """Apply changes in another way."""

    class Named(FolderMirror):
        """A mirror that applies changes as all do."""

    class Notifying(FolderMirror):
        async def apply(self, changes: Sequence[Received]) -> None:  # type: ignore[override]
            """Apply changes in another way that does not block."""

    mirror, own, notifying = Named(tmp_path), Own(tmp_path), Notifying(tmp_path)
    assert deferred_handler(mirror) is mirror
    assert in_thread(mirror) == mirror.apply
    assert deferred_handler(own) is None
    assert in_thread(own) == own.apply
    assert deferred_handler(notifying) is in_thread(notifying) is None


def test_a_file_system_that_ignores_case_may_be_mounted_at_the_mirror(tmp_path: Path) -> None:
    """As far as can be seen: a name and the same in capitals are one file."""
    root = tmp_path / "mirror"
    root.mkdir()
    assert MirrorTree(root, BASE).find(BASE + "README") == str(root / "README")
    (root / "abc").touch()
    (root / "ABC").hardlink_to(root / "abc")
    place = MirrorTree(root, BASE).find(BASE + "README")
    assert os.path.basename(place) == os.path.basename(place).lower()
    assert place != MirrorTree(root, BASE).find(BASE + "readme")
    assert sorted(path.name for path in root.iterdir()) == ["ABC", "abc"]


def test_a_folder_may_be_removed_while_its_files_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = MirrorTree(tmp_path, BASE)
    uri = "http://example.com"  # without a path, it has no place but that of fallbacks
    fallback = Path(tree.find(uri))
    fallback.parent.mkdir()
    fallback.touch()

    def listed_too_late(path: str) -> list[str]:
        fallback.unlink()
        fallback.parent.rmdir()
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "listdir", listed_too_late)
    assert [found for _, found in tree.find_files([uri, BASE + "a"])] == [None, None]
