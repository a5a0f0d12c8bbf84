"""What a Source says of a change, checked before it is recorded.

A record that could not be written into a document would stop every document after it, so it
is refused at the door, with a sentence for the programmer who sent it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import TypedDict

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.datetimes import Instant
from rsnotify.errors import ConfigurationError
from rsnotify.model import Link, Resource
from rsnotify.reading import DEFAULT_LIMITS
from rsnotify.vocabulary import ChangeType
from rsnotify.writing import entry

# RFC 3986: a scheme, then only the characters that a URI may hold.
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")
_HASH = re.compile(r"[A-Za-z0-9-]+:[^\s:]+")


class Metadata(TypedDict, total=False):
    """What may be told of a resource beside its URI (core §7).

    `length` is in bytes, `type` a media type, `hash` white-space separated
    `algorithm:digest` pairs, `links` the related resources. `lastmod` is the resource's own
    modification time; without it the datetime of the change is written, which readers of
    ResourceSync 1.0 need.
    """

    length: int | None
    type: str | None
    hash: str | None
    encoding: str | None
    links: Sequence[Link]
    lastmod: Instant | None


class Record(Struct, frozen=True, gc=False):
    """One line of what is to be recorded.

    Args:
        resource: The resource, with `change` set unless it belongs to a baseline.
        validator: A text of the caller's own by which it can tell, at its next look, that
            the resource has not changed.
    """

    resource: Resource
    validator: str | None = None


def describe(uri: str, change: ChangeType, metadata: Metadata) -> Resource:
    """Put the arguments of `created`, `updated` and `deleted` together."""
    fields = {**metadata, "links": tuple(metadata.get("links", ()))}
    try:
        return Resource(uri, change=change, **fields)  # type: ignore[arg-type]
    except TypeError as error:
        raise ConfigurationError(f"{uri}: {error}") from None


def check_change(resource: Resource) -> Resource:
    """Return the resource as it is recorded, without a datetime, or refuse it.

    Raises:
        ConfigurationError: The change cannot be recorded; the message says what to mend.
    """
    if not isinstance(resource.change, ChangeType):
        raise ConfigurationError(
            f"{resource.uri}: change is {resource.change!r}; say created, updated or deleted"
        )
    return replace(check_resource(resource), datetime=None)


def check_resource(resource: Resource) -> Resource:
    """Return the resource, or refuse what could not stand in a document.

    Raises:
        ConfigurationError: A URI or a piece of metadata is unusable.
    """
    uri = resource.uri
    check_uri(uri)
    if resource.length is not None and not _is_count(resource.length):
        raise _refusal(uri, f"length is {resource.length!r}; give whole bytes, 0 or more")
    if resource.hash is not None and not all(map(_HASH.fullmatch, resource.hash.split())):
        raise _refusal(uri, f"hash is {resource.hash!r}; write it as sha-256:<hex digits>")
    if resource.lastmod is not None and not _is_instant(resource.lastmod):
        raise _refusal(uri, f"lastmod is {resource.lastmod!r}; give a datetime with a time zone")
    if len(resource.links) > DEFAULT_LIMITS.links:
        raise _refusal(uri, f"it has more than {DEFAULT_LIMITS.links} links")
    try:
        entry(resource)
    except (ValueError, TypeError, AttributeError) as error:
        raise _refusal(uri, str(error)) from None
    return resource


def check_uri(uri: object) -> None:
    """Refuse what is no absolute URI.

    Raises:
        ConfigurationError: The URI is relative, too long, or has unescaped characters.
    """
    if not isinstance(uri, str) or not _URI.fullmatch(uri):
        raise ConfigurationError(
            f"{uri!r} is not an absolute URI; percent-encode what RFC 3986 does not allow"
        )
    if len(uri) > DEFAULT_LIMITS.uri_length:
        raise ConfigurationError(
            f"{uri[:60]}… is longer than {DEFAULT_LIMITS.uri_length} characters; shorten the URI"
        )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value >= 0


def _is_instant(value: object) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None


def _refusal(uri: str, reason: str) -> ConfigurationError:
    return ConfigurationError(f"{uri}: {reason}")
