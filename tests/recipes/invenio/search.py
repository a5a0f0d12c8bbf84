"""Takes the place of OpenSearch for invenio-oaiserver: lists documents.json, by date, in pages."""

from __future__ import annotations

import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

DOCUMENTS = Path("documents.json")
_FROM = re.compile(r'"gte": ?"([^"]*)"')
_numbers = count()
#: What remains of each search that is read in pages, and the size of its pages.
_scrolls: dict[str, tuple[list[Any], int]] = {}


def _found(hits: list[Any], size: int, total: int, scroll: str | None = None) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "took": 1,
        "timed_out": False,
        "_shards": {"total": 1, "successful": 1, "skipped": 0, "failed": 0},
        "hits": {"total": {"value": total, "relation": "eq"}, "hits": hits[:size]},
    }
    return answer if scroll is None else {**answer, "_scroll_id": scroll}


def _search(query: dict[str, Any], *, scrolls: bool) -> dict[str, Any]:
    since = _FROM.search(json.dumps(query))
    documents = json.loads(DOCUMENTS.read_text()) if DOCUMENTS.exists() else {}
    hits = [
        {"_index": "records", "_id": name, "_version": 1, "_score": 1.0, "_source": document}
        for name, document in sorted(documents.items())
        if since is None or document["updated"][:19] + "Z" >= since[1]
    ]
    size, scroll = query.get("size", 10), None
    if scrolls:
        scroll = f"{next(_numbers)} {len(hits)}"
        _scrolls[scroll] = hits[size:], size
    return _found(hits, size, len(hits), scroll)


def _next_page(scroll: str) -> dict[str, Any]:
    hits, size = _scrolls[scroll]
    _scrolls[scroll] = hits[size:], size
    return _found(hits, size, int(scroll.split()[1]), scroll)


class Search(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        query = json.loads(body) if body.startswith(b"{") else {}
        if "percolator" in self.path:  # the sets of records
            answer = _found([], 10, 0)
        elif self.path.startswith("/_search/scroll"):
            is_end = self.command == "DELETE"
            answer = {"succeeded": True} if is_end else _next_page(query["scroll_id"])
        elif "_search" in self.path:
            answer = _search(query, scrolls="scroll=" in self.path)
        else:
            answer = {"version": {"number": "2.11.0", "distribution": "opensearch"}}
        text = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    do_GET = do_HEAD = do_PUT = do_DELETE = do_POST

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Search).serve_forever()
