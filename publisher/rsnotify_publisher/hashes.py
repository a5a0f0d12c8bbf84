"""Hashes as documents carry them: white-space separated `algorithm:digest` pairs (core §7)."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash

#: The algorithms of core §7 and their successors, as `hashlib` calls them.
ALGORITHMS = {"sha-256": "sha256", "sha-512": "sha512", "sha-1": "sha1", "md5": "md5"}


def recorded(hashes: str | None) -> dict[str, str]:
    """Return the digests of a `hash` attribute, lower-case, by known algorithm."""
    pairs = (pair.partition(":") for pair in (hashes or "").split())
    return {name.lower(): digest.lower() for name, _, digest in pairs if name.lower() in ALGORITHMS}


class Digests:
    """Computes SHA-256 of a content, and the digests of a `hash` attribute.

    Args:
        hashes: The `hash` attribute that the content is compared with.
    """

    def __init__(self, hashes: str | None = None) -> None:
        self._recorded = recorded(hashes)
        names = dict.fromkeys(["sha-256", *self._recorded])
        self._running: dict[str, _Hash] = {
            name: hashlib.new(ALGORITHMS[name], usedforsecurity=False) for name in names
        }

    def update(self, chunk: bytes) -> None:
        for running in self._running.values():
            running.update(chunk)

    @property
    def text(self) -> str:
        """The `hash` attribute of the content."""
        return " ".join(f"{name}:{run.hexdigest()}" for name, run in self._running.items())

    @property
    def agree(self) -> bool | None:
        """Whether the content has the recorded digests; None if none can be compared."""
        if not self._recorded:
            return None
        running = self._running
        return all(running[name].hexdigest() == hex for name, hex in self._recorded.items())
