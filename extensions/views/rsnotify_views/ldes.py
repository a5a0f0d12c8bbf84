"""The view as a Linked Data Event Stream, in Turtle.

The root node has the members of the open Change List, and relations to the pages of closed Change
Lists. One response therefore shows the whole search tree, and a consumer never reaches a member
before it knows where the older ones are.

Many consumers order members by milliseconds, like JavaScript, but a resource can change several
times within a millisecond. In that case, a member is dated one millisecond after the previous one.
The date in a member may therefore be up to a second later than the date in its IRI, which is the
datetime in the Change List.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime

from rsnotify.format.datetimes import format_datetime, from_microseconds, to_microseconds
from rsnotify.format.model import ChangeType, Resource
from rsnotify_publisher import FinishedDocument, View
from rsnotify_publisher.source_documents import compact

_PREFIXES = (
    "@prefix as: <https://www.w3.org/ns/activitystreams#> . "
    "@prefix ldes: <https://w3id.org/ldes#> . "
    "@prefix tree: <https://w3id.org/tree#> . "
    "@prefix xsd: <http://www.w3.org/2001/XMLSchema#> . "
)
_ROOT = "resourcesync/ldes.ttl"
_ACTIVITIES = {
    ChangeType.CREATED: "as:Create",
    ChangeType.UPDATED: "as:Update",
    ChangeType.DELETED: "as:Delete",
}


_MILLISECOND, _SECOND = 1_000, 1_000_000
_DATED = re.compile(rb'as:object <([^>]*)> ; as:published "([^"]*)"')
#: The view keeps this many dates before it drops those that no longer matter.
_MIN_DATES = 1_000

#: Characters that `changes.check_uri` accepts after the scheme and authority, but not RFC 3986.
_INVALID = re.compile(r"[\[\]]|%(?![0-9A-Fa-f]{2})")
_AUTHORITY = re.compile(r"[^:]*:(?://[^/?#]*)?")


class LDESView(View):
    suffix = ".ttl"
    media_type = "text/turtle"
    live = (_ROOT,)
    root = _ROOT

    def __init__(self, uri: Callable[[str], str], age: int | None) -> None:
        super().__init__(uri, age)
        # The relations change only when a Change List is closed or dropped.
        self._related: Sequence[FinishedDocument] = ()
        self._relations = ""
        #: The date (µs) of the last member of each IRI, while it can affect the date of the next.
        self._dates: dict[str, int] = {}
        self._max_dates = _MIN_DATES

    def resume(self, page: bytes, end: int) -> None:
        self._dates = _dates_in(page.splitlines(), end)

    def remark(self, page: bytes, entries: Sequence[bytes], end: int) -> bytes:
        dates = _dates_in(page.splitlines(), end)
        for iri in _dates_in(entries, end):
            dates.pop(iri, None)
        remarks = (
            f"# as:object <{iri}> ; as:published {_instant(date)}\n" for iri, date in dates.items()
        )
        return "".join(remarks).encode()

    def entry(self, change: Resource) -> bytes:
        assert change.change is not None
        assert change.datetime is not None
        changed_at, iri = to_microseconds(change.datetime), _iri(change.uri)
        member = f"c:{compact(changed_at)}"
        return (
            f"c:stream tree:member {member} . {member} a {_ACTIVITIES[change.change]} ;"
            f" as:object <{iri}> ; as:published {_instant(self._date(iri, changed_at))} ."
        ).encode()

    def _date(self, iri: str, changed_at: int) -> int:
        """Return the date (µs) by which consumers order the next member of a resource."""
        millisecond = changed_at - changed_at % _MILLISECOND
        before, date = self._dates.get(iri, 0), changed_at
        if before >= millisecond:
            date = min(before + _MILLISECOND, changed_at + _SECOND)
        if len(self._dates) >= self._max_dates:
            self._dates = {each: at for each, at in self._dates.items() if at >= millisecond}
            self._max_dates = 2 * len(self._dates) + _MIN_DATES
        self._dates[iri] = date
        return date

    def head(self, name: str, before: str | None, after: str | None) -> bytes:
        stream = "c:stream a ldes:EventStream . <> a tree:Node ; ldes:immutable true ."
        return f"{self._prefixes} {stream}\n".encode()

    @property
    def _prefixes(self) -> str:
        return f"{_PREFIXES}@prefix c: <{self.uri(_ROOT)}#> ."

    def documents(
        self, closed: Sequence[FinishedDocument], begin: int, entries: Sequence[bytes]
    ) -> dict[str, list[bytes]]:
        start = closed[0].begin if closed else begin
        lines = [
            self._prefixes,
            "c:stream a ldes:EventStream ; tree:view <> ;",
            "  ldes:timestampPath as:published ; ldes:versionOfPath as:object ;",
            "  ldes:versionCreateObject as:Create ; ldes:versionUpdateObject as:Update ;",
            "  ldes:versionDeleteObject as:Delete .",
            "<> a tree:Node, ldes:EventSource ; ldes:retentionPolicy c:retention .",
            f"c:retention ldes:startingFrom {_instant(start)} .",
        ]
        if self.age is not None:
            duration = f'"PT{self.age // 1_000_000}S"^^xsd:duration'
            lines.append(f"c:retention ldes:fullLogDuration {duration} .")
        if closed is not self._related:
            self._related, self._relations = closed, "\n".join(map(self._relation, closed))
        head = "\n".join([*lines, self._relations, ""]).encode()
        return {_ROOT: self.page(head, entries)}

    def _relation(self, closed: FinishedDocument) -> str:
        """Return the relations to a closed Change List's page, for its interval plus a second."""
        to = f"tree:node <{self.name(closed).rpartition('/')[2]}> ; tree:path as:published"
        later, until = _instant(closed.begin), _instant(closed.end + _SECOND)
        return (
            f"<> tree:relation [ a tree:GreaterThanRelation ; {to} ; tree:value {later} ] ,"
            f" [ a tree:LessThanOrEqualToRelation ; {to} ; tree:value {until} ] ."
        )


def _iri(uri: str) -> str:
    """Percent-encode the characters of a URI that strict Turtle parsers reject."""
    if _INVALID.search(uri) is None and uri.count("#") <= 1:
        return uri
    start = _AUTHORITY.match(uri)
    assert start is not None
    rest, mark, fragment = uri[start.end() :].partition("#")
    rest += mark + fragment.replace("#", "%23")
    return start[0] + _INVALID.sub(lambda found: f"%{ord(found[0]):X}", rest)


def _dates_in(lines: Sequence[bytes], end: int) -> dict[str, int]:
    """Return the last date (µs) of each IRI that can still affect members for changes after `end`.

    A page has these dates in its members and, for resources that changed earlier, in remarks at its
    end.
    """
    found: dict[str, int] = {}
    for line in reversed(lines):
        if (dated := _DATED.search(line)) is None:
            continue
        date = to_microseconds(datetime.fromisoformat(dated[2].decode()))
        if date >= end - end % _MILLISECOND:
            found.setdefault(dated[1].decode(), date)
        elif date < end - _SECOND and not line.startswith(b"#"):
            break
    return found


def _instant(microseconds: int) -> str:
    return f'"{format_datetime(from_microseconds(microseconds))}"^^xsd:dateTime'
