"""Start a Destination again at random points of a history; it becomes level each time.

    python tests/end_to_end/returning.py --data history.jsonl.xz

The Source closes its Change Lists early and keeps few of them. Exit code 0 means: at every
return the folders were equal afterwards, and the Destination took the rung of the ladder that
was the cheapest by what the Source offered at that moment.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from aiohttp import web
from msgspec import Struct

from rsnotify.format.datetimes import Instant
from rsnotify.format.model import ChangeType, Document, Resource
from rsnotify.format.reader import read_document
from rsnotify.sync.actions import DocumentKind
from rsnotify_publisher import Options, Publisher
from rsnotify_publisher.folder.file_names import FileNames
from rsnotify_publisher.folder.folder_publishing import PublishedFolder
from rsnotify_publisher.folder.server import folder_application
from rsnotify_subscriber import default_state
from rsnotify_subscriber.storage.destination_state import DestinationState
from tests.end_to_end import history
from tests.ports import free_port

#: The kinds of documents in the order in which they are tried.
FALLBACK_ORDER = [
    DocumentKind.CHANGE_LIST,
    DocumentKind.CHANGE_LIST_ARCHIVE,
    DocumentKind.CHANGE_DUMP,
    DocumentKind.CHANGE_DUMP_ARCHIVE,
    DocumentKind.RESOURCE_LIST,
    DocumentKind.RESOURCE_DUMP,
]
_TAKEN = re.compile(r"(?:changes|baseline) from the ([A-Z][A-Za-z ]*?) http")
#: Seconds that one return may take, and the Source to write what is due.
PATIENCE = 300


class Plan(Struct, frozen=True):
    """How the Source keeps what it tells, and when the Destination comes back.

    Args:
        rotate: Changes at which the older half of the open Change List is closed.
        keep: Closed lists that stay in the archive.
        returns: How often the Destination comes back.
        seed: What decides when that is.
    """

    rotate: int = 500
    keep: int = 4
    returns: int = 10
    seed: int = 13


class Source:
    """A folder, every change of which is published."""

    def __init__(self, root: Path, plan: Plan) -> None:
        self.folder = root / "source"
        self.folder.mkdir()
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}/"
        self._names = FileNames(self.folder, self.url)
        self._plan = plan
        self._last: Instant | None = None
        self._publisher = Publisher(
            root / "state",
            self.url,
            options=Options(
                rotate=f"{plan.rotate} changes",
                keep=f"{plan.keep} lists",
                refresh=0.05,
                resource_list_every=0.1,
            ),
        )

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        folder = PublishedFolder(self._names, self._publisher)
        app = folder_application(self._publisher, [folder])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        async with self._publisher:
            assert await asyncio.to_thread(self._publisher.wait_published, PATIENCE)
            folder.ready.set()
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self._port).start()
            try:
                yield
            finally:
                await runner.cleanup()

    def change(self, steps: Iterable[history.Step]) -> None:
        """Do what a history says, record every change, and wait until the documents have it."""
        for change in self._publisher.record(self._apply(steps)):
            self._last = change.datetime
        for _ in range(PATIENCE * 20):
            if self._is_told():
                return
            time.sleep(0.05)
        raise AssertionError("the documents never told it")

    def _apply(self, steps: Iterable[history.Step]) -> Iterator[Resource]:
        for step in steps:
            path = self.folder / step.path
            was_there = path.exists()
            history.apply([step], self.folder)
            uri = self._names.uri(path)
            if step.content is not None:
                kind = ChangeType.UPDATED if was_there else ChangeType.CREATED
                digest = hashlib.sha256(step.content).hexdigest()
                yield Resource(uri, change=kind, hash=f"sha-256:{digest}", length=len(step.content))
            elif was_there:
                yield Resource(uri, change=ChangeType.DELETED)

    def document(self, name: str) -> Document:
        with urllib.request.urlopen(self.url + name, timeout=PATIENCE) as answer:
            return read_document(answer.read())

    def _is_told(self) -> bool:
        """Tell whether the lists have the last change, and none is too long or too old."""
        listed = self.document("resourcelist.xml").at
        assert listed is not None
        if self._last is not None and listed < self._last:
            return False
        archived = self.document("changelist-archive.xml").resources
        if len(archived) > self._plan.keep:
            return False
        changes = self.document("changelist.xml").resources
        if self._last is not None and (not changes or changes[-1].datetime != self._last):
            return False
        return len(changes) < self._plan.rotate

    def cheapest(self, confirmed: Instant | None) -> DocumentKind:
        """Return the cheapest rung that reaches back to what a Destination knows."""
        if confirmed is None:
            return DocumentKind.RESOURCE_LIST
        begins = self.document("changelist.xml").from_
        assert begins is not None
        if begins <= confirmed:
            return DocumentKind.CHANGE_LIST
        archived = [entry.from_ for entry in self.document("changelist-archive.xml").resources]
        reaches = min(begin for begin in archived if begin is not None)
        return (
            DocumentKind.CHANGE_LIST_ARCHIVE if reaches <= confirmed else DocumentKind.RESOURCE_LIST
        )


class Destination:
    """A mirror that is brought in step now and then."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self.folder = folder

    def confirmed(self) -> Instant | None:
        """Return through when it knows all that the Source's documents said."""
        folder = default_state(self.folder)
        if not folder.exists():
            return None
        state = DestinationState(folder)
        progress = state.progress()
        state.close()
        return progress.confirmed if progress else None

    def come_back(self) -> DocumentKind | None:
        command = ["-m", "rsnotify", "-v", "follow", self._url, str(self.folder), "--once"]
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stderr
        taken = [DocumentKind(name) for name in _TAKEN.findall(done.stderr)]
        return max(taken, key=FALLBACK_ORDER.index, default=None)


def go_through(
    steps: list[history.Step], source: Source, destination: Destination, plan: Plan
) -> Counter[DocumentKind]:
    """Replay a history at the Source, and start the Destination again as planned.

    Returns:
        How often each rung was taken.

    Raises:
        AssertionError: A return ended unequal, or by another rung than expected.
    """
    rungs: Counter[DocumentKind] = Counter()
    points = sorted(Random(plan.seed).sample(range(1, len(steps)), plan.returns))
    for before, point in zip([0, *points], points, strict=False):
        source.change(steps[before:point])
        expected = source.cheapest(destination.confirmed())
        taken = destination.come_back()
        print(f"away for {point - before:5} changes: {taken}", flush=True)
        assert taken == expected, f"taken {taken}, expected {expected}"
        command = ["diff", "-r", str(source.folder), str(destination.folder)]
        difference = subprocess.run(command, capture_output=True, text=True).stdout
        assert not difference, difference[:2000]
        rungs[taken] += 1
    return rungs


async def returning(root: Path, steps: list[history.Step], plan: Plan) -> Counter[DocumentKind]:
    """Go through a history in a folder; see `go_through`."""
    source = Source(root, plan)
    async with source.serving():
        destination = Destination(source.url, root / "destination")
        return await asyncio.to_thread(go_through, steps, source, destination, plan)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a history, .jsonl or .jsonl.xz; else made up")
    parser.add_argument("--seed", type=int, default=Plan().seed, help="decides when it comes back")
    arguments = parser.parse_args()
    steps = list(history.read(arguments.data) if arguments.data else history.make_up(8_000))
    plan = Plan(seed=arguments.seed)
    with tempfile.TemporaryDirectory(prefix="rsnotify-returning-") as root:
        rungs = asyncio.run(returning(Path(root), steps, plan))
    print("equal each time: " + ", ".join(f"{n} by the {rung}" for rung, n in rungs.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
