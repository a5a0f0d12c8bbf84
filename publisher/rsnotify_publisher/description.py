"""The Source Description of several sets of resources, and ways to discover it (core §6.3).

The well-known URI is one of the routes. The functions in this module return the others: a header
and an HTML element for the resources themselves, and lines for robots.txt.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rsnotify.errors import ConfigurationError
from rsnotify.format.links import format_links
from rsnotify.format.model import Capability, Document, Link, Rel
from rsnotify.format.writer import write_document
from rsnotify.runtime.arguments import require
from rsnotify_publisher.background.pool import PublisherPool
from rsnotify_publisher.changes import check_uri
from rsnotify_publisher.files import write_atomically
from rsnotify_publisher.publisher import Publisher, Startable, close_all, join_source
from rsnotify_publisher.source_context import normalize_base_url
from rsnotify_publisher.source_documents import CAPABILITY_LIST, DESCRIPTION, RESOURCE_LIST

_PORTS = {"http": 80, "https": 443}


class SourceDescription(Startable):
    """Several sets of resources as one Source (core §8).

    Each set has its own Publisher, with its own Capability List and channel. Their Capability Lists
    point up to this Source Description. All sets run in the same few threads, regardless of their
    number.

    Args:
        base_url: The URL of the Source. The URLs of the sets must be below it.
        sets: A Publisher for each set of resources, none of which has started.
        described_by: The URL of a document about the Source.

    Raises:
        ConfigurationError: A URL is unusable; a set is not below the base URL; two sets overlap or
            have the same state folder; or a Publisher has already started.
    """

    def __init__(
        self, base_url: str, sets: Sequence[Publisher], *, described_by: str | None = None
    ) -> None:
        if described_by is not None:
            check_uri(described_by)
        self.base_url = normalize_base_url(base_url)
        self.uri = self.base_url + DESCRIPTION
        require("sets", sets, Iterable, "a list of Publishers")
        self.sets = tuple(sets)
        for publisher in self.sets:
            require("a set", publisher, Publisher, "a Publisher")
        self._described_by = described_by
        self._check_urls()
        self._check_folders()
        pool = PublisherPool(len(self.sets))
        for publisher in self.sets:
            join_source(publisher, self.uri, pool)

    def _check_urls(self) -> None:
        own = _normalized(self.base_url)
        urls = []
        for publisher in self.sets:
            url = _normalized(publisher.source.base_url)
            if not url.startswith(own):
                raise ConfigurationError(
                    f"the set {publisher.source.base_url} is not below {self.base_url}; "
                    "the base URLs of all sets must be below the Source's"
                )
            urls.append((unquote(url), publisher.source.base_url))
        urls.sort()
        for (upper, first), (lower, second) in pairwise(urls):
            if lower.startswith(upper):
                raise ConfigurationError(
                    f"the sets {first} and {second} overlap; give each set a base URL that is not "
                    "below another set's"
                )

    def _check_folders(self) -> None:
        seen: dict[Path, str] = {}
        for publisher in self.sets:
            folder, base_url = publisher.source.folder.resolve(), publisher.source.base_url
            if folder in seen:
                raise ConfigurationError(
                    f"the sets {seen[folder]} and {base_url} both keep their state in {folder}; "
                    "give each set a separate folder"
                )
            seen[folder] = base_url

    def document(self) -> Document:
        """Return the Source Description, which lists the Capability List of each set."""
        links = () if self._described_by is None else (Link(Rel.DESCRIBED_BY, self._described_by),)
        documents = [publisher.source.documents for publisher in self.sets]
        entries = [each.description_entry() for each in documents]
        entries += [entry for each in documents for entry in each.framework_entries]
        return Document(Capability.DESCRIPTION, tuple(entries), links=links)

    def write(self, file: str | os.PathLike[str]) -> None:
        """Write the Source Description to a file that any web server can serve at `uri`.

        Raises:
            ConfigurationError: The documents of a set have not been written yet.
            OSError: The file cannot be written.
        """
        for publisher in self.sets:
            if not (publisher.source.documents_folder / CAPABILITY_LIST).exists():
                raise ConfigurationError(
                    f"the set {publisher.source.base_url} has no documents yet; start it, and "
                    "write the Source Description after `wait_published` has returned"
                )
        write_atomically(Path(file), [write_document(self.document())])

    def start(self) -> None:
        """Start every Publisher. A second call does nothing.

        Raises:
            StorageError: A journal cannot be used.
            ConfigurationError: A journal belongs to another set.
        """
        try:
            for publisher in self.sets:
                publisher.start()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the Publisher of each set."""
        close_all(self.sets)


def _normalized(base_url: str) -> str:
    """Return a base URL with its host and port in normal form (RFC 3986 §6.2)."""
    parts = urlsplit(base_url)
    return f"{parts.scheme}://{parts.hostname}:{parts.port or _PORTS[parts.scheme]}{parts.path}"


def link_header(publisher: Publisher) -> str:
    """Return the value of the HTTP header `Link` for every resource of the set (core §6.3.3)."""
    return format_links([(Rel.RESOURCESYNC, publisher.source.documents.uri(CAPABILITY_LIST))])


def html_link(publisher: Publisher) -> str:
    """Return the HTML element for the `<head>` of every page of the set (core §6.3.3)."""
    uri = publisher.source.documents.uri(CAPABILITY_LIST)
    return f'<link rel="{Rel.RESOURCESYNC}" href="{escape(uri)}">'


def robots_lines(source: Publisher | SourceDescription) -> str:
    """Return the lines for robots.txt, one for each set of resources (core §6.3.4)."""
    sets = [source] if isinstance(source, Publisher) else source.sets
    uris = (publisher.source.documents.uri(RESOURCE_LIST) for publisher in sets)
    return "".join(f"Sitemap: {uri}\n" for uri in uris)
