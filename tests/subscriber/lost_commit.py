"""A proxy in front of PostgreSQL that breaks a connection at a COMMIT."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from threading import Thread

_COMMIT = b"COMMIT\x00"


class Lost(Enum):
    """What gets lost when a connection breaks."""

    #: The COMMIT: the transaction is rolled back.
    REQUEST = auto()
    #: The answer to it: the transaction is committed.
    REPLY = auto()
    #: The client, which the server does not notice.
    CLIENT = auto()


class CommitBreaker:
    """Forwards everything, and breaks one connection at a COMMIT.

    It runs in threads, since a subscriber may wait for its database in the event loop.

    Args:
        listener: Accepts the connections.
        port: The port of the server.

    Attributes:
        lost: What gets lost then; None if nothing does.
        skipped: How many COMMITs pass before.
    """

    def __init__(self, listener: socket.socket, port: int) -> None:
        self.lost: Lost | None = None
        self.skipped = 0
        self._listener = listener
        self._target = port
        self._open: list[socket.socket] = []
        self._threads = [self._start(self._accept)]

    def _start(self, work: object, *arguments: object) -> Thread:
        thread = Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        thread.start()
        return thread

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._open += [client, server]
                for source, target, side in (
                    (client, server, Lost.REQUEST),
                    (server, client, Lost.REPLY),
                ):
                    self._threads.append(self._start(self._copy, source, target, side))

    def _copy(self, source: socket.socket, target: socket.socket, side: Lost) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if not self._breaks(data, side):
                    target.sendall(data)
                    continue
                lost, self.lost = self.lost, None
                if lost is Lost.CLIENT:
                    target.sendall(data)
                    _end(source)
                    return  # the connection to the server stays open until `close`
                break
        _end(source)
        _end(target)

    def _breaks(self, data: bytes, side: Lost) -> bool:
        watched = Lost.REPLY if self.lost is Lost.REPLY else Lost.REQUEST
        if self.lost is None or side is not watched or _COMMIT not in data:
            return False
        self.skipped -= 1
        return self.skipped < 0

    def close(self) -> None:
        """Break all connections, and wait until nothing is forwarded any more."""
        for each in (self._listener, *self._open):
            _end(each)
        for thread in self._threads:
            thread.join()
        for each in (self._listener, *self._open):
            each.close()


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def commit_breaker(conninfo: str) -> Iterator[tuple[CommitBreaker, str]]:
    """Run a proxy to a server on loopback, and return how to connect through it."""
    address, _, name = conninfo.rpartition("/")
    start, _, port = address.rpartition(":")
    listener = socket.create_server(("127.0.0.1", 0))
    breaker = CommitBreaker(listener, int(port))
    try:
        yield breaker, f"{start}:{listener.getsockname()[1]}/{name}"
    finally:
        breaker.close()
