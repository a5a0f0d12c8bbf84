"""Serves the documents over HTTP."""

from rsnotify_publisher.web.application import application, respond_with, robots, routes
from rsnotify_publisher.web.documents import LIVE, path_of

__all__ = ["LIVE", "application", "path_of", "respond_with", "robots", "routes"]
