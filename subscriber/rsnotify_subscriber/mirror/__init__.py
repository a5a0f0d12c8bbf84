"""The handler that ships with rsnotify: a folder with a file for each resource."""

from rsnotify_subscriber.mirror.folder import FolderMirror, default_state
from rsnotify_subscriber.mirror.tree import Tree

__all__ = ["FolderMirror", "Tree", "default_state"]
