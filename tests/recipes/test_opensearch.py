"""The recipe for OpenSearch and Elasticsearch, with two servers that imitate them."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.recipes.stores import Aggregator, Store, course

pytestmark = pytest.mark.slow


def program_in(package: str, name: str) -> str:
    """Return a program that a package contains."""
    module = pytest.importorskip(package)
    return str(Path(str(module.__file__)).parent / name)


class Noida(Store):
    """Passes most of Elasticsearch's own tests of its API."""

    is_durable = True

    def command(self) -> list[str]:
        program = program_in("noida_db", "noida-db")  # its command would leave it running
        port = ("--elasticsearch-port", str(self.port))
        return [program, "start", "--only", "elasticsearch", *port, "--data-dir", "it"]

    def ask(self, path: str, *lines: object, method: str = "POST") -> Any:
        body = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
        headers = {"Content-Type": "application/json"}
        url = f"http://127.0.0.1:{self.port}/resources{path}"
        with urlopen(Request(url, body, headers, method=method), timeout=60) as answer:
            return json.load(answer)

    def contents(self) -> dict[str, str]:
        try:
            self.ask("/_refresh")
            hits = self.ask("/_search", {"size": 5_000})["hits"]["hits"]
        except HTTPError:  # there is no index yet
            return {}
        return {hit["_source"]["uri"]: hit["_source"]["text"] for hit in hits}

    def damage(self, missing: str, changed: str) -> None:
        ids = [sha256(uri.encode()).hexdigest() for uri in (missing, changed)]
        self.ask(f"/_doc/{ids[0]}", method="DELETE")
        for id, uri in ((ids[1], changed), ("foreign", "http://foreign.example/")):
            self.ask(f"/_doc/{id}", {"uri": uri, "text": "x", "hash": "x"}, method="PUT")


class Osmem(Noida):
    """Imitates OpenSearch, and keeps everything in memory."""

    is_durable = False

    def command(self) -> list[str]:
        program = program_in("osmem_server", "bin/osmem-server")
        return [program, "-addr", f"127.0.0.1:{self.port}", "-no-stdin-watch"]


class PartlyBusy:
    """Answers some bulk requests with 200, and a failure of their second half."""

    def __init__(self, store: Noida, status: int, times: int) -> None:
        self._store, self._status, self.times = store, status, times

    def __call__(self, path: str, body: bytes) -> bytes | None:
        actions = [line for line in body.splitlines() if line.startswith((b'{"index', b'{"delete'))]
        if not path.endswith("_bulk") or not self.times or len(actions) < 2:
            return None
        self.times -= 1
        half = body.index(actions[len(actions) // 2])
        url = f"http://127.0.0.1:{self._store.port}{path}"
        headers = {"Content-Type": "application/x-ndjson"}
        with urlopen(Request(url, body[:half], headers, method="POST"), timeout=60) as answer:
            found = json.load(answer)
        error = {"type": "es_rejected_execution_exception", "reason": "queue is full"}
        for line in actions[len(actions) // 2 :]:
            ((kind, one),) = json.loads(line).items()
            found["items"].append({kind: {**one, "status": self._status, "error": error}})
        return json.dumps({**found, "errors": True}).encode()


@pytest.mark.parametrize("kind", [Noida, Osmem])
def test_an_index_is_a_copy(tmp_path: Path, kind: type[Noida]) -> None:
    store = kind(tmp_path)
    with course(tmp_path, store, "txt", "{number} in version {version}") as trial:
        known = {
            "https://source.example/": trial.source.url,
            "http://127.0.0.1:9200": store.proxy.url,
        }
        trial.aggregator = Aggregator("opensearch.md", "to_opensearch.py", tmp_path, known)
        trial.run(store.damage)
        for status in (429, 400):
            partly = store.proxy.alters = PartlyBusy(store, status, 1)
            for number in range(50, 70):
                trial.put(number, status)
            trial.aggregator.start()
            trial.becomes_equal()
            assert partly.times == 0
            trial.aggregator.kill()
