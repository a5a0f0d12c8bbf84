"""How fragments are sent to live subscribers: one encoding for each form of each transport."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from rsnotify_hub.fragments.fragment import Fragment
from rsnotify_hub.statistics import DeliveryTransport


class Encoding(ABC):
    """How fragments are sent over a transport."""

    def __init__(self, transport: DeliveryTransport) -> None:
        self.transport = transport

    @abstractmethod
    def encode(self, fragments: Sequence[Fragment]) -> bytes:
        """Return the bytes that all subscribers share."""

    def needs_thread(self, fragments: Sequence[Fragment]) -> bool:
        """Return whether `encode` would block the event loop."""
        return False

    async def encode_page(self, fragments: Sequence[Fragment]) -> bytes:
        """Return the bytes of fragments of a log, encoded in a thread if necessary."""
        return self.encode(fragments)
