"""Comparing the files of a copy with its state, as at each start: `copy_check.py [FILES]`."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import targets

from rsnotify_subscriber.following.copy_check import FileScan
from rsnotify_subscriber.mirror import FolderMirror
from rsnotify_subscriber.storage.destination_state import DestinationState
from rsnotify_subscriber.storage.resource_state import ResourceState

FILES, TARGET_FILES = 100_000, 1_000_000
PER_FOLDER = 1_000
BASE = "https://source.example/"
TRIES = 3


def main(files: int = FILES) -> None:
    """Print how long it takes to compare sizes and times, and to find files of others."""
    print(f"# copy check: {files:,} files, {PER_FOLDER:,} in each folder")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "copy")
        state = DestinationState(Path(name, "state"))
        handler = FolderMirror(folder)
        handler.prepare(BASE, state.make_incoming())
        states = written(folder, files)
        while part := list(islice(states, 10_000)):
            state.commit(part, None)
        figures = [compare(handler, state) for _ in range(TRIES)]
        state.close()
    passed, worked = min(figures)
    print(f"compared in {passed:.2f} s, {worked:.2f} s of them a processor's, at best of {TRIES}")
    scale = TARGET_FILES / files
    targets.compare("checking a copy, for each million of files", passed * scale, 10, "s")
    targets.compare("the same", worked * scale, 10, "s of CPU")


def written(folder: Path, files: int) -> Iterator[ResourceState]:
    """Write files, and yield the state of each."""
    content = b"as short as many files are"
    for number in range(files):
        name = f"{number // PER_FOLDER}/{number % PER_FOLDER}.ttl"
        path = folder / name
        if number % PER_FOLDER == 0:
            path.parent.mkdir()
        path.write_bytes(content)
        mtime = path.stat().st_mtime_ns
        yield ResourceState(
            BASE + name, 1, "created", f"sha-256:{'0' * 64}", len(content), mtime=mtime
        )


def compare(handler: FolderMirror, state: DestinationState) -> tuple[float, float]:
    """Return the seconds that passed, and those of a processor."""
    begun, worked = time.perf_counter(), time.process_time()
    scan = FileScan(handler, state, verify=False)
    while (part := scan.compare_next()) is not None:
        assert part == ([], [])
    assert not scan.unknown_paths()
    return time.perf_counter() - begun, time.process_time() - worked


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
