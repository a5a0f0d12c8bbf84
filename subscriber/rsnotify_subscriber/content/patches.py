"""Applies patches to the content in the copy (core §14.4).

The functions for each media type come from the options, or from the entry points `rsnotify.patches`
of installed packages. These are imported when they are first needed. Without a function, the whole
resource is fetched.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from rsnotify.format.hashes import parse_hashes, verifies
from rsnotify.format.model import Link
from rsnotify.runtime.extensions import MissingExtension, load_extension, offered
from rsnotify.selection import WantedRepresentation
from rsnotify_subscriber.fetching.fetcher import Content
from rsnotify_subscriber.handlers import ReadableHandler
from rsnotify_subscriber.storage.resource_state import ResourceState

logger = logging.getLogger("rsnotify.subscriber")

#: Maximum number of media types whose missing function is logged.
_MAX_LOGGED_TYPES = 20


class Patch(Protocol):
    """A function that applies patches of one media type."""

    def __call__(self, before: bytes, patch: bytes, /) -> bytes:
        """Return the patched content. If this raises, the whole resource is fetched."""


class PatchFunctions:
    """The patch functions by media type: the `given` ones, and otherwise installed ones."""

    def __init__(self, given: Mapping[str, Patch]) -> None:
        self._loaded = dict(given)
        self._missing: set[str] = set()

    def offers(self, media_type: str) -> bool:
        """Return whether there is a function, without importing it."""
        if media_type in self._loaded:
            return True
        if media_type in offered("patches") and media_type not in self._missing:
            return True
        if media_type not in self._missing and len(self._missing) < _MAX_LOGGED_TYPES:
            self.load(media_type)  # logs that it is missing
        return False

    def load(self, media_type: str) -> Patch | None:
        """Return the function for a media type, or None. A missing function is logged once."""
        if media_type not in self._loaded:
            try:
                function = load_extension("patches", media_type, f"a function for {media_type}")
            except MissingExtension as error:
                if media_type not in self._missing:
                    self._missing.add(media_type)
                    logger.warning("fetching whole resources instead of patches: %s", error)
                return None
            self._loaded[media_type] = function
        return self._loaded[media_type]


#: Maximum number of bytes of content before and after a patch, because both are in memory.
_MAX_BYTES = 16 << 20


class Patcher:
    """Applies patches, one at a time.

    A patch link does not name the version that it applies to (core §14.4), which may not be the one
    in the copy. So the content in the copy is verified against its hash in the state, and the
    patched content against the announced hash.
    """

    def __init__(self, holding: ReadableHandler, patches: Mapping[str, Patch]) -> None:
        self._holding = holding
        self._functions = PatchFunctions(patches)
        self._lock = asyncio.Lock()

    def usable(self, wanted: WantedRepresentation, held: ResourceState | None) -> Iterator[Link]:
        """Yield the links to patches that may apply."""
        entry = wanted.entry
        if held is None or not held.exists or held.hash is None or not parse_hashes(entry.hash):
            return
        if max(held.length or 0, entry.length or 0) > _MAX_BYTES:
            return
        for link in wanted.patches:
            most = _MAX_BYTES if entry.length is None else min(_MAX_BYTES, entry.length)
            if (link.length or 0) <= most and self._functions.offers(_media_type(link)):
                yield link

    async def patched(
        self, wanted: WantedRepresentation, held: ResourceState, link: Link, document: Content
    ) -> bytes | None:
        """Return the verified, patched content, or None if the patch does not produce it.

        Discards `document`, the downloaded patch.
        """
        path = self._holding.held_content(wanted.entry.uri)
        async with self._lock:
            return await asyncio.to_thread(self._patched, wanted, held, link, path, document)

    def _patched(
        self,
        wanted: WantedRepresentation,
        held: ResourceState,
        link: Link,
        path: Path | None,
        document: Content,
    ) -> bytes | None:
        entry = wanted.entry
        try:
            before = _read(path, held)
            if before is None or document.length > _MAX_BYTES:
                return None
            function = self._functions.load(_media_type(link))
            if function is None:
                return None
            after = function(before, document.read())
        except Exception as error:
            # The function may be user code, and the patch is untrusted.
            logger.info("fetching %s, because its patch cannot be applied: %s", entry.uri, error)
            return None
        finally:
            document.discard()
        if not verifies(after, entry.hash, entry.length):
            logger.info("fetching %s, because its patch produces other content", entry.uri)
            return None
        return after


def _media_type(link: Link) -> str:
    return (link.type or "").partition(";")[0].strip().lower()


def _read(path: Path | None, held: ResourceState) -> bytes | None:
    """Return the content in the copy, or None if it differs from the state."""
    if path is None or path.stat().st_size != held.length:
        return None
    content = path.read_bytes()
    return content if verifies(content, held.hash) else None
