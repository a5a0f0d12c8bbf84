"""The rules of a robots.txt (RFC 9309), and the Sitemaps that it names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from urllib.parse import quote, unquote_to_bytes

from msgspec import Struct

#: The product token by which a robots.txt can name the gateway.
PRODUCT = "rsnotify"
#: RFC 9309 §2.5: at least 500 KiB have to be read.
MOST_BYTES = 512_000
_LONGEST_DELAY = 3600.0


class _Group(Struct):
    agents: set[str]
    rules: list[tuple[bool, str]]
    delay: float = 0.0


class RobotsRules(Struct, frozen=True):
    """What a robots.txt says to us.

    Args:
        rules: Whether paths are allowed, and the patterns of the paths.
        delay: Seconds between two requests.
        sitemaps: The URIs of Sitemaps.
    """

    rules: tuple[tuple[bool, str], ...] = ()
    delay: float = 0.0
    sitemaps: tuple[str, ...] = ()

    def allows(self, path: str) -> bool:
        """Return whether a path with its query may be requested: the longest pattern decides."""
        path = _normalized(path)
        matching = [(len(rule), allow) for allow, rule in self.rules if _matches(rule, path)]
        return max(matching, default=(0, True))[1]


ALLOW_ALL = RobotsRules()


def parse_robots(text: str, product: str = PRODUCT) -> RobotsRules:
    """Return the rules for a product: of the groups that name it, or else of those for `*`."""
    groups, sitemaps = _groups(text)
    ours = [group for group in groups if product.lower() in group.agents]
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
            # A Sitemap is a whole line; its URI may have a `#` only if that is escaped.
            yield key.strip().lower(), value.strip()


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    return min(max(seconds, 0.0), _LONGEST_DELAY) if math.isfinite(seconds) else 0.0


def _normalized(path: str) -> str:
    """Return a path in which characters are escaped in one way (RFC 9309 §2.2.2)."""
    return quote(unquote_to_bytes(path), safe="/*$?&=;:@+,!'()~")


def _matches(rule: str, path: str) -> bool:
    """Match a pattern in linear time: `*` is any text, and `$` at its end the end of the path."""
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
