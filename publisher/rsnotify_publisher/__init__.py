"""The Source side of rsnotify: record changes, publish them as documents, push them to hubs."""

from typing import TYPE_CHECKING

from rsnotify.runtime.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from rsnotify.runtime.mqtt_broker import BrokerLogin
    from rsnotify_publisher.changes import Metadata, Record
    from rsnotify_publisher.description import (
        SourceDescription,
        html_link,
        link_header,
        robots_lines,
    )
    from rsnotify_publisher.hubs import Hub, parse_hub
    from rsnotify_publisher.journal import FinishedDocument
    from rsnotify_publisher.metrics import SourceMetrics
    from rsnotify_publisher.options import Options
    from rsnotify_publisher.outbox.forwarder import Forwarder
    from rsnotify_publisher.outbox.outbox import Outbox
    from rsnotify_publisher.outbox.postgresql import PostgreSQLQueue
    from rsnotify_publisher.outbox.sqlalchemy import SQLAlchemyOutbox, SQLAlchemyQueue
    from rsnotify_publisher.publisher import Publisher
    from rsnotify_publisher.push.hub_feed import FragmentFeed
    from rsnotify_publisher.source_context import SourceCallbacks
    from rsnotify_publisher.view import View
    from rsnotify_publisher.web.application import application, routes
    from rsnotify_publisher.web.asgi_and_wsgi import asgi_application, wsgi_application
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "rsnotify.runtime.mqtt_broker": ("BrokerLogin",),
            "rsnotify_publisher.changes": ("Metadata", "Record"),
            "rsnotify_publisher.description": (
                "SourceDescription",
                "html_link",
                "link_header",
                "robots_lines",
            ),
            "rsnotify_publisher.journal": ("FinishedDocument",),
            "rsnotify_publisher.metrics": ("SourceMetrics",),
            "rsnotify_publisher.options": ("Options",),
            "rsnotify_publisher.outbox.forwarder": ("Forwarder",),
            "rsnotify_publisher.outbox.outbox": ("Outbox",),
            "rsnotify_publisher.outbox.postgresql": ("PostgreSQLQueue",),
            "rsnotify_publisher.outbox.sqlalchemy": ("SQLAlchemyOutbox", "SQLAlchemyQueue"),
            "rsnotify_publisher.view": ("View",),
            "rsnotify_publisher.publisher": ("Publisher",),
            "rsnotify_publisher.push.hub_feed": ("FragmentFeed",),
            "rsnotify_publisher.source_context": ("SourceCallbacks",),
            "rsnotify_publisher.hubs": ("Hub", "parse_hub"),
            "rsnotify_publisher.web.application": ("application", "routes"),
            "rsnotify_publisher.web.asgi_and_wsgi": ("asgi_application", "wsgi_application"),
        },
    )

__all__ = [
    "BrokerLogin",
    "FinishedDocument",
    "Forwarder",
    "FragmentFeed",
    "Hub",
    "Metadata",
    "Options",
    "Outbox",
    "PostgreSQLQueue",
    "Publisher",
    "Record",
    "SQLAlchemyOutbox",
    "SQLAlchemyQueue",
    "SourceCallbacks",
    "SourceDescription",
    "SourceMetrics",
    "View",
    "application",
    "asgi_application",
    "html_link",
    "link_header",
    "parse_hub",
    "robots_lines",
    "routes",
    "wsgi_application",
]
