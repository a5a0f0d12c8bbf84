"""The queue in PostgreSQL: woken by NOTIFY, so that a change waits for nothing.

It needs psycopg 3: `pip install "rsnotify[postgresql]"`.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from select import select

import psycopg

from rsnotify.errors import StorageError
from rsnotify_publisher.outbox.outbox import LOCK, Outbox
from rsnotify_publisher.outbox.queue import OutboxLine, RecordLines

_WAITING = "SELECT id, entry FROM {table} WHERE refused IS NULL ORDER BY id LIMIT %s"
_REFUSE = "UPDATE {table} SET refused = %s WHERE id = %s"
_DELETE = "DELETE FROM {table} WHERE id = ANY(%s)"


class PostgreSQLQueue:
    """Takes what was recorded by an `Outbox`, or by any other that writes into its table.

    Args:
        conninfo: How to connect, as libpq has it: a URL, or `host=… dbname=…`. What it leaves
            out comes from the environment (PGHOST, PGPASSWORD, …).
        outbox: Tells the table; it is made where it is missing.
    """

    def __init__(self, conninfo: str = "", outbox: Outbox | None = None) -> None:
        self._conninfo = conninfo
        self._outbox = outbox or Outbox()
        self._connection: psycopg.Connection | None = None
        self._listener: psycopg.Connection | None = None
        self._ends: tuple[socket.socket, socket.socket] | None = None
        self._interrupted = threading.Event()

    def forward(self, limit: int, take: RecordLines) -> int:
        """Hand over what was committed, then delete it, as `Queue.forward`."""
        with self._translated():
            connection = self._connected()
            with connection.transaction():
                if connection.execute(self._sql(LOCK)).fetchone() != (True,):
                    return 0
                found = connection.execute(self._sql(_WAITING), (limit,)).fetchall()
                if found:
                    self._hand_over(connection, [OutboxLine(*row) for row in found], take)
            return len(found)

    def _hand_over(
        self, connection: psycopg.Connection, waiting: list[OutboxLine], take: RecordLines
    ) -> None:
        refused = take(waiting)
        for number, reason in refused.items():
            connection.execute(self._sql(_REFUSE), (reason, number))
        done = [one.number for one in waiting if one.number not in refused]
        connection.execute(self._sql(_DELETE), (done,))

    def wait(self, seconds: float) -> None:
        """Wait for a NOTIFY, as `Queue.wait`."""
        with self._translated():
            self._connected()
            assert self._listener is not None
            assert self._ends is not None
            if not self._interrupted.is_set():
                select([self._listener.fileno(), self._ends[0].fileno()], [], [], seconds)
            pgconn = self._listener.pgconn
            pgconn.consume_input()
            while pgconn.notifies() is not None:
                pass

    def interrupt(self) -> None:
        """Let `wait` return from now on, until `close`."""
        self._interrupted.set()
        if self._ends is not None:
            with suppress(OSError):  # it was closed this moment
                self._ends[1].send(b".")

    def close(self) -> None:
        """Disconnect."""
        for one in (self._connection, self._listener, *(self._ends or ())):
            if one is not None:
                one.close()
        self._connection = self._listener = self._ends = None
        self._interrupted.clear()

    def _connected(self) -> psycopg.Connection:
        if self._connection is None:
            self._ends = self._ends or socket.socketpair()
            connection = psycopg.connect(self._conninfo, autocommit=True)
            self._connection = connection
            self._make(connection)
            # Before the table is read for the first time, so that nothing falls in between.
            self._listener = psycopg.connect(self._conninfo, autocommit=True)
            self._listener.execute(self._sql("LISTEN {table}"))
        return self._connection

    def _make(self, connection: psycopg.Connection) -> None:
        """Make the table, but touch none that is there: that would wait for all transactions."""
        with connection.transaction():
            # Two that make it at once would fail.
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('rsnotify', 0))")
            found = connection.execute("SELECT to_regclass(%s)", (self._outbox.table,)).fetchone()
            if found == (None,):
                connection.execute(self._outbox.ddl.encode())

    def _sql(self, text: str) -> bytes:
        return text.format(table=self._outbox.table).encode()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise StorageError(f"the outbox {self._outbox.table}: {str(error).strip()}") from error
