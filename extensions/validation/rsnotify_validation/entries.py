"""Checks single entries, and the attributes and values of any `rs:md` and `rs:ln` (core §7).

W3C Datetimes are parsed strictly, with their written precision: `2013-01-02` is a whole day.
Datetimes are compared only up to their precision, so that coarse ones are not reported as out of
order.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from msgspec import Struct

from rsnotify.format.datetimes import MICROSECOND, Instant, parse_datetime
from rsnotify.format.hashes import AUDIT_NS, FORMS
from rsnotify.format.model import RS_NS, Capability, ChangeType, Rel
from rsnotify.format.writer import Profile
from rsnotify_validation.document_outline import TIMES
from rsnotify_validation.elements import Element, EntryElement
from rsnotify_validation.kinds import CAPABILITIES, DESCRIBED, NOT_OFFERED, TOPICS, Kind

# https://www.w3.org/TR/1998/NOTE-datetime-19980827: a time needs a time zone.
_FORM = re.compile(
    r"\d{4}(-\d\d(-\d\d(T\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d))?)?)?",
    re.ASCII,
)
#: The form that core §7 recommends.
_RECOMMENDED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", re.ASCII)
#: The duration of the finest unit, by the number of matched groups of `_FORM`.
_DURATIONS = (
    timedelta(days=365),
    timedelta(days=28),
    timedelta(days=1),
    timedelta(minutes=1),
    timedelta(seconds=1),
)


class StrictDatetime(Struct, frozen=True):
    """The range of instants that a datetime may denote."""

    first: Instant
    last: Instant

    def is_before(self, other: StrictDatetime) -> bool:
        """Return whether this datetime is certainly earlier than the other."""
        return self.last < other.first


def read_strict_datetime(text: str | None) -> StrictDatetime | None:
    """Parse a W3C Datetime. Return None if it is malformed."""
    match = _FORM.fullmatch(text.strip()) if text is not None else None
    if match is None or text is None:
        return None
    try:
        first = parse_datetime(text)
        return StrictDatetime(first, first + _duration(match) - MICROSECOND)
    except (ValueError, OverflowError):
        return None


def _duration(match: re.Match[str]) -> timedelta:
    if fraction := match.group(5):
        return max(MICROSECOND, timedelta(seconds=10.0 ** -(len(fraction) - 1)))
    return _DURATIONS[sum(group is not None for group in match.groups()[:4])]


#: Maximum length of a loc (https://www.sitemaps.org/protocol.html).
_MAX_LOC_LENGTH = 2_047
#: Maximum length of a value in a message.
_MAX_SHOWN_LENGTH = 80

_FREQUENCY = re.compile("always|hourly|daily|weekly|monthly|yearly|never")
_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_MEDIA_TYPE = re.compile(rf"{_TOKEN}/{_TOKEN}(\s*;\s*{_TOKEN}=({_TOKEN}|\"[^\"]*\"))*")
_CODINGS = re.compile(rf"{_TOKEN}(\s*,\s*{_TOKEN})*")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_URI = re.compile(r"(?>[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=]++|%[0-9A-Fa-f]{2})++")
_RELATION = re.compile(r"[a-z][a-z0-9.-]*")
_HASH = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]*):([0-9A-Fa-f]+)")
#: Number of hexadecimal digits of a digest, by the IANA name of the hash function.
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
#: The IANA Link Relation Type Registry as of 2025. Later types are missing, so an unknown type
#: results in a warning, not an error.
REGISTERED = frozenset(_RELATIONS.split())

RuleIds = tuple[str, ...]


def _datetime(text: str) -> RuleIds:
    if read_strict_datetime(text) is None:
        return ("datetime-syntax",)
    return () if _RECOMMENDED.fullmatch(text.strip()) else ("datetime-form",)


def _uri(text: str) -> RuleIds:
    if _SCHEME.match(text) is None:
        return ("uri-relative",)
    return () if _URI.fullmatch(text) else ("uri-characters",)


def _loc(text: str) -> RuleIds:
    return _uri(text) + (("loc-long",) if len(text) > _MAX_LOC_LENGTH else ())


def _hash(text: str) -> RuleIds:
    pairs = [_HASH.fullmatch(pair) for pair in text.split()]
    if not pairs or None in pairs:
        return ("hash-syntax",)
    broken: RuleIds = ()
    digits = [(_DIGITS.get(pair[1].lower()), len(pair[2])) for pair in pairs if pair is not None]
    if any(wanted not in (None, found) for wanted, found in digits):
        broken += ("hash-length",)
    if any(wanted is None for wanted, _ in digits):
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
    is_within = all(part not in ("", ".", "..") for part in parts)
    return () if is_within and "\\" not in text and "\0" not in text else ("path-within",)


def _matching(form: re.Pattern[str], rule: str) -> Callable[[str], RuleIds]:
    return lambda text: () if form.fullmatch(text) else (rule,)


#: The check for each attribute or element, which returns the rules that a value breaks.
_CHECKS: dict[str, Callable[[str], RuleIds]] = {
    **dict.fromkeys(
        ("at", "completed", "from", "until", "datetime", "modified", "lastmod"), _datetime
    ),
    "change": _matching(re.compile("|".join(ChangeType)), "change-value"),
    "changefreq": _matching(_FREQUENCY, "changefreq-value"),
    "encoding": _matching(_CODINGS, "encoding-value"),
    "hash": _hash,
    "href": _uri,
    "length": _matching(re.compile("[0-9]+"), "length-value"),
    "loc": _loc,
    "path": _path,
    "pri": _priority,
    "rel": _relation,
    "type": _matching(_MEDIA_TYPE, "type-value"),
}


def broken_by(name: str, value: str) -> RuleIds:
    """Return the ids of the syntax rules that a value of an attribute or element breaks."""
    return _CHECKS[name](value) if name in _CHECKS else ()


def shown(name: str, value: str) -> str:
    """Return the name and value for a message. A long value is shortened."""
    text = value if len(value) <= _MAX_SHOWN_LENGTH else value[: _MAX_SHOWN_LENGTH - 1] + "…"
    return f"{name} is {text!r}"


#: A function that takes the broken rule, the line, the element and an optional detail.
Report = Callable[..., None]

HEAD_ATTRIBUTES = frozenset({"capability", *TIMES})
ENTRY_ATTRIBUTES = HEAD_ATTRIBUTES | {
    "change", "datetime", "encoding", "hash", "length", "path", "type",
}  # fmt: skip
_TARGET_ATTRIBUTES = ("encoding", "hash", "length", "modified", "path", "type", "pri")
LINK_ATTRIBUTES = frozenset({"rel", "href", *_TARGET_ATTRIBUTES})
#: Kinds whose entries state the capability of the documents that they lead to.
_STATE_CAPABILITY = frozenset({Capability.CAPABILITY_LIST, Capability.FRAMEWORK_NOTIFICATION})
#: Attributes that a mirror shares with the resource (core §14.2).
_CONTENT_ATTRIBUTES = ("encoding", "hash", "length", "type")


def check_attributes(element: Element, name: str, known: frozenset[str], report: Report) -> None:
    """Check that all attributes of an element are known and well-formed (core §7)."""
    for attribute, value in element.attributes.items():
        namespace, _, local = attribute.rpartition(" ")
        if namespace == RS_NS:
            report("attribute-prefixed", element.line, name, local)
        elif not namespace and local not in known:
            report("attribute-unknown", element.line, name, local)
        elif not namespace:
            for rule in broken_by(local, value.strip() if local != "path" else value):
                report(rule, element.line, name, shown(local, value))


def check_audit(md: Element, report: Report) -> None:
    """Check the audit attributes in the `rs:md` of a document (docs/audit.md)."""
    values = {name: md.attributes.get(f"{AUDIT_NS} {name}") for name in FORMS}
    missing = [name for name, value in values.items() if value is None]
    if len(missing) == len(values):
        return
    if missing:
        report("audit-incomplete", md.line, "rs:md", ", ".join(missing))
    for name, value in values.items():
        if value is not None and FORMS[name].fullmatch(value) is None:
            report("audit-value", md.line, "rs:md", shown(name, value))
    if "until" not in md.attributes:
        report("audit-until-missing", md.line, "rs:md")


def check_order_of_times(element: Element, report: Report) -> None:
    """Check that a snapshot or interval does not end before it begins (core §7)."""
    at, completed, from_, until = (
        read_strict_datetime(element.attributes.get(name)) for name in TIMES
    )
    if at and completed and completed.is_before(at):
        report("completed-before-at", element.line, "rs:md")
    if from_ and until and until.is_before(from_):
        report("until-before-from", element.line, "rs:md")


def check_link(link: Element, report: Report) -> None:
    """Check the rules that apply to every `rs:ln` (core §7)."""
    check_attributes(link, "rs:ln", LINK_ATTRIBUTES, report)
    for name in ("href", "rel"):
        if name not in link.attributes:
            report(f"link-{name}-missing", link.line, "rs:ln")


class EntryCheck:
    """Checks each entry of a document by itself.

    `kind` is None for a document that is specified neither in the core nor in Archives.
    """

    def __init__(self, kind: Kind | None, spec: Profile, report: Report) -> None:
        self._kind = kind
        self._is_1_0 = spec is Profile.V1_0
        self._report = report

    def check(self, entry: EntryElement) -> None:
        self._check_texts(entry)
        if entry.md is not None:
            check_attributes(entry.md, "rs:md", ENTRY_ATTRIBUTES, self._report)
            check_order_of_times(entry.md, self._report)
        for link in entry.links:
            check_link(link, self._report)
            self._check_relation(entry, link)
        self._check_link_counts(entry)
        if self._kind is not None:
            self._check_required(self._kind, entry)
            self._check_allowed(self._kind, entry)
            self._check_capability(self._kind, entry)

    def _check_texts(self, entry: EntryElement) -> None:
        if not entry.text("loc"):
            self._report("loc-missing", entry.line, entry.name)
        for name, (text, line) in entry.texts.items():
            for rule in broken_by(name, text) if text or name != "loc" else ():
                self._report(rule, line, name, shown(name, text))

    def _check_required(self, kind: Kind, entry: EntryElement) -> None:
        """Check that the entry has the parts that its kind requires or recommends."""
        deleted = entry.attribute("change") == ChangeType.DELETED
        for part in kind.entry_required + kind.entry_recommended:
            if part == "lastmod":
                missing = self._is_1_0 and part not in entry.texts
            elif part == "describedby" and entry.attribute("capability") in TOPICS:
                missing = False
            elif part == "describedby":
                missing = not any(link.attributes.get("rel") == part for link in entry.links)
            elif deleted and part in ("path", "type"):
                missing = False  # a deleted resource has no bitstream (core §13.2)
            else:
                missing = entry.attribute(part) is None
            if missing:
                line = entry.line if part in ("lastmod", "describedby") else entry.md_line
                self._report(f"{kind.id}-entry-{part}-missing", line, entry.name)

    def _check_allowed(self, kind: Kind, entry: EntryElement) -> None:
        """Check that the entry has no attributes of other kinds (core §7, Appendix A)."""
        if entry.md is None:
            return
        refuse = partial(self._refuse, entry.md, "rs:md")
        for begin, end in (("at", "completed"), ("from", "until")):
            if begin not in kind.entry_time:
                refuse(f"entry-{begin}-not-allowed", begin, end)
            elif begin not in entry.md.attributes:
                refuse(f"{end}-without-{begin}", end)
        if self._is_1_0:
            refuse("datetime-not-in-1.0", "datetime")
        elif not kind.changes:
            refuse("datetime-not-allowed", "datetime")
        if not kind.changes:
            refuse("change-not-used", "change")
        if not kind.is_manifest:
            refuse("path-not-allowed", "path")

    def _refuse(self, element: Element, name: str, rule: str, *attributes: str) -> None:
        found = [attribute for attribute in attributes if attribute in element.attributes]
        if found:
            self._report(rule, element.line, name, ", ".join(found))

    def _check_capability(self, kind: Kind, entry: EntryElement) -> None:
        """Check the capability that the entry states (core §8, §9)."""
        if entry.md is None:
            return
        capability = entry.attribute("capability")
        line = entry.md.line
        if kind.id == Capability.DESCRIPTION:
            if capability not in DESCRIBED:
                self._report("description-capability", line, "rs:md")
        elif capability is None:
            return
        elif kind.id not in _STATE_CAPABILITY:
            self._report("entry-capability-not-used", line, "rs:md")
        elif capability not in CAPABILITIES:
            self._report("capability-unknown", line, "rs:md", shown("it", capability))
        elif kind.id == Capability.CAPABILITY_LIST and capability in NOT_OFFERED:
            self._report("capability-not-offered", line, "rs:md", capability)

    def _check_relation(self, entry: EntryElement, link: Element) -> None:
        """Check the rules for the link's relation (core §14)."""
        relation = link.attributes.get("rel")
        if relation == Rel.DUPLICATE:
            self._refuse(link, "rs:ln", "duplicate-attributes", *_CONTENT_ATTRIBUTES)
        elif relation == Rel.ALTERNATE:
            if "type" not in link.attributes:
                self._report("alternate-type-missing", link.line, "rs:ln")
        elif relation == Rel.TIMEGATE:
            self._refuse(link, "rs:ln", "timegate-attributes", *_TARGET_ATTRIBUTES)
        elif relation == Rel.PATCH:
            self._check_patch(link)

    def _check_patch(self, link: Element) -> None:
        if "type" not in link.attributes:
            self._report("patch-type-missing", link.line, "rs:ln")
        if self._kind is None:
            return
        if not self._kind.changes:
            self._report("patch-not-allowed", link.line, "rs:ln")
        elif self._kind.is_manifest and "path" not in link.attributes:
            self._report("patch-path-missing", link.line, "rs:ln")

    def _check_link_counts(self, entry: EntryElement) -> None:
        relations = [link.attributes.get("rel") for link in entry.links]
        for relation in (Rel.MEMENTO, Rel.VIA):
            if relations.count(relation) > 1:
                self._report(f"{relation}-repeated", entry.line, entry.name)
        if self._is_1_0 and "lastmod" not in entry.texts:
            # If the kind requires lastmod, `_check_required` reports that it is missing.
            required = self._kind is not None and "lastmod" in self._kind.entry_required
            if not required and {Rel.MEMENTO, Rel.TIMEGATE, Rel.TIMEMAP} & set(relations):
                self._report("memento-lastmod-missing", entry.line, entry.name)
