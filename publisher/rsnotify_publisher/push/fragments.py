"""Writes changes as fragments: Change Notifications of a limited size."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.datetimes import Instant
from rsnotify.format.digest import SetDigest
from rsnotify.format.model import Document, Link, Resource
from rsnotify.format.vocabulary import INLINE_LIMIT, Capability, Rel
from rsnotify.format.writer import Profile, closing, entry, opening
from rsnotify_publisher.hashes import matches


class OutgoingFragment(Struct, frozen=True):
    """A document with all changes after `from_`, through `until`; a heartbeat has none."""

    from_: Instant
    until: Instant
    body: bytes
    is_heartbeat: bool = False


class FragmentWriter(Struct, frozen=True):
    """Writes fragments that point `up` to a URI.

    They have at most `max_bytes`, unless a single change is larger.
    """

    up: str
    max_entries: int
    max_bytes: int
    profile: Profile = Profile.V1_1
    capability: str = Capability.CHANGE_NOTIFICATION

    def fragments(
        self,
        from_: Instant,
        changes: Sequence[Resource],
        contents: Mapping[str, bytes | None],
        digest: SetDigest | None = None,
    ) -> Iterator[OutgoingFragment]:
        """Write consecutive fragments of changes in order, the first of which comes after `from_`.

        `contents` are those of resources, by URI, that may be sent inline, and `digest` is that of
        the set as of the last change.
        """
        last = {change.uri: number for number, change in enumerate(changes)}
        entries: list[bytes] = []
        size, until = 0, from_
        for number, change in enumerate(changes):
            inline = contents.get(change.uri) if last[change.uri] == number else None
            written = entry(with_content(change, inline), profile=self.profile)
            if entries and not self._fits(len(entries), size + len(written)):
                yield self._fragment(from_, until, entries)
                from_, entries, size = until, [], 0
            entries.append(written)
            size += len(written)
            assert change.datetime is not None
            until = change.datetime
        if entries:
            yield self._fragment(from_, until, entries, digest)

    def heartbeat(
        self, from_: Instant, until: Instant, digest: SetDigest | None = None
    ) -> OutgoingFragment:
        return self._fragment(from_, until, [], digest)

    def _fits(self, entries: int, size: int) -> bool:
        return entries < self.max_entries and size <= self.max_bytes

    def _fragment(
        self,
        from_: Instant,
        until: Instant,
        entries: list[bytes],
        digest: SetDigest | None = None,
    ) -> OutgoingFragment:
        head = Document(
            self.capability,
            from_=from_,
            until=until,
            links=(Link(Rel.UP, self.up),),
            attributes=digest.attributes if digest is not None else (),
        )
        body = b"".join([opening(head), *entries, closing(head)])
        return OutgoingFragment(from_, until, body, is_heartbeat=not entries)


def may_be_inline(change: Resource) -> bool:
    """Return whether the content may be sent inline: it is small, and has a hash."""
    return (
        change.change != "deleted"
        and change.hash is not None
        and (change.length is None or change.length <= INLINE_LIMIT)
    )


def with_content(change: Resource, content: bytes | None) -> Resource:
    """Return the change with its content inline, if the content has the hash of the change.

    The content may have changed again since; then it is left out.
    """
    if content is None or len(content) > INLINE_LIMIT or not matches(change.hash, [content]):
        return change
    data = base64.b64encode(content).decode()
    link = Link(Rel.DUPLICATE, f"data:{_quoted(change.type)};base64,{data}")
    return replace(change, links=(*change.links, link))


@lru_cache(maxsize=256)
def _quoted(media_type: str | None) -> str:
    return quote(media_type or "application/octet-stream", safe="/;=+.-_!#$&^*")
