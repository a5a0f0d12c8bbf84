"""Names with several addresses of loopback, and addresses that do not answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


def resolve(monkeypatch: pytest.MonkeyPatch, name: str, *addresses: str) -> None:
    """Resolve a name to these addresses, always in this order."""
    real = socket.getaddrinfo

    def answer(host: Any, *arguments: Any, **options: Any) -> Any:
        if host not in (name, name.encode()):
            return real(host, *arguments, **options)
        return [info for each in addresses for info in real(each, *arguments, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", answer)


@contextmanager
def not_answering(host: str, port: int = 0) -> Iterator[int]:
    """Occupy an address so that a connection to it neither opens nor fails; return the port."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(0)
        waiting = []
        try:
            while True:  # until the queue of the listener is full
                client = socket.socket()
                waiting.append(client)
                client.settimeout(0.1)
                try:
                    client.connect(listener.getsockname())
                except TimeoutError:
                    break
            yield listener.getsockname()[1]
        finally:
            for client in waiting:
                client.close()


@contextmanager
def hanging(host: str, port: int = 0) -> Iterator[int]:
    """Accept connections at an address and never answer; return the port."""
    with socket.create_server((host, port)) as listener:
        yield listener.getsockname()[1]
