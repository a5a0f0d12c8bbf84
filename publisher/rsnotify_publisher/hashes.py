"""Hashes as documents carry them: white-space separated `algorithm:digest` pairs (core §7)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash

#: The algorithms of core §7 and their successors, as `hashlib` calls them.
ALGORITHMS = {"sha-256": "sha256", "sha-512": "sha512", "sha-1": "sha1", "md5": "md5"}
_SHA256 = "sha-256:"
_SHA256_LENGTH = len(_SHA256) + 64


class Digests:
    """Computes SHA-256 of a content, and the digests of a `hash` attribute to compare it with."""

    def __init__(self, hashes: str | None = None) -> None:
        pairs = (pair.lower().partition(":") for pair in (hashes or "").split())
        self._recorded = {name: digest for name, _, digest in pairs if name in ALGORITHMS}
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


def matches(hashes: str | None, chunks: Iterable[bytes]) -> bool:
    """Return whether a content certainly has the digests of a `hash` attribute."""
    if hashes is not None and len(hashes) == _SHA256_LENGTH and hashes.startswith(_SHA256):
        # As nearly all have, and three times as fast.
        digest = hashlib.sha256(usedforsecurity=False)
        for chunk in chunks:
            digest.update(chunk)
        return digest.hexdigest() == hashes[len(_SHA256) :].lower()
    digests = Digests(hashes)
    for chunk in chunks:
        digests.update(chunk)
    return digests.agree is True
