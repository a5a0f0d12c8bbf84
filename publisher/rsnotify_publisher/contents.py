"""The contents of resources, as the Source's callback returns them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from rsnotify.errors import StorageError
from rsnotify.format.vocabulary import INLINE_LIMIT

#: Returns the current content of a URI: bytes, the path of a file, or None if it is gone.
ContentCallback = Callable[[str], bytes | Path | None]

_log = logging.getLogger("rsnotify.publisher")
# Missing resources are checked again before more are remembered.
_MOST_MISSING = 1_000


class SourceContents(Struct, frozen=True):
    content: ContentCallback

    def get(self, uri: str) -> bytes | Path | None:
        """Return the current content of a resource; None if it, or its file, is gone.

        Raises:
            StorageError: The callback failed, or returned something else.
        """
        try:
            found = self.content(uri)
        except Exception as error:  # the Source's own code, which may raise anything
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
        """Return those contents that are small enough to travel inside a fragment."""
        found = {}
        for uri in uris:
            try:
                content = self._small(self.get(uri))
            except (StorageError, OSError):  # Destinations GET the resource instead
                _log.exception("the content of %s is not sent inline", uri)
                continue
            if content is not None:
                found[uri] = content
        return found

    @staticmethod
    def _small(content: bytes | Path | None) -> bytes | None:
        if isinstance(content, Path):
            with open(content, "rb") as file:
                content = file.read(INLINE_LIMIT + 1)
        return content if content is not None and len(content) <= INLINE_LIMIT else None


class CheckedContents(Struct, frozen=True):
    """Contents of which none may be missing, unless a change says that the resource is gone.

    `listed` returns which of some URIs are in the set, because no change deleted them.
    """

    contents: SourceContents
    listed: Callable[[Sequence[str]], Iterable[str]]
    missing: list[str] = []

    def get(self, uri: str) -> bytes | Path | None:
        """Return the current content of a resource, and remember if it is gone."""
        found = self.contents.get(uri)
        if found is None:
            self.missing.append(uri)
            if len(self.missing) > _MOST_MISSING:
                self.check()
        return found

    def check(self) -> None:
        """Raise StorageError if a resource is missing that no change has deleted by now."""
        for uri in self.listed(self.missing):
            if self.contents.get(uri) is None:
                raise StorageError(
                    f"{uri} was not deleted, but `content` has nothing for it; if it is gone, "
                    "record that"
                )
        self.missing.clear()
