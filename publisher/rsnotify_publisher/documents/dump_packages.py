"""Writes dumps: packages with manifests, and the documents that list them (core §11.1, §13.1).

The memory use does not grow with the size of a dump.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import SpooledTemporaryFile
from typing import IO
from urllib.parse import unquote
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import counted
from rsnotify.format.datetimes import Instant, to_microseconds
from rsnotify.format.hashes import Digester, are_included, matches
from rsnotify.format.media_types import extension
from rsnotify.format.model import (
    MAX_BYTES,
    MAX_ENTRIES,
    Capability,
    ChangeType,
    Document,
    Link,
    Rel,
    Resource,
)
from rsnotify.format.writer import Profile, closing, entry, opening, write_document
from rsnotify_publisher.files import all_or_none, atomic, write_atomically
from rsnotify_publisher.source_contents import CHUNK_SIZE, Bitstream, opened
from rsnotify_publisher.source_documents import compact, stem

logger = logging.getLogger("rsnotify.publisher")

#: Returns the content for an entry: the bytes, the path of a file, or None if it is gone.
EntryContent = Callable[[Resource], bytes | Path | None]
#: An entry with its bitstream, if there is one.
EntryBitstream = tuple[Resource, Bitstream | None]
#: Maximum size of a manifest to which one more entry is added. The entry's length is known only
#: after its content has been copied.
_MAX_MANIFEST_SIZE = MAX_BYTES * 9 // 10
#: Number of bytes of a manifest that are kept in memory rather than in a file.
_MAX_MANIFEST_IN_MEMORY = 1_000_000
_MANIFEST = "manifest.xml"
#: The values of `ZipInfo` for a regular file on Unix, readable by all.
_UNIX, _REGULAR_FILE = 3, 0o100644 << 16
# Characters that some file systems do not allow, or that could name a parent folder.
_UNSAFE = re.compile(r"(?:[^A-Za-z0-9._-]|\.{2,})+")
#: Maximum number of characters of a member's name that are taken from its URI.
_MAX_NAME_LENGTH = 100
# Media types that are already compressed: deflating them costs time and gains nothing.
_COMPRESSED = re.compile(
    r"audio/|video/"
    r"|image/(jpeg|png|gif|webp|avif|heic|jp2|jxl)"
    r"|application/(zip|gzip|zstd|x-bzip2|x-xz|x-7z-compressed|vnd\.rar|vnd\.openxmlformats-)"
    r"|[^;]*\+(zip|gzip|zstd)\b",
    re.IGNORECASE,
)


@dataclass(eq=False)
class PackageFile:
    """A ZIP being written, and its manifest.

    `buffer` stores the entries of the manifest until the package is complete, since they may not
    fit into memory. Bitstreams are in `folder`. All members have the modification time `stamp`, so
    that equal contents result in equal bytes. `check` is called before every chunk, and raises an
    exception to stop.
    """

    zip: ZipFile
    buffer: IO[bytes]
    folder: str
    stamp: Instant
    check: Callable[[], None]
    profile: Profile
    count: int = 0
    manifest_size: int = 0
    content_size: int = 0
    members: int = 0

    def store(self, resource: Resource, bitstream: Bitstream) -> tuple[Resource, bool | None]:
        """Copy a bitstream into the ZIP. Return its entry with the path, hash and length.

        Also return whether the copied bytes have the hash of `resource`, or None if it has no
        usable hash. The content may change while it is copied, so the hash in the entry is computed
        from the copied bytes.
        """
        self.members += 1
        path = f"{self.folder}/{_member_path(self.members, resource)}"
        digester = Digester(resource.hash)
        with self.zip.open(self._info(path, resource, bitstream.size), "w") as member:
            for chunk in bitstream.chunks():
                self.check()
                digester.update(chunk)
                member.write(chunk)
        self.content_size += digester.length
        hashes = digester.hashes
        stored = replace(resource, path="/" + path, hash=hashes, length=digester.length)
        return stored, are_included(resource.hash, hashes)

    def add_entry(self, resource: Resource) -> None:
        """Add an entry to the manifest."""
        self.count += 1
        self.manifest_size += self.buffer.write(entry(resource, profile=self.profile))

    def finish(self, head: Document) -> None:
        """Write the manifest to the ZIP. `head` is the manifest without its entries."""
        described = Resource(_MANIFEST, type="application/xml")
        info = self._info(_MANIFEST, described, self.manifest_size)
        with self.zip.open(info, "w") as member:
            for chunk in self.manifest(head):
                member.write(chunk)

    def manifest(self, head: Document) -> Iterator[bytes]:
        """Yield the manifest in pieces."""
        yield opening(head)
        self.buffer.seek(0)
        while chunk := self.buffer.read(CHUNK_SIZE):
            yield chunk
        yield closing(head)

    def _info(self, path: str, resource: Resource, size: int) -> ZipInfo:
        # ZIP can only store years from 1980 to 2107.
        year = min(max(self.stamp.year, 1980), 2107)
        info = ZipInfo(path, (year, *self.stamp.timetuple()[1:6]))
        info.compress_type = ZIP_STORED if _is_compressed(resource) else ZIP_DEFLATED
        info.create_system, info.external_attr = _UNIX, _REGULAR_FILE
        info.file_size = size  # zipfile uses it to decide whether ZIP64 is needed
        return info


def _member_path(number: int, resource: Resource) -> str:
    """Return the path of a bitstream below its folder in the package.

    The number distinguishes the members. The last part of the URI is for human readers.
    """
    last = re.split(r"[?#]", resource.uri, maxsplit=1)[0].rpartition("/")[2]
    name = _UNSAFE.sub("_", unquote(last))[-_MAX_NAME_LENGTH:].rstrip(".")
    suffix = "" if "." in name else extension(resource.type or "")
    return f"{number:06}-{name}{suffix}" if name else f"{number:06}{suffix}"


def _is_compressed(resource: Resource) -> bool:
    coded = resource.encoding not in (None, "", "identity")
    return coded or bool(_COMPRESSED.match(resource.type or ""))


class WrittenPackage(Struct, frozen=True):
    """A package that was written.

    `files` are the names of the ZIP and of the copy of its manifest, which has `count` entries.
    """

    entry: Resource
    files: tuple[str, str]
    count: int


@dataclass(eq=False)
class DumpWriter:
    """Writes the dumps of one Source to a folder whose files have URIs below `base_url`.

    Documents and manifests point `up` to `capability_list`. `check` is called often while packages
    are written, and raises an exception to stop. A package has at most `max_entries` entries and
    `max_content` bytes of content, unless a single content is larger. A dump document with more
    than `max_entries` packages is split into parts with an index.
    """

    folder: Path
    base_url: str
    capability_list: str
    check: Callable[[], None] = lambda: None
    max_entries: int = MAX_ENTRIES
    max_content: int = 1_000_000_000
    profile: Profile = Profile.V1_1

    def __post_init__(self) -> None:
        self._links = (Link(Rel.UP, self.capability_list),)

    def resource_packages(
        self,
        stem: str,
        at: Instant,
        resources: Iterable[Resource],
        content: EntryContent,
        *,
        now: Callable[[], Instant],
    ) -> list[WrittenPackage]:
        """Write the packages of a Resource Dump: at least one, even if there are no resources.

        The manifest states the hash and length of the bytes in the package, which may differ from
        those in the entry. If the content has changed since `at`, the entry has no `lastmod`, since
        it is unknown. Resources without content are omitted. After any error, including exceptions
        from the arguments, no file is left behind.

        The names of all files begin with `stem`. `now` returns the time when a package is complete.
        """
        entries = ResourceEntries(at, now, self._links)
        written = self._write_packages(stem, entries, resources, content)
        if entries.missing:
            logger.info("%s: %d resources without content were omitted", stem, entries.missing)
        return written

    def change_packages(
        self,
        stem: str,
        from_: Instant,
        until: Instant,
        changes: Iterable[Resource],
        content: EntryContent,
    ) -> list[WrittenPackage]:
        """Write the packages for a closed interval of changes: at least one, even if it is empty.

        The manifests have an entry for every change. It has a bitstream if `content` returns
        content with the hash of the change; see `ChangeEntries`. Otherwise this works like
        `resource_packages`.
        """
        entries = ChangeEntries(from_, until, content, self._links)
        written = self._write_packages(stem, entries, changes, content)
        if entries.missing:
            logger.warning(
                "%s: the content of %s was not kept; their entries have no path",
                stem,
                counted(entries.missing, "change"),
            )
        return written

    def write_document(self, name: str, head: Document, packages: Iterable[Resource]) -> list[str]:
        """Write a dump document (core §11.1, §13.1), and return the names of its parts, if any.

        A dump that does not fit into one document is written as parts, then as their index. Names
        are relative to the base URL. `head` is the document without its entries and common links. A
        Change Dump without `until` is open: more packages may be added.
        """
        head = replace(head, links=(*self._links, *head.links))
        groups = list(self._groups(packages))
        if len(groups) == 1:
            self._write(name, replace(head, resources=groups[0]))
            return []
        parts = list(self._parts(name, head, groups))
        for part, document in parts:
            self._write(part, document)
        listed = tuple(
            Resource(
                self.base_url + part,
                at=document.at,
                completed=document.completed,
                from_=document.from_,
                until=document.until,
            )
            for part, document in parts
        )
        self._write(name, replace(head, index=True, resources=listed))
        return [part for part, _ in parts]

    def _groups(self, packages: Iterable[Resource]) -> Iterator[tuple[Resource, ...]]:
        """Yield at least one group of entries, each small enough for one document."""
        group: list[Resource] = []
        size = 0
        for package in packages:
            length = len(entry(package))
            if group and (len(group) == self.max_entries or size + length > MAX_BYTES):
                yield tuple(group)
                group, size = [], 0
            group.append(package)
            size += length
        yield tuple(group)

    def _parts(
        self, name: str, head: Document, groups: list[tuple[Resource, ...]]
    ) -> Iterator[tuple[str, Document]]:
        """Yield the names and contents of the parts. If the dump is open, so is its last part."""
        links = (*head.links, Link(Rel.INDEX, self.base_url + name))
        for number, group in enumerate(groups, 1):
            part = replace(head, resources=group, links=links, completed=group[-1].completed)
            if head.from_ is not None:
                until = head.until if number == len(groups) else group[-1].until
                part = replace(part, from_=group[0].from_, until=until)
            yield _part_name(name, part, number), part

    def _write(self, name: str, document: Document) -> None:
        write_atomically(self.folder / name, [write_document(document)])

    def _write_packages(
        self,
        stem: str,
        entries: DumpEntries,
        resources: Iterable[Resource],
        content: EntryContent,
    ) -> list[WrittenPackage]:
        """Write the packages, at least one. After any error, no file is left behind."""
        written: list[WrittenPackage] = []
        with (
            contextlib.closing(self._with_bitstreams(resources, content)) as offers,
            all_or_none(self.folder) as names,
        ):
            pending = next(offers, None)
            while pending is not None or not written:
                number = len(written) + 1
                files = f"{stem}-{number:05}.zip", f"{stem}-{number:05}-manifest.xml"
                names.extend(files)
                package, pending = self._write_one(files, entries, pending, offers)
                written.append(package)
        return written

    def _with_bitstreams(
        self, entries: Iterable[Resource], content: EntryContent
    ) -> Generator[EntryBitstream]:
        """Yield entries with their bitstreams. Each stays open until the next one is requested."""
        for resource in entries:
            self.check()
            is_deletion = resource.change is ChangeType.DELETED
            with opened(None if is_deletion else content(resource)) as bitstream:
                yield resource, bitstream

    def _write_one(
        self,
        files: tuple[str, str],
        entries: DumpEntries,
        pending: EntryBitstream | None,
        offers: Iterator[EntryBitstream],
    ) -> tuple[WrittenPackage, EntryBitstream | None]:
        """Write one package and its manifest. Also return the first entry that did not fit."""
        path, copy = (self.folder / name for name in files)
        with (
            atomic(path) as file,
            SpooledTemporaryFile(max_size=_MAX_MANIFEST_IN_MEMORY) as buffer,
            ZipFile(file, "w") as zip,
        ):
            package = PackageFile(
                zip, buffer, entries.folder, entries.stamp, self.check, self.profile
            )
            while pending is not None and self._fits(package, pending):
                entries.put(package, *pending)
                pending = next(offers, None)
            head = entries.manifest(is_last=pending is None)
            package.finish(head)
            write_atomically(copy, package.manifest(head))
        return WrittenPackage(self._entry(files, head), files, package.count), pending

    def _fits(self, package: PackageFile, offer: EntryBitstream) -> bool:
        size = offer[1].size if offer[1] else 0
        return package.count == 0 or (
            package.count < self.max_entries
            and package.content_size + size <= self.max_content
            and package.manifest_size <= _MAX_MANIFEST_SIZE
        )

    def _entry(self, files: tuple[str, str], head: Document) -> Resource:
        path, copy = self.folder / files[0], self.base_url + files[1]
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Resource(
            self.base_url + files[0],
            at=head.at,
            completed=head.completed,
            from_=head.from_,
            until=head.until,
            hash=f"sha-256:{digest}",
            length=path.stat().st_size,
            type="application/zip",
            links=(Link(Rel.CONTENTS, copy, type="application/xml"),),
        )


def _part_name(name: str, part: Document, number: int) -> str:
    """Return a name unlike the parts of earlier indexes, which clients may still be reading."""
    begin, end = part.at or part.from_, part.resources[-1].until
    assert begin is not None
    own = stem(f"{PurePosixPath(name).stem}-part", to_microseconds(begin))
    if end is not None:  # a Change Dump to which packages are added has other bytes for each end
        own += f"-{compact(to_microseconds(end))}{'' if part.until else '-open'}"
    return f"{own}-{number:05}.xml"


class ResourceEntries:
    """The entries of a Resource Dump Manifest (core §11.2).

    Attributes:
        stamp: The modification time of all members of a package.
        missing: The number of entries without a bitstream.
    """

    folder = "resources"

    def __init__(self, at: Instant, now: Callable[[], Instant], links: tuple[Link, ...]) -> None:
        self.stamp = at
        self.missing = 0
        self._now = now
        self._links = links

    def put(self, package: PackageFile, entry: Resource, bitstream: Bitstream | None) -> None:
        """Copy a bitstream into the package, and add the entry to its manifest.

        Every entry must have a bitstream (core §11.2). A resource without one is omitted: it was
        deleted after `at`, and the Change List contains its deletion.
        """
        if bitstream is None:
            self.missing += 1
            return
        stored, as_recorded = package.store(entry, bitstream)
        # If the content changed since it was recorded, its modification time is unknown.
        lastmod = None if as_recorded is False else entry.lastmod
        # Patches apply to a version that the reader of a dump does not have (core §14.4).
        package.add_entry(replace(stored, lastmod=lastmod, links=_without_patches(entry)))

    def manifest(self, *, is_last: bool) -> Document:
        """Return the manifest of the completed package, without its entries."""
        return Document(
            Capability.RESOURCE_DUMP_MANIFEST,
            at=self.stamp,
            completed=self._now(),
            links=self._links,
        )


class ChangeEntries:
    """The entries of a Change Dump Manifest (core §13.2). See `ResourceEntries`.

    Every change in the interval has an entry. An entry has a `path` only if the hash proves that
    the bitstream is the resource's content right after the change. If that content is lost, the
    entry keeps its hash and length but has no `path`: Destinations fetch the resource, or apply the
    later change that replaced the content.
    """

    folder = "changes"

    def __init__(
        self, from_: Instant, until: Instant, content: EntryContent, links: tuple[Link, ...]
    ) -> None:
        self.stamp = until
        self.missing = 0
        self._from = self._last = from_
        self._content = content
        self._links = links

    def put(self, package: PackageFile, entry: Resource, bitstream: Bitstream | None) -> None:
        assert entry.datetime is not None, "a change has a datetime"
        self._last = entry.datetime
        if bitstream is not None and entry.hash and matches(entry.hash, bitstream.chunks()):
            stored, as_recorded = package.store(entry, bitstream)
            if as_recorded:  # a file may change while it is copied
                package.add_entry(replace(stored, links=self._add_patches(package, entry)))
                return
        self.missing += entry.change is not ChangeType.DELETED
        package.add_entry(replace(entry, path=None, links=_without_patches(entry)))

    def manifest(self, *, is_last: bool) -> Document:
        from_, until = self._from, self.stamp if is_last else self._last
        self._from = until
        return Document(
            Capability.CHANGE_DUMP_MANIFEST, from_=from_, until=until, links=self._links
        )

    def _add_patches(self, package: PackageFile, entry: Resource) -> tuple[Link, ...]:
        """Add the entry's patches to the package (core §14.4), and return the entry's links.

        Patches whose content is not available are omitted.
        """
        links = (
            self._add_patch(package, link) if link.rel == Rel.PATCH else link
            for link in entry.links
        )
        return tuple(link for link in links if link is not None)

    def _add_patch(self, package: PackageFile, link: Link) -> Link | None:
        if link.href.startswith("data:"):  # the Source's callback has no content for it
            return None
        patch = Resource(link.href, hash=link.hash, length=link.length, type=link.type)
        with opened(self._content(patch)) as bitstream:
            if bitstream is None or not (
                link.hash is None or matches(link.hash, bitstream.chunks())
            ):
                return None
            stored, _ = package.store(patch, bitstream)
        return replace(link, path=stored.path, hash=stored.hash, length=stored.length)


DumpEntries = ResourceEntries | ChangeEntries


def _without_patches(entry: Resource) -> tuple[Link, ...]:
    return tuple(link for link in entry.links if link.rel != Rel.PATCH)
