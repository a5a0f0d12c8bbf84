"""What the trials of Destinations share: a store behind a proxy that fails, and their course."""

from __future__ import annotations

import http.client
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.ports import free_port
from tests.publisher.helpers import SourceProcess, eventually
from tests.recipes.trial import block

#: Seconds; a trial that takes longer has failed.
PATIENCE = 60


class Proxy:
    """Forwards requests to a store, unless it is to fail.

    Attributes:
        fails: How the next requests fail: by an HTTP status, or a closed connection if it is 0.
        answered: How many requests were answered with a failure.
        alters: Replaces the answer to a request, whose path and body it receives; for bulk requests
            that fail in part.
    """

    def __init__(self, port: int) -> None:
        self.fails: int | None = None
        self.answered = 0
        self.alters: Callable[[str, bytes], bytes | None] = lambda path, body: None
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if proxy.fails is not None:
                    proxy.answered += 1
                    self.close_connection = True
                    if proxy.fails:
                        self.send_response(proxy.fails)
                        self.send_header("Content-Length", "0")
                        self.end_headers()
                    return
                answer = proxy.alters(self.path, body)
                if answer is not None:
                    self.reply(200, {"Content-Type": "application/json"}, answer)
                    return
                store = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
                try:
                    headers = {k: v for k, v in self.headers.items() if k.lower() != "expect"}
                    store.request(self.command, self.path, body, headers)
                    found = store.getresponse()
                    self.reply(found.status, dict(found.getheaders()), found.read())
                except (OSError, http.client.HTTPException):
                    self.close_connection = True
                finally:
                    store.close()

            def reply(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
                self.send_response_only(status)
                for name, value in headers.items():
                    if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                        self.send_header(name, value)
                length = headers.get("Content-Length", "0") if self.command == "HEAD" else len(body)
                if status != 204:
                    self.send_header("Content-Length", str(length))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward

            def log_message(self, format: str, *args: object) -> None:
                """Keep the output clean."""

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: object, client_address: object) -> None:
                """A client that was killed is no error."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Store(ABC):
    """A store that a recipe fills; started as a process."""

    #: Whether it has the same contents when it is started again.
    is_durable = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()
        self.proxy = Proxy(self.port)

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command that starts it."""

    @abstractmethod
    def contents(self) -> dict[str, str]:
        """Return what it has, by URI, as `expected` returns it."""

    def expected(self, content: bytes) -> str:
        return content.decode()

    def start(self) -> None:
        with (self.folder / "store.log").open("ab") as log:
            environment = {**os.environ, "AWS_ACCESS_KEY_ID": "S3RVER"}
            self._process = subprocess.Popen(
                self.command(), cwd=self.folder, stdout=log, stderr=log, env=environment
            )
        eventually(self._is_listening)

    def _is_listening(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None


class Aggregator:
    """The program of a recipe, as its reader runs it."""

    def __init__(self, page: str, name: str, folder: Path, known: Mapping[str, str]) -> None:
        text = block(page, f"# {name}")
        for theirs, ours in known.items():
            assert theirs in text, theirs
            text = text.replace(theirs, ours)
        (folder / name).write_text(text)
        self._folder, self._name = folder, name
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        environment = {
            **os.environ,
            "AWS_ACCESS_KEY_ID": "S3RVER",
            "AWS_SECRET_ACCESS_KEY": "S3RVER",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        with (self._folder / "aggregator.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, self._name, *arguments],
                cwd=self._folder,
                stdout=log,
                stderr=log,
                env=environment,
            )

    def kill(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, self.log()
        self._process.kill()
        self._process.wait()

    def interrupt(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        assert self._process.wait(PATIENCE) == 0, self.log()

    def log(self) -> str:
        return (self._folder / "aggregator.log").read_text()


class Course:
    """A Source of small files, an aggregator that follows it, and what happens to both."""

    def __init__(self, tmp_path: Path, store: Store, suffix: str, body: str) -> None:
        self.store = store
        self.data = tmp_path / "data"
        self.data.mkdir()
        self._suffix, self._body = suffix, body
        for number in range(300):
            self.put(number, 0)
        self.source = SourceProcess(self.data, "--port", "0", "--resource-list-every", "0.5")
        self.aggregator: Aggregator

    def put(self, number: int, version: int) -> None:
        text = self._body.format(number=number, version=version)
        path = self.data / f"{number}.{self._suffix}"
        temporary = self.data.parent / "temporary"
        temporary.write_text(text)
        temporary.rename(path)

    def delete(self, number: int) -> None:
        (self.data / f"{number}.{self._suffix}").unlink()

    def is_equal(self) -> bool:
        here = {
            self.source.url + path.name: self.store.expected(path.read_bytes())
            for path in self.data.iterdir()
        }
        return self.store.contents() == here

    def becomes_equal(self) -> None:
        try:
            eventually(self.is_equal)
        except AssertionError:
            print(self.aggregator.log()[-5000:])
            raise

    def run(self, damage: Callable[[str, str], None], *arguments: str) -> None:
        """Try everything.

        Args:
            damage: Deletes what the store has of the first URI, and changes what it has of the
                second; adds something that is foreign.
            arguments: With which the aggregator finds that.
        """
        program, store, proxy = self.aggregator, self.store, self.store.proxy
        # It is killed while it copies.
        program.start()
        eventually(lambda: len(store.contents()) > 20)
        program.kill()
        program.start()
        self.becomes_equal()
        # Changes of each kind.
        self.put(1, 1)
        self.put(1000, 1)
        self.delete(2)
        self.becomes_equal()
        # The store is away, or answers with an error, while each kind of change happens.
        for round, status in enumerate((0, 503, 429, 500)):
            proxy.answered, proxy.fails = 0, status
            self.put(3, 2 + round)
            self.put(2000 + round, 1)
            self.delete(10 + round)
            eventually(lambda: proxy.answered >= 3)
            proxy.fails = None
            self.becomes_equal()
            assert "waiting for the store" in program.log()
        if store.is_durable:
            store.stop()
            self.put(4, 1)
            self.delete(15)
            store.start()
            self.becomes_equal()
        # It is killed while its store is away, and resources are deleted meanwhile.
        proxy.answered, proxy.fails = 0, 503
        self.put(20, 9)
        self.put(21, 9)
        eventually(lambda: proxy.answered >= 1)
        program.kill()
        self.delete(20)
        self.delete(22)
        program.start()
        proxy.fails = None
        self.becomes_equal()
        # It is killed again and again while much changes.
        chance = random.Random(7)
        for version in range(6):
            for number in range(30, 120):
                if chance.random() < 0.3:
                    (self.data / f"{number}.{self._suffix}").unlink(missing_ok=True)
                else:
                    self.put(number, 100 + version)
            threading.Event().wait(chance.random())
            program.kill()
            program.start()
        self.becomes_equal()
        # Somebody else changes the store.
        program.interrupt()
        damage(f"{self.source.url}200.{self._suffix}", f"{self.source.url}201.{self._suffix}")
        assert not self.is_equal()
        program.start(*arguments)
        self.becomes_equal()
        # The state is lost.
        program.interrupt()
        for path in (program._folder / "state").iterdir():
            path.unlink() if path.is_file() else None
        self.delete(250)
        program.start()
        self.becomes_equal()
        program.interrupt()

    def close(self) -> None:
        if self.aggregator._process is not None:
            self.aggregator._process.kill()
            self.aggregator._process.wait()
        self.source.end()
        self.store.proxy.close()
        self.store.stop()


@contextmanager
def course(tmp_path: Path, store: Store, suffix: str, body: str) -> Iterator[Course]:
    made = Course(tmp_path, store, suffix, body)
    try:
        yield made
    finally:
        made.close()
