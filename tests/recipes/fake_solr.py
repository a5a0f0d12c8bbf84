"""Imitates the requests to Solr that the recipe uses; its documents survive as a file.

What is not committed is neither visible nor kept, as in Solr without its log.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

FILE = Path("solr.json")
lock = Lock()
documents: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
updated = dict(documents)


class Solr(BaseHTTPRequestHandler):
    """One core with the fields of the default configuration."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        given = {name: values[0] for name, values in parse_qs(asked.query).items()}
        assert asked.path == "/solr/resources/select"
        assert (given["q"], given["sort"]) == ("*:*", "id asc")
        after = "" if given["cursorMark"] == "*" else given["cursorMark"]
        with lock:
            ids = sorted(id for id in documents if id > after)[: int(given["rows"])]
            names = given["fl"].split(",")
            docs = [{k: v for k, v in documents[id].items() if k in names} for id in ids]
        mark = ids[-1] if ids else given["cursorMark"]
        self._answer(200, {"response": {"docs": docs}, "nextCursorMark": mark})

    def do_POST(self) -> None:
        asked = urlsplit(self.path)
        assert asked.path == "/solr/resources/update"
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with lock:
            if isinstance(body, list):
                for document in body:
                    if not all(_is_field(*field) for field in document.items()):
                        self._answer(400, {"error": {"msg": f"unknown field {document['id']}"}})
                        return
                    updated[document["id"]] = {k: v for k, v in document.items() if v is not None}
            else:
                for id in body.get("delete", ()):
                    updated.pop(id, None)
            if "commit" in body or "commit=true" in asked.query:
                documents.clear()
                documents.update(updated)
                temporary = FILE.with_suffix(".new")
                temporary.write_text(json.dumps(documents))
                temporary.replace(FILE)
        self._answer(200, {"responseHeader": {"status": 0}})

    def _answer(self, status: int, answer: object) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the output clean."""


def _is_field(name: str, value: object) -> bool:
    kinds = {"_s": str, "_l": int, "_txt_en": str}
    kind = next((kind for end, kind in kinds.items() if name.endswith(end)), str)
    known = name == "id" or any(name.endswith(end) for end in kinds)
    return known and (value is None or isinstance(value, kind))


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Solr).serve_forever()
