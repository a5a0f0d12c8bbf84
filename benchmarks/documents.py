"""Reading and writing documents, compared with the PyPI client `resync`.

Each figure is the best of several runs, each in a separate process, alternating between the two,
so that both have the same noise. A process prints the processor time of the work, and its peak
memory beyond that after the imports. Both parse the same file, and write the same resources from
memory.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import targets
from lxml import etree
from msgspec.structs import replace
from resync.change_list import ChangeList
from resync.resource import Resource as TheirResource
from resync.resource_list import ResourceList
from resync.sitemap import Sitemap

from rsnotify.format.datetimes import format_datetime
from rsnotify.format.model import Capability, ChangeType, Document, Link, Rel, Resource
from rsnotify.format.reader import DocumentLimits, SitemapReader, read_document
from rsnotify.format.writer import closing, entry, opening, write_document

RESOURCES, CHANGES = "resource list", "change list"
LINKED, INDENTED, FRAGMENT = "with links", "indented", "fragment"
IMAGES, NAMESPACED = "with images", "namespaces"
#: How many times as fast as `resync` we have to be (CPU time), in the common form and in others.
TARGETS = {"parse": 25, "write": 9}
OTHER_FORMS = {IMAGES, NAMESPACED, FRAGMENT}
OTHER_TARGET = 15
ENTRIES = 50_000
STREAMED = 2_000_000
FRAGMENTS = 2_000
RUNS = 5
IMAGE_NS = "http://www.google.com/schemas/sitemap-image/1.1"
_CHUNK = 65_536
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def resources(count: int, change: ChangeType | None) -> Iterator[Resource]:
    """Make resources as a live linked-data Source has them."""
    for number in range(count):
        at = _BEGIN + timedelta(microseconds=number * 1_234_567)
        yield Resource(
            f"https://source.example/data/{number:07}/res.ttl",
            lastmod=at,
            change=change,
            datetime=at if change else None,
            hash=f"sha-256:{number:064x}",
            length=1_000 + number,
            type="text/turtle",
        )


def document(kind: str) -> Document:
    """Make a Resource List, also one of which each entry has a link, or a Change List."""
    if kind == FRAGMENT:
        (change,) = resources(1, ChangeType.UPDATED)
        inline = Link(Rel.DUPLICATE, f"data:text/turtle;base64,{'eHh4' * 167}")
        up = Link(Rel.UP, "https://source.example/capabilitylist.xml")
        entries = (replace(change, links=(inline,)),)
        return Document(Capability.CHANGE_LIST, entries, from_=_BEGIN, until=_BEGIN, links=(up,))
    if kind == CHANGES:
        entries = tuple(resources(ENTRIES, ChangeType.UPDATED))
        return Document(Capability.CHANGE_LIST, entries, from_=_BEGIN)
    entries = tuple(resources(ENTRIES, None))
    if kind == LINKED:
        entries = tuple(replace(one, links=(_describes(one),)) for one in entries)
    return Document(Capability.RESOURCE_LIST, entries, at=_BEGIN)


def _describes(one: Resource) -> Link:
    return Link(Rel.DESCRIBES, one.uri.removesuffix(".ttl"), type="text/html")


def file(kind: str) -> bytes:
    """Write one as we do, or indented, as other programs do."""
    written = write_document(document(kind))
    if kind in (IMAGES, NAMESPACED):
        root = f'<urlset xmlns:image="{IMAGE_NS}" '.encode()
        written = written.replace(b"<urlset ", root, 1)
    if kind == IMAGES:
        image = rb"<image:image><image:loc>\1.png</image:loc></image:image></url>"
        return re.sub(rb"(?<=<loc>)([^<]*)(</loc>.*?)</url>", rb"\1\2" + image, written)
    if kind == NAMESPACED:
        return written.replace(b'"/></url>', b'" image:of="page"/></url>')
    if kind != INDENTED:
        return written
    parsed = etree.fromstring(written, etree.XMLParser(remove_blank_text=True))
    return etree.tostring(parsed, pretty_print=True, xml_declaration=True, encoding="UTF-8")


# What is measured: each takes a kind and a file of it, and returns the work that is timed.


def our_parse(kind: str, path: Path) -> Callable[[], object]:
    data = path.read_bytes()
    return _repeated(kind, lambda: read_document(data))


def our_write(kind: str, _: Path) -> Callable[[], object]:
    made = document(kind)
    return lambda: write_document(made)


def their_parse(kind: str, path: Path) -> Callable[[], object]:
    data = path.read_bytes()
    return _repeated(kind, lambda: Sitemap().parse_xml(fh=io.BytesIO(data)))


def _repeated(kind: str, work: Callable[[], object]) -> Callable[[], object]:
    """Repeat the work for a fragment, which is small."""
    if kind != FRAGMENT:
        return work
    return lambda: [work() for _ in range(FRAGMENTS)]


def their_write(kind: str, _: Path) -> Callable[[], object]:
    made = ChangeList() if kind == CHANGES else ResourceList()
    change = ChangeType.UPDATED if kind == CHANGES else None
    for one in resources(ENTRIES, change):
        assert one.lastmod is not None
        theirs = TheirResource(
            one.uri,
            lastmod=format_datetime(one.lastmod),
            change=change,
            ts_datetime=one.lastmod.timestamp() if change else None,
            sha256=one.hash.removeprefix("sha-256:") if one.hash else None,
            length=one.length,
            mime_type=one.type,
        )
        if kind == LINKED:
            link = _describes(one)
            theirs.link_add(link.rel, link.href, type=link.type)
        made.add(theirs)
    return lambda: made.as_xml()


def our_streaming(count: int) -> Callable[[], object]:
    """Write a document of so many entries straight into a reader, which keeps none."""

    def work() -> None:
        head = Document(Capability.RESOURCE_LIST, at=_BEGIN)
        reader = SitemapReader(DocumentLimits(document_bytes=sys.maxsize, entries=sys.maxsize))
        read = len(reader.feed(opening(head)))
        for chunk in _chunks(map(entry, resources(count, None))):
            read += len(reader.feed(chunk))
        read += len(reader.feed(closing(head)))
        reader.close()
        assert read == count

    return work


def _chunks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        if len(buffer) >= _CHUNK:
            yield bytes(buffer)
            buffer.clear()
    yield bytes(buffer)


MEASURED = {
    "our parse": our_parse,
    "our write": our_write,
    "their parse": their_parse,
    "their write": their_write,
}


def child(what: str, kind: str, argument: str) -> None:
    """Do one piece of work, and print its seconds and the peak of memory in KiB."""
    before = _peak()
    if what == "stream":
        work = our_streaming(int(argument))
    else:
        work = MEASURED[what](kind, Path(argument))
    began = time.process_time()
    result = work()
    print(time.process_time() - began, _peak() - before)
    del result


def _peak() -> int:
    # Not `ru_maxrss`: a process inherits that from the one that started it.
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def _measure(what: str, kind: str, argument: str) -> tuple[float, int]:
    command = [sys.executable, __file__, what, kind, argument]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(printed[0]), int(printed[1])


def _best(pairs: list[tuple[float, int]]) -> tuple[float, int]:
    return min(seconds for seconds, _ in pairs), min(peak for _, peak in pairs)


def compare(kind: str, path: Path, works: tuple[str, ...]) -> None:
    """Print ours, theirs and the ratios for one kind of document."""
    found: dict[str, list[tuple[float, int]]] = {}
    for _ in range(RUNS):
        for work in works:
            for whose in ("our", "their"):
                what = f"{whose} {work}"
                found.setdefault(what, []).append(_measure(what, kind, str(path)))
    best = {what: _best(pairs) for what, pairs in found.items()}
    for work in works:
        (ours, our_peak), (theirs, their_peak) = best[f"our {work}"], best[f"their {work}"]
        ratio = theirs / ours
        print(
            f"{kind:13} {work}  ours {ours * 1000:5.0f} ms, {our_peak / 1024:4.0f} MiB"
            f"   resync {theirs * 1000:5.0f} ms, {their_peak / 1024:4.0f} MiB"
            f"   {ratio:4.1f} times as fast"
        )
        target = OTHER_TARGET if kind in OTHER_FORMS else TARGETS[work]
        targets.compare(f"{work} a {kind}, times resync", ratio, target, at_least=True)


def main() -> None:
    """Compare with `resync`, then stream documents of growing size."""
    print(f"Documents of {ENTRIES:,} entries, best of {RUNS} runs, each in a process of its own")
    with tempfile.TemporaryDirectory() as folder:
        for kind in (RESOURCES, CHANGES, LINKED, INDENTED, IMAGES, NAMESPACED, FRAGMENT):
            path = Path(folder, f"{kind}.xml")
            path.write_bytes(file(kind))
            both = kind in (RESOURCES, CHANGES, LINKED)
            compare(kind, path, ("parse", "write") if both else ("parse",))
    for count in (STREAMED // 100, STREAMED):
        seconds, peak = _measure("stream", "", str(count))
        told = f"{seconds:5.1f} s, {peak / 1024:.1f} MiB"
        print(f"streaming {count:9,} entries, written and read: {told}")
    targets.compare(f"memory for a list of {STREAMED:,} entries", peak / 1024, 32, "MiB")


if __name__ == "__main__":
    child(*sys.argv[1:4])
