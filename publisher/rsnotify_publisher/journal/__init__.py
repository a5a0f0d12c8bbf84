"""The journal of a Source: durable, ordered, shared by processes, written by group commit."""

from rsnotify_publisher.journal.finished_documents import FinishedDocument
from rsnotify_publisher.journal.journal import Journal
from rsnotify_publisher.journal.recorded_changes import RecordedChanges, consecutive
from rsnotify_publisher.journal.recorder import Recorder
from rsnotify_publisher.journal.storage import JournalState, system_clock

__all__ = [
    "FinishedDocument",
    "Journal",
    "JournalState",
    "RecordedChanges",
    "Recorder",
    "consecutive",
    "system_clock",
]
