"""Decides how to respond to conditional requests (RFC 9110 §13) and ranges (§14), without I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

from msgspec import Struct

_TAG = re.compile(r'(W/)?"([^"]*)"')
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
    headers: Mapping[str, str], version: RepresentationVersion, now: float
) -> ConditionalResponse:
    """Return how to respond to a GET or HEAD, by the order of RFC 9110 §13.2.2."""
    modified = int(version.modified)
    if (match := headers.get("if-match")) is not None:
        if not _matches(match, version.tag, weak=False):
            return ConditionalResponse(412)
    elif (unmodified := _date(headers, "if-unmodified-since")) is not None and (
        modified > unmodified
    ):
        return ConditionalResponse(412)
    if (none_match := headers.get("if-none-match")) is not None:
        if _matches(none_match, version.tag, weak=True):
            return ConditionalResponse(304)
    elif (since := _date(headers, "if-modified-since")) is not None and modified <= since:
        return ConditionalResponse(304)
    if version.length is None or not _range_applies(headers, version, now):
        return ConditionalResponse(200)
    return _range(headers.get("range", ""), version.length)


def _matches(condition: str, tag: str, *, weak: bool) -> bool:
    return condition.strip() == "*" or any(
        known == tag and (weak or not is_weak) for is_weak, known in _TAG.findall(condition)
    )


def _date(headers: Mapping[str, str], name: str) -> float | None:
    """Return a date in seconds since 1970; None if it is missing or invalid."""
    try:
        date = parsedate_to_datetime(headers.get(name, ""))
    except (ValueError, OverflowError):
        return None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def _range_applies(headers: Mapping[str, str], version: RepresentationVersion, now: float) -> bool:
    """Return whether the range is one of this version (RFC 9110 §13.1.5)."""
    condition = headers.get("if-range", "").strip()
    if not condition:
        return True
    if condition.startswith(('"', "W/")):
        return condition == f'"{version.tag}"'
    return _date(headers, "if-range") == version.last_modified(now)


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
    for part in headers.get("accept-encoding", "").split(","):
        if match := _GZIP.fullmatch(part):
            weights[match[1].lower()] = match[2] is None or match[2].strip("0.") != ""
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", False)))
