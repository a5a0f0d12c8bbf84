"""The Source's side of rsnotify: record changes, publish them as documents, push them to hubs."""

from rsnotify_publisher.changes import Metadata, Record
from rsnotify_publisher.hubs import Hub, parse_hub
from rsnotify_publisher.options import Options
from rsnotify_publisher.publisher import Publisher
from rsnotify_publisher.web import application, routes

__all__ = [
    "Hub",
    "Metadata",
    "Options",
    "Publisher",
    "Record",
    "application",
    "parse_hub",
    "routes",
]
