"""Writes the fragments that a Source sends: changes with inline content, and heartbeats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from rsnotify.format.datetimes import Instant
from rsnotify.format.hashes import SetDigest
from rsnotify.format.inline_content import with_inline_content
from rsnotify.format.model import Capability, Document, Link, Rel, Resource
from rsnotify.format.writer import Profile, closing, entry, opening


class OutgoingFragment(Struct, frozen=True):
    """A fragment with all changes after `from_` and through `until`. A heartbeat has none."""

    from_: Instant
    until: Instant
    body: bytes
    is_heartbeat: bool = False


class FragmentWriter(Struct, frozen=True):
    """Writes fragments with an `up` link to a URI.

    The entries of a fragment have at most `max_bytes`, unless a single change is larger.
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
        """Yield consecutive fragments with the given changes, which directly follow `from_`.

        Content from `contents` is sent inline, with the last change of its resource. The last
        fragment carries `digest`.
        """
        last = {change.uri: number for number, change in enumerate(changes)}
        entries: list[bytes] = []
        size, until = 0, from_
        for number, change in enumerate(changes):
            inline = contents.get(change.uri) if last[change.uri] == number else None
            written = entry(with_inline_content(change, inline), profile=self.profile)
            is_full = len(entries) == self.max_entries or size + len(written) > self.max_bytes
            if entries and is_full:
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

    def _fragment(
        self, from_: Instant, until: Instant, entries: list[bytes], digest: SetDigest | None = None
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
