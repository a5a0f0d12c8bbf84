"""Inspects the triggers that fill an outbox in PostgreSQL, and reads the view of the resources.

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

#: The events of a trigger, with their bits in `pg_trigger.tgtype`.
_EVENTS = {"INSERT": 4, "UPDATE": 16, "DELETE": 8, "TRUNCATE": 32}
#: `pg_trigger.tgenabled` of triggers that fire, and of those that also fire for replicated rows.
_ENABLED, _ALWAYS = ("O", "A"), "A"
#: The triggers whose function contains the name of the outbox. TRUNCATE gives a table a new file.
_TRIGGERS = r"""SELECT t.tgrelid::regclass::text, t.tgname, t.tgtype::integer, t.tgenabled::text,
    t.tgrelid::text || ' ' || coalesce(pg_relation_filenode(t.tgrelid), 0)
    FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
    WHERE NOT t.tgisinternal AND p.prosrc ~ ('\m' || %(table)s || '\M')
    AND t.tgrelid IS DISTINCT FROM to_regclass(%(table)s) ORDER BY 1, 2"""
_CATALOG = """SELECT pg_relation_filenode(to_regclass(%(table)s)),
    to_regclass(%(view)s) IS NOT NULL,
    has_function_privilege('pg_control_checkpoint()', 'EXECUTE')"""
#: The timeline changes when the database is restored.
_TIMELINE = "SELECT timeline_id FROM pg_control_checkpoint()"
_PENDING = "SELECT entry FROM {table} WHERE refused IS NULL"
#: Without the lock, TRUNCATE could remove rows from a snapshot that is being read.
_LOCK = "LOCK TABLE {view} IN ACCESS SHARE MODE"
_RESOURCES = "SELECT entry::text FROM {view}"
_BATCH_ROWS = 1_000


class TriggerState(Struct, frozen=True):
    """The state of the triggers that fill an outbox.

    Args:
        fingerprint: A string that changes when a trigger or table is created, removed, disabled,
            enabled, emptied or rewritten, or when the database is restored.
        disabled: The disabled triggers, each as a clause.
        limits: Sentences that say which changes are not detected.
        has_resources: Whether the view of the resources exists.
    """

    fingerprint: str
    disabled: tuple[str, ...]
    limits: tuple[str, ...]
    has_resources: bool


class OutboxTables:
    """The triggers and the view that belong to the outbox `table`.

    Raises:
        ConfigurationError: The URL is invalid. The message contains no part of it.
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
            tuple(sentence for item in by_table.items() for sentence in _limits(*item)),
            has_resources,
        )

    def resources(self) -> Generator[list[str], None, None]:
        """Yield the lines in the outbox, and then the rows of the view in batches.

        The lines and rows are JSON, and come from one snapshot.

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
                    cursor.execute(_RESOURCES.format(**names).encode())
                    while rows := cursor.fetchmany(_BATCH_ROWS):
                        yield [entry or "" for (entry,) in rows]

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection]:
        try:
            with closing(psycopg.connect(self._conninfo)) as connection:
                yield connection
        except psycopg.Error as error:
            what = f"the tables of the outbox {self._table}"
            raise StorageError(f"{what}: {reason_of(error)}") from error


def _limits(table: str, triggers: list[tuple[str, int, str]]) -> Iterator[str]:
    """Yield sentences about the changes of a table that no trigger records."""
    for name, _, enabled in triggers:
        if enabled == "D":
            yield f"The trigger {name} of {table} is disabled, so its changes are not detected."
    recorded = _events(bits for _, bits, enabled in triggers if enabled in _ENABLED)
    always = _events(bits for _, bits, enabled in triggers if enabled == _ALWAYS)
    if missing := [event for event in _EVENTS if event not in recorded]:
        yield f"{_listed(missing)} on {table} is not detected: no enabled trigger fires for it."
    if recorded - always:
        yield (
            f"Writes to {table} with session_replication_role = replica are not detected, because "
            "its triggers are not ENABLE ALWAYS."
        )


def _events(triggers: Iterable[int]) -> set[str]:
    bits = reduce(or_, triggers, 0)
    return {event for event, bit in _EVENTS.items() if bits & bit}


def _listed(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _check_conninfo(conninfo: str) -> None:
    try:
        found = conninfo_to_dict(conninfo)
    except psycopg.Error:
        found = {"port": "invalid"}
    ports = str(found.get("port") or "").split(",")
    if "@" in str(found.get("host") or "") or not all(each.isdigit() for each in ports if each):
        # The URL is not shown, because part of the password may be mistaken for the host.
        raise ConfigurationError(
            "the URL of the database is invalid; write postgresql://user:password@host/database, "
            "and percent-encode all characters of the user and password except letters and digits"
        )
