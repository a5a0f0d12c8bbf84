"""What a Source is to the rooms of this package: its state, its documents, its hubs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from rsnotify.errors import ConfigurationError
from rsnotify_publisher.changes import check_uri
from rsnotify_publisher.documents import Documents
from rsnotify_publisher.hubs import Hub, advertised
from rsnotify_publisher.journal import Journal
from rsnotify_publisher.options import Options


class Source:
    """One Source.

    Args:
        folder: Holds the journal, the lock of the leader, and `documents/`.
        base_url: Below which the documents stand; a missing slash at its end is added.
        hubs: Where fragments go.
        clock: Tells the time in microseconds since 1970.

    Raises:
        ConfigurationError: The base URL is unusable.
    """

    def __init__(
        self,
        folder: Path,
        base_url: str,
        hubs: tuple[Hub, ...],
        options: Options,
        clock: Callable[[], int],
    ) -> None:
        self.folder = folder
        self.base_url = normalize_base_url(base_url)
        self.hubs = hubs
        self.options = options
        self.documents = Documents(self.base_url, advertised(hubs))
        self.documents_folder = folder / "documents"
        self.lock = folder / "leader.lock"
        self._clock = clock

    def open_journal(self) -> Journal:
        """Make a connection to the journal for the calling thread.

        Raises:
            StorageError: The journal cannot be used.
            ConfigurationError: It belongs to a Source with another base URL.
        """
        return Journal(self.folder / "journal.sqlite3", self.base_url, clock=self._clock)


def normalize_base_url(base_url: str) -> str:
    """Return the base URL with a slash at its end.

    Raises:
        ConfigurationError: It is no absolute http(s) URL, or has a query, a fragment or a
            user name.
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
        # Not shown, as it holds what is to stay secret.
        raise ConfigurationError("the base URL must have no user name or password")
    if parts.query or parts.fragment:
        raise ConfigurationError(f"base URL {base_url!r} must have no query or fragment")
    return base_url if base_url.endswith("/") else base_url + "/"
