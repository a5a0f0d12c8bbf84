"""Applying patches to the content that is held."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from rsnotify.format.model import Link
from rsnotify.selection.representations import WantedRepresentation
from rsnotify_subscriber.fetching.contents import Content
from rsnotify_subscriber.fetching.digests import parse_hashes, verifies
from rsnotify_subscriber.handlers import ReadableHandler
from rsnotify_subscriber.patching import STANDARD_PATCHES, Patch
from rsnotify_subscriber.storage.resource_state import ResourceState

logger = logging.getLogger("rsnotify.subscriber")

#: The most bytes of content, before and after, as it is all in memory meanwhile.
_MOST_BYTES = 16 << 20


class Patcher:
    """Applies patches, one at a time.

    A link does not name the version that it patches (core §14.4): it is the version before, which
    is not always the one that is held. So the content that is held is verified by its hash in the
    state, and the result by the announced hash.
    """

    def __init__(self, holding: ReadableHandler, patches: Mapping[str, Patch]) -> None:
        self._holding = holding
        self._patches = {**STANDARD_PATCHES, **patches}
        self._lock = asyncio.Lock()

    def usable(self, wanted: WantedRepresentation, held: ResourceState | None) -> Iterator[Link]:
        """Yield the patches that may be worth fetching."""
        entry = wanted.entry
        if held is None or not held.exists or held.hash is None or not parse_hashes(entry.hash):
            return
        if max(held.length or 0, entry.length or 0) > _MOST_BYTES:
            return
        for link in wanted.patches:
            most = _MOST_BYTES if entry.length is None else min(_MOST_BYTES, entry.length)
            if self._function(link) is not None and (link.length or 0) <= most:
                yield link

    async def patched(
        self, wanted: WantedRepresentation, held: ResourceState, link: Link, document: Content
    ) -> bytes | None:
        """Return the verified content after the patch; None if the patch does not produce it.

        The downloaded patch, `document`, is discarded at the end.
        """
        function = self._function(link)
        path = self._holding.held_content(wanted.entry.uri)
        async with self._lock:
            return await asyncio.to_thread(_patched, wanted, held, function, path, document)

    def _function(self, link: Link) -> Patch | None:
        return self._patches.get((link.type or "").partition(";")[0].strip().lower())


def _patched(
    wanted: WantedRepresentation,
    held: ResourceState,
    function: Patch | None,
    path: Path | None,
    document: Content,
) -> bytes | None:
    try:
        before = _read(path, held)
        if before is None or function is None or document.length > _MOST_BYTES:
            return None
        after = function(before, document.read())
    except Exception as error:
        # The function may be the user's, and the patch is untrusted: after any exception the
        # whole resource is fetched.
        logger.info("%s is fetched, as its patch cannot be applied: %s", wanted.entry.uri, error)
        return None
    finally:
        document.discard()
    if not verifies(after, wanted.entry.hash, wanted.entry.length):
        logger.info("%s is fetched, as its patch produces other content", wanted.entry.uri)
        return None
    return after


def _read(path: Path | None, held: ResourceState) -> bytes | None:
    """Read the content that is held, if it still has the hash in the state."""
    if path is None or path.stat().st_size != held.length:
        return None
    content = path.read_bytes()
    return content if verifies(content, held.hash) else None
