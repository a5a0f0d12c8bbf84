"""Helps Destinations to discover a Source (core §6.3).

The well-known URI is one of the routes. These functions return the other means: a header and an
HTML element for the resources themselves, and lines for robots.txt.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from rsnotify.format.links import format_links
from rsnotify.format.vocabulary import Rel
from rsnotify_publisher.publisher import Publisher
from rsnotify_publisher.source_documents import CAPABILITY_LIST, RESOURCE_LIST


def link_header(publisher: Publisher) -> str:
    """Return the value of the HTTP header `Link` for every resource of the set (core §6.3.3)."""
    return format_links([(Rel.RESOURCESYNC, publisher.source.documents.uri(CAPABILITY_LIST))])


def html_link(publisher: Publisher) -> str:
    """Return the element for the `<head>` of every page of the set (core §6.3.3)."""
    uri = publisher.source.documents.uri(CAPABILITY_LIST)
    return f'<link rel="{Rel.RESOURCESYNC}" href="{escape(uri)}">'


def robots_lines(publishers: Iterable[Publisher]) -> str:
    """Return the lines for robots.txt, one for each set of resources (core §6.3.4)."""
    uris = (publisher.source.documents.uri(RESOURCE_LIST) for publisher in publishers)
    return "".join(f"Sitemap: {uri}\n" for uri in uris)
