"""Power cuts of a Source: its journal, its documents, and what it sends to a hub."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from datetime import datetime
from itertools import count, pairwise
from pathlib import Path
from zipfile import ZipFile

from msgspec.structs import replace

from rsnotify.format.datetimes import to_microseconds
from rsnotify.format.model import Capability, Document, Resource
from rsnotify.format.reader import read_document
from rsnotify_publisher import Publisher
from rsnotify_publisher.journal import Journal
from tests.harnesses.power_cuts.cuts import Experiment, Loss, PowerCut
from tests.harnesses.power_cuts.recording_source import BASE, LOADED, OPTIONS, hash_of, stored
from tests.harnesses.power_cuts.trace import read_calls, traced
from tests.publisher.helpers import PATIENCE, FakeHub

_LOADED = {BASE + name: hash_of(name) for name in LOADED}
_END = b"</urlset>"
#: A change as others know it: its datetime in microseconds, URI and hash.
Known = tuple[int, str, str | None]


class SourceWitness:
    """Those who recorded changes, and the hub."""

    def __init__(self) -> None:
        self._buffers: dict[str, bytes] = {}
        self.has_loaded = False
        self.begun: set[tuple[str, str | None]] = set()
        self.recorded: set[Known] = set()
        self.sent_changes: set[Known] = set()
        #: The last instant after which no earlier change may be recorded.
        self.through = 0
        self.notified = 0

    def sent(self, stream: str, data: bytes) -> None:
        buffer = self._buffers.get(stream, b"") + data
        if stream == "stdout":
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                if line == b"loaded":
                    self.has_loaded = True
                else:
                    self._printed(*line.decode().split())
        elif stream.startswith("socket"):
            while _END in buffer:
                body, _, buffer = buffer.partition(_END)
                self._received(read_document(body[body.index(b"<urlset") :] + _END))
        else:
            buffer = b""
        self._buffers[stream] = buffer

    def _printed(self, word: str, uri: str, hash: str, at: str) -> None:
        known = None if hash == "None" else hash
        if word == "recording":
            self.begun.add((uri, known))
        else:
            moment = to_microseconds(datetime.fromisoformat(at))
            self.recorded.add((moment, uri, known))
            self.through = max(self.through, moment)

    def _received(self, fragment: Document) -> None:
        assert fragment.until is not None
        until = to_microseconds(fragment.until)
        if fragment.capability == Capability.FRAMEWORK_NOTIFICATION:
            self.notified = max(self.notified, until)
        else:
            self.through = max(self.through, until)
            self.sent_changes.update(map(known, fragment.resources))


def known(change: Resource) -> Known:
    assert change.datetime is not None
    return to_microseconds(change.datetime), change.uri, change.hash


@asynccontextmanager
async def traced_source(folder: Path) -> AsyncIterator[Experiment]:
    """Run a Source twice; only every tenth power cut is checked with its documents."""
    root = folder / "disk"
    root.mkdir()
    hub = FakeHub()
    await hub.start()
    try:
        program = [sys.executable, "-m", "tests.harnesses.power_cuts.recording_source"]
        arguments = [str(root / "above" / "state"), f"websub+{hub.url}websub"]
        running = traced(folder / "trace", [*program, *arguments], os.environ)
        code = await asyncio.to_thread(running.ends)
        assert code == 0, running.output()
    finally:
        await hub.stop()
    witness, numbers = SourceWitness(), count()

    async def check(cut: PowerCut) -> None:
        _check_source(cut, witness, documents=next(numbers) % 10 == 0)

    yield Experiment(folder, read_calls(folder / "trace"), witness, check)


def _check_source(cut: PowerCut, witness: SourceWitness, *, documents: bool) -> None:
    """Check what is left of a Source after a power cut; `documents` as well, which takes longer."""
    folder = cut.remains / "above" / "state"
    if not (folder / "journal.sqlite3").exists():
        if witness.has_loaded or witness.recorded or witness.through or witness.notified:
            raise Loss("the journal is gone")
        return
    with closing(Journal(folder / "journal.sqlite3", BASE, clock=lambda: 0)) as journal:
        _check_journal(journal, witness)
        before, is_empty = set(map(known, journal.changes(0))), journal.is_empty()
    for path in (folder / "documents").rglob("[!.]*.xml"):  # as a web server returns them
        read_document(path.read_bytes(), source=str(path))
    if documents:
        _check_documents(folder, before, witness, {} if is_empty else _LOADED)


def _check_journal(journal: Journal, witness: SourceWitness) -> None:
    state = journal.state()
    kept = set(map(known, journal.changes(0)))
    for what, needed in ("recorded", witness.recorded), ("sent", witness.sent_changes):
        lost = {change for change in needed - kept if change[0] > state.pruned}
        if lost:
            raise Loss(f"the journal lacks what was {what}: {sorted(lost)[:3]}")
    if invented := {change for change in kept if change[1:] not in witness.begun}:
        raise Loss(f"nobody recorded {sorted(invented)[:3]}")
    if journal.last_notice() < witness.notified:
        raise Loss("the journal lacks a notice that was sent")
    if witness.has_loaded and journal.is_empty():
        raise Loss("the journal lacks what was loaded")
    if state.reached < witness.through:
        raise Loss("the next change may be earlier than what others know")


def _check_documents(
    folder: Path, journalled: set[Known], witness: SourceWitness, loaded: Mapping[str, str | None]
) -> None:
    """Continue a Source, and check its documents."""
    options = replace(OPTIONS, grace=0)
    publisher = Publisher(folder, BASE, options=options, content=stored)
    with publisher:
        publisher.updated(BASE + "next", content=b"")
        if not publisher.wait_published(PATIENCE):
            raise Loss("the documents were not written")
    folder = publisher.source.documents_folder

    def read(name: str) -> Document:
        return read_document((folder / name.removeprefix(BASE)).read_bytes(), source=name)

    archive = read("changelist-archive.xml")
    top = read("changelist.xml")
    parts = [*archive.resources, *(top.resources if top.index else ())]
    lists = [read(part.uri) for part in parts] + ([] if top.index else [top])
    for before, after in pairwise(lists):
        if before.until != after.from_:
            raise Loss(f"the lists have a gap from {before.until} to {after.from_}")
    listed = [known(change) for document in lists for change in document.resources]
    if listed != sorted(set(listed)):
        raise Loss("the lists are not in order, or repeat a change")
    if lost := (journalled | witness.recorded | witness.sent_changes).difference(listed):
        raise Loss(f"the lists lack {sorted(lost)[:3]}")
    invented = {change for change in listed if change[1:] not in witness.begun}
    if {uri for _, uri, _ in invented} != {BASE + "next"}:
        raise Loss(f"nobody recorded {invented}")
    for package in read("changedump.xml").resources:
        path = folder / package.uri.removeprefix(BASE)
        if package.path is None and ZipFile(path).testzip() is not None:
            raise Loss(f"{path} is damaged")
    resource_list = read("resourcelist.xml")
    lists = [resource_list]
    if resource_list.index:
        lists = [read(part.uri) for part in resource_list.resources]
    _check_resource_list(lists, listed, loaded)


def _check_resource_list(
    documents: list[Document], changes: list[Known], loaded: Mapping[str, str | None]
) -> None:
    document = documents[0]
    assert document.at is not None
    at = to_microseconds(document.at)
    last = {**loaded, **{uri: hash for moment, uri, hash in changes if moment <= at}}
    listed = {entry.uri: entry.hash for part in documents for entry in part.resources}
    if listed != {uri: hash for uri, hash in last.items() if hash is not None}:
        raise Loss(f"the Resource List is not the set as of {document.at}")
