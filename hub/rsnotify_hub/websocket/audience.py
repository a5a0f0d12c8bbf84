"""Those who are live on one topic: who is quick, who is slow, and a write to all who are quick."""

from __future__ import annotations

import logging
import os
from typing import Generic, Protocol, TypeVar

from rsnotify_hub.websocket.connection import WebSocketConnection

log = logging.getLogger("rsnotify.hub.websocket")

_IS_FILE = os.name == "posix"


class AudienceMember(Protocol):
    """Whoever is in an audience."""

    connection: WebSocketConnection


M = TypeVar("M", bound=AudienceMember)


class Audience(Generic[M]):
    """Those who are live on one topic.

    Theory of operation. Nothing waits in the transport of one that is quick (`WebSocketConnection.is_paused`
    is false), so its socket can be written to directly, which costs a tenth less than to go by
    the transport. What the socket does not take, and every error, is left to the transport. A
    member must leave before its socket is closed: `WebSocketConnection` ends before that at the latest.

    Attributes:
        quick: Those who are quick, and their sockets.
        slow: Those for whose sockets something waits.
    """

    def __init__(self) -> None:
        self.quick: dict[M, int] = {}
        self.slow: set[M] = set()

    def __len__(self) -> int:
        """Return how many they are."""
        return len(self.quick) + len(self.slow)

    def put(self, member: M) -> None:
        """Put a member where it belongs now."""
        self.remove(member)
        if member.connection.is_paused:
            self.slow.add(member)
        else:
            self.quick[member] = _descriptor(member.connection)

    def remove(self, member: M) -> None:
        """Let a member go."""
        self.slow.discard(member)
        self.quick.pop(member, None)

    def write(self, data: bytes) -> None:
        """Write to all who are quick. Who is slow then has got it all the same."""
        size, write = len(data), os.write
        for member, descriptor in tuple(self.quick.items()):
            try:
                sent = write(descriptor, data)
            except OSError:
                sent = 0
            if sent != size:
                _write_rest(member.connection, data, sent)


def _write_rest(connection: WebSocketConnection, data: bytes, sent: int) -> None:
    try:
        connection.transport.write(memoryview(data)[sent:])
    except Exception:
        # Its transport has ended, and says so soon; the others must not miss this.
        log.debug("a subscriber could not be written to", exc_info=True)


def _descriptor(connection: WebSocketConnection) -> int:
    """Return the file of a connection's socket; none, -1, where sockets are no files."""
    socket = connection.transport.get_extra_info("socket") if _IS_FILE else None
    return -1 if socket is None else socket.fileno()
