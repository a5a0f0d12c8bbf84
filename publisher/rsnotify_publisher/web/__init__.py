"""Serves the documents over HTTP."""

from rsnotify_publisher.web.application import LIVE, application, path_of, robots, routes

__all__ = ["LIVE", "application", "path_of", "robots", "routes"]
