"""The context of one Source, used throughout this package: folders, options, hubs, callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypedDict
from urllib.parse import unquote, urlsplit

from msgspec.structs import replace

from rsnotify.errors import ConfigurationError
from rsnotify.format.model import Resource
from rsnotify_publisher.changes import ContentCallback, SourceContents, check_uri
from rsnotify_publisher.counters import SourceCounters
from rsnotify_publisher.documents.packages import Captured
from rsnotify_publisher.files import check_writable
from rsnotify_publisher.hubs import Hub, advertised
from rsnotify_publisher.journal import Journal
from rsnotify_publisher.options import (
    Options,
    check_options,
    parse_retention,
    parse_rotation,
    parse_schedule,
)
from rsnotify_publisher.source_documents import PARTS, SourceDocuments
from rsnotify_publisher.view import load_views

#: Returns the current set of resources.
ResourceCallback = Callable[[], Iterable[Resource]]


class SourceCallbacks(TypedDict, total=False):
    """Functions of the Source that a Publisher calls in threads.

    `content` returns the current content of a resource: bytes, the path of a file, or None if the
    resource is gone. It allows small content to be sent inside fragments, and is required for
    dumps.

    `resources` returns the current set of resources, for example from the Source's database, as any
    iterable. It is called whenever a Resource List or Resource Dump is written, and its result is
    not held in memory. Without this callback, the set is kept in the journal.

    `clock` returns the time in microseconds since 1970.
    """

    content: ContentCallback | None
    resources: ResourceCallback | None
    clock: Callable[[], int]


class SourceContext:
    """One Source, or one set of resources of a Source. See `Publisher` for the arguments."""

    def __init__(
        self,
        folder: Path,
        base_url: str,
        hubs: tuple[Hub, ...],
        options: Options,
        clock: Callable[[], int],
        *,
        content: ContentCallback | None = None,
        resources: ResourceCallback | None = None,
        described_by: str | None = None,
    ) -> None:
        check_options(options)
        if described_by is not None:
            check_uri(described_by)
        self.counters = SourceCounters()
        self.folder = folder
        self.base_url = normalize_base_url(base_url)
        self.hubs = hubs
        self.options = options
        self.retention = parse_retention(options.keep)
        self.rotation = parse_rotation(options.rotate)
        if self.rotation.age is None and self.rotation.schedule is None:
            # Otherwise changes would stay in the open list forever if there are only a few.
            self.rotation = replace(self.rotation, age=self.retention.age)
        self.resource_list_schedule = parse_schedule(
            "resource_list_every", options.resource_list_every
        )
        every = options.resource_dump_every
        #: None if there is no Resource Dump.
        self.resource_dump_schedule = (
            None if every is None else parse_schedule("resource_dump_every", every)
        )
        self.contents = None if content is None else SourceContents(content)
        self.resources = resources
        if self.contents is None and (options.change_dump or options.resource_dump_every):
            raise ConfigurationError("a dump holds what resources hold; give `content`, too")
        if options.resource_dump_archive and options.resource_dump_every is None:
            raise ConfigurationError("resource_dump_archive needs resource_dump_every, too")
        if options.change_dump_archive and not options.change_dump:
            raise ConfigurationError("change_dump_archive needs change_dump, too")
        #: The types of the enabled views, keyed by name.
        self.views = load_views(options.views)
        self.documents = SourceDocuments(
            self.base_url,
            advertised(hubs),
            options,
            described_by=described_by,
            views=tuple(self.views.values()),
        )
        self.documents_folder = folder / "documents"
        self.captured_folder = folder / "captured"
        #: Keeps the content of changes for the Change Dump; None if there is no Change Dump.
        self.captured: Captured | None = None
        if self.contents is not None and options.change_dump:
            self.captured = Captured(self.captured_folder, self.contents.get)
        self.lock = folder / "leader.lock"
        self.clock = clock
        #: The clock for schedules. The clock of a gateway's set stands where its last check began.
        self.wall: Callable[[], int] = getattr(clock, "wall", clock)

    def check_folders(self) -> None:
        """Create the folders if they are missing, and check that they are writable."""
        for folder in (self.folder, self.documents_folder, self.documents_folder / PARTS):
            check_writable(folder)

    def count(self) -> int:
        with self.open_journal() as journal:
            return journal.count()

    def open_journal(self) -> Journal:
        """Return a connection to the journal for the calling thread."""
        return Journal(self.folder / "journal.sqlite3", self.base_url, clock=self.clock)


def normalize_base_url(base_url: str) -> str:
    """Return the base URL with a slash at the end.

    It must be an absolute http(s) URL without a query, fragment or user name, and without path
    segments that clients would remove.
    """
    check_uri(base_url)
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigurationError(f"base URL {base_url!r} must be http(s)://host/…")
    if parts.username or parts.password:
        # The message does not show the URL, because it contains a secret.
        raise ConfigurationError("the base URL must have no user name or password")
    if parts.query or parts.fragment:
        raise ConfigurationError(f"base URL {base_url!r} must have no query or fragment")
    if any(unquote(segment) in (".", "..") for segment in parts.path.split("/")):
        raise ConfigurationError(f"base URL {base_url!r} must have no segment `.` or `..`")
    return base_url if base_url.endswith("/") else base_url + "/"
