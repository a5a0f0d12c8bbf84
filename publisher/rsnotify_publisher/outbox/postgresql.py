"""The queue for an outbox in PostgreSQL, woken by NOTIFY.

Requires psycopg 3: `pip install "rsnotify[postgresql]"`.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from select import select

import psycopg

from rsnotify.errors import StorageError
from rsnotify.runtime.reasons import reason_of
from rsnotify_publisher.outbox.forwarder import OutboxLine, RecordLines
from rsnotify_publisher.outbox.outbox import LOCK, Outbox

_WAITING = "SELECT id, entry FROM {table} WHERE refused IS NULL ORDER BY id LIMIT %s"
_REFUSE = "UPDATE {table} SET refused = %s WHERE id = %s"
_DELETE = "DELETE FROM {table} WHERE id = ANY(%s)"


class PostgreSQLQueue:
    """Reads the changes that an `Outbox` or any other program writes to the table.

    Args:
        conninfo: The connection string for libpq: a URL, or `host=… dbname=…`. Missing parameters
            come from the environment (PGHOST, PGPASSWORD, …).
        outbox: The outbox. Its table is created if it is missing.
    """

    def __init__(self, conninfo: str = "", outbox: Outbox | None = None) -> None:
        self._conninfo = conninfo
        self._outbox = outbox or Outbox()
        self._connection: psycopg.Connection | None = None
        self._listener: psycopg.Connection | None = None
        #: A pair of sockets, by which `interrupt` wakes `wait`.
        self._wakeup: tuple[socket.socket, socket.socket] | None = None
        self._interrupted = threading.Event()

    def forward(self, limit: int, record: RecordLines) -> int:
        """Record the committed rows, then delete them; see `OutboxQueue.forward`."""
        with self._translated():
            connection = self._connected()
            with connection.transaction():
                if connection.execute(self._sql(LOCK)).fetchone() != (True,):
                    return 0
                found = connection.execute(self._sql(_WAITING), (limit,)).fetchall()
                lines = [OutboxLine(*row) for row in found]
                refused = record(lines)
                for number, reason in refused.items():
                    connection.execute(self._sql(_REFUSE), (reason, number))
                if done := [line.number for line in lines if line.number not in refused]:
                    connection.execute(self._sql(_DELETE), (done,))
            return len(lines)

    def wait(self, seconds: float) -> None:
        """Wait for a NOTIFY; see `OutboxQueue.wait`."""
        with self._translated():
            self._connected()
            assert self._listener is not None
            assert self._wakeup is not None
            if not self._interrupted.is_set():
                select([self._listener.fileno(), self._wakeup[0].fileno()], [], [], seconds)
            pgconn = self._listener.pgconn
            pgconn.consume_input()
            while pgconn.notifies() is not None:
                pass

    def interrupt(self) -> None:
        """Make `wait` return immediately until `close` is called."""
        self._interrupted.set()
        if self._wakeup is not None:
            with suppress(OSError):  # the socket has just been closed
                self._wakeup[1].send(b".")

    def close(self) -> None:
        """Disconnect."""
        for resource in (self._connection, self._listener, *(self._wakeup or ())):
            if resource is not None:
                resource.close()
        self._connection = self._listener = self._wakeup = None
        self._interrupted.clear()

    def _connected(self) -> psycopg.Connection:
        if self._connection is None:
            self._wakeup = self._wakeup or socket.socketpair()
            connection = psycopg.connect(self._conninfo, autocommit=True)
            self._connection = connection
            self._create_table(connection)
            # Listen before the table is first read, so that no change is missed in between.
            self._listener = psycopg.connect(self._conninfo, autocommit=True)
            self._listener.execute(self._sql("LISTEN {table}"))
        return self._connection

    def _create_table(self, connection: psycopg.Connection) -> None:
        """Create the table, but only if it is missing, since DDL waits for all transactions."""
        with connection.transaction():
            # Without this lock, it would fail in two processes at the same time.
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
            raise StorageError(f"the outbox {self._outbox.table}: {reason_of(error)}") from error
