"""Hashes of content: `algorithm:digest` pairs separated by white space (core §7).

Content is compared with a hash and a length that a document announced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rsnotify.errors import ContentMismatch
from rsnotify.format.model import Resource

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


#: The algorithms of core §7 and its successors, by their names without hyphens.
_ALGORITHMS: dict[str, tuple[str, Callable[[], Any], int]] = {
    "md5": ("md5", lambda: hashlib.md5(usedforsecurity=False), 32),
    "sha1": ("sha-1", lambda: hashlib.sha1(usedforsecurity=False), 40),
    "sha256": ("sha-256", hashlib.sha256, 64),
    "sha512": ("sha-512", hashlib.sha512, 128),
}
#: How many attributes are remembered, as each is read several times for one change.
_REMEMBERED = 1_000


@lru_cache(_REMEMBERED)
def parse_hashes(text: str | None) -> Mapping[str, str]:
    """Read a `hash` attribute: white-space separated `algorithm:digest` pairs.

    Returns:
        Hexadecimal digests by algorithm (`md5`, `sha-1`, `sha-256`, `sha-512`). What cannot be
        checked, an unknown algorithm or another form of digest, is left out.
    """
    found = {}
    for pair in (text or "").split():
        algorithm, _, digest = pair.partition(":")
        known = _ALGORITHMS.get(algorithm.lower().replace("-", ""))
        if known is not None and len(digest) == known[2]:
            found[known[0]] = digest.lower()
    return MappingProxyType(found)


def agree(one: str | None, other: str | None) -> bool | None:
    """Return whether two `hash` attributes match; None if they have no algorithm in common."""
    if one == other:  # so a digest that was just computed need not be parsed
        return True if parse_hashes(one) else None
    ours, theirs = parse_hashes(one), parse_hashes(other)
    common = ours.keys() & theirs.keys()
    return all(ours[name] == theirs[name] for name in common) if common else None


class Digester:
    """Computes SHA-256 and the algorithms of an announced `hash` attribute, piece by piece."""

    def __init__(self, announced: str | None = None) -> None:
        wanted = {"sha-256", *parse_hashes(announced)}
        self._digests = {name: make() for name, make, _ in _ALGORITHMS.values() if name in wanted}
        self.length = 0

    def update(self, chunk: bytes) -> None:
        self.length += len(chunk)
        for digest in self._digests.values():
            digest.update(chunk)

    @property
    def hashes(self) -> str:
        return " ".join(f"{name}:{digest.hexdigest()}" for name, digest in self._digests.items())

    def verify(self, resource: Resource, *, recoded: bool = False) -> None:
        """Compare with the announced hash and length; raise `ContentMismatch` if they differ.

        Args:
            resource: The entry with its `hash` and `length`.
            recoded: Whether the server sent the content encoded. The announced length may then
                be that of the encoded form, if the hash matches.
        """
        same = agree(resource.hash, hashes := self.hashes)
        if same is False:
            raise ContentMismatch(
                resource.uri, f"the content has hash {hashes}, not {resource.hash}"
            )
        if resource.length not in (None, self.length) and not (same and recoded):
            raise ContentMismatch(
                resource.uri, f"the content has {self.length} bytes, not {resource.length}"
            )


def verified_hashes(content: bytes, announced: str | None, length: int | None = None) -> str | None:
    """Return the `hashes` of content; None if it has not the announced hash and length."""
    if length not in (None, len(content)):
        return None
    digester = Digester(announced)
    digester.update(content)
    hashes = digester.hashes
    return hashes if agree(announced, hashes) is not False else None


def verifies(content: bytes, announced: str | None, length: int | None = None) -> bool:
    """Return whether content has the announced hash and length, as far as that can be checked."""
    return verified_hashes(content, announced, length) is not None
