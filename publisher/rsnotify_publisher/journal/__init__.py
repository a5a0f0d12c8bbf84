"""The journal: durable, ordered, shared by processes; and what writes it in groups."""

from rsnotify_publisher.journal.catalogue import Volume
from rsnotify_publisher.journal.journal import Journal
from rsnotify_publisher.journal.recorder import Recorder
from rsnotify_publisher.journal.storage import State, system_clock

__all__ = ["Journal", "Recorder", "State", "Volume", "system_clock"]
