"""Parses robots.txt, and decides which paths the gateway may request (RFC 9309)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from urllib.parse import quote, unquote_to_bytes

from msgspec import Struct

#: The gateway's product token in a robots.txt.
PRODUCT = "rsnotify"
_MAX_DELAY_SECONDS = 3600.0


class _Group(Struct):
    """The rules for one or more user agents."""

    agents: set[str]
    rules: list[tuple[bool, str]]
    delay: float = 0.0


class RobotsRules(Struct, frozen=True):
    """The rules of a robots.txt for the gateway.

    Each rule is a pair: whether it allows matching paths, and the path pattern. `delay` is the
    minimum number of seconds between requests.
    """

    rules: tuple[tuple[bool, str], ...] = ()
    delay: float = 0.0
    sitemaps: tuple[str, ...] = ()

    def allows(self, path: str) -> bool:
        """Return whether a path and query may be requested. The longest matching rule wins."""
        path = _normalized(path)
        matching = [(len(rule), allow) for allow, rule in self.rules if _matches(rule, path)]
        return max(matching, default=(0, True))[1]


def parse_robots(text: str) -> RobotsRules:
    """Return the rules of the groups that name `PRODUCT`, or else of the groups for `*`."""
    groups, sitemaps = _groups(text)
    ours = [group for group in groups if PRODUCT.lower() in group.agents]
    ours = ours or [group for group in groups if "*" in group.agents]
    return RobotsRules(
        tuple(rule for group in ours for rule in group.rules),
        max((group.delay for group in ours), default=0.0),
        tuple(dict.fromkeys(sitemaps)),
    )


def _groups(text: str) -> tuple[list[_Group], list[str]]:
    groups: list[_Group] = []
    sitemaps: list[str] = []
    expects_agents = False
    for key, value in _lines(text.removeprefix("\ufeff").splitlines()):
        if key == "sitemap":
            sitemaps.append(value)
        elif key == "user-agent":
            if not expects_agents:
                groups.append(_Group(set(), []))
                expects_agents = True
            groups[-1].agents.add(value.split("/")[0].strip().lower())
        elif groups and key in ("allow", "disallow", "crawl-delay"):
            expects_agents = False
            if key == "crawl-delay":
                groups[-1].delay = _seconds(value)
            elif value:  # an empty rule matches nothing
                groups[-1].rules.append((key == "allow", _normalized(value)))
    return groups, sitemaps


def _lines(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        key, colon, value = line.partition("#")[0].partition(":")
        if colon:
            # This also works for the URIs of Sitemaps, in which `#` must be escaped.
            yield key.strip().lower(), value.strip()


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    return min(max(seconds, 0.0), _MAX_DELAY_SECONDS) if math.isfinite(seconds) else 0.0


def _normalized(path: str) -> str:
    """Return a path with uniform percent-encoding (RFC 9309 §2.2.2)."""
    return quote(unquote_to_bytes(path), safe="/*$?&=;:@+,!'()~")


def _matches(rule: str, path: str) -> bool:
    """Match a pattern in linear time. `*` matches any string, a final `$` the end of the path."""
    ends = rule.endswith("$")
    first, *others = rule.removesuffix("$").split("*")
    if not path.startswith(first):
        return False
    if not others:
        return not ends or path == first
    position = len(first)
    for piece in others[:-1]:
        found = path.find(piece, position)
        if found < 0:
            return False
        position = found + len(piece)
    last = others[-1]
    if ends:
        return path.endswith(last) and len(path) - len(last) >= position
    return path.find(last, position) >= 0
