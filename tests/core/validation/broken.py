"""Each rule broken once: one edit of a valid document, and the line of the finding."""

from __future__ import annotations

from typing import NamedTuple

from rsnotify.format.hashes import AUDIT_NS
from rsnotify.format.model import MAX_BYTES, MAX_ENTRIES
from rsnotify.format.writer import Profile
from tests.core.validation.valid import ABOUT, CHANGE_LIST_1_1, HASH, UP, VALID, urlset

_ROOT = 2


class Break(NamedTuple):
    """One edit.

    Args:
        rule: What it breaks.
        document: The name of a kind, or a document.
        old: What is replaced, where it first stands.
        new: What is put in its place.
        off: How many lines below the edit the finding belongs.
        line: At which line, if that does not depend on the edit.
        spec: The version it is held against.
    """

    rule: str
    document: str
    old: str
    new: str = ""
    off: int = 0
    line: int | None = None
    spec: Profile = Profile.V1_1

    @property
    def edited(self) -> bytes:
        text = VALID.get(self.document, self.document)
        assert self.old in text
        return text.replace(self.old, self.new, 1).encode()

    @property
    def expected_line(self) -> int:
        text = VALID.get(self.document, self.document)
        return self.line or text[: text.index(self.old)].count("\n") + 1 + self.off


_SNAPSHOTS = (
    "resourcelist",
    "resourcelist-index",
    "resourcedump",
    "resourcedump-index",
    "resourcedump-manifest",
)
_INTERVALS = (
    "changelist",
    "changelist-index",
    "changedump",
    "changedump-index",
    "changedump-manifest",
)
_ARCHIVES = tuple(name for name in VALID if "-archive" in name)
_SNAPSHOT = ' at="2013-01-03T09:00:00Z" completed="2013-01-03T09:10:00Z"'
_INTERVAL = ' from="2013-01-03T00:00:00Z"'
_MORNING = ' from="2013-01-03T00:00:00Z" until="2013-01-03T12:00:00Z"'
_AFTERNOON = ' from="2013-01-03T12:30:00Z" until="2013-01-03T12:40:00Z"'
_LAST = ' from="2013-01-03T12:00:00Z" until="2013-01-03T13:00:00Z"'
_OLD = "2000-01-01T00:00:00Z"
_LASTMOD = "<lastmod>2013-01-03T12:00:00Z</lastmod>\n"
_LOC = "<loc>http://example.com/res1</loc>"
_RES1 = "http://example.com/res1"
_RESPELLED = "<url><loc>HTTP://example.com:80/x/../res%31</loc></url>\n"
_SECOND = """<url>
<loc>http://example.com/res2</loc>
<lastmod>2013-01-03T12:00:00Z</lastmod>
<rs:md change="updated"/>
<rs:ln rel="http://www.openarchives.org/rs/terms/patch" href="http://example.com/patch2" type="application/json-patch+json"/>
</url>
"""  # noqa: E501
_PATCH = '"http://www.openarchives.org/rs/terms/patch" type="a/b"'
_MEMENTO = '<rs:ln rel="memento" '
_PLAIN = urlset("<url>\n<loc>http://example.com/</loc>\n</url>\n")


def _of_kinds() -> list[Break]:
    """Take away what a kind of document must or should have, and disorder what has an order."""
    cases = [Break(f"{kind}-at-missing", kind, _SNAPSHOT) for kind in _SNAPSHOTS]
    cases += [Break(f"{kind}-from-missing", kind, _INTERVAL) for kind in _INTERVALS]
    cases += [
        Break(f"{kind}-up-missing", kind, UP, line=_ROOT)
        for kind in (*_SNAPSHOTS, *_INTERVALS, *_ARCHIVES)
    ]
    for kind in ("description", "capabilitylist"):
        cases.append(Break(f"{kind}-describedby-missing", kind, ABOUT, line=_ROOT))
    for kind in ("resourcelist-archive", "resourcedump-archive"):
        cases.append(Break(f"{kind}-entry-at-missing", kind, ' at="2013-01-02T09:00:00Z"'))
    for kind in ("changelist-index", "changedump-index"):
        last = ' from="2013-01-03T12:00:00Z"'
        cases.append(Break(f"{kind}-entry-from-missing", kind, last))
    for kind in ("changelist-index", "changedump-index", "changedump"):
        off = 4 if kind.endswith("-index") else 5
        cases.append(Break(f"{kind}-order", kind, _MORNING, _AFTERNOON, off=off))
    for kind in ("changelist-archive", "changedump-archive"):
        early = f'<rs:md from="{_OLD}" until="2000-01-02T00:00:00Z"/>'
        late = '<rs:md from="2013-01-02T00:00:00Z" until="2013-01-03T00:00:00Z"/>'
        cases.append(Break(f"{kind}-order", kind, late, early))
    for kind in ("changelist", "changedump-manifest"):
        cases.append(Break(f"{kind}-entry-change-missing", kind, ' change="updated"'))
        missing = f"{kind}-entry-lastmod-missing"
        cases.append(Break(missing, kind, _LASTMOD, off=-2, spec=Profile.V1_0))
        early = "<lastmod>2013-01-03T10:00:00Z</lastmod>\n"
        cases.append(Break(f"{kind}-order", kind, _LASTMOD, early, spec=Profile.V1_0))
    for kind, length in (("resourcedump", "4765"), ("changedump", "9")):
        cases.append(Break(f"{kind}-entry-type-missing", kind, ' type="application/zip"'))
        cases.append(Break(f"{kind}-entry-length-missing", kind, f' length="{length}"'))
    for kind, path in (
        ("resourcedump-manifest", "/resources/res 1"),
        ("changedump-manifest", "/changes/res1"),
    ):
        cases.append(Break(f"{kind}-entry-path-missing", kind, f' path="{path}"'))
        cases.append(Break(f"{kind}-entry-type-missing", kind, ' type="text/html"'))
    return cases


_OF_SINGLE_KINDS = [
    Break("description-entry-describedby-missing", "description",
        '<rs:ln rel="describedby" href="http://example.com/set.html"/>\n', off=-3),
    Break("description-capability", "description", ' capability="capabilitylist"'),
    Break("framework-notification-up-missing", "framework-notification", '<rs:ln rel="up"',
        "<x:ln xmlns:x='x'", line=_ROOT),
    Break("framework-notification-entry-capability-missing", "framework-notification",
        ' capability="changelist"'),
    Break("framework-notification-entry-change-missing", "framework-notification",
        ' change="created"'),
    Break("capabilitylist-up-missing", "capabilitylist", '<rs:ln rel="up"', "<x:ln xmlns:x='x'",
        line=_ROOT),
    Break(
        "capabilitylist-entry-capability-missing", "capabilitylist", ' capability="resourcelist"'
    ),
    Break("capability-repeated", "capabilitylist", '"changelist-archive"', '"resourcelist"'),
    Break("capability-not-offered", "capabilitylist", '"resourcelist"', '"description"'),
    Break("capability-unknown", "capabilitylist", '"resourcelist"', '"resourcelists"'),
    Break("changedump-entry-from-missing", "changedump", _LAST),
    Break("packages-mixed", "resourcedump", 'type="application/zip" length="9875"',
        'type="application/x-tar" length="1"'),
]  # fmt: skip

_OF_XML = [
    Break("not-well-formed", "resourcelist", "</url>", "</urk>"),
    Break("not-well-formed", "resourcelist", "res2", "a&b"),
    Break("not-well-formed", "resourcelist", "</urlset>\n"),
    Break("doctype", "resourcelist", "<urlset", "<!DOCTYPE urlset>\n<urlset"),
    Break("limit", "resourcelist", _LOC, f"<loc>http://example.com/{'a' * 9_000}</loc>"),
    Break("root-element", "resourcelist", "sitemap/0.9", "sitemap/0.84"),
    Break("plain-sitemap", _PLAIN, "</url>\n", "</url>\n", line=_ROOT),
    Break("md-missing", _PLAIN, "<url>", f"{UP}<url>", line=_ROOT),
    Break("md-repeated", "resourcelist", "<url>\n", '<rs:md capability="x"/>\n<url>\n'),
    Break("md-repeated", "changelist", '<rs:md change="deleted"/>',
        '<rs:md change="deleted"/><rs:md/>'),
    Break("capability-missing", "resourcelist", ' capability="resourcelist"'),
    Break("capability-unknown", "resourcelist", '"resourcelist"', '"resource list"'),
    Break("element-unknown", "resourcelist", _LOC, f"<uri/>{_LOC}"),
    Break("element-unknown", "resourcelist", _LOC, f"<rs:meta/>{_LOC}"),
    Break("element-unknown", "resourcelist", UP, f'<loc xmlns="">a</loc>{UP}'),
    Break("element-misplaced", "resourcelist", UP, f"<sitemap/>{UP}"),
    Break("element-misplaced", "resourcelist", _LOC, f"{_LOC}<url/>"),
    Break("element-repeated", "resourcelist", _LOC, _LOC + _LOC),
    Break("attribute-unknown", "resourcelist", ' length="8876"', ' size="8876"'),
    Break("attribute-unknown", "resourcelist", ' pri="1"', ' priority="1"'),
    Break("attribute-unknown", "resourcelist", ' completed="', ' finished="'),
    Break("attribute-unknown", "resourcelist", '<rs:ln rel="up"', '<rs:ln rel="up" title="a"'),
    Break("attribute-prefixed", "resourcelist", ' length="8876"', ' rs:length="8876"'),
    Break("entry-attributes", "resourcelist", "<url>", '<url id="1">'),
    Break(
        "document-link-attribute", "resourcelist", '<rs:ln rel="up"', '<rs:ln rel="up" type="a/b"'
    ),
    Break("capabilitylist-index", "resourcelist-index", f'"resourcelist"{_SNAPSHOT}',
        '"capabilitylist"', line=_ROOT),
    Break("index-undefined", "resourcelist-index", '"resourcelist"', '"resourcedump-manifest"',
        line=_ROOT),
]  # fmt: skip

_OF_ATTRIBUTES = [
    Break("datetime-not-in-1.0", "changelist", ' change="updated"',
        ' change="updated" datetime="2013-01-03T12:00:00Z"', spec=Profile.V1_0),
    Break(
        "datetime-not-allowed", "resourcelist", ' length="8876"', ' datetime="2013-01-03T12:00:00Z"'
    ),
    Break("change-not-used", "resourcelist", ' length="8876"', ' change="updated"'),
    Break("path-not-allowed", "resourcelist", ' length="8876"', ' path="/a"'),
    Break(
        "entry-capability-not-used", "resourcelist", ' length="8876"', ' capability="resourcelist"'
    ),
    Break("document-at-not-allowed", "changelist", _INTERVAL, f'{_INTERVAL} at="{_OLD}"'),
    Break("document-from-not-allowed", "resourcelist", _SNAPSHOT, _SNAPSHOT + _INTERVAL),
    Break("document-time-not-used", "changelist-archive", '"changelist-archive"',
        '"changelist-archive" from="2013-01-01T00:00:00Z"'),
    Break("entry-at-not-allowed", "changelist", ' change="updated"',
        ' change="updated" at="2013-01-03T12:00:00Z"'),
    Break("entry-from-not-allowed", "resourcelist", ' length="8876"', _INTERVAL),
]  # fmt: skip

_AUDIT = {"count": "3", "hash": "sha-256", "digest": "0" * 32}
_UNTIL = f'{_INTERVAL} until="2013-01-03T23:00:00Z"'


def _audit(rule: str, times: str = _UNTIL, **changed: str | None) -> Break:
    """Return a Change List with a statement about the set, some parts of it changed."""
    said = {name: value for name, value in (_AUDIT | changed).items() if value is not None}
    written = " ".join(f'x:{name}="{value}"' for name, value in said.items())
    return Break(rule, "changelist", _INTERVAL, f'{times} xmlns:x="{AUDIT_NS}" {written}')


_OF_AUDITS = [
    _audit("audit-incomplete", digest=None),
    _audit("audit-incomplete", count=None, hash=None),
    _audit("audit-value", count="-1"),
    _audit("audit-value", hash=""),
    _audit("audit-value", digest="0" * 31),
    _audit("audit-value", digest="A" * 32),
    _audit("audit-until-missing", _INTERVAL),
]

_OF_VALUES = [
    Break("loc-missing", "resourcelist", f"{_LOC}\n", off=-1),
    Break("loc-missing", "resourcelist", _LOC, "<loc> </loc>", off=-1),
    Break("loc-long", "resourcelist", _LOC, f"<loc>http://example.com/{'a' * 2_030}</loc>"),
    Break("uri-relative", "resourcelist", _RES1, "/res1"),
    Break("uri-characters", "resourcelist", _RES1, "http://example.com/res 1"),
    Break("uri-characters", "resourcelist", _RES1, "http://example.com/100%"),
    Break("uri-relative", "resourcelist", "http://mirror.example.com/res1", "res1"),
    Break("datetime-syntax", "resourcelist", "2013-01-02T13:00:00Z<", "2013-01-02T13:00:00<"),
    Break("datetime-syntax", "resourcelist", "2013-01-02T13:00:00Z<", "2013-02-30<"),
    Break("datetime-syntax", "resourcelist", 'modified="2013-01-02T13:00:00Z"', 'modified="now"'),
    Break("datetime-form", "resourcelist", "2013-01-02T13:00:00Z<", "2013-01-02<"),
    Break("datetime-form", "resourcelist", "2013-01-02T13:00:00Z<", "2013-01-02T13:00:00+01:00<"),
    Break("change-value", "changelist", '"updated"', '"Updated"'),
    Break("changefreq-value", "resourcelist", "weekly", "fortnightly"),
    Break("encoding-value", "resourcelist", '"gzip"', '"g zip"'),
    Break("hash-syntax", "resourcelist", HASH, HASH.removeprefix("md5:")),
    Break("hash-syntax", "resourcelist", HASH, "md5:xyz"),
    Break("hash-length", "resourcelist", HASH, HASH[:-1]),
    Break("hash-algorithm", "resourcelist", HASH, "sha256:00"),
    Break("length-value", "resourcelist", "8876", "8,876"),
    Break("type-value", "resourcelist", "text/html; charset=utf-8", "html"),
    Break("path-rooted", "resourcedump-manifest", "/resources/res 1", "resources/res 1"),
    Break("path-within", "resourcedump-manifest", "/resources/res 1", "/resources/../../etc"),
]

_OF_LINKS = [
    Break("link-href-missing", "resourcelist", ' href="http://mirror.example.com/res1"'),
    Break("link-rel-missing", "resourcelist", ' rel="duplicate"'),
    Break("rel-syntax", "resourcelist", '"via"', '"original Source"'),
    Break("rel-unregistered", "resourcelist", '"via"', '"source"'),
    Break("pri-range", "resourcelist", 'pri="1"', 'pri="0"'),
    Break("pri-range", "resourcelist", 'pri="1"', 'pri="1000000"'),
    Break("duplicate-attributes", "resourcelist", 'pri="1"', f'hash="{HASH}"'),
    Break("alternate-type-missing", "resourcelist", ' type="application/pdf"'),
    Break("patch-not-allowed", "resourcelist", '"via"', _PATCH),
    Break("patch-type-missing", "changelist", ' type="application/json-patch+json"'),
    Break("patch-path-missing", "changedump-manifest", ' path="/p"'),
    Break(
        "memento-repeated", "resourcelist", _MEMENTO, f'{_MEMENTO}href="urn:x"/>{_MEMENTO}', off=-9
    ),
    Break("memento-lastmod-missing", "resourcelist", "<lastmod>2013-01-02T13:00:00Z</lastmod>\n",
        off=-2, spec=Profile.V1_0),
    Break("timegate-attributes", "resourcelist", '<rs:ln rel="timegate"',
        '<rs:ln rel="timegate" type="a/b"'),
    Break("via-repeated", "resourcelist", '<rs:ln rel="via"',
        '<rs:ln rel="via" href="urn:x"/><rs:ln rel="via"', off=-10),
]  # fmt: skip

_OF_TIMES = [
    Break("completed-before-at", "resourcelist", 'completed="2013', 'completed="2012'),
    Break("completed-without-at", "resourcedump", ' at="2013-01-03T09:01:00Z"',
        ' completed="2013-01-03T09:01:00Z"'),
    Break("until-before-from", "changelist", _INTERVAL,
        ' from="2013-01-03T00:00:00Z" until="2013-01-02T00:00:00Z"'),
    Break("until-without-from", "changelist-archive", ' from="2013-01-02T00:00:00Z"'),
    Break("entry-at-early", "resourcedump", "2013-01-03T09:01:00Z", _OLD),
    Break("entry-interval-outside", "changelist-index", _MORNING,
        ' from="2013-01-02T00:00:00Z" until="2013-01-03T12:00:00Z"'),
    Break("entry-interval-overlap", "changelist-archive", ' from="2013-01-02T00:00:00Z"',
        ' from="2013-01-01T23:00:00Z"'),
    Break(
        "changelist-order", CHANGE_LIST_1_1, 'datetime="2013-01-03T12', 'datetime="2013-01-03T10'
    ),
    Break(
        "datetime-outside", CHANGE_LIST_1_1, 'datetime="2013-01-03T11', 'datetime="2013-01-02T11'
    ),
    Break(
        "datetime-outside", CHANGE_LIST_1_1, 'datetime="2013-01-03T12', 'datetime="2013-01-04T12'
    ),
    Break("framework-notification-order", "framework-notification", "2013-01-03T12:00:00Z",
        "2013-01-03T10:00:00Z", spec=Profile.V1_0),
    Break("lastmod-outside", "changelist", "2013-01-03T11:00:00Z", _OLD, spec=Profile.V1_0),
    Break("change-not-unique", "changelist", _SECOND, _SECOND * 2, off=8, spec=Profile.V1_0),
    Break("resource-repeated", "resourcelist", "</urlset>", f"{_RESPELLED}</urlset>"),
]  # fmt: skip

_MANY = "<url><loc>http://example.com/</loc></url>\n" * MAX_ENTRIES
_OF_SIZE = [
    Break(
        "too-many-entries", "resourcelist", "</urlset>", f"{_MANY}</urlset>", off=MAX_ENTRIES - 2
    ),
    Break(
        "too-large",
        "resourcelist",
        "</urlset>",
        f"<!--{' ' * (MAX_BYTES // 50)}-->" * 50 + "</urlset>",
        line=1,
    ),
]

BREAKS = [
    *_of_kinds(),
    *_OF_SINGLE_KINDS,
    *_OF_XML,
    *_OF_ATTRIBUTES,
    *_OF_AUDITS,
    *_OF_VALUES,
    *_OF_LINKS,
    *_OF_TIMES,
    *_OF_SIZE,
]
