"""The handler that ships with rsnotify: a folder with a file for each resource."""

from rsnotify_subscriber.mirror.folder import FolderMirror, MirrorTree, default_state

__all__ = ["FolderMirror", "MirrorTree", "default_state"]
