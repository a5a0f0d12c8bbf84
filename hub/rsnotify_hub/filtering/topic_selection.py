"""A topic or a part of it, as a Destination requests it."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from rsnotify.selection.push_selection import EVERYTHING, PushSelection


class TopicSelection(Struct, frozen=True):
    """A topic, or the part of it that a selection in its canonical form admits."""

    topic: str
    select: PushSelection = EVERYTHING

    @property
    def key(self) -> str:
        """The key in the store and in caches; that of a whole topic is the topic itself."""
        # No URL contains a space.
        return f"{self.topic} {self.select.text.decode()}" if self.select else self.topic


def selection_of_key(key: str) -> TopicSelection:
    topic, _, text = key.partition(" ")
    return TopicSelection(
        topic, msgspec.json.decode(text, type=PushSelection) if text else EVERYTHING
    )
