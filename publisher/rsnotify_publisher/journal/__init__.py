"""The journal of a Source: durable, ordered, shared by processes, written by group commit."""

from rsnotify_publisher.journal.database import (
    JournalState,
    RecordedChanges,
    consecutive,
    system_clock,
)
from rsnotify_publisher.journal.group_commit import Recorder
from rsnotify_publisher.journal.journal import FinishedDocument, Journal

__all__ = [
    "FinishedDocument",
    "Journal",
    "JournalState",
    "RecordedChanges",
    "Recorder",
    "consecutive",
    "system_clock",
]
