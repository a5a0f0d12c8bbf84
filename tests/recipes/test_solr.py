"""The recipe for Solr, with an imitation of the requests that it uses."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.recipes.stores import Aggregator, Store, course

pytestmark = pytest.mark.slow


class Solr(Store):
    is_durable = True

    def command(self) -> list[str]:
        return [sys.executable, str(Path(__file__).with_name("fake_solr.py")), str(self.port)]

    def contents(self) -> dict[str, str]:
        path = self.folder / "solr.json"
        documents = json.loads(path.read_text()) if path.exists() else {}
        return {uri: one.get("text_txt_en", "") for uri, one in documents.items()}

    def update(self, body: object) -> None:
        url = f"http://127.0.0.1:{self.port}/solr/resources/update?commit=true"
        with urlopen(Request(url, json.dumps(body).encode()), timeout=60):
            pass


def test_a_core_is_a_copy(tmp_path: Path) -> None:
    store = Solr(tmp_path)
    with course(tmp_path, store, "txt", "{number} in version {version}") as trial:
        known = {
            "https://source.example/": trial.source.url,
            "http://127.0.0.1:8983": store.proxy.url,
        }
        trial.aggregator = Aggregator("solr.md", "to_solr.py", tmp_path, known)

        def damage(missing: str, changed: str) -> None:
            store.update({"delete": [missing]})
            store.update([{"id": changed}, {"id": "http://foreign.example/"}])

        trial.run(damage)
