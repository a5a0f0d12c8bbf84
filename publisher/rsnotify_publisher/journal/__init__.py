"""The journal of a Source: durable, ordered, shared by processes, written by group commit."""

from rsnotify_publisher.journal.journal import (
    FinishedDocument,
    Journal,
    JournalState,
    RecordedChanges,
    consecutive,
    system_clock,
)
from rsnotify_publisher.journal.recorder import Recorder

__all__ = [
    "FinishedDocument",
    "Journal",
    "JournalState",
    "RecordedChanges",
    "Recorder",
    "consecutive",
    "system_clock",
]
