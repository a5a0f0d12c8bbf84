"""The documents as files in a folder, which any web server can serve."""

from rsnotify_publisher.library.library import Library, Stopped

__all__ = ["Library", "Stopped"]
