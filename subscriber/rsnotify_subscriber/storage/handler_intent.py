"""What a handler was called with when the process died.

Before a handler is called, the resources that it gets are kept in a record that outlives the
process, beside the database since a commit would wait for the disk. The next commit has the number
of the record. A record with a later number is of effects that may be there though the state does
not know of them: a file of a mirror would stay for ever if the Source deleted it meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
from msgspec import Struct


class HandlerIntent(Struct, frozen=True, array_like=True):
    """What a handler was about to be called with.

    Args:
        batch: The number of the commit that follows.
        uris: What the handler gets.
        refused: What it could not take before.
    """

    batch: int = 0
    uris: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    def unfinished(self, committed: int) -> set[str]:
        """Return what may be applied and is not committed, after the commit of this number."""
        if self.batch < committed:
            return set()
        return {*self.refused, *(self.uris if self.batch > committed else ())}


def encode_intent(batch: int, uris: Sequence[str], refused: Collection[str]) -> bytes:
    """Return a record as it is kept."""
    return msgspec.json.encode(HandlerIntent(batch, tuple(uris), tuple(refused)))


def decode_intent(kept: bytes | None) -> HandlerIntent:
    """Return the record that was kept; an empty one where there is none, or a part of one."""
    try:
        return HandlerIntent() if kept is None else msgspec.json.decode(kept, type=HandlerIntent)
    except msgspec.DecodeError:
        return HandlerIntent()  # it was being written, and nothing of it was begun
