"""A small Source that also has dumps and archives, and offers the documents a test chooses."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence

from msgspec.structs import replace

from rsnotify.format.model import Capability, Document, Link, Resource
from rsnotify.format.writer import write_document
from tests.subscriber.source import SmallSource, body, sha256

#: Where each capability is offered.
NAMES = {
    Capability.RESOURCE_LIST: "resourcelist.xml",
    Capability.RESOURCE_DUMP: "resourcedump.xml",
    Capability.CHANGE_LIST: "changelist.xml",
    Capability.CHANGE_DUMP: "changedump.xml",
    Capability.RESOURCE_LIST_ARCHIVE: "resourcelist-archive.xml",
    Capability.RESOURCE_DUMP_ARCHIVE: "resourcedump-archive.xml",
    Capability.CHANGE_LIST_ARCHIVE: "changelist-archive.xml",
    Capability.CHANGE_DUMP_ARCHIVE: "changedump-archive.xml",
}


def zipped(manifest: Document | None, members: dict[str, bytes]) -> bytes:
    """Make a package."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as package:
        if manifest is not None:
            package.writestr("manifest.xml", write_document(manifest))
        for path, content in members.items():
            package.writestr(path.removeprefix("/"), content)
    return file.getvalue()


class PackedSource(SmallSource):
    """Set `offered` to the capabilities of the Capability List; `documents` answers by name."""

    def __init__(self) -> None:
        super().__init__()
        self.offered: Sequence[str] = (Capability.RESOURCE_LIST, Capability.CHANGE_LIST)
        self.documents: dict[str, Document] = {}
        self.copies = False
        self.packages: list[Resource] = []
        self._versions: dict[str, bytes] = {}

    def put(self, name: str, content: bytes, **fields: object) -> Resource:
        entry = super().put(name, content, **fields)
        self._versions[entry.hash or ""] = content
        return entry

    def capability_list(self) -> Document:
        offered = [Resource(self.base + NAMES[one], capability=one) for one in self.offered]
        return replace(super().capability_list(), resources=tuple(offered))

    def document(self, name: str) -> Document | None:
        return self.documents.get(name) or super().document(name)

    def pack_resources(self, per_package: int = 4) -> None:
        """Publish a Resource Dump of what there is."""
        listed = self.resource_list()
        packages = [
            self._package(
                f"resources-{n}.zip",
                replace(
                    listed,
                    capability=Capability.RESOURCE_DUMP_MANIFEST,
                    resources=listed.resources[n : n + per_package],
                ),
            )
            for n in range(0, len(listed.resources), per_package)
        ]
        dump = Document(Capability.RESOURCE_DUMP, tuple(packages), at=listed.at)
        self.documents["resourcedump.xml"] = dump

    def pack_changes(self) -> None:
        """Close the open Change List, and publish it as the next package of the Change Dump."""
        self.rotate()
        closed = self.closed[-1]
        manifest = replace(closed, capability=Capability.CHANGE_DUMP_MANIFEST)
        package = self._package(f"changes-{len(self.packages)}.zip", manifest)
        self.packages.append(replace(package, from_=closed.from_, until=closed.until))
        self.documents["changedump.xml"] = Document(
            Capability.CHANGE_DUMP, tuple(self.packages), from_=self.packages[0].from_
        )

    def archive_dump(self) -> None:
        """Move the Change Dump into its archive."""
        dump = self.documents["changedump.xml"]
        until = self.packages[-1].until
        self.documents["changedump-1.xml"] = replace(dump, until=until)
        self.documents["changedump.xml"] = replace(dump, from_=until, resources=())
        closed = Resource("changedump-1.xml", from_=dump.from_, until=until)
        archive = Document(Capability.CHANGE_DUMP_ARCHIVE, (closed,))
        self.documents["changedump-archive.xml"] = archive
        self.packages = []

    def _package(self, name: str, manifest: Document) -> Resource:
        entries, members = [], {}
        for n, entry in enumerate(manifest.resources):
            if entry.hash is None:
                entries.append(entry)
                continue
            entries.append(replace(entry, path=f"/resources/{n}"))
            members[f"/resources/{n}"] = self._versions[entry.hash]
        manifest = replace(manifest, resources=tuple(entries))
        data = zipped(manifest, members)
        self.answers["/data/" + name] = body(data)
        self.documents[name + ".xml"] = manifest
        links = (Link("contents", self.base + name + ".xml"),) if self.copies else ()
        return Resource(self.base + name, hash=sha256(data), length=len(data), links=links)
