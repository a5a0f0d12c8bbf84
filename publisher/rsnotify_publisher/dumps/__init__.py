"""Writes Resource Dumps and Change Dumps: packages, manifests, and documents (core §11, §13).

The input are entries and contents, the output are files in a folder. Which entries, when a dump is
written, and how long it is kept is decided in `documents.source_dumps`. Memory does not grow with
the size of a dump.
"""

from rsnotify_publisher.dumps.captured import Captured
from rsnotify_publisher.dumps.writer import DumpWriter, WrittenPackage

__all__ = ["Captured", "DumpWriter", "WrittenPackage"]
