"""The context of one Source, used throughout this package: folders, options, hubs and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypedDict
from urllib.parse import unquote, urlsplit

from msgspec.structs import replace

from rsnotify.errors import ConfigurationError
from rsnotify.format.model import Resource
from rsnotify_publisher.changes import check_uri
from rsnotify_publisher.counters import SourceCounters
from rsnotify_publisher.files import check_writable
from rsnotify_publisher.hubs import Hub, advertised
from rsnotify_publisher.job_schedule import parse_schedule
from rsnotify_publisher.journal import Journal
from rsnotify_publisher.options import Options, check_options
from rsnotify_publisher.rotation_and_retention import parse_retention, parse_rotation
from rsnotify_publisher.source_contents import CapturedContent, ContentCallback, SourceContents
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
    not held in memory. Without this callback, the journal stores the set.

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
            # Otherwise a few changes would stay in the open list forever.
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
            raise ConfigurationError("dumps require the callback `content`")
        if options.resource_dump_archive and options.resource_dump_every is None:
            raise ConfigurationError("resource_dump_archive requires resource_dump_every")
        if options.change_dump_archive and not options.change_dump:
            raise ConfigurationError("change_dump_archive requires change_dump")
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
        self.captured: CapturedContent | None = None
        if self.contents is not None and options.change_dump:
            self.captured = CapturedContent(self.captured_folder, self.contents.get)
        self.clock = clock
        #: The clock for schedules. A gateway's `clock` shows when its last complete check began.
        self.wall_clock: Callable[[], int] = getattr(clock, "wall", clock)

    def check_folders(self) -> None:
        """Create the folders if they are missing, and check that they are writable."""
        for folder in (self.folder, self.documents_folder, self.documents_folder / PARTS):
            check_writable(folder)

    def count(self) -> int:
        with self.open_journal() as journal:
            return journal.count()

    def open_journal(self) -> Journal:
        """Open a new connection to the journal, for the calling thread."""
        return Journal(self.folder / "journal.sqlite3", self.base_url, clock=self.clock)


def normalize_base_url(base_url: str) -> str:
    """Return the base URL with a slash at the end.

    Raises:
        ConfigurationError: It is not an absolute http(s) URL; it has a query, fragment or user
            name; or clients would remove one of its path segments.
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
        raise ConfigurationError("the base URL must not contain a user name or password")
    if parts.query or parts.fragment:
        raise ConfigurationError(f"base URL {base_url!r} must not contain a query or fragment")
    if any(unquote(segment) in (".", "..") for segment in parts.path.split("/")):
        raise ConfigurationError(f"base URL {base_url!r} must not contain a segment `.` or `..`")
    return base_url if base_url.endswith("/") else base_url + "/"
