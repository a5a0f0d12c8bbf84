"""The shapes of Sources: which documents each offers, and how its server answers."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tests.harnesses.matrix.source import (
    ALTERNATES,
    BASE,
    FOLDER,
    MIRROR,
    SITE,
    VERSIONS,
    Listing,
    Recorded,
    Source,
)
from tests.wild.documents import days, inline, ln, seconds, sha256

Documents = dict[str, Listing | bytes]
#: After how many changes a list is closed, and how many entries are on a page.
_ROTATE, _PAGE = 2, 3
#: Every how many seconds a Source with lists of changes writes its Resource List.
_LIST_EVERY = 300.0


@dataclass(frozen=True)
class Shape:
    """A kind of Source.

    Args:
        name: What it is called.
        text: What it is, for the documentation.
        write: Writes the documents besides the Capability List, by path.
        offers: The names of the documents by capability; without any, `start` is followed.
        start: The path that is followed.
        hashes: Whether entries have a hash and a length.
        lastmod: How the lastmod of an entry is written; None for none.
        whole_seconds: Whether all datetimes are written in whole seconds.
        validators: Whether answers have an ETag and a Last-Modified.
        dates: Whether answers have a Date.
        chunked: Whether answers have no length.
        compressed: Whether answers are compressed.
        redirects: Whether resources redirect to a URL of each version.
        links: Returns the links of an entry, from a name and a content.
        change_links: Returns further links of an entry in a list of changes.
        content: Returns the content of a resource from its text.
        prefer: The media types that the Destination prefers.
        exact: Whether the Destination copies the version of each change.
        through: What is between the Source and the Destination: a gateway or a relay.
    """

    name: str
    text: str
    write: Callable[[Source], Documents]
    offers: tuple[tuple[str, str], ...] = ()
    start: str = FOLDER + "capabilitylist.xml"
    hashes: bool = True
    lastmod: Callable[[datetime], Any] | None = lambda moment: moment
    whole_seconds: bool = False
    validators: bool = True
    dates: bool = True
    chunked: bool = False
    compressed: bool = False
    redirects: bool = False
    links: Callable[[Source, str, bytes], list[str]] = lambda *_: []
    change_links: Callable[[Source, Recorded], list[str]] = lambda *_: []
    content: Callable[[str], bytes] = lambda text: text.encode() * 3
    prefer: tuple[str, ...] = ()
    exact: bool = False
    through: str = ""

    def __str__(self) -> str:
        return self.name

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.offers)

    @property
    def has_changes(self) -> bool:
        return bool(self.capabilities & {"changelist", "changedump"})

    @property
    def late(self) -> float:
        """By how many seconds what is between may be behind the Source."""
        return 60.0 if self.through else 0.0

    @property
    def can_be_audited(self) -> bool:
        """Whether a document lists all resources."""
        return bool(self.capabilities & {"resourcelist", "resourcedump"}) or not self.offers

    @property
    def may_push(self) -> bool:
        return bool(self.offers) and not self.through

    def dated(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a document or entry with datetimes as the shape writes them."""
        if not self.whole_seconds:
            return fields
        return {
            name: seconds(value) if isinstance(value, datetime) else value
            for name, value in fields.items()
        }

    def listed_at(self, source: Source) -> float:
        """Return when the Resource List was written, in seconds of the run."""
        regular = max(source.loop.now // _LIST_EVERY * _LIST_EVERY, source.restored_at)
        if self.has_changes:
            return regular
        changed = max(one.at for versions in source.history.values() for one in versions)
        return max(changed, regular)

    def documents(self, source: Source) -> Documents:
        written = self.write(source).items()
        found = {name if name[0] == "/" else FOLDER + name: one for name, one in written}
        if self.offers:
            entries = [{"uri": BASE + name, "capability": one} for one, name in self.offers]
            if source.hub:
                hub = [ln("hub", source.hub)]
                channel = {"capability": "change-notification", "links": hub}
                entries.append({"uri": BASE + "channel.xml", **channel})
            found[FOLDER + "capabilitylist.xml"] = Listing("capabilitylist", entries)
            lists = [SITE + self.start]
            if self.name == "two sets":
                lists.append(SITE + "/other/capabilitylist.xml")
            described = [{"uri": one, "capability": "capabilitylist"} for one in lists]
            found["/.well-known/resourcesync"] = Listing("description", described)
        return found


# Parts of documents


def _resources(source: Source) -> list[dict[str, Any]]:
    when = source.shape.listed_at(source)
    return [
        source.described(name, content, _modified_by(source, name, when))
        for name, content in source.contents_at(when).items()
    ]


def _modified_by(source: Source, name: str, when: float) -> datetime:
    made = [one for one in source.changes if one.name == name]
    later = sum(one.at > when for one in source.history[name])
    made = made[: len(made) - later]
    return made[-1].at if made else source.begins


def _at(source: Source) -> datetime:
    return max(source.begins, source.time(source.shape.listed_at(source)))


def _resource_list(source: Source) -> Listing:
    return Listing("resourcelist", _resources(source), {"at": _at(source)})


def _change_list(
    source: Source, changes: list[Recorded], from_: datetime, until: datetime | None = None
) -> Listing:
    entries = [source.changed(one) for one in changes]
    return Listing("changelist", entries, {"from_": from_, "until": until})


def _closed(source: Source) -> list[tuple[list[Recorded], datetime, datetime]]:
    """Return the changes that are in closed lists, with their intervals."""
    found, from_ = [], source.begins
    for first in range(0, len(source.changes) - _ROTATE + 1, _ROTATE):
        part = source.changes[first : first + _ROTATE]
        found.append((part, from_, part[-1].at))
        from_ = part[-1].at
    return found


def _package(source: Source, manifest: Listing, contents: dict[str, bytes | None]) -> bytes:
    file = io.BytesIO()
    for name, one in zip(contents, manifest.entries, strict=True):
        if contents[name] is not None:
            one["path"] = f"/{name}"
    for trouble in source.troubles:
        trouble.document(source, "manifest.xml", manifest)
    listed = {one.get("path") for one in manifest.entries}
    with zipfile.ZipFile(file, "w") as package:
        package.writestr(zipfile.ZipInfo("manifest.xml"), manifest.write(source.shape))
        for name, content in contents.items():
            if content is not None and f"/{name}" in listed:
                package.writestr(zipfile.ZipInfo(name), content)
    return file.getvalue()


# The documents of each shape


def _list_only(source: Source) -> Documents:
    return {"resourcelist.xml": _resource_list(source)}


def _changes_only(source: Source) -> Documents:
    """Every resource is in the Change List from the beginning, as created."""
    first = [
        Recorded("created", name, source.begins, versions[0].content)
        for name, versions in source.history.items()
        if versions[0].at < 0
    ]
    return {"changelist.xml": _change_list(source, first + source.changes, source.begins)}


def _list_and_changes(source: Source) -> Documents:
    return {
        "resourcelist.xml": _resource_list(source),
        "changelist.xml": _change_list(source, source.changes, source.begins),
    }


def _resource_dump(source: Source, most: int = 1000) -> Documents:
    """A Resource Dump with at most so many resources in a package."""
    resources = _resources(source)
    contents = list(source.contents_at(source.shape.listed_at(source)).items())
    found: Documents = {}
    entries = []
    for number, first in enumerate(range(0, len(resources), most)):
        part = resources[first : first + most]
        manifest = Listing("resourcedump-manifest", part, {"at": _at(source)})
        package = _package(source, manifest, dict(contents[first : first + most]))
        found[f"resources-{number}.zip"] = package
        entry = {"uri": f"{BASE}resources-{number}.zip", "hash": sha256(package)}
        entries.append({**entry, "length": len(package)})
    found["resourcedump.xml"] = Listing("resourcedump", entries, {"at": _at(source)})
    return found


def _dumps(source: Source) -> Documents:
    changes = _change_dump(source)
    del changes["resourcelist.xml"]
    return {**_resource_dump(source, _PAGE), **changes}


def _list_and_dump(source: Source) -> Documents:
    return {**_list_only(source), **_resource_dump(source)}


def _change_dump(source: Source) -> Documents:
    found: Documents = {"resourcelist.xml": _resource_list(source)}
    entries, from_ = [], source.begins
    for number, one in enumerate(source.changes):
        told = {"from_": from_, "until": one.at}
        manifest = Listing("changedump-manifest", [source.changed(one)], dict(told))
        name = f"changes-{number}.zip"
        found[name] = package = _package(source, manifest, {one.name: one.content})
        entries.append({"uri": BASE + name, "length": len(package), "type": "application/zip"})
        entries[-1] |= told
        from_ = one.at
    found["changedump.xml"] = Listing("changedump", entries, {"from_": source.begins})
    return found


def _archives(source: Source) -> Documents:
    closed = _closed(source)
    found: Documents = {"resourcelist.xml": _resource_list(source)}
    entries = []
    for number, (part, from_, until) in enumerate(closed):
        found[f"changes-{number}.xml"] = _change_list(source, part, from_, until)
        entries.append({"uri": f"{BASE}changes-{number}.xml", "from_": from_, "until": until})
        entries[-1]["lastmod"] = max(until, source.altered_at)
    begins = closed[-1][2] if closed else source.begins
    left = source.changes[len(closed) * _ROTATE :]
    found["changelist.xml"] = _change_list(source, left, begins)
    found["archive.xml"] = Listing("changelist-archive", entries)
    return found


def _indexes(source: Source) -> Documents:
    """A Resource List Index, and a Change List Index with closed members and an open one."""
    found: Documents = {}
    resources, members = _resources(source), []
    for number, first in enumerate(range(0, len(resources), _PAGE)):
        name = f"resources-{number}.xml"
        part = resources[first : first + _PAGE]
        found[name] = Listing("resourcelist", part, {"at": _at(source)})
        members.append({"uri": BASE + name, "element": "sitemap", "at": _at(source)})
    told = {"at": _at(source)}
    found["resourcelist.xml"] = Listing("resourcelist", members, told, root="sitemapindex")
    closed = _closed(source)
    begins = closed[-1][2] if closed else source.begins
    parts = [*closed, (source.changes[len(closed) * _ROTATE :], begins, None)]
    members = []
    for number, (changes, from_, until) in enumerate(parts):
        name = f"changes-{number}.xml"
        found[name] = _change_list(source, changes, from_, until)
        member = {"uri": BASE + name, "element": "sitemap", "from_": from_, "until": until}
        member["lastmod"] = max(until or source.now, source.altered_at)
        members.append(member)
    index = Listing("changelist", members, {"from_": source.begins}, root="sitemapindex")
    found["changelist.xml"] = index
    return found


def _paged(source: Source) -> Documents:
    found: Documents = {}
    for kind, whole in (
        ("resourcelist", _resource_list(source)),
        ("changelist", _change_list(source, source.changes, source.begins)),
    ):
        starts = list(range(0, max(1, len(whole.entries)), _PAGE))
        for number, first in enumerate(starts):
            then = f"{kind}-{number + 1}.xml" if number + 1 < len(starts) else None
            links = [] if then is None else [ln("next", BASE + then)]
            part = whole.entries[first : first + _PAGE]
            name = f"{kind}-{number}.xml" if number else f"{kind}.xml"
            found[name] = Listing(kind, part, dict(whole.told), links)
    return found


def _sitemap(source: Source) -> Documents:
    return {"sitemap.xml": Listing(None, _resources(source))}


def _two_sets(source: Source) -> Documents:
    found = _list_and_changes(source)
    other = SITE + "/other/"
    listed = [{"uri": other + "x", "hash": sha256(b"x"), "length": 1}]
    return {
        **found,
        "/other/capabilitylist.xml": Listing(
            "capabilitylist", [{"uri": other + "resourcelist.xml", "capability": "resourcelist"}]
        ),
        "/other/resourcelist.xml": Listing("resourcelist", listed, {"at": _at(source)}),
    }


def _list_changes_and_patches(source: Source) -> Documents:
    found = _list_and_changes(source)
    for number, one in enumerate(source.changes):
        if one.change == "updated" and one.content is not None:
            found[f"patch-{number}.json"] = one.content
    return found


def _patch_links(source: Source, recorded: Recorded) -> list[str]:
    if recorded.change != "updated":
        return []
    number = source.changes.index(recorded)
    rel, kind = "http://www.openarchives.org/rs/terms/patch", "application/merge-patch+json"
    return [ln(rel, f"{BASE}patch-{number}.json", type=kind)]


def _inline_link(source: Source, recorded: Recorded) -> list[str]:
    return [] if recorded.content is None else [inline(recorded.content, "text/plain")]


def _version_link(source: Source, recorded: Recorded) -> list[str]:
    if recorded.content is None:
        return []
    contents = [version.content for version in source.history[recorded.name]]
    number = contents.index(recorded.content)
    return [ln("memento", f"{SITE}{VERSIONS}{number}/{recorded.name}")]


def _mirror_link(source: Source, name: str, content: bytes) -> list[str]:
    return [ln("duplicate", SITE + MIRROR + name, pri=1)]


def _alternate_link(source: Source, name: str, content: bytes) -> list[str]:
    return [ln("alternate", SITE + ALTERNATES + name, type="text/plain")]


_BOTH = (("resourcelist", "resourcelist.xml"), ("changelist", "changelist.xml"))
_LIST, _CHANGES = _BOTH[:1], _BOTH[1:]

#: A new shape is one more entry.
SHAPES = (
    Shape("list", "a Resource List only", _list_only, _LIST),
    Shape("list, no hashes", "a Resource List only, with lastmod and without hashes",
          _list_only, _LIST, hashes=False),
    Shape("list and changes", "a Resource List and an open Change List", _list_and_changes, _BOTH),
    Shape("changes, no hashes", "a Resource List and an open Change List, without hashes",
          _list_and_changes, _BOTH, hashes=False),
    Shape("changes, seconds", "the same, with all datetimes in whole seconds",
          _list_and_changes, _BOTH, hashes=False, whole_seconds=True),
    Shape("changes", "a Change List only, from the beginning", _changes_only, _CHANGES),
    Shape("changes alone, no hashes", "the same, without hashes", _changes_only, _CHANGES,
          hashes=False),
    Shape("inline", "a Resource List, and a Change List with the content of each change",
          _list_and_changes, _BOTH, change_links=_inline_link),
    Shape("patches", "a Resource List, and a Change List with a patch for each update",
          _list_changes_and_patches, _BOTH, change_links=_patch_links,
          content=lambda text: json.dumps({"text": text, "more": "x" * 99}).encode()),
    Shape("mirrors", "a Resource List and a Change List, with mirrors half a minute behind",
          _list_and_changes, _BOTH, links=_mirror_link),
    Shape("alternates", "a Resource List and a Change List, with alternates that are preferred",
          _list_and_changes, _BOTH, hashes=False, links=_alternate_link, prefer=("text/plain",)),
    Shape("versions", "a Resource List, and a Change List with a URL for each version",
          _list_and_changes, _BOTH, hashes=False, change_links=_version_link, exact=True),
    Shape("redirects", "resources that redirect to a URL for each version", _list_and_changes,
          _BOTH, hashes=False, redirects=True),
    Shape("compressed", "a server that compresses answers, whatever is accepted", _list_and_changes,
          _BOTH, hashes=False, compressed=True),
    Shape("dumps", "a Resource Dump of several packages and a Change Dump", _dumps,
          (("resourcedump", "resourcedump.xml"), ("changedump", "changedump.xml"))),
    Shape("resource dump", "a Resource Dump only", _resource_dump,
          (("resourcedump", "resourcedump.xml"),)),
    Shape("list and dump", "a Resource List and a Resource Dump", _list_and_dump,
          (*_LIST, ("resourcedump", "resourcedump.xml"))),
    Shape("change dump", "a Resource List, and a Change Dump with a package for each change",
          _change_dump, (*_LIST, ("changedump", "changedump.xml"))),
    Shape("archive", "a Resource List, a short open Change List, and an archive of closed ones",
          _archives, (*_BOTH, ("changelist-archive", "archive.xml"))),
    Shape("archive, seconds", "the same without hashes, with all datetimes in whole seconds",
          _archives, (*_BOTH, ("changelist-archive", "archive.xml")), hashes=False,
          whole_seconds=True),
    Shape("indexes", "a Resource List Index and a Change List Index", _indexes, _BOTH),
    Shape("pages", "lists in pages that are linked by `next`", _paged, _BOTH),
    Shape("sitemap, no dates", "a plain Sitemap without any date", _sitemap,
          start=FOLDER + "sitemap.xml", hashes=False, lastmod=None),
    Shape("sitemap", "a plain Sitemap with lastmod in whole seconds", _sitemap,
          start=FOLDER + "sitemap.xml", hashes=False, lastmod=seconds),
    Shape("sitemap, days", "a plain Sitemap whose lastmod is a day", _sitemap,
          start=FOLDER + "sitemap.xml", hashes=False, lastmod=days),
    Shape("static host", "files on a host that sends neither Date, ETag nor Last-Modified",
          _list_and_changes, _BOTH, validators=False, dates=False),
    Shape("dynamic", "an application without validators and lengths", _list_and_changes, _BOTH,
          validators=False, chunked=True),
    Shape("two sets", "one of two sets of a site", _two_sets, _BOTH),
    Shape("gateway", "a gateway before a Resource List and a Change List", _list_and_changes, _BOTH,
          through="gateway"),
    Shape("gateway, sitemap", "a gateway before a Sitemap", _sitemap,
          start=FOLDER + "sitemap.xml", hashes=False, lastmod=seconds, through="gateway"),
    Shape("relay", "a relay of a Resource List and a Change List", _list_and_changes, _BOTH,
          through="relay"),
)  # fmt: skip
