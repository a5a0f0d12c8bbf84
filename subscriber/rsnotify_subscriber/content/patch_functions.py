"""Functions that apply patches to the content in the copy (core §14.4), by media type.

They come from the options, and from the entry points of installed packages in the group
`rsnotify.patches`. Such a package is imported when the first patch of its type has to be applied.
Without a function, the whole resource is fetched, which is correct but may take longer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from rsnotify.runtime.extensions import MissingExtension, load_extension, offered

logger = logging.getLogger("rsnotify.subscriber")

#: Maximum number of media types whose missing function is logged. Sources can name any number.
_MOST_LOGGED = 20


class Patch(Protocol):
    """A function that applies patches of one media type."""

    def __call__(self, before: bytes, patch: bytes, /) -> bytes:
        """Return the patched content. After any exception, the whole resource is fetched."""


class PatchFunctions:
    """The patch functions by media type. The `given` ones take precedence over installed ones."""

    def __init__(self, given: Mapping[str, Patch]) -> None:
        self._loaded = dict(given)
        self._missing: set[str] = set()

    def offers(self, media_type: str) -> bool:
        """Return whether a function is known. An installed one is not imported."""
        if media_type in self._loaded:
            return True
        if media_type in offered("patches") and media_type not in self._missing:
            return True
        if media_type not in self._missing and len(self._missing) < _MOST_LOGGED:
            self.load(media_type)  # logs what is missing
        return False

    def load(self, media_type: str) -> Patch | None:
        """Return the function for a media type; None if there is none, which is logged once."""
        if media_type not in self._loaded:
            try:
                function = load_extension("patches", media_type, f"a function for {media_type}")
            except MissingExtension as error:
                if media_type not in self._missing:
                    self._missing.add(media_type)
                    logger.warning("resources are fetched whole, not patched: %s", error)
                return None
            self._loaded[media_type] = function
        return self._loaded[media_type]
