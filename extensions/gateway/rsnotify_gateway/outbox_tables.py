"""The triggers that fill an outbox in PostgreSQL, and the view of the resources.

Requires psycopg 3: `pip install "rsnotify[postgresql]"`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import reduce
from hashlib import blake2b
from operator import or_

import psycopg
from msgspec import Struct
from psycopg.conninfo import conninfo_to_dict

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.runtime.reasons import reason_of

#: The bits of `pg_trigger.tgtype`.
_EVENTS = {"INSERT": 4, "UPDATE": 16, "DELETE": 8, "TRUNCATE": 32}
#: `pg_trigger.tgenabled` of triggers that fire, and of those that also fire for replicated rows.
_ENABLED, _ALWAYS = ("O", "A"), "A"
#: The triggers whose function names the outbox. TRUNCATE gives a table a new file.
_TRIGGERS = r"""SELECT t.tgrelid::regclass::text, t.tgname, t.tgtype::integer, t.tgenabled::text,
    t.tgrelid::text || ' ' || coalesce(pg_relation_filenode(t.tgrelid), 0)
    FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
    WHERE NOT t.tgisinternal AND p.prosrc ~ ('\m' || %(table)s || '\M')
    AND t.tgrelid IS DISTINCT FROM to_regclass(%(table)s) ORDER BY 1, 2"""
_CATALOG = """SELECT pg_relation_filenode(to_regclass(%(table)s)),
    to_regclass(%(view)s) IS NOT NULL,
    has_function_privilege('pg_control_checkpoint()', 'EXECUTE')"""
#: Restoring the database changes its timeline.
_TIMELINE = "SELECT timeline_id FROM pg_control_checkpoint()"
_PENDING = "SELECT entry FROM {table} WHERE refused IS NULL"
#: Without the lock, TRUNCATE could remove rows from an existing snapshot.
_LOCK = "LOCK TABLE {view} IN ACCESS SHARE MODE"
_ROWS = "SELECT entry::text FROM {view}"
_BATCH = 1_000


class TriggerState(Struct, frozen=True):
    """The state of the triggers that fill an outbox.

    Args:
        fingerprint: A string that changes when a trigger or table is created, removed, disabled,
            enabled, emptied or rewritten, or when the database is restored.
        disabled: The disabled triggers, each as a clause.
        limits: Sentences that say which changes are not detected.
        has_resources: Whether there is a view of the resources that should exist.
    """

    fingerprint: str
    disabled: tuple[str, ...]
    limits: tuple[str, ...]
    has_resources: bool


class OutboxTables:
    """Reads the catalog, and the view of the resources, for the outbox `table`.

    Raises:
        ConfigurationError: The URL is invalid. The message does not contain any part of it.
    """

    def __init__(self, conninfo: str, table: str) -> None:
        _check_conninfo(conninfo)
        self._conninfo = conninfo
        self._table = table
        self.view = f"{table}_resources"

    def state(self) -> TriggerState:
        """Return the current state of the triggers. Raise `StorageError` if it cannot be read."""
        with self._connected() as connection:
            named = {"table": self._table, "view": self.view}
            rows = connection.execute(_TRIGGERS.encode(), named).fetchall()
            catalog = connection.execute(_CATALOG.encode(), named).fetchone()
            assert catalog is not None  # the query returns one row
            outbox, has_resources, may_read = catalog
            timeline = connection.execute(_TIMELINE.encode()).fetchone() if may_read else None
        by_table: dict[str, list[tuple[str, int, str]]] = defaultdict(list)
        for table, trigger, events, enabled, _ in rows:
            by_table[table].append((trigger, events, enabled))
        digest = blake2b(repr((rows, outbox, timeline)).encode(), digest_size=12)
        return TriggerState(
            digest.hexdigest(),
            tuple(
                f"the trigger {trigger} of {table} is disabled"
                for table, trigger, _, enabled, _ in rows
                if enabled == "D"
            ),
            tuple(sentence for item in by_table.items() for sentence in _unseen(*item)),
            has_resources,
        )

    def resources(self) -> Generator[list[str], None, None]:
        """Yield the lines waiting in the outbox, and then the rows of the view in batches.

        All lines and rows are JSON, and come from one snapshot.

        Raises:
            StorageError: The tables cannot be read.
        """
        names = {"table": self._table, "view": self.view}
        with self._connected() as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            with connection.transaction():
                connection.execute(_LOCK.format(**names).encode())
                pending = connection.execute(_PENDING.format(**names).encode()).fetchall()
                yield [entry for (entry,) in pending]
                with connection.cursor("rsnotify_resources") as cursor:
                    cursor.execute(_ROWS.format(**names).encode())
                    while rows := cursor.fetchmany(_BATCH):
                        yield [entry or "" for (entry,) in rows]

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection]:
        try:
            with closing(psycopg.connect(self._conninfo)) as connection:
                yield connection
        except psycopg.Error as error:
            what = f"the tables of the outbox {self._table}"
            raise StorageError(f"{what}: {reason_of(error)}") from error


def _unseen(table: str, triggers: list[tuple[str, int, str]]) -> Iterator[str]:
    for name, _, enabled in triggers:
        if enabled == "D":
            yield f"The trigger {name} of {table} is disabled: what it would see is not seen."
    seen = _events(bits for _, bits, enabled in triggers if enabled in _ENABLED)
    always = _events(bits for _, bits, enabled in triggers if enabled == _ALWAYS)
    if missing := [event for event in _EVENTS if event not in seen]:
        yield f"{_listed(missing)} of {table} is not seen: no enabled trigger is for it."
    if seen - always:
        yield (
            f"What is written to {table} with session_replication_role = replica is not seen: its "
            "triggers are not ENABLE ALWAYS."
        )


def _events(triggers: Iterable[int]) -> set[str]:
    both = reduce(or_, triggers, 0)
    return {event for event, bit in _EVENTS.items() if both & bit}


def _listed(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _check_conninfo(conninfo: str) -> None:
    try:
        found = conninfo_to_dict(conninfo)
    except psycopg.Error:
        found = {"port": "unusable"}
    ports = str(found.get("port") or "").split(",")
    if "@" in str(found.get("host") or "") or not all(each.isdigit() for each in ports if each):
        # The URL is not shown, because part of the password may be mistaken for the host.
        raise ConfigurationError(
            "the URL of the database is none; write postgresql://user:password@host/database, and "
            "percent-encode what is not a letter or digit in the user and the password"
        )
