"""A network without a way out: names of `.test`, and a record of every attempt to connect.

The record is made where a socket is connected, below all libraries and all checks.
"""

from __future__ import annotations

import socket
from collections import defaultdict
from contextlib import suppress
from typing import Any

import pytest

#: The first of the ports that belong to vectors.
PORTS = 20_000
#: A public address, at which servers of the test are reached, and its name.
PUBLIC, SITE = "9.9.9.1", "site.test"
_connect = socket.socket.connect
_getaddrinfo = socket.getaddrinfo


class Network:
    """What a name server answers, and which addresses were dialled.

    Attributes:
        answers: The answers for each name, one for each lookup; the last one stays.
        dialled: The addresses, without those of servers of the test, by port.
    """

    def __init__(self) -> None:
        self.answers: dict[str, list[list[str]]] = {SITE: [[PUBLIC]]}
        self.dialled: dict[int, set[str]] = defaultdict(set)
        self._lookups: dict[str, int] = defaultdict(int)

    def connect(self, sock: socket.socket, address: Any) -> None:
        host, port = address[:2]
        ours = host in ("127.0.0.1", PUBLIC) and port > 1_023
        if not ours or port in range(PORTS, PORTS + 1_000):
            self.dialled[port].add(host)
            raise ConnectionRefusedError(111, "nobody is there")
        _connect(sock, ("127.0.0.1", port))

    def getaddrinfo(self, host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        key = (name or "").lower().removesuffix(".")
        if key not in self.answers:
            with suppress(socket.gaierror):  # as the system reads addresses, without a name server
                return _getaddrinfo(
                    name, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
                )
            raise socket.gaierror(socket.EAI_NONAME, f"nobody knows {name}")
        given = self.answers[key]
        found = given[min(self._lookups[key], len(given) - 1)]
        self._lookups[key] += 1
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, f"{name} has no address")
        return [info for each in found for info in self.getaddrinfo(each, port)]


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    network = Network()
    monkeypatch.setattr(socket.socket, "connect", lambda *given: network.connect(*given))
    monkeypatch.setattr(socket, "getaddrinfo", network.getaddrinfo)
    return network
