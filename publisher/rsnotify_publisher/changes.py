"""Changes as the Source records them, and the checks on their metadata.

A change that cannot be written to a document would prevent every later document from being written.
It is therefore refused at once, with a message for the programmer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import TypedDict
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError
from rsnotify.format.datetimes import Instant
from rsnotify.format.hashes import Digester, are_included
from rsnotify.format.model import ChangeType, Link, Rel, Resource
from rsnotify.format.reader import DEFAULT_LIMITS
from rsnotify.format.writer import entry

# A scheme, followed only by characters that a URI may contain (RFC 3986).
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")
_HASH = re.compile(r"[A-Za-z0-9-]+:[^\s:]+")
# A registered relation type. Any other relation type is a URI (RFC 5988 §5).
_REGISTERED_RELATION = re.compile(r"[a-z][a-z0-9.-]*")
#: The highest number that `pri` can have, which is the lowest priority.
_MAX_PRI = 999_999


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
    """A change to record, or a resource of a baseline to load.

    Args:
        resource: The resource. A change has `change` set.
        validator: Any string by which the caller can later tell that the resource has not changed.
        content: The content of the resource after the change. Small content is sent inline, and a
            Change Dump contains it.
    """

    resource: Resource
    validator: str | None = None
    content: bytes | None = None


def change_record(
    uri: str, change: ChangeType, metadata: Metadata, content: bytes | None = None
) -> Record:
    """Return a change with the arguments of `created`, `updated` or `deleted`."""
    fields = {**metadata, "links": tuple(metadata.get("links", ()))}
    try:
        resource = Resource(uri, change=change, **fields)  # type: ignore[arg-type]
    except TypeError as error:
        raise ConfigurationError(f"{uri}: {error}") from None
    return Record(resource, content=content)


def check_record(given: Resource | Record) -> Record:
    """Return a change as it is recorded: without a datetime, with the hash and length of content.

    Raises:
        ConfigurationError: The change cannot be recorded, or its hash or length does not match the
            content. The message says how to correct it.
    """
    record = given if isinstance(given, Record) else Record(given)
    resource, content = record.resource, record.content
    try:
        change = ChangeType(resource.change)  # type: ignore[arg-type]
    except ValueError:
        raise ConfigurationError(
            f"{resource.uri}: change is {resource.change!r}; give one of {', '.join(ChangeType)}"
        ) from None
    if resource.change is not change or resource.datetime is not None:
        resource = replace(resource, change=change, datetime=None)
    check_resource(resource)
    if content is not None:
        if change is ChangeType.DELETED:
            raise ConfigurationError(f"{resource.uri}: a deleted resource has no content")
        if isinstance(content, str):
            raise ConfigurationError(f"{resource.uri}: content is of type str; encode it")
        digester = Digester(resource.hash)
        digester.update(content)
        agree = are_included(resource.hash, digester.hashes)
        if agree is False or resource.length not in (None, len(content)):
            raise ConfigurationError(
                f"{resource.uri}: the hash or length does not match the content; omit both"
            )
        hashes = resource.hash if agree else digester.hashes
        resource = replace(resource, hash=hashes, length=len(content))
    return replace(record, resource=resource)


def check_resource(resource: Resource) -> Resource:
    """Return the resource. Raises ConfigurationError if it cannot be written to a document."""
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
        raise ValueError(f"length is {length!r}; give a number of bytes with at most 18 digits")
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
        if not (_REGISTERED_RELATION.fullmatch(link.rel) or _URI.fullmatch(link.rel)):
            raise ValueError(f"rel is {link.rel!r}; give a registered relation type, or a URI")
        check_uri(link.href)
        if link.pri is not None and not (_is_count(link.pri) and 1 <= link.pri <= _MAX_PRI):
            raise ValueError(f"pri is {link.pri!r}; give a number from 1 (first) to {_MAX_PRI}")
        _check_metadata(link.length, link.hash, "modified", link.modified)


def as_listed(resource: Resource, at: Instant | None) -> Resource:
    """Return a resource as a Resource List or Resource Dump lists it.

    If it has no `lastmod`, it gets `at` instead. Links to patches are removed: a patch leads from
    one version to the next, so only changes have patches (core §14.4).
    """
    links = resource.links
    if any(link.rel == Rel.PATCH for link in links):
        links = tuple(link for link in links if link.rel != Rel.PATCH)
    lastmod = resource.lastmod or at
    return replace(resource, change=None, datetime=None, lastmod=lastmod, links=links)


def check_uri(uri: object) -> None:
    """Raise ConfigurationError unless a URI is absolute, percent-encoded and short enough."""
    if isinstance(uri, str) and len(uri) > DEFAULT_LIMITS.uri_length:
        raise ConfigurationError(
            f"{uri[:60]}… is longer than {DEFAULT_LIMITS.uri_length} characters; shorten the URI"
        )
    if not isinstance(uri, str) or not _URI.fullmatch(uri) or not _has_valid_brackets(uri):
        raise ConfigurationError(
            f"{uri!r} is not an absolute URI; percent-encode characters that RFC 3986 does not "
            "allow"
        )


def _has_valid_brackets(uri: str) -> bool:
    """Return whether all brackets in the host enclose an IP address (RFC 3986 §3.2.2)."""
    if "[" not in uri and "]" not in uri:
        return True
    try:
        urlsplit(uri)
    except ValueError:
        return False
    return True


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 10**18
