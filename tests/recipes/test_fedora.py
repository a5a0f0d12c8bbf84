"""The program of the recipe for Fedora, with a broker and a search like Fedora's."""

from __future__ import annotations

import json
import re
import threading
from collections import deque
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.publisher.helpers import eventually
from tests.recipes.trial import Trial, block

pytestmark = pytest.mark.slow

PAGE = "fedora.md"
NOW = "2026-11-27T15:00:00.123456Z"


class Fedora:
    """A repository: its search, its resources, and a queue of messages that are acknowledged."""

    def __init__(self) -> None:
        self.resources: dict[str, str] = {}
        self.waiting: deque[dict[str, Any]] = deque()
        self.unacknowledged: dict[str, dict[str, Any]] = {}
        self.news = threading.Condition()
        self.broker = ThreadingTCPServer(("127.0.0.1", 0), Broker)
        self.broker.fedora = self  # type: ignore[attr-defined]
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Rest)
        self.http.fedora = self  # type: ignore[attr-defined]
        for server in (self.broker, self.http):
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/rest"

    def put(self, name: str, body: str) -> None:
        kind = "Update" if name in self.resources else "Create"
        self.resources[name] = body
        self._send(kind, name)

    def delete(self, name: str) -> None:
        del self.resources[name]
        self._send("Delete", name)
        self._send("Purge", name)

    def _send(self, kind: str, name: str) -> None:
        with self.news:
            what = {"id": f"{self.url}/{name}", "isPartOf": self.url}
            self.waiting.append({"type": [kind], "published": NOW, "object": what})
            self.news.notify_all()

    def close(self) -> None:
        for server in (self.broker, self.http):
            server.shutdown()
            server.server_close()


class Rest(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        fedora: Fedora = self.server.fedora  # type: ignore[attr-defined]
        url = urlsplit(self.path)
        name = url.path.removeprefix("/rest/")
        status, body = 200, fedora.resources.get(name, "")
        if name == "fcr:search":
            query = parse_qs(url.query)
            begin, most = int(query["offset"][0]), int(query["max_results"][0])
            names = sorted(fedora.resources)[begin:][:most]
            items = [{"fedora_id": f"{fedora.url}/{one}", "modified": NOW} for one in names]
            pages = {"offset": begin, "maxResults": most, "totalResults": len(fedora.resources)}
            body = json.dumps({"pagination": pages, "items": items})
        elif name not in fedora.resources:
            status = 404
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


class Broker(StreamRequestHandler):
    """STOMP 1.2, as far as one subscriber needs it."""

    def handle(self) -> None:
        fedora: Fedora = self.server.fedora  # type: ignore[attr-defined]
        sent: set[str] = set()
        try:
            while frame := self._read():
                command, headers = frame
                if command in ("CONNECT", "STOMP"):
                    self._write("CONNECTED", {"version": "1.2", "heart-beat": "0,0"})
                elif command == "SUBSCRIBE":
                    assert headers["ack"] == "client-individual"
                    threading.Thread(target=self._deliver, args=(sent,), daemon=True).start()
                elif command == "ACK":
                    with fedora.news:
                        del fedora.unacknowledged[headers["id"]]
        finally:  # what was not acknowledged is delivered again
            with fedora.news:
                for number in sorted(sent & fedora.unacknowledged.keys(), reverse=True):
                    fedora.waiting.appendleft(fedora.unacknowledged.pop(number))
                self._ended = True
                fedora.news.notify_all()

    _ended = False

    def _deliver(self, sent: set[str]) -> None:
        fedora: Fedora = self.server.fedora  # type: ignore[attr-defined]
        while True:
            with fedora.news:
                fedora.news.wait_for(lambda: fedora.waiting or self._ended)
                if self._ended:
                    return
                message = fedora.waiting.popleft()
                number = f"{id(message)}-{len(sent):09}"
                fedora.unacknowledged[number] = message
                sent.add(number)
            headers = {"subscription": "1", "message-id": number, "ack": number}
            self._write("MESSAGE", {**headers, "destination": "/queue/fedora"}, json.dumps(message))

    def _read(self) -> tuple[str, dict[str, str]] | None:
        data = bytearray()
        while not data.endswith(b"\0"):
            byte = self.rfile.read(1)
            if not byte:
                return None
            if byte != b"\n" or data:
                data += byte
        head = data.decode().partition("\n\n")[0].splitlines()
        return head[0], dict(line.split(":", 1) for line in head[1:])

    def _write(self, command: str, headers: dict[str, str], body: str = "") -> None:
        lines = [command, *(f"{name}:{value}" for name, value in headers.items()), "", body]
        self.wfile.write("\n".join(lines).encode() + b"\0")


@pytest.fixture
def fedora() -> Iterator[Fedora]:
    pytest.importorskip("stomp", reason="stomp.py is missing: pip install stomp.py")
    found = Fedora()
    yield found
    found.close()


def test_messages_are_published(tmp_path: Path, fedora: Fedora):
    port = str(fedora.broker.server_address[1])
    known = {
        "https://fedora.example/rest": fedora.url,
        '"fedora.example", 61613': f'"127.0.0.1", {port}',
    }
    fedora.resources["first"] = "There from the beginning"
    with Trial(tmp_path / "here", known) as trial:
        trial.write("fedora.py", block(PAGE, "# fedora.py"))
        trial.start("python fedora.py", re.compile("Running on"))
        trial.follow("https://push.example/")
        trial.copies("There from the beginning")
        fedora.put("hills", "A first version")
        trial.copies("A first version")
        fedora.put("hills", "Another version")
        trial.copies("Another version")
        fedora.delete("hills")
        trial.loses("Another version")
        eventually(lambda: not fedora.waiting and not fedora.unacknowledged)
        trial.end(["python fedora.py"])
        fedora.put("valleys", "Written while nobody listened")
        trial.start("python fedora.py", re.compile("Running on"))
        trial.copies("Written while nobody listened")
        trial.do_once("rsnotify validate https://push.example/.well-known/resourcesync")
        trial.end()
