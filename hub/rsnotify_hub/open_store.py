"""Opens the configured store: a folder on this machine, or a store that several nodes share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path
from socket import gethostname

from rsnotify import __version__
from rsnotify.format.datetimes import Instant
from rsnotify_hub.config.configuration import HubConfig
from rsnotify_hub.store.interface import LogRetention
from rsnotify_hub.store.providers import NodeFacts, OpenStore
from rsnotify_hub.store.sqlite_provider import SqliteProvider


def open_store(
    configuration: HubConfig, clock: Callable[[], Instant], public_url: str
) -> AbstractAsyncContextManager[OpenStore]:
    """Return a context with the open store. Leaving the context closes the store.

    Raises:
        ConfigurationError: The folder or the servers cannot be used.
        StorageError: The store's content cannot be read.
    """
    provider = configuration.store or SqliteProvider(folder=Path(configuration.log.data))
    retention = LogRetention(
        size=configuration.log.log_bytes, age=timedelta(seconds=configuration.log.log_seconds)
    )
    node = NodeFacts(
        name=gethostname(),
        url=public_url,
        version=__version__,
        bridges=configuration.has_bridges,
        largest_fragment=configuration.intake.max_fragment_bytes,
    )
    return provider.open(retention, node, clock)
