"""The digest of a set of resources, by which two sets are compared (docs/audit.md).

Each resource has a number, made of its URI and the hash of its content; the digest is the sum of
these numbers. So it does not depend on any order, and a change costs one subtraction and one
addition, however large the set is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from hashlib import blake2b

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import InvalidDocument
from rsnotify.format.model import Attributes, Document

#: The namespace of the attributes. If their meaning changed, it would change too.
AUDIT_NS = "urn:uuid:1c73af33-b853-4b18-86f7-ed83600e2ed7"
#: The hash function for contents, by its name in documents.
ALGORITHM = "sha-256"
#: The URI of a resource, and the `hash` attribute of its content.
Hashed = tuple[str, str | None]

_PREFIX = f"{ALGORITHM}:"
_LENGTH = len(_PREFIX) + 64
_MODULUS = 1 << 128
_DIGEST_SIZE = 16
#: Copied for each resource, which takes half the time of making a new one.
_EMPTY = blake2b(digest_size=_DIGEST_SIZE)
#: The syntax of the attributes, by their names without the namespace.
FORMS = {
    "count": re.compile(r"0|[1-9][0-9]{0,17}"),
    "hash": re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"),
    "digest": re.compile(r"[0-9a-f]{32}"),
}
COUNT, HASH, DIGEST = (f"{{{AUDIT_NS}}}{name}" for name in FORMS)


class SetDigest(Struct, frozen=True):
    """The count and digest of a whole set of resources, as of one instant.

    The digest is the sum over them, as 32 hexadecimal digits in lower case; `hash` is the hash
    function for their contents.
    """

    count: int
    digest: str
    hash: str = ALGORITHM

    @property
    def attributes(self) -> Attributes:
        """The attributes for the `rs:md` of a document."""
        return ((COUNT, str(self.count)), (HASH, self.hash), (DIGEST, self.digest))


def set_digest(document: Document) -> SetDigest | None:
    """Return the digest of the set that a document states as of its `until`, if it states one.

    Raises:
        InvalidDocument: An attribute is missing or malformed.
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
            raise InvalidDocument(f"the attribute {name} of its audit is missing or malformed")
    return SetDigest(int(found["count"]), found["digest"], found["hash"])


class SetSum(Struct):
    """The sum over a set of resources, updated as the set changes.

    `unhashed` counts the resources that have no SHA-256; `total` is the sum over the others.
    """

    count: int = 0
    unhashed: int = 0
    total: int = 0

    @classmethod
    def parse(cls, text: str) -> SetSum:
        """Return the sum that `str` wrote."""
        count, unhashed, total = text.split()
        return cls(int(count), int(unhashed), int(total, 16))

    def __str__(self) -> str:
        return f"{self.count} {self.unhashed} {self.total:032x}"

    def copy(self) -> SetSum:
        return replace(self)

    def add(self, resources: Iterable[Hashed]) -> None:
        """Add resources: the URI of each, as `loc` has it, and its `hash` attribute."""
        self._count(1, resources)

    def remove(self, resources: Iterable[Hashed]) -> None:
        """Remove resources, each given as when it was added."""
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
        """Return the digest of the set; None if a resource in it has no SHA-256."""
        return None if self.unhashed else SetDigest(self.count, f"{self.total:032x}")


def content_hash(hashes: str | None) -> str | None:
    """Return the SHA-256 in a `hash` attribute, in the form for `term`; None if there is none."""
    if hashes is None:
        return None
    if len(hashes) == _LENGTH and hashes.startswith(_PREFIX):  # as nearly all are
        return hashes.lower()
    pairs = (pair.lower() for pair in hashes.split())
    return next((pair for pair in pairs if len(pair) == _LENGTH and pair.startswith(_PREFIX)), None)


def agree(first: str | None, second: str | None) -> bool | None:
    """Return whether two `hash` attributes agree; None if they have no common algorithm."""
    if first is None or second is None:
        return None
    ours, theirs = (dict(_pairs(hashes)) for hashes in (first, second))
    common = ours.keys() & theirs.keys()
    return all(ours[name] == theirs[name] for name in common) if common else None


def _pairs(hashes: str) -> Iterator[tuple[str, str]]:
    for pair in hashes.lower().split():
        name, _, digest = pair.partition(":")
        yield name.replace("-", ""), digest


def term(uri: str, content: str) -> int:
    """Return the number of a resource whose content has this `content_hash`."""
    hasher = _EMPTY.copy()
    # No URI of a document contains a zero byte, so that different pairs give different bytes.
    hasher.update(f"{uri}\0{content}".encode())
    return int.from_bytes(hasher.digest(), "big")
