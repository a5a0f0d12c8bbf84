"""The live subscribers of one topic, and the write to all of them."""

from __future__ import annotations

import logging
import os
from typing import Generic, Protocol, TypeVar

from rsnotify_hub.websocket.connection import WebSocketConnection

log = logging.getLogger("rsnotify.hub.websocket")

_SOCKETS_ARE_FILES = os.name == "posix"


class AudienceMember(Protocol):
    """A member of an audience."""

    connection: WebSocketConnection


M = TypeVar("M", bound=AudienceMember)


class Audience(Generic[M]):
    """The live subscribers of one topic.

    Theory of operation. A member is *quick* while nothing waits in its transport
    (`WebSocketConnection.is_paused` is false). Then its socket can be written to directly, which
    costs a tenth less than a write through the transport. What the socket does not accept, and
    every error, is left to the transport. A member must be removed before its socket is closed;
    `WebSocketConnection` reports its end before that.

    Attributes:
        quick: The quick members, and the file descriptors of their sockets.
        slow: The others.
    """

    def __init__(self) -> None:
        self.quick: dict[M, int] = {}
        self.slow: set[M] = set()

    def __len__(self) -> int:
        """Return the number of members."""
        return len(self.quick) + len(self.slow)

    def put(self, member: M) -> None:
        """Add a member, or sort it again as quick or slow."""
        self.remove(member)
        if member.connection.is_paused:
            self.slow.add(member)
        else:
            self.quick[member] = _descriptor(member.connection)

    def remove(self, member: M) -> None:
        self.slow.discard(member)
        self.quick.pop(member, None)

    def write(self, data: bytes) -> None:
        """Write to all quick members. One that becomes slow by it has still got all of the data."""
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
        # Its transport has ended, and reports that soon; the others must still get the data.
        log.debug("a subscriber could not be written to", exc_info=True)


def _descriptor(connection: WebSocketConnection) -> int:
    """Return the file descriptor of a connection's socket; -1 where sockets are no files."""
    socket = connection.transport.get_extra_info("socket") if _SOCKETS_ARE_FILES else None
    return -1 if socket is None else socket.fileno()
