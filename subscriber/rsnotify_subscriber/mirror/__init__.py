"""The handler that mirrors a Source in a folder, with a file for each resource."""

from rsnotify_subscriber.mirror.folder_mirror import FolderMirror, default_state
from rsnotify_subscriber.mirror.paths import MirrorTree

__all__ = ["FolderMirror", "MirrorTree", "default_state"]
