"""Documents as other implementations write them: their habits, not their texts.

Each dialect writes the documents of one small set of resources. The implementations are in
languages whose packages cannot be had everywhere, so that here only their documents speak.
"""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec import Struct

START = datetime(2024, 3, 1, 8, tzinfo=UTC)
SM = 'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'
RS = 'xmlns:rs="http://www.openarchives.org/rs/terms/"'
UTC_SECONDS = "%Y-%m-%dT%H:%M:%SZ"


class Happened(Struct, frozen=True):
    """One change: a name, what happened to it, and when."""

    name: str
    change: str
    at: datetime


class Dialect:
    """A folder of resources in `data/`, a clock that goes in seconds, and the documents."""

    #: Whether its documents tell of deletions at all.
    tells_deletions = True

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.now = START
        self.changes: list[Happened] = []
        self.modified: dict[str, datetime] = {}
        (folder / "data").mkdir()

    @property
    def start(self) -> str:
        return f"{self.url}/capabilitylist.xml"

    def put(self, name: str, content: str) -> None:
        self._happens(name, "updated" if name in self.modified else "created")
        self.modified[name] = self.now
        (self.folder / "data" / name).write_text(content)

    def delete(self, name: str) -> None:
        self._happens(name, "deleted")
        del self.modified[name]
        (self.folder / "data" / name).unlink()

    def _happens(self, name: str, change: str) -> None:
        self.now += timedelta(seconds=1)
        self.changes.append(Happened(name, change, self.now))

    def write(self) -> None:
        self.now += timedelta(seconds=1)

    def save(self, name: str, text: str) -> None:
        """Write one of them, at the time that the clock of the dialect shows."""
        path = self.folder / name
        path.write_text(text)
        os.utime(path, (self.now.timestamp(), self.now.timestamp()))

    def uri(self, name: str) -> str:
        return f"{self.url}/data/{name}"

    def md5(self, name: str) -> str:
        return hashlib.md5((self.folder / "data" / name).read_bytes()).hexdigest()


class Hyrax(Dialect):
    """The Ruby of Samvera's Hyrax: a Change List of all there is, the newest first.

    The Source Description's link up leads down, there are no hashes, and what was deleted is
    merely no longer listed.
    """

    tells_deletions = False

    @property
    def start(self) -> str:
        return f"{self.url}/.well-known/resourcesync"

    def write(self) -> None:
        super().write()
        (self.folder / ".well-known").mkdir(exist_ok=True)
        up = f'<rs:ln rel="up" href="{self.url}/capabilitylist.xml"/>'
        self._save(".well-known/resourcesync", up, "description", self._link("capabilitylist"))
        up_again = f'<rs:ln rel="up" href="{self.start}"/>'
        offered = self._link("resourcelist") + self._link("changelist")
        self._save("capabilitylist.xml", up_again, "capabilitylist", offered)
        newest_first = sorted(self.modified.items(), key=lambda item: item[1], reverse=True)
        listed = "".join(self._entry(name, at) for name, at in newest_first)
        at = f'resourcelist" at="{self.now.strftime(UTC_SECONDS)}'
        self._save("resourcelist.xml", up, at, listed)
        told = "".join(self._entry(name, at, self._change(name)) for name, at in newest_first)
        begins = min(self.modified.values()).strftime(UTC_SECONDS)
        self._save("changelist.xml", up, f'changelist" from="{begins}', told)

    def _save(self, name: str, up: str, capability: str, entries: str) -> None:
        head = f'<?xml version="1.0"?>\n<urlset {SM} {RS}>\n  {up}\n'
        self.save(name, f'{head}  <rs:md capability="{capability}"/>\n{entries}</urlset>\n')

    def _link(self, capability: str) -> str:
        loc = f"<loc>{self.url}/{capability}.xml</loc>"
        return f'<url>{loc}<rs:md capability="{capability}"/></url>\n'

    def _entry(self, name: str, at: datetime, change: str = "") -> str:
        lastmod = f"<lastmod>{at.strftime(UTC_SECONDS)}</lastmod>"
        return f"<url><loc>{self.uri(name)}</loc>{lastmod}{change}</url>\n"

    def _change(self, name: str) -> str:
        count = sum(one.name == name for one in self.changes)
        return f'<rs:md change="{"created" if count == 1 else "updated"}"/>'


class DSpace(Dialect):
    """The Java of DSpace's module: another prefix, `from` for `at`, a new Change List each time.

    The archive of Change Lists has a name of its own, by which nobody else knows it.
    """

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url)
        self._told = 0
        self._since = START
        self._lists: list[str] = []

    def write(self) -> None:
        super().write()
        name = f"changelist_{self.now:%Y%m%d%H%M%S}.xml"
        new, self._told = self.changes[self._told :], len(self.changes)
        since, self._since = self._since, self.now
        interval = f'from="{since.strftime(UTC_SECONDS)}" until="{self.now.strftime(UTC_SECONDS)}"'
        told = "".join(self._entry(one.name, one.at, one.change) for one in new)
        self._save(name, "urlset", f'capability="changelist" {interval}', told)
        self._lists.append(name)
        self._write_archive(interval)
        listed = "".join(self._entry(name, at) for name, at in self.modified.items())
        begins = f'capability="resourcelist" from="{self.now.strftime(UTC_SECONDS)}"'
        self._save("resourcelist.xml", "urlset", begins, listed)
        capabilities = {
            "resourcelist": "resourcelist.xml",
            "changelist": name,
            "changelistindex": "changelistarchive.xml",
        }
        offered = "".join(
            f"  <sm:url>\n    <sm:loc>{self.url}/{where}</sm:loc>\n"
            f'    <rs:md capability="{capability}" />\n  </sm:url>\n'
            for capability, where in capabilities.items()
        )
        self._save("capabilitylist.xml", "urlset", 'capability="capabilitylist"', offered)

    def _write_archive(self, interval: str) -> None:
        lists = "".join(
            f"  <sm:sitemap>\n    <sm:loc>{self.url}/{name}</sm:loc>\n  </sm:sitemap>\n"
            for name in self._lists
        )
        md = f'capability="changelistindex" {interval}'
        self._save("changelistarchive.xml", "sitemapindex", md, lists)

    def _save(self, name: str, root: str, md: str, entries: str) -> None:
        head = '<?xml version="1.0" encoding="UTF-8"?>\n'
        prefixes = f"{SM.replace('xmlns', 'xmlns:sm')} {RS}"
        up = f'<rs:ln rel="up" href="{self.url}/capabilitylist.xml" />'
        body = f"  <rs:md {md} />\n  {up}\n{entries}"
        self.save(name, f"{head}<sm:{root} {prefixes}>\n{body}</sm:{root}>\n")

    def _entry(self, name: str, at: datetime, change: str | None = None) -> str:
        what = "" if change is None else f'change="{change}" '
        there = "" if name not in self.modified else f'hash="md5:{self.md5(name)}" '
        return (
            f"  <sm:url>\n    <sm:loc>{self.uri(name)}</sm:loc>\n"
            f"    <sm:lastmod>{at.strftime(UTC_SECONDS)}</sm:lastmod>\n"
            f"    <sm:changefreq>weekly</sm:changefreq>\n"
            f'    <rs:md {what}{there}type="text/turtle" />\n'
            f'    <rs:ln href="{self.url}/about/{name}" rel="describedby" />\n  </sm:url>\n'
        )


class Core(Dialect):
    """CORE's connector, which a client in Go reads: an index only, datetimes without a zone.

    White space surrounds every URI, and there is no Change List.
    """

    def write(self) -> None:
        super().write()
        at = self.now.strftime("%Y-%m-%dT%H:%M:%S.%f")
        names = sorted(self.modified)
        for number in range(2):
            entries = "".join(self._entry(name) for name in names[number::2])
            md = f'<rs:md at="{at}" capability="resourcelist" completed="{at}"/>'
            self._save(f"resourcelist_{number:04}.xml", "urlset", md, entries)
        parts = "".join(
            f'<sitemap>{self._loc(f"{self.url}/resourcelist_{number:04}.xml")}<rs:md at="{at}"/>'
            "</sitemap>"
            for number in range(2)
        )
        md = f'<rs:md at="{at}" capability="resourcelist"/>'
        self._save("resourcelist-index.xml", "sitemapindex", md, parts)
        offered = self._loc(f"{self.url}/resourcelist-index.xml")
        entry = f'<url>{offered}<rs:md capability="resourcelist"/></url>'
        self._save("capabilitylist.xml", "urlset", '<rs:md capability="capabilitylist"/>', entry)

    def _loc(self, uri: str) -> str:
        return f"<loc>\n\t{uri}\n\t</loc>"

    def _entry(self, name: str) -> str:
        at = self.modified[name].strftime("%Y-%m-%d %H:%M:%S")
        length = (self.folder / "data" / name).stat().st_size
        md = f'<rs:md hash="md5:{self.md5(name)}" length="{length}" type="application/pdf"/>'
        ln = f'<rs:ln href="{self.url}/metadata/{name}.json" rel="describedBy"/>'
        return f"<url>{self._loc(self.uri(name))}<lastmod>{at}</lastmod>{md}{ln}</url>\n"

    def _save(self, name: str, root: str, md: str, entries: str) -> None:
        self.save(name, f"<{root} {SM} {RS}>\n\t{md}\n{entries}</{root}>")


class DotNet(Dialect):
    """What .NET's XmlSerializer makes: a stylesheet, an attribute a line, tenths of a µs, zones."""

    def write(self) -> None:
        super().write()
        listed = "".join(self._entry(name, at) for name, at in self.modified.items())
        self._save("resourcelist.xml", f'at="{self._time(self.now)}"', "resourcelist", listed)
        told = "".join(
            self._entry(one.name, one.at, f' <rs:md\n    change="{one.change}" />\n')
            for one in self.changes
        )
        self._save("changelist.xml", f'from="{self._time(START)}"', "changelist", told)
        offered = "".join(
            f"  <url>\n    <loc>{self.url}/{one}.xml</loc>\n"
            f'    <rs:md\n      capability="{one}" />\n  </url>\n'
            for one in ("resourcelist", "changelist")
        )
        self._save("capabilitylist.xml", "", "capabilitylist", offered)

    def _time(self, at: datetime) -> str:
        return (at + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%S.%f") + "0+01:00"

    def _entry(self, name: str, at: datetime, md: str = "") -> str:
        lastmod = f"<lastmod>{self._time(at)}</lastmod>"
        return f"  <url>\n    <loc>{self.uri(name)}</loc>\n    {lastmod}\n{md}  </url>\n"

    def _save(self, name: str, md: str, capability: str, entries: str) -> None:
        stylesheet = f'<?xml-stylesheet type="text/xsl" href="{self.url}/sitemap.xsl"?>'
        root = f"<urlset\n  {RS}\n  {SM}>"
        up = f'<rs:ln\n    href="{self.url}/capabilitylist.xml"\n    rel="up" />'
        head = f'<?xml version="1.0" encoding="utf-8"?>{stylesheet}\n{root}\n  <rs:md\n    {md}\n'
        self.save(name, f'{head}    capability="{capability}" />\n  {up}\n{entries}</urlset>')
