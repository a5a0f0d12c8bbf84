"""The syntax of attributes and texts (core §7), and the registered link relation types."""

from __future__ import annotations

import re
from collections.abc import Callable

from rsnotify.format.vocabulary import ChangeType
from rsnotify.validation.strict_datetimes import is_recommended, read_strict_datetime

#: The greatest length of a loc (https://www.sitemaps.org/protocol.html).
_LONGEST_LOC = 2_047
_SHOWN = 80

_CHANGES = frozenset(ChangeType)
_FREQUENCIES = frozenset({"always", "hourly", "daily", "weekly", "monthly", "yearly", "never"})
_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_MEDIA_TYPE = re.compile(rf"{_TOKEN}/{_TOKEN}(\s*;\s*{_TOKEN}=({_TOKEN}|\"[^\"]*\"))*")
_CODINGS = re.compile(rf"{_TOKEN}(\s*,\s*{_TOKEN})*")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_URI = re.compile(r"(?:[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=]++|%[0-9A-Fa-f]{2})++")
_RELATION = re.compile(r"[a-z][a-z0-9.-]*")
_HASH = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]*):([0-9A-Fa-f]+)")
#: Hexadecimal digits of a digest, by the names of the IANA registry of hash functions.
_DIGITS = {"md5": 32, "sha-1": 40, "sha-224": 56, "sha-256": 64, "sha-384": 96, "sha-512": 128}

_RELATIONS = """
    about acl alternate amphtml api-catalog appendix apple-touch-icon apple-touch-startup-image
    archives author blocked-by bookmark c2pa-manifest canonical chapter cite-as collection
    compression-dictionary contents convertedfrom copyright create-form current deprecation
    describedby describes disclosure dns-prefetch duplicate edit edit-form edit-media enclosure
    external first geofeed glossary help hosts hub ice-server icon index intervalafter
    intervalbefore intervalcontains intervaldisjoint intervalduring intervalequals
    intervalfinishedby intervalfinishes intervalin intervalmeets intervalmetby
    intervaloverlappedby intervaloverlaps intervalstartedby intervalstarts item last
    latest-version license linkset lrdd manifest mask-icon me media-feed memento micropub
    modulepreload monitor monitor-group next next-archive nofollow noopener noreferrer opener
    openid2.local_provider openid2.provider original p3pv1 payment pingback preconnect
    predecessor-version prefetch preload prerender prev prev-archive preview previous
    privacy-policy profile publication rdap-active rdap-bottom rdap-down rdap-top rdap-up
    related replies restconf ruleinput search section self service service-desc service-doc
    service-meta sip-trunking-capability sponsored start status stylesheet subsection
    successor-version sunset tag terms-of-service timegate timemap type ugc up version-history
    via webmention working-copy working-copy-of
"""
#: The IANA Link Relation Type Registry as of 2025. Later types are missing here, so an unknown
#: type gives a warning and not an error.
REGISTERED = frozenset(_RELATIONS.split())

RuleIds = tuple[str, ...]


def _datetime(text: str) -> RuleIds:
    if read_strict_datetime(text) is None:
        return ("datetime-syntax",)
    return () if is_recommended(text) else ("datetime-form",)


def _uri(text: str) -> RuleIds:
    if _SCHEME.match(text) is None:
        return ("uri-relative",)
    return () if _URI.fullmatch(text) else ("uri-characters",)


def _loc(text: str) -> RuleIds:
    return _uri(text) + (("loc-long",) if len(text) > _LONGEST_LOC else ())


def _hash(text: str) -> RuleIds:
    pairs = [_HASH.fullmatch(pair) for pair in text.split()]
    found = [match for match in pairs if match is not None]
    if len(found) < len(pairs) or not pairs:
        return ("hash-syntax",)
    broken: RuleIds = ()
    if any(len(pair[2]) != _DIGITS.get(pair[1].lower(), len(pair[2])) for pair in found):
        broken += ("hash-length",)
    if any(pair[1].lower() not in _DIGITS for pair in found):
        broken += ("hash-algorithm",)
    return broken


def _priority(text: str) -> RuleIds:
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    return () if 1 <= number <= 999_999 else ("pri-range",)


def _relation(text: str) -> RuleIds:
    if _RELATION.fullmatch(text):
        return () if text in REGISTERED else ("rel-unregistered",)
    return ("rel-syntax",) if _uri(text) else ()


def _path(text: str) -> RuleIds:
    if not text.startswith("/"):
        return ("path-rooted",)
    parts = text[1:].split("/")
    within = all(part not in ("", ".", "..") for part in parts)
    return () if within and "\\" not in text and "\0" not in text else ("path-within",)


def _one_of(values: frozenset[str], rule: str) -> Callable[[str], RuleIds]:
    return lambda text: () if text in values else (rule,)


def _like(form: re.Pattern[str], rule: str) -> Callable[[str], RuleIds]:
    return lambda text: () if form.fullmatch(text) else (rule,)


#: The check of each attribute or text, which returns the broken rules.
_CHECKS: dict[str, Callable[[str], RuleIds]] = {
    **dict.fromkeys(
        ("at", "completed", "from", "until", "datetime", "modified", "lastmod"), _datetime
    ),
    "change": _one_of(_CHANGES, "change-value"),
    "changefreq": _one_of(_FREQUENCIES, "changefreq-value"),
    "encoding": _like(_CODINGS, "encoding-value"),
    "hash": _hash,
    "href": _uri,
    "length": _like(re.compile("[0-9]+"), "length-value"),
    "loc": _loc,
    "path": _path,
    "pri": _priority,
    "rel": _relation,
    "type": _like(_MEDIA_TYPE, "type-value"),
}


def broken_by(name: str, value: str) -> RuleIds:
    """Return the syntax rules that the value of an attribute or element breaks."""
    check = _CHECKS.get(name)
    return () if check is None else check(value)


def shown(name: str, value: str) -> str:
    """Return a value for a message, shortened if it is long."""
    text = value if len(value) <= _SHOWN else value[: _SHOWN - 1] + "…"
    return f"{name} is {text!r}"
