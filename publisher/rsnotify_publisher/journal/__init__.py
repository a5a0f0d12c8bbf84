"""The journal: durable, ordered, shared by processes; and what writes it in groups."""

from rsnotify_publisher.journal.finished_documents import FinishedDocument
from rsnotify_publisher.journal.journal import Journal
from rsnotify_publisher.journal.recorder import Recorder
from rsnotify_publisher.journal.storage import JournalState, system_clock

__all__ = ["FinishedDocument", "Journal", "JournalState", "Recorder", "system_clock"]
