"""Media types: what a name tells, and whether one falls under another."""

from __future__ import annotations

import mimetypes
import re
from functools import lru_cache

from rsnotify.format.model import Resource

# Python's own table, not the machine's, so that a name has the same type everywhere.
_TYPES = mimetypes.MimeTypes()
for _type, _suffixes in {
    "application/ld+json": (".jsonld",),
    "application/n-quads": (".nq",),
    "application/n-triples": (".nt",),
    "application/rdf+xml": (".rdf", ".owl"),
    "application/trig": (".trig",),
    "application/xml": (".xml",),
    "text/turtle": (".ttl",),
}.items():
    for _suffix in _suffixes:
        _TYPES.add_type(_type, _suffix)
_COMPRESSED = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}
#: The path of a URI, which need not be a sound one.
_PATH = re.compile(r"(?:[^:/?#]+:)?(?://[^/?#]*)?([^?#]*)")
#: RFC 9110 §8.3.1.
_TOKEN = r"[\w!#$%&'*+.^`|~-]+"
_MEDIA_TYPE = re.compile(f"{_TOKEN}/{_TOKEN}", re.ASCII)


def guess_media_type(uri: str) -> str | None:
    """Return the media type that the name at the end of a URI's path tells, if it tells one."""
    match = _PATH.match(uri)
    name = match[1].rpartition("/")[2] if match else ""
    kind, encoding = _TYPES.guess_type(f"file:///{name}")
    return _COMPRESSED.get(encoding) if encoding else kind


def extension(media_type: str) -> str:
    """Return how names of this media type usually end, with the dot; empty if that is open."""
    kind = essence(media_type)
    usual = _TYPES.guess_all_extensions(kind)
    plain = "." + kind.rpartition("/")[2]
    return plain if plain in usual else next(iter(usual), "")


def is_media_type(text: str) -> bool:
    """Tell whether this has the form of a media type, or of a pattern for some."""
    return _MEDIA_TYPE.fullmatch(essence(text)) is not None


def matches(media_type: str, patterns: tuple[str, ...]) -> bool:
    """Tell whether a media type is one that one of some patterns names, or of its kind.

    Args:
        media_type: As in `text/html; charset=utf-8`; parameters and case do not matter.
        patterns: Each a media type, or `text/*`, or `*/*`.
    """
    kind, _, sub = essence(media_type).partition("/")
    # However many patterns a stranger asks for, these four are all that may fit.
    return not _essences(patterns).isdisjoint((f"{kind}/{sub}", f"{kind}/*", f"*/{sub}", "*/*"))


def may_match(resource: Resource, patterns: tuple[str, ...]) -> bool:
    """Tell whether a resource may be of a type that one of some patterns names.

    Its entry tells the type, or else the name in its URI; what neither tells may be any. Where
    there are no patterns, all types will do.
    """
    if not patterns:
        return True
    kind = resource.type or guess_media_type(resource.uri)
    return kind is None or matches(kind, patterns)


@lru_cache(maxsize=1024)
def _essences(media_types: tuple[str, ...]) -> frozenset[str]:
    return frozenset(map(essence, media_types))


def essence(media_type: str) -> str:
    """Return a media type without its parameters, in lower case."""
    return media_type.partition(";")[0].strip().lower()
