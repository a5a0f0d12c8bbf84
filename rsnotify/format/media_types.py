"""Guesses media types from file names, and matches them against patterns."""

from __future__ import annotations

import mimetypes
import re
from functools import lru_cache

from msgspec import Struct

from rsnotify.format.model import Resource

# Python's built-in table instead of the system's, so that results are the same everywhere.
_TYPES = mimetypes.MimeTypes()
for _suffix, _type in {
    ".jsonld": "application/ld+json",
    ".nq": "application/n-quads",
    ".nt": "application/n-triples",
    ".rdf": "application/rdf+xml",
    ".owl": "application/rdf+xml",
    ".trig": "application/trig",
    ".xml": "application/xml",
    ".ttl": "text/turtle",
}.items():
    _TYPES.add_type(_type, _suffix)
_COMPRESSED = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}
#: Matches any URI, even a malformed one, and captures its path.
_PATH = re.compile(r"(?:[^:/?#]+:)?(?://[^/?#]*)?([^?#]*)")
#: Types that servers send for unknown content.
_UNSPECIFIC = {
    *(f"application/{name}" for name in ("octet-stream", "binary", "download", "force-download")),
    *("application/unknown", "binary/octet-stream", "content/unknown", "unknown/unknown"),
}
#: Maps alternative names of subtypes to the name used in comparisons.
_NAMES = {
    other: name
    for name, others in {
        "html": ("xhtml+xml",),
        "javascript": ("ecmascript",),
        "jpeg": ("jpg", "pjpeg"),
        "mpeg": ("mp3", "mpeg3", "mpg"),
        "wav": ("wave", "vnd.wave"),
        "icon": ("vnd.microsoft.icon", "ico"),
        "zip": ("zip-compressed",),
        "gzip": ("gzip-compressed", "gunzip"),
        "bzip2": ("bzip",),
        "ndjson": ("jsonl", "jsonlines", "json-lines", "json-seq"),
        "csv": ("comma-separated-values",),
        "yaml": ("vnd.yaml",),
        "n3": ("rdf+n3",),
        "turtle": ("ttl",),
        "ms-excel": ("vnd.ms-excel",),
    }.items()
    for other in others
}
#: Subtypes outside of `text/` whose content is text.
_TEXTS = frozenset(
    {"javascript", "json", "latex", "n-quads", "n-triples", "ndjson", "perl", "php", "postscript"}
    | {"python", "rtf", "sh", "sparql-query", "sparql-update", "sql", "tex", "toml", "trig"}
    | {"turtle", "n3", "csv", "typescript", "xml", "xml-dtd", "yaml", "subrip", "bibtex"}
)
#: The syntax of RFC 9110 §8.3.1.
_TOKEN = r"[\w!#$%&'*+.^`|~-]+"
_MEDIA_TYPE = re.compile(f"{_TOKEN}/{_TOKEN}", re.ASCII)


def guess_media_type(uri: str) -> str | None:
    """Return the media type suggested by the last segment of a URI; None if it suggests none."""
    match = _PATH.match(uri)
    assert match is not None
    kind, encoding = _TYPES.guess_type(f"file:///{match[1]}")
    return _COMPRESSED.get(encoding) if encoding else kind


def extension(media_type: str) -> str:
    """Return the usual file extension of a media type, with its dot; empty if there is none."""
    kind = essence(media_type)
    usual = _TYPES.guess_all_extensions(kind)
    plain = "." + kind.rpartition("/")[2]
    return plain if plain in usual else next(iter(usual), "")


def is_media_type(text: str) -> bool:
    """Return whether a string is a syntactically valid media type or pattern."""
    return _MEDIA_TYPE.fullmatch(essence(text)) is not None


def matches(media_type: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a media type matches one of the patterns: `text/html`, `text/*` or `*/*`.

    Case and parameters, such as a charset, are ignored.
    """
    kind, _, sub = essence(media_type).partition("/")
    # Only these four can match, even if an untrusted client sends many patterns.
    return not _essences(patterns).isdisjoint((f"{kind}/{sub}", f"{kind}/*", f"*/{sub}", "*/*"))


def may_match(resource: Resource, patterns: tuple[str, ...]) -> bool:
    """Return whether the media type of a resource may match one of the patterns.

    The type is taken from the entry or, if absent, guessed from the URI. An unknown type may match
    any pattern. Without patterns, all types match.
    """
    if not patterns:
        return True
    kind = resource.type or guess_media_type(resource.uri)
    return kind is None or matches(kind, patterns)


def contradicts(announced: str | None, served: str | None) -> bool:
    """Return whether a server's Content-Type contradicts the announced media type.

    Different names of one type, such as `text/xml` and `application/xml`, are equal. Types that
    servers send for unknown files contradict nothing: `application/octet-stream`, and `text/plain`
    for any text.
    """
    if announced is None or served is None or announced == served:
        return False
    first, second = _parsed(announced), _parsed(served)
    if first is None or second is None or first == second:
        return False
    if first.kind == second.kind == "text" and "plain" in (first.name, second.name):
        return "html" in (first.name, second.name)
    if second.name == "plain":
        return first.name == "html" or not {first.name, first.suffix} & _TEXTS
    # `application/rdf+xml` is also `application/xml`, but not `application/atom+xml`.
    is_suffix = second.name == first.suffix or first.name == second.suffix
    return first.name != second.name and not is_suffix


class _MediaType(Struct, frozen=True):
    kind: str
    name: str
    suffix: str


@lru_cache(maxsize=256)
def _parsed(media_type: str) -> _MediaType | None:
    """Parse a type, without `x-`. Return None if it is malformed or unspecific."""
    kind, _, name = essence(media_type).partition("/")
    name = name.removeprefix("x-")
    if not is_media_type(media_type) or f"{kind}/{name}" in _UNSPECIFIC:
        return None
    suffix = name.rpartition("+")[2] if "+" in name else ""
    return _MediaType(kind, _NAMES.get(name, name), suffix)


@lru_cache(maxsize=1024)
def _essences(media_types: tuple[str, ...]) -> frozenset[str]:
    return frozenset(map(essence, media_types))


def essence(media_type: str) -> str:
    """Return a media type without its parameters, in lower case."""
    return media_type.partition(";")[0].strip().lower()
