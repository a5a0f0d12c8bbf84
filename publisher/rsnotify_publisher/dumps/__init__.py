"""Resource Dumps and Change Dumps: packages, their manifests, and the documents (core §11, §13).

Entries and contents go in; finished files in a folder come out, with a list of what was
written. Where the entries come from, when a dump is written and how long it is kept are
decided elsewhere. Memory does not grow with what is packed.
"""

from __future__ import annotations

from rsnotify_publisher.dumps.bitstreams import EntryContent
from rsnotify_publisher.dumps.captured import Captured
from rsnotify_publisher.dumps.packages import WrittenPackage
from rsnotify_publisher.dumps.writer import DumpWriter

__all__ = ["Captured", "DumpWriter", "EntryContent", "WrittenPackage"]
