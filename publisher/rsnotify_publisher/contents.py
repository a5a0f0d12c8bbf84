"""What resources hold, as the Source's own callback tells it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from rsnotify.errors import StorageError
from rsnotify.format.vocabulary import INLINE_LIMIT

#: What a resource holds now, told its URI: bytes, the path of a file, or None if it is gone.
ContentCallback = Callable[[str], bytes | Path | None]

_log = logging.getLogger("rsnotify.publisher")
# Looked at again before more are remembered.
_MOST_MISSING = 1_000


class SourceContents:
    """Asks the Source for contents.

    Args:
        content: The callback of `Publisher`.
    """

    def __init__(self, content: ContentCallback) -> None:
        self._content = content

    def get(self, uri: str) -> bytes | Path | None:
        """Return what a resource holds now; None if it, or its file, is gone.

        Raises:
            StorageError: The callback failed.
        """
        try:
            found = self._content(uri)
        except Exception as error:  # the Source's own code, which may raise anything
            raise StorageError(f"the content of {uri} could not be had: {error!r}") from error
        if isinstance(found, Path) and not found.is_file():
            return None
        return found

    def inline(self, uris: Sequence[str]) -> Mapping[str, bytes]:
        """Return those contents that are small enough to travel inside a fragment."""
        found = {}
        for uri in uris:
            try:
                content = self._small(self.get(uri))
            except (StorageError, OSError):  # without its answer the GET is the way
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


class CheckedContents:
    """Contents of which none is to be missing, unless a change says that the resource is gone.

    Args:
        contents: Where they come from.
        listed: Returns those of some resources, by their URIs, that no change says are gone.
    """

    def __init__(
        self, contents: SourceContents, listed: Callable[[Sequence[str]], Iterable[str]]
    ) -> None:
        self._contents = contents
        self._listed = listed
        self._missing: list[str] = []

    def get(self, uri: str) -> bytes | Path | None:
        """Do as `SourceContents.get` does, and remember what is gone.

        Raises:
            StorageError: The callback failed, or more is missing than can have been deleted.
        """
        found = self._contents.get(uri)
        if found is None:
            self._missing.append(uri)
            if len(self._missing) > _MOST_MISSING:
                self.check()
        return found

    def check(self) -> None:
        """Look again at what was gone: a change must have told so by now.

        Raises:
            StorageError: No change did, and there is still no content.
        """
        for uri in self._listed(self._missing):
            if self._contents.get(uri) is None:
                raise StorageError(
                    f"{uri} was not deleted, but `content` has nothing for it; if it is gone, "
                    "record that"
                )
        self._missing.clear()
