"""The contents of resources, which the Source's callback `content` returns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from rsnotify.errors import StorageError
from rsnotify.format.model import INLINE_LIMIT

#: Returns the current content at a URI: bytes, the path of a file, or None if it is gone.
ContentCallback = Callable[[str], bytes | Path | None]


logger = logging.getLogger("rsnotify.publisher")
#: Number of missing resources after which they are rechecked and forgotten.
_MAX_MISSING = 1_000


class SourceContents(Struct, frozen=True):
    """Calls the Source's callback, and checks what it returns."""

    content: ContentCallback

    def get(self, uri: str) -> bytes | Path | None:
        """Return the current content of a resource, or None if the resource or its file is gone.

        Raises:
            StorageError: The callback failed, or returned a value of another type.
        """
        try:
            found = self.content(uri)
        except Exception as error:  # the Source's own code may raise anything
            raise StorageError(f"the content of {uri} is not available: {error!r}") from error
        if not isinstance(found, bytes | Path | None):
            raise StorageError(
                f"the content of {uri} is not available: `content` returned a "
                f"{type(found).__name__}, not bytes, a Path or None"
            )
        if isinstance(found, Path) and not found.is_file():
            return None
        return found

    def inline(self, uris: Sequence[str]) -> Mapping[str, bytes]:
        """Return the contents that are small enough to be sent inside a fragment."""
        found = {}
        for uri in uris:
            try:
                content = self.get(uri)
                if isinstance(content, Path):
                    with open(content, "rb") as file:
                        content = file.read(INLINE_LIMIT + 1)
            except (StorageError, OSError):  # Destinations GET the resource instead
                logger.exception("sending %s without inline content", uri)
                continue
            if content is not None and len(content) <= INLINE_LIMIT:
                found[uri] = content
        return found


class CheckedContents(Struct, frozen=True):
    """Reads contents, and detects missing ones whose resource was not deleted.

    `still_listed` returns the given URIs whose resources are still in the set.
    """

    contents: SourceContents
    still_listed: Callable[[Sequence[str]], Iterable[str]]
    missing: list[str] = []

    def get(self, uri: str) -> bytes | Path | None:
        """Return the current content of a resource, and remember the resource if it is gone."""
        found = self.contents.get(uri)
        if found is None:
            self.missing.append(uri)
            if len(self.missing) > _MAX_MISSING:
                self.check()
        return found

    def check(self) -> None:
        """Raise StorageError if the content of a resource is missing but no change deleted it."""
        for uri in self.still_listed(self.missing):
            if self.contents.get(uri) is None:
                raise StorageError(
                    f"{uri} was not deleted, but `content` returned nothing for it; if it no "
                    "longer exists, record its deletion"
                )
        self.missing.clear()
