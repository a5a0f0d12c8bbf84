"""An outbox in PostgreSQL, which triggers fill as the README says."""

from __future__ import annotations

import psycopg

from rsnotify_publisher.outbox import Outbox
from tests.reader import ROOT, fences_of


def trigger_of_the_documentation() -> str:
    page = (ROOT / "extensions/gateway/README.md").read_text()
    (found,) = [body for name, body in fences_of(page) if name == "sql"]
    return Outbox().ddl + found


def view_of_the_documentation() -> str:
    return "CREATE VIEW" + trigger_of_the_documentation().partition("CREATE VIEW")[2]


def execute(url: str, *statements: str, autocommit: bool = False) -> None:
    with psycopg.connect(url, autocommit=autocommit) as connection:
        for statement in statements:
            connection.execute(statement.encode())
