"""Serves the documents over HTTP."""

from rsnotify_publisher.web.application import application, respond_with, robots, routes
from rsnotify_publisher.web.documents import path_of
from rsnotify_publisher.web.responses import LIVE

__all__ = ["LIVE", "application", "path_of", "respond_with", "robots", "routes"]
