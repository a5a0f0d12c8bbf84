"""The recipe for PostgreSQL: what others changed in the table is found; T has tests of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.publisher.helpers import SourceProcess, eventually
from tests.recipes.stores import Aggregator

pytestmark = pytest.mark.slow


@pytest.fixture
def source(tmp_path: Path) -> Iterator[SourceProcess]:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(100):
        (folder / f"{number}.txt").write_text(f"station {number}")
    process = SourceProcess(folder, "--port", "0")
    yield process
    process.end()


def test_a_table_is_a_copy(tmp_path: Path, postgresql: str, source: SourceProcess) -> None:
    known = {"postgresql://localhost/example": postgresql, "http://127.0.0.1:8000/": source.url}
    program = Aggregator("../aggregator-postgresql.md", "aggregator.py", tmp_path, known)

    def is_equal() -> bool:
        folder = tmp_path / "data"
        expected = {(source.url + path.name, path.read_text()) for path in folder.iterdir()}
        with psycopg.connect(postgresql) as connection:
            try:
                return set(connection.execute("SELECT uri, body FROM pages")) == expected
            except psycopg.errors.UndefinedTable:
                return False

    program.start()
    eventually(is_equal)
    program.kill()
    (tmp_path / "data/1.txt").write_text("changed")
    (tmp_path / "data/2.txt").unlink()
    with psycopg.connect(postgresql) as connection:
        connection.execute("DELETE FROM pages WHERE uri LIKE '%/5_.txt'")
        connection.execute("UPDATE pages SET body = 'x', hash = '' WHERE uri LIKE '%/6_.txt'")
        connection.execute("INSERT INTO pages VALUES ('http://foreign.example/', now(), '', '')")
    program.start()
    eventually(is_equal)
    program.interrupt()
