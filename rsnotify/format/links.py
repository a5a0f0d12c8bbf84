"""Resolving links, and the HTTP `Link` header (RFC 8288; core §6.3.3, WebSub §4)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urljoin

# Headers are untrusted. Every repetition is possessive, so that matching takes linear time.
_QUOTED = r'"((?:[^"\\]++|\\.)*+)"'
_PARAMETER = re.compile(rf';\s*+([^\s=;,]++)(?:\s*+=\s*+(?:{_QUOTED}|([^\s";,]*+)))?+')
_LINK = re.compile(rf"<([^<>]*+)>((?:\s*+{_PARAMETER.pattern})*+)")


def resolve(base: str, uri: str) -> str:
    """Return the absolute URI of a link in the document at `base`.

    A malformed URI is returned unchanged: the code that fetches it reports the error.
    """
    try:
        return urljoin(base, uri)
    except ValueError:
        return uri


def parse_links(headers: Iterable[str]) -> list[tuple[str, str]]:
    """Return the (relation, target) pairs in all Link headers of one message, in order.

    A link with two relations gives two pairs.
    """
    found = []
    for header in headers:
        for target, parameters, *_ in _LINK.findall(header):
            for name, quoted, token in _PARAMETER.findall(parameters):
                if name.lower() == "rel":
                    relations = re.sub(r"\\(.)", r"\1", quoted) or token
                    found += [(relation, target.strip()) for relation in relations.split()]
                    break  # RFC 8288 §3.3: only the first rel counts
    return found


def format_links(links: Iterable[tuple[str, str]]) -> str:
    """Write (relation, target) pairs as one Link header.

    Raises:
        ValueError: A target contains a character that would end it early.
    """
    parts = []
    for relation, target in links:
        if re.search(r"[<>\x00-\x20\x7f]", target):
            raise ValueError(f"{target!r} cannot stand in a Link header")
        parts.append(f'<{target}>; rel="{relation}"')
    return ", ".join(parts)
