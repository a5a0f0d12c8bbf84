"""Decides how to respond to conditional requests (RFC 9110 §13) and ranges (§14), without I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from aiohttp import ETag, hdrs, web
from msgspec import Struct

_RANGE = re.compile(r"bytes\s*=\s*(\d{0,18})\s*-\s*(\d{0,18})\s*", re.ASCII | re.IGNORECASE)
_GZIP = re.compile(r"\s*(gzip|x-gzip|\*)\s*(?:;\s*q\s*=\s*([\d.]+)\s*)?", re.IGNORECASE)


class RepresentationVersion(Struct, frozen=True):
    """The version of a representation, to which conditions refer.

    Args:
        tag: A strong entity tag, without quotes: other bytes have another one.
        modified: When it was last modified, in seconds since 1970.
        length: Bytes, or None where ranges are not served.
    """

    tag: str
    modified: float
    length: int | None

    def last_modified(self, now: float) -> int:
        """Return the Last-Modified to send, in whole seconds.

        A representation that was modified within this second may be modified again within it. It
        gets a date one second older, so that clients can distinguish the two by date.
        """
        return min(int(self.modified), int(now) - 1)


class ConditionalResponse(Struct, frozen=True):
    """How to respond.

    Args:
        status: 200, 206, 304, 412 or 416.
        start: The first byte to send.
        stop: The byte behind the last one to send; None for all.
    """

    status: int
    start: int = 0
    stop: int | None = None


def decide(
    request: web.BaseRequest, version: RepresentationVersion, now: float
) -> ConditionalResponse:
    """Return how to respond to a GET or HEAD, by the order of RFC 9110 §13.2.2."""
    modified = int(version.modified)
    if (match := request.if_match) is not None:
        if not _matches(match, version.tag, weak=False):
            return ConditionalResponse(412)
    elif (unmodified := request.if_unmodified_since) and modified > unmodified.timestamp():
        return ConditionalResponse(412)
    if (none_match := request.if_none_match) is not None:
        if _matches(none_match, version.tag, weak=True):
            return ConditionalResponse(304)
    elif (since := request.if_modified_since) and modified <= since.timestamp():
        return ConditionalResponse(304)
    if version.length is None or not _range_applies(request.headers, version, now):
        return ConditionalResponse(200)
    return _range(request.headers.get(hdrs.RANGE, ""), version.length)


def _matches(tags: tuple[ETag, ...], tag: str, *, weak: bool) -> bool:
    return any(
        known.value == "*" or (known.value == tag and (weak or not known.is_weak)) for known in tags
    )


def _range_applies(headers: Mapping[str, str], version: RepresentationVersion, now: float) -> bool:
    """Return whether the range is one of this version (RFC 9110 §13.1.5)."""
    condition = headers.get(hdrs.IF_RANGE, "").strip()
    if not condition:
        return True
    if condition.startswith(('"', "W/")):
        return condition == f'"{version.tag}"'
    try:
        date = parsedate_to_datetime(condition)
    except ValueError:
        return False
    return date == datetime.fromtimestamp(version.last_modified(now), UTC)


def _range(header: str, length: int) -> ConditionalResponse:
    """Parse a range. Several ranges, and invalid ones, get the whole representation."""
    match = _RANGE.fullmatch(header)
    first, last = match.groups() if match else ("", "")
    if first and last and int(last) < int(first):
        return ConditionalResponse(200)
    if first:
        start, stop = int(first), min(int(last) + 1, length) if last else length
    elif last:
        start, stop = max(length - int(last), 0), length
    else:
        return ConditionalResponse(200)
    return ConditionalResponse(206, start, stop) if start < stop else ConditionalResponse(416)


def accepts_gzip(headers: Mapping[str, str]) -> bool:
    """Return whether a client accepts gzip (RFC 9110 §12.5.3)."""
    weights = {}
    for part in headers.get(hdrs.ACCEPT_ENCODING, "").split(","):
        if match := _GZIP.fullmatch(part):
            weights[match[1].lower()] = match[2] is None or match[2].strip("0.") != ""
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", False)))
