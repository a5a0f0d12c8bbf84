"""The recipe for triple stores, with Oxigraph of PyPI and Virtuoso of Debian."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from tests.ports import free_port
from tests.recipes.stores import Aggregator, Store, course
from tests.recipes.trial import needs

pytestmark = pytest.mark.slow

BODY = '<> <http://schema.org/name> "{number} in version {version}" ; <http://a/b> [ ] .'


class TripleStore(Store):
    """A server with the Graph Store Protocol and SPARQL 1.1 Update."""

    is_durable = True
    graphs, updates, queries = "/store?graph=", "/update", "/query"

    def known(self) -> dict[str, str]:
        return {"http://127.0.0.1:7878": self.proxy.url}

    def ask(self, path: str, **form: str) -> bytes:
        headers = {"Accept": "application/sparql-results+json"}
        url = f"http://127.0.0.1:{self.port}{path}"
        with urlopen(Request(url, urlencode(form).encode(), headers), timeout=60) as answer:
            return bytes(answer.read())

    def contents(self) -> dict[str, str]:
        query = (
            "SELECT ?g ?o (COUNT(*) AS ?n) WHERE { GRAPH ?g { ?g <http://schema.org/name> ?o } "
            "GRAPH ?g { ?s ?p ?x } } GROUP BY ?g ?o"
        )
        rows = json.loads(self.ask(self.queries, query=query))["results"]["bindings"]
        return {
            row["g"]["value"]: f"{row['o']['value']}, {row['n']['value']} triples" for row in rows
        }

    def expected(self, content: bytes) -> str:
        _, name, _ = content.decode().split('"')
        return f"{name}, 2 triples"

    def damage(self, missing: str, changed: str) -> None:
        self.ask(self.updates, update=f"DELETE WHERE {{ GRAPH <{missing}> {{ ?s ?p ?o }} }}")
        more = f"INSERT DATA {{ GRAPH <{changed}> {{ <{changed}> <http://a/x> 1 }} }}"
        self.ask(self.updates, update=more)


class Oxigraph(TripleStore):
    def command(self) -> list[str]:
        program = Path(sys.executable).with_name("oxigraph")
        if not program.exists():
            pytest.skip("needs `pip install oxigraph`")
        return [
            *(str(program), "serve", "--bind", f"127.0.0.1:{self.port}"),
            *("--location", str(self.folder / "store")),
        ]


class Virtuoso(TripleStore):
    graphs, updates, queries = "/sparql-graph-crud?graph=", "/sparql", "/sparql"

    def known(self) -> dict[str, str]:
        paths = {"{STORE}/store?graph=": self.graphs, "{STORE}/update": "/sparql"}
        paths["{STORE}/query"] = "/sparql"
        return super().known() | {old: f"{{STORE}}{new}" for old, new in paths.items()}

    def command(self) -> list[str]:
        needs("virtuoso-t", "isql-vt", packages="virtuoso-opensource-7-bin")
        self.sql = free_port()
        names = {"DatabaseFile": "db", "ErrorLogFile": "log", "LockFile": "lck"}
        names |= {"TransactionFile": "trx", "xa_persistent_file": "pxa"}
        lines = [f"{name} = virtuoso.{end}" for name, end in names.items()]
        self.folder.joinpath("virtuoso.ini").write_text(
            "\n".join(["[Database]", *lines, "[TempDatabase]", "DatabaseFile = temp.db"])
            + "\nTransactionFile = temp.trx\n[Parameters]\n"
            + f"ServerPort = 127.0.0.1:{self.sql}\nNumberOfBuffers = 2000\n"
            + f"[HTTPServer]\nServerPort = 127.0.0.1:{self.port}\nServerRoot = .\n"
            + "[SPARQL]\nResultSetMaxRows = 10000\n"
        )
        return [str(shutil.which("virtuoso-t")), "-f", "-c", "virtuoso.ini"]

    def start(self) -> None:
        super().start()
        subprocess.run(
            ["isql-vt", f"127.0.0.1:{self.sql}", "dba", "dba"],
            input='grant SPARQL_UPDATE to "SPARQL";',
            text=True,
            check=True,
            capture_output=True,
        )


@pytest.mark.parametrize("kind", [Oxigraph, Virtuoso])
def test_a_triple_store_is_a_copy(tmp_path: Path, kind: type[TripleStore]) -> None:
    store = kind(tmp_path)
    with course(tmp_path, store, "ttl", BODY) as trial:
        known = {"https://source.example/": trial.source.url, **store.known()}
        trial.aggregator = Aggregator("triple-store.md", "to_triples.py", tmp_path, known)
        trial.run(store.damage)
