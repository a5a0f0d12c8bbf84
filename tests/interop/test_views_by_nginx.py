"""nginx serves the documents as files, with the line that the documentation gives."""

from __future__ import annotations

import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec.structs import replace

from rsnotify_publisher import Publisher
from tests.ports import free_port
from tests.publisher.helpers import PATIENCE, QUICK, eventually
from tests.publisher.view_consumers import LDESReader, read_iiif
from tests.reader import ROOT, fences_of
from tests.test_application_servers import server


def recipe(root: Path, port: int) -> str:
    page = (ROOT / "extensions/views/README.md").read_text()
    (documented,) = (body for name, body in fences_of(page) if name == "nginx")
    types = "include /etc/nginx/mime.types;"
    return f"{types} server {{ listen 127.0.0.1:{port}; root {root}; {documented} }}"


def get(uri: str) -> bytes:
    with urllib.request.urlopen(uri, timeout=PATIENCE) as answer:
        body: bytes = answer.read()
    return body


def test_consumers_follow_files_that_nginx_serves(tmp_path: Path):
    port = free_port()
    base = f"http://127.0.0.1:{port}/"
    options = replace(QUICK, views=("iiif", "ldes"), rotate="4 changes")
    with (
        server("nginx", recipe(tmp_path / "state/documents", port), tmp_path),
        Publisher(tmp_path / "state", base, options=options) as publisher,
    ):
        assert publisher.wait_published(PATIENCE)
        eventually((tmp_path / "run/pid").exists)
        created = [publisher.created(f"{base}{number}") for number in range(10)]
        # A view dates changes of a resource within a millisecond otherwise than the Change List.
        eventually(lambda: datetime.now(UTC) - created[3].datetime > timedelta(milliseconds=1))
        last = publisher.deleted(base + "3")
        reader = LDESReader(base + "resourcesync/ldes.ttl", get)

        def synchronized() -> bool:
            reader.synchronize()
            return reader.history[-1:] == [(base + "3", "Delete", last.datetime)]

        eventually(synchronized)
        assert read_iiif(base + "resourcesync/iiif.json", get) == reader.history
        for name, type_ in {"iiif.json": "application/json", "ldes.ttl": "text/turtle"}.items():
            with urllib.request.urlopen(f"{base}resourcesync/{name}") as answer:
                assert answer.headers["Content-Type"] == type_
