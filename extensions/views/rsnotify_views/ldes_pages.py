"""The view as a Linked Data Event Stream, in Turtle.

The root node has the members of the open Change List, and relations to the pages of the closed
ones. So one response shows the whole search tree: a consumer never meets a member before it can
know of an older one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

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


# What `changes.check_uri` accepts and RFC 3986 does not, after the authority or the scheme.
_ODD = re.compile(r"[\[\]]|%(?![0-9A-Fa-f]{2})")
_AUTHORITY = re.compile(r"[^:]*:(?://[^/?#]*)?")


class LDESView(View):
    suffix = ".ttl"
    media_type = "text/turtle"
    live = (_ROOT,)
    root = _ROOT

    def __init__(self, uri: Callable[[str], str], age: int | None) -> None:
        super().__init__(uri, age)
        # They change only when a Change List is closed or dropped.
        self._related: Sequence[FinishedDocument] = ()
        self._relations = ""

    def entry(self, change: Resource) -> bytes:
        assert change.change is not None
        assert change.datetime is not None
        member = f"c:{compact(to_microseconds(change.datetime))}"
        at = _literal(format_datetime(change.datetime))
        return (
            f"c:stream tree:member {member} . {member} a {_ACTIVITIES[change.change]} ;"
            f" as:object <{_iri(change.uri)}> ; as:published {at} ."
        ).encode()

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
        """Return the relations to the page of a closed Change List: its interval."""
        to = f"tree:node <{self.name(closed).rpartition('/')[2]}> ; tree:path as:published"
        later, until = _instant(closed.begin), _instant(closed.end)
        return (
            f"<> tree:relation [ a tree:GreaterThanRelation ; {to} ; tree:value {later} ] ,"
            f" [ a tree:LessThanOrEqualToRelation ; {to} ; tree:value {until} ] ."
        )


def _iri(uri: str) -> str:
    """Return a URI, percent-encoded where strict parsers would refuse the whole document."""
    if _ODD.search(uri) is None and uri.count("#") <= 1:
        return uri
    start = _AUTHORITY.match(uri)
    assert start is not None
    rest, mark, fragment = uri[start.end() :].partition("#")
    rest += mark + fragment.replace("#", "%23")
    return start[0] + _ODD.sub(lambda odd: f"%{ord(odd[0]):X}", rest)


def _instant(microseconds: int) -> str:
    return _literal(format_datetime(from_microseconds(microseconds)))


def _literal(datetime: str) -> str:
    return f'"{datetime}"^^xsd:dateTime'
