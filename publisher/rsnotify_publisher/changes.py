"""Checks changes before they are recorded, and reads contents through the Source's callback.

A change that cannot be written to a document would prevent every later document from being written.
It is therefore refused at once, with a message for the programmer.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypedDict
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.format.datetimes import Instant
from rsnotify.format.hashes import Digester, are_included
from rsnotify.format.model import INLINE_LIMIT, ChangeType, Link, Rel, Resource
from rsnotify.format.reader import DEFAULT_LIMITS
from rsnotify.format.writer import entry

# A scheme, followed only by characters that a URI may contain (RFC 3986).
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")
_HASH = re.compile(r"[A-Za-z0-9-]+:[^\s:]+")
# A registered relation type. Any other relation type is a URI (RFC 5988 §5).
_REGISTERED = re.compile(r"[a-z][a-z0-9.-]*")
_LAST_PRIORITY = 999_999


class Metadata(TypedDict, total=False):
    """Metadata of a resource (core §7).

    `length` is in bytes. `type` is a media type. `hash` consists of `algorithm:digest` pairs,
    separated by whitespace. `links` are links to related resources. `lastmod` is the resource's own
    modification time. If it is missing, the datetime of the change is written instead, since
    readers of ResourceSync 1.0 need it.
    """

    length: int | None
    type: str | None
    hash: str | None
    encoding: str | None
    links: Sequence[Link]
    lastmod: Instant | None


class Record(Struct, frozen=True, gc=False):
    """A change, or a resource of a baseline, to be recorded.

    Args:
        resource: The resource, with `change` set unless it belongs to a baseline.
        validator: Any string from which the caller can later tell that the resource has not
            changed.
        content: The content of the resource after the change, kept for the Change Dump.
    """

    resource: Resource
    validator: str | None = None
    content: bytes | None = None


def describe(
    uri: str, change: ChangeType, metadata: Metadata, content: bytes | None = None
) -> Record:
    """Return the change described by the arguments of `created`, `updated` or `deleted`."""
    fields = {**metadata, "links": tuple(metadata.get("links", ()))}
    try:
        resource = Resource(uri, change=change, **fields)  # type: ignore[arg-type]
    except TypeError as error:
        raise ConfigurationError(f"{uri}: {error}") from None
    return Record(resource, content=content)


def check_change(resource: Resource) -> Resource:
    """Return the resource in the form in which it is recorded, without a datetime.

    Raises:
        ConfigurationError: The change cannot be recorded; the message says how to correct it.
    """
    try:
        change = ChangeType(resource.change)  # type: ignore[arg-type]
    except ValueError:
        raise ConfigurationError(
            f"{resource.uri}: change is {resource.change!r}; give one of {', '.join(ChangeType)}"
        ) from None
    if resource.change is not change or resource.datetime is not None:
        resource = replace(resource, change=change, datetime=None)
    return check_resource(resource)


def as_record(change: Resource | Record) -> Record:
    return change if isinstance(change, Record) else Record(change)


def check_record(record: Record) -> Record:
    """Return the record with the hash and length of its content.

    Raises:
        ConfigurationError: The change cannot be recorded, or its hash or length does not match the
            content.
    """
    resource, content = check_change(record.resource), record.content
    if content is not None:
        if resource.change is ChangeType.DELETED:
            raise ConfigurationError(f"{resource.uri}: a deleted resource has no content")
        if isinstance(content, str):
            raise ConfigurationError(f"{resource.uri}: content is of type str; encode it")
        digester = Digester(resource.hash)
        digester.update(content)
        agree = are_included(resource.hash, digester.hashes)
        if agree is False or resource.length not in (None, len(content)):
            raise ConfigurationError(
                f"{resource.uri}: its content has another hash or length than the change; give the "
                "content alone"
            )
        hashes = resource.hash if agree else digester.hashes
        resource = replace(resource, hash=hashes, length=len(content))
    return replace(record, resource=resource)


def check_resource(resource: Resource) -> Resource:
    """Return the resource, or raise ConfigurationError if no document can contain it."""
    uri = resource.uri
    check_uri(uri)
    try:
        _check_metadata(resource.length, resource.hash, "lastmod", resource.lastmod)
        _check_links(resource.links)
        entry(resource)
    except (ValueError, OverflowError, TypeError, AttributeError, ConfigurationError) as error:
        raise ConfigurationError(f"{uri}: {error}") from None
    return resource


def _check_metadata(length: object, hashes: object, name: str, instant: object) -> None:
    """Check the metadata that resources and links have in common."""
    if length is not None and not _is_count(length):
        raise ValueError(f"length is {length!r}; give whole bytes, 0 or more, in at most 18 digits")
    is_hashes = isinstance(hashes, str) and all(map(_HASH.fullmatch, hashes.split()))
    if hashes is not None and not is_hashes:
        raise ValueError(f"hash is {hashes!r}; write it as sha-256:<hex digits>")
    is_instant = isinstance(instant, datetime) and instant.tzinfo is not None
    if instant is not None and not is_instant:
        raise ValueError(f"{name} is {instant!r}; give a datetime with a time zone")


def _check_links(links: Sequence[Link]) -> None:
    if len(links) > DEFAULT_LIMITS.links:
        raise ValueError(f"it has more than {DEFAULT_LIMITS.links} links")
    for link in links:
        if not (_REGISTERED.fullmatch(link.rel) or _URI.fullmatch(link.rel)):
            raise ValueError(f"rel is {link.rel!r}; give a registered relation type, or a URI")
        check_uri(link.href)
        if link.pri is not None and not (_is_count(link.pri) and 1 <= link.pri <= _LAST_PRIORITY):
            raise ValueError(f"pri is {link.pri!r}; give 1 (first) to {_LAST_PRIORITY}")
        _check_metadata(link.length, link.hash, "modified", link.modified)


def as_listed(resource: Resource, at: Instant | None) -> Resource:
    """Return a resource in the form in which a Resource List or Resource Dump lists it.

    If it has no `lastmod`, it gets `at` instead. Links to patches are removed: a patch leads from
    one version to the next, so only changes have patches (core §14.4).
    """
    links = resource.links
    if any(link.rel == Rel.PATCH for link in links):
        links = tuple(link for link in links if link.rel != Rel.PATCH)
    lastmod = resource.lastmod or at
    return replace(resource, change=None, datetime=None, lastmod=lastmod, links=links)


def check_uri(uri: object) -> None:
    """Raise ConfigurationError unless a URI is absolute, percent-encoded, and short enough."""
    if isinstance(uri, str) and len(uri) > DEFAULT_LIMITS.uri_length:
        raise ConfigurationError(
            f"{uri[:60]}… is longer than {DEFAULT_LIMITS.uri_length} characters; shorten the URI"
        )
    if not isinstance(uri, str) or not _URI.fullmatch(uri) or not _is_bracketed_well(uri):
        raise ConfigurationError(
            f"{uri!r} is not an absolute URI; percent-encode what RFC 3986 does not allow"
        )


def _is_bracketed_well(uri: str) -> bool:
    """Return whether any brackets in the host enclose an IP address (RFC 3986 §3.2.2)."""
    if "[" not in uri and "]" not in uri:
        return True
    try:
        urlsplit(uri)
    except ValueError:
        return False
    return True


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 10**18


#: Returns the current content at a URI: bytes, the path of a file, or None if it is gone.
ContentCallback = Callable[[str], bytes | Path | None]

_log = logging.getLogger("rsnotify.publisher")
# Maximum number of missing resources to remember before they are rechecked.
_MOST_MISSING = 1_000


class SourceContents(Struct, frozen=True):
    content: ContentCallback

    def get(self, uri: str) -> bytes | Path | None:
        """Return the current content of a resource, or None if the resource or its file is gone.

        Raises:
            StorageError: The callback failed, or returned a value of another type.
        """
        try:
            found = self.content(uri)
        except Exception as error:  # the Source's own code may raise anything
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
        """Return the contents that are small enough to be sent inside a fragment."""
        found = {}
        for uri in uris:
            try:
                content = self.get(uri)
                if isinstance(content, Path):
                    with open(content, "rb") as file:
                        content = file.read(INLINE_LIMIT + 1)
            except (StorageError, OSError):  # Destinations GET the resource instead
                _log.exception("the content of %s is not sent inline", uri)
                continue
            if content is not None and len(content) <= INLINE_LIMIT:
                found[uri] = content
        return found


class CheckedContents(Struct, frozen=True):
    """Reads contents, and detects those that are missing although no change deleted the resource.

    `listed` returns the given URIs that are still in the set because no change deleted them.
    """

    contents: SourceContents
    listed: Callable[[Sequence[str]], Iterable[str]]
    missing: list[str] = []

    def get(self, uri: str) -> bytes | Path | None:
        """Return the current content of a resource, and remember the resource if it is gone."""
        found = self.contents.get(uri)
        if found is None:
            self.missing.append(uri)
            if len(self.missing) > _MOST_MISSING:
                self.check()
        return found

    def check(self) -> None:
        """Raise StorageError if a resource is missing but no change has deleted it so far."""
        for uri in self.listed(self.missing):
            if self.contents.get(uri) is None:
                raise StorageError(
                    f"{uri} was not deleted, but `content` has nothing for it; if it is gone, "
                    "record that"
                )
        self.missing.clear()
