"""The handler of a relay, which publishes the changes it has applied."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from rsnotify.errors import ConfigurationError
from rsnotify.format.model import Resource
from rsnotify.format.vocabulary import ChangeType
from rsnotify_publisher import Publisher
from rsnotify_relay.naming import RelayNaming
from rsnotify_relay.provenance import republished
from rsnotify_subscriber import FolderMirror, Received
from rsnotify_subscriber.fetching.digests import agree
from rsnotify_subscriber.storage.destination_state import DestinationState

_log = logging.getLogger("rsnotify.relay")


class Republisher:
    """Mirrors a set of resources and publishes the copy; a `Handler`.

    First the mirror is durable, then the journal, and then, when `apply` has returned, T. After a
    crash in between the changes come again: none is lost, and some are published twice.

    Args:
        mirror: Holds the copy.
        publisher: Publishes the copy, and nothing else; the caller starts it.
    """

    def __init__(self, mirror: FolderMirror, publisher: Publisher) -> None:
        self._mirror = mirror
        self._publisher = publisher
        self._naming: RelayNaming | None = None

    def prepare(self, base: str, temporary: Path) -> None:
        """Prepare the mirror for a set of resources; called before the first `apply`.

        Raises:
            ConfigurationError: The set is that of the relay itself, or as for
                `FolderMirror.prepare`.
        """
        base_url = self._publisher.source.base_url
        if base == base_url:
            raise ConfigurationError(
                f"a relay cannot follow itself: both it and the Source are at {base}"
            )
        self._mirror.prepare(base, temporary)
        self._naming = RelayNaming(base, base_url)

    async def apply(self, changes: Sequence[Received]) -> None:
        """Put changes into the mirror, then record them, both durably."""
        await self._mirror.apply(changes)
        records = await asyncio.to_thread(self._records, changes)
        await self._publisher.arecord(records)

    def _records(self, changes: Sequence[Received]) -> list[Resource]:
        assert self._naming is not None, "prepare is called first"
        records = []
        with self._publisher.source.open_journal() as journal:
            for change in changes:
                uri = self._naming.at_relay(change.uri)
                if uri is None:
                    _log.warning("%s is not published: its URI would be too long", change.uri)
                    continue
                known = journal.resource(uri)
                if known is not None and change.hash and agree(known[0].hash, change.hash):
                    continue  # its file was damaged, and is written again as it was published
                if known is not None or change.change is not ChangeType.DELETED:
                    records.append(republished(change, uri, known[0] if known else None))
        return records

    def differing(self, state: DestinationState) -> list[str]:
        """Return the resources that the state has otherwise than they are published."""
        assert self._naming is not None, "prepare is called first"
        with self._publisher.source.open_journal() as journal:
            hashes = {self._naming.at_source(one.uri): one.hash for one in journal.resources()}
        found = []
        for uri in state.held_uris():
            held = state.find(uri)
            if held is None or not agree(hashes.pop(uri, None), held.hash):
                found.append(uri)
        return [*found, *hashes]

    # Reading the copy

    def content(self, uri: str) -> Path | None:
        """Return the file of the resource that is published under a URI, if there is one.

        This blocks on the disk, and may be called in any thread.
        """
        found = self.find(uri)
        return None if found is None else found[1]

    def find(self, uri: str) -> tuple[Resource, Path] | None:
        """Return the last published entry of a URI, and its file."""
        if self._naming is None:
            return None
        with self._publisher.source.open_journal() as journal:
            known = journal.resource(uri)
        if known is None:
            return None
        path = self.held_content(self._naming.at_source(uri))
        return None if path is None else (known[0], path)

    @property
    def place(self) -> str:
        """The folder of the mirror."""
        return self._mirror.place

    def held_content(self, uri: str) -> Path | None:
        """Return the file of a resource of the Source, if there is one."""
        return self._mirror.held_content(uri)

    def find_files(self, uris: Sequence[str]) -> Iterator[tuple[str, os.stat_result | None]]:
        """Yield the path of each resource of the Source, and the status of its file."""
        return self._mirror.find_files(uris)

    def paths(self) -> Iterator[str]:
        """Yield the paths of all files of the mirror."""
        return self._mirror.paths()
