"""A generated history, and the same set through each way in."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from random import Random

from msgspec import Struct

from tests.gateway.generators import SITE, Activities, EventStream, PullOnlySource, at
from tests.gateway.origin_server import OriginServer, index, sitemap
from tests.gateway.repositories import Items

PARTS = 3
_PAGE = 10


class Step(Struct, frozen=True):
    """A change of a resource; without a version it is deleted."""

    name: str
    version: int | None


def made_up(count: int, seed: int, first: int = 1) -> Iterator[Step]:
    random = Random(seed)
    present: set[str] = set()
    for version in range(first, first + count):
        name = f"r{random.randrange(40)}"
        if name in present and random.random() < 0.3:
            present.remove(name)
            yield Step(name, None)
        else:
            present.add(name)
            yield Step(name, version)


class Published:
    """Applies steps to the pages of a server and the items of a repository.

    Attributes:
        dated: The origins that are told of each change with its datetime.
    """

    def __init__(self, site: OriginServer, items: Items) -> None:
        self.site = site
        self._items = items
        self.dated = (
            PullOnlySource(site, per_list=10, lists_every=35),
            Activities(site),
            EventStream(site),
        )
        self.versions: dict[str, int] = {}
        self._latest = 0
        #: Every version that was ever there, oldest first.
        self.history: list[tuple[str, int]] = []
        site.pages["/sitemap.xml"] = index(site.url(f"/{part}.xml") for part in range(PARTS))
        self._write()

    def apply(self, step: Step) -> None:
        if step.version is None:
            del self.versions[step.name]
            self._items.delete(step.name)
            for origin in self.dated:
                origin.delete(step.name, at(self._latest + 0.5))
        else:
            self._latest = step.version
            self.versions[step.name] = step.version
            self.history.append((step.name, step.version))
            self._items.put(step.name, f"version {step.version}")
            for origin in self.dated:
                origin.put(step.name, at(step.version))
        self._write()

    def lastmod(self, name: str) -> datetime:
        """Return a time that differs for each version."""
        return at(self.versions[name])

    def _write(self) -> None:
        parts: list[dict[str, str | None]] = [{} for _ in range(PARTS)]
        # A resource moves to another file with some of its versions.
        for name, version in sorted(self.versions.items()):
            parts[version % PARTS][SITE + name] = self.lastmod(name).isoformat()
        for number, part in enumerate(parts):
            self.site.pages[f"/{number}.xml"] = sitemap(part)
        self._write_feed()

    def _write_feed(self) -> None:
        newest = sorted(self.versions, key=lambda name: -self.versions[name])
        pages = [newest[start:][:_PAGE] for start in range(0, len(newest), _PAGE)] or [[]]
        for number, names in enumerate(pages):
            link = (
                f'<link rel="next" href="/feed/{number + 1}"/>' if number + 1 < len(pages) else ""
            )
            entries = "".join(
                f"<entry><title>{self.versions[name]}</title><link href='{SITE}{name}'/>"
                f"<updated>{self.lastmod(name).isoformat()}</updated></entry>"
                for name in names
            )
            feed = f'<feed xmlns="http://www.w3.org/2005/Atom">{link}{entries}</feed>'
            self.site.pages[f"/feed/{number}"] = feed.encode()
