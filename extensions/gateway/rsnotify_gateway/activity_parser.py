"""Parses collections and pages of IIIF Change Discovery 1.0: bytes in, values out."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from rsnotify.errors import InvalidDocument, MalformedDocument, WrongDocument
from rsnotify.format.datetimes import Instant, parse_datetime
from rsnotify_gateway.adapter import origin_uri
from rsnotify_subscriber.fetching.credentials import without_login


class Activity(Struct, frozen=True):
    """An activity.

    Args:
        kind: Its type, such as `Update`.
        uri: The URI of its object, if it has one.
        target: The URI of its target, if it has one.
        origin: The URI of the collection that it was removed from, if it has one.
        at: Its `endTime`, if it has one.
        state: A text that differs between two activities of one object, if they can be told apart.
    """

    kind: str
    uri: str | None = None
    target: str | None = None
    origin: str | None = None
    at: Instant | None = None
    state: str = ""


class ActivityPage(Struct, frozen=True):
    """A page of a collection.

    Args:
        activities: The oldest first.
        previous: The URI of the page with older activities, if there is one.
    """

    uri: str
    activities: tuple[Activity, ...]
    previous: str | None = None


class _Named(Struct):
    id: str


_Reference = _Named | str | None


class _Item(Struct, rename="camel"):
    type: str
    id: str | None = None
    object: _Reference = None
    target: _Reference = None
    origin: _Reference = None
    end_time: str | None = None


class _Document(Struct, rename="camel"):
    type: str
    id: str | None = None
    last: _Reference = None
    prev: _Reference = None
    ordered_items: tuple[_Item, ...] | None = None


_decode_document = msgspec.json.Decoder(_Document).decode


def parse_collection(data: bytes, uri: str) -> tuple[str, str]:
    """Return the URI of a collection, and that of its last page; raise `DocumentError`."""
    found = _parse(data, uri, "OrderedCollection")
    last = _uri(found.last, uri)
    if last is None:
        raise InvalidDocument("it has no last page (Change Discovery §3.1)", source=uri)
    return origin_uri(uri, found.id or uri), last


def parse_page(data: bytes, uri: str) -> ActivityPage:
    """Parse a page; raise `DocumentError` if it cannot be accepted."""
    found = _parse(data, uri, "OrderedCollectionPage")
    if found.ordered_items is None:
        raise InvalidDocument("it has no orderedItems (Change Discovery §3.2)", source=uri)
    activities = tuple(
        _activity(item, uri, number) for number, item in enumerate(found.ordered_items, 1)
    )
    return ActivityPage(uri, activities, _uri(found.prev, uri))


def _parse(data: bytes, uri: str, expected: str) -> _Document:
    try:
        found = _decode_document(data)
    except msgspec.ValidationError as error:
        raise InvalidDocument(f"it is no {expected}: {error}", source=uri) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedDocument(f"not well-formed JSON: {error}", source=uri) from None
    if found.type != expected:
        raise WrongDocument(f"it is no {expected}, but a {found.type[:100]}", source=uri)
    return found


def _activity(item: _Item, uri: str, number: int) -> Activity:
    at = None
    if item.end_time is not None:
        try:
            at = parse_datetime(item.end_time)
        except ValueError as error:
            raise InvalidDocument(f"endTime: {error}", source=uri, entry=number) from None
    return Activity(
        item.type,
        _uri(item.object, uri),
        _uri(item.target, uri),
        _uri(item.origin, uri),
        at,
        # Without a datetime, an identifier may be that of the place in the list.
        ""
        if at is None
        else f"{item.end_time} {without_login(item.id or '')}".strip().replace("\n", " "),
    )


def _uri(reference: _Reference, base: str) -> str | None:
    text = reference.id if isinstance(reference, _Named) else reference
    return origin_uri(base, text) if text else None
