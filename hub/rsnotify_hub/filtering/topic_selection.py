"""What somebody asked for: a topic, and which part of it."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from rsnotify.selection.push_selection import EVERYTHING, PushSelection


class TopicSelection(Struct, frozen=True):
    """A topic's log, or what a selection leaves of it.

    Args:
        topic: Whose log.
        select: The selection, in its canonical form.
    """

    topic: str
    select: PushSelection = EVERYTHING

    @property
    def key(self) -> str:
        """Stands for this stream among all: the topic itself for the whole of it."""
        # No URL holds a space.
        return f"{self.topic} {self.select.text.decode()}" if self.select else self.topic


def selection_of_key(key: str) -> TopicSelection:
    """Return the stream of a key.

    Raises:
        msgspec.DecodeError: There is none.
    """
    topic, _, text = key.partition(" ")
    return TopicSelection(
        topic, msgspec.json.decode(text, type=PushSelection) if text else EVERYTHING
    )
