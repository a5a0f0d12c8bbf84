"""Hashes of content, and the digest of a set of resources.

A `hash` attribute contains `algorithm:digest` pairs separated by whitespace (core §7). Content is
verified against the hash and length that a document announced.

Two sets are compared by their digests (docs/audit.md). A digest is the sum of one number per
resource, which is derived from its URI and the hash of its content. It therefore does not depend on
order, and a change costs one subtraction and one addition, however large the set is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import ContentMismatch, InvalidDocument
from rsnotify.format.model import Attributes, Document, Resource

_SHA256 = "sha-256:"
_SHA256_LENGTH = len(_SHA256) + 64
#: The algorithms of core §7 and their successors, by name without hyphens.
_ALGORITHMS: dict[str, tuple[str, Callable[[], Any], int]] = {
    "sha256": ("sha-256", hashlib.sha256, 64),
    "sha512": ("sha-512", hashlib.sha512, 128),
    "sha1": ("sha-1", lambda: hashlib.sha1(usedforsecurity=False), 40),
    "md5": ("md5", lambda: hashlib.md5(usedforsecurity=False), 32),
}
_NAMES = frozenset(name for name, _, _ in _ALGORITHMS.values())
#: Number of parsed attributes to cache, because each is read several times per change.
_CACHE_SIZE = 1_000


class Digester:
    """Computes the SHA-256 of content, and the hashes of an announced attribute, incrementally."""

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
        """Raise `ContentMismatch` if the content does not have the announced hash and length.

        `recoded` is true if the server applied a content encoding. If the hash matches, the
        announced length may then be that of the encoded form.
        """
        uri, announced, hashes = resource.uri, resource.hash, self.hashes
        same = agree(announced, hashes)
        if same is False:
            raise ContentMismatch(uri, f"the content has hash {hashes}, not {announced}")
        if resource.length not in (None, self.length) and not (same and recoded):
            reason = f"the content has {self.length} bytes, not {resource.length}"
            raise ContentMismatch(uri, reason)


def verified_hashes(content: bytes, announced: str | None, length: int | None = None) -> str | None:
    """Return the hashes of content; None if it does not have the announced hash and length."""
    if length not in (None, len(content)):
        return None
    if announced is not None and _is_sha256(announced):  # nearly always
        digest = hashlib.sha256(content).hexdigest()
        if digest == announced[len(_SHA256) :].lower():
            return _SHA256 + digest
    digester = Digester(announced)
    digester.update(content)
    hashes = digester.hashes
    return hashes if agree(announced, hashes) is not False else None


def verifies(content: bytes, announced: str | None, length: int | None = None) -> bool:
    """Return whether content has the announced hash and length, if any can be checked."""
    return verified_hashes(content, announced, length) is not None


def matches(hashes: str | None, chunks: Iterable[bytes]) -> bool:
    """Return whether content has the digests in a `hash` attribute; False if none is usable."""
    if hashes is not None and _is_sha256(hashes):
        # Nearly always true, and three times as fast.
        digest = hashlib.sha256()
        for chunk in chunks:
            digest.update(chunk)
        return digest.hexdigest() == hashes[len(_SHA256) :].lower()
    digester = Digester(hashes)
    for chunk in chunks:
        digester.update(chunk)
    return are_included(hashes, digester.hashes) is True


def agree(one: str | None, other: str | None) -> bool | None:
    """Return whether two `hash` attributes match; None if they have no algorithm in common.

    Digests in different encodings, such as hexadecimal and Base64, cannot be compared.
    """
    ours = _digests(one)
    if one == other:
        return True if ours else None
    theirs = _digests(other)
    common = ours.keys() & theirs.keys()
    return all(ours[form] == theirs[form] for form in common) if common else None


def are_included(hashes: str | None, content: str) -> bool | None:
    """Return whether the hashes of some content include all `hashes` with known algorithms.

    None if no algorithm in `hashes` is known. Unlike `agree`, this function treats a digest in
    another encoding as a different digest.
    """
    pairs = {pair for pair in (hashes or "").lower().split() if pair.partition(":")[0] in _NAMES}
    return pairs <= set(content.split()) if pairs else None


def parse_hashes(text: str | None) -> Mapping[str, str]:
    """Return the hexadecimal digests in a `hash` attribute by algorithm, named as in core §7.

    Unknown algorithms and digests in other encodings are omitted, because they cannot be checked.
    """
    found = _digests(text)
    return {
        name: digest
        for known, (name, _, length) in _ALGORITHMS.items()
        if (digest := found.get((known, length))) is not None
    }


@lru_cache(_CACHE_SIZE)
def _digests(text: str | None) -> Mapping[tuple[str, int], str]:
    """Return the digests by algorithm, without hyphens, and by length.

    Digests of one algorithm with the same length have the same encoding.
    """
    found = {}
    for pair in (text or "").lower().split():
        algorithm, _, digest = pair.partition(":")
        if digest:
            found[algorithm.replace("-", ""), len(digest)] = digest
    return MappingProxyType(found)


#: The namespace of the audit attributes. It must change if their meaning changes.
AUDIT_NS = "urn:uuid:1c73af33-b853-4b18-86f7-ed83600e2ed7"
#: The hash function for content, as named in documents.
ALGORITHM = "sha-256"
#: The URI of a resource, and its `hash` attribute.
Hashed = tuple[str, str | None]

_MODULUS = 1 << 128
_DIGEST_SIZE = 16
#: Copied for each resource, which is twice as fast as creating a hash object.
_EMPTY = hashlib.blake2b(digest_size=_DIGEST_SIZE)
#: The syntax of each attribute, by name without the namespace.
FORMS = {
    "count": re.compile(r"0|[1-9][0-9]{0,17}"),
    "hash": re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"),
    "digest": re.compile(r"[0-9a-f]{32}"),
}
COUNT, HASH, DIGEST = (f"{{{AUDIT_NS}}}{name}" for name in FORMS)


class SetDigest(Struct, frozen=True):
    """The number of resources in a set, and their digest.

    `digest` is the sum over all resources, as 32 lowercase hexadecimal digits. `hash` is the hash
    function for their content.
    """

    count: int
    digest: str
    hash: str = ALGORITHM

    @property
    def attributes(self) -> Attributes:
        """The audit attributes for the `rs:md` element of a document."""
        return ((COUNT, str(self.count)), (HASH, self.hash), (DIGEST, self.digest))


def set_digest(document: Document) -> SetDigest | None:
    """Return the set digest in a document, as of its `until`; None if there is none.

    Raises InvalidDocument if an attribute is missing or malformed.
    """
    prefix = f"{{{AUDIT_NS}}}"
    found = {
        name.removeprefix(prefix): value
        for name, value in document.attributes
        if name.startswith(prefix)
    }
    if not found:
        return None
    for name, form in FORMS.items():
        if form.fullmatch(found.get(name, "")) is None:
            raise InvalidDocument(f"its audit attribute {name} is missing or malformed")
    return SetDigest(int(found["count"]), found["digest"], found["hash"])


class SetSum(Struct):
    """The sum over a set of resources, updated with each change.

    `unhashed` is the number of resources without a SHA-256 hash. `total` is the sum over all
    others.
    """

    count: int = 0
    unhashed: int = 0
    total: int = 0

    @classmethod
    def parse(cls, text: str) -> SetSum:
        """Parse the string that `str` returned."""
        count, unhashed, total = text.split()
        return cls(int(count), int(unhashed), int(total, 16))

    def __str__(self) -> str:
        return f"{self.count} {self.unhashed} {self.total:032x}"

    def copy(self) -> SetSum:
        return replace(self)

    def add(self, resources: Iterable[Hashed]) -> None:
        """Add resources, each given by its URI, exactly as in `loc`, and its `hash` attribute."""
        self._count(1, resources)

    def remove(self, resources: Iterable[Hashed]) -> None:
        """Remove resources. Each must be given exactly as it was added."""
        self._count(-1, resources)

    def _count(self, sign: int, resources: Iterable[Hashed]) -> None:
        for uri, hashes in resources:
            self.count += sign
            content = content_hash(hashes)
            if content is None:
                self.unhashed += sign
            else:
                self.total += sign * term(uri, content)
        self.total %= _MODULUS

    def digest(self) -> SetDigest | None:
        """Return the digest of the set; None if a resource has no SHA-256 hash."""
        return None if self.unhashed else SetDigest(self.count, f"{self.total:032x}")


def content_hash(hashes: str | None) -> str | None:
    """Return the SHA-256 hash in a `hash` attribute, in lower case; None if there is none."""
    if hashes is None:
        return None
    if _is_sha256(hashes):  # nearly always
        return hashes.lower()
    return next(filter(_is_sha256, map(str.lower, hashes.split())), None)


def _is_sha256(hashes: str) -> bool:
    return len(hashes) == _SHA256_LENGTH and hashes.startswith(_SHA256)


def term(uri: str, content: str) -> int:
    """Return the number that a resource contributes to a digest."""
    hasher = _EMPTY.copy()
    # No URI in a document contains a zero byte, so different pairs result in different bytes.
    hasher.update(f"{uri}\0{content}".encode())
    return int.from_bytes(hasher.digest(), "big")
