"""Changes that come as fast as lists are closed."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rsnotify.format.model import ChangeType, Resource
from rsnotify.format.reader import read_document
from rsnotify_publisher.changes import Record
from rsnotify_publisher.documents.document_store import DocumentStore
from rsnotify_publisher.journal import Recorder
from rsnotify_publisher.options import Options
from rsnotify_publisher.source_context import SourceContext

BASE = "http://source.example/data/"
MANY = 50


class Flood:
    """A clock at each of whose looks more has happened, as long as it lasts."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self.reads = 0

    def __call__(self) -> int:
        if self.recorder is not None and threading.current_thread() is threading.main_thread():
            self.reads += 1
            assert self.reads < MANY, "it goes on for ever"
            self.record(self.recorder)
        return time.time_ns() // 1000

    def record(self, recorder: Recorder) -> None:
        change = Record(Resource(f"{BASE}a", change=ChangeType.UPDATED))
        recorder.submit(lambda journal: journal.record([change] * 4)).result()


def test_a_flood_does_not_keep_the_other_documents_from_being_written(tmp_path: Path) -> None:
    flood = Flood()
    source = SourceContext(tmp_path, BASE, (), Options(rotate="4 changes"), flood)
    recorder = Recorder(source.open_journal, lambda _: None, ThreadPoolExecutor(1))
    recorder.start()
    flood.record(recorder)
    library = DocumentStore(source, recorder)
    flood.recorder = recorder
    library.write_change_lists()
    flood.recorder = None
    library.write_change_lists()
    recorder.close()
    change_list = read_document((source.documents_folder / "changelist.xml").read_bytes())
    assert 2 <= len(change_list.resources) < 4
