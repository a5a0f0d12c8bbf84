"""Connecting to a name with several addresses, some of which are dead."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from rsnotify.runtime.dialing import Dialer, any_socket, is_proxied
from rsnotify.sync.alternatives import Alternatives
from tests.ports import port_for
from tests.resolving import not_answering, resolve

NAME = "hub.example"


@pytest.fixture
def alive() -> Iterator[int]:
    """A server at 127.0.0.2; its port."""
    with socket.create_server(("127.0.0.2", 0)) as server:
        yield server.getsockname()[1]


async def peer(dialer: Dialer, port: int) -> str:
    with await dialer.dial(NAME, port) as connected:
        host: str = connected.getpeername()[0]
        return host


async def test_an_address_that_refuses_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, alive: int
) -> None:
    resolve(monkeypatch, NAME, "127.0.0.1", "127.0.0.2")
    assert await peer(Dialer(), alive) == "127.0.0.2"


async def test_an_address_that_does_not_answer_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, alive: int
) -> None:
    resolve(monkeypatch, NAME, "127.0.0.3", "127.0.0.2")
    with not_answering("127.0.0.3", alive):
        assert await peer(Dialer(), alive) == "127.0.0.2"


async def test_an_address_that_failed_after_it_was_dialled_comes_last_next_time(
    monkeypatch: pytest.MonkeyPatch, alive: int
) -> None:
    resolve(monkeypatch, NAME, "127.0.0.1", "127.0.0.2")
    memory: Alternatives[tuple[str, int]] = Alternatives()
    with socket.create_server(("127.0.0.1", alive)):
        first, second, third = (Dialer(memory) for _ in range(3))
        assert await peer(first, alive) == "127.0.0.1"
        first.failed()
        assert await peer(second, alive) == "127.0.0.2"
        second.failed()
        assert await peer(third, alive) == "127.0.0.1"


async def test_each_address_is_checked(monkeypatch: pytest.MonkeyPatch, alive: int) -> None:
    resolve(monkeypatch, NAME, "127.0.0.1", "127.0.0.2", "127.0.0.3")

    def only_the_last(info: Any) -> socket.socket:
        if info[4][0] != "127.0.0.3":
            raise PermissionError("not allowed")
        return any_socket(info)

    with socket.create_server(("127.0.0.1", alive)), socket.create_server(("127.0.0.3", alive)):
        assert await peer(Dialer(create=only_the_last), alive) == "127.0.0.3"
    with pytest.raises(OSError, match=r"not allowed.*refused|not allowed.*Connect call failed"):
        await peer(Dialer(create=only_the_last), alive)


async def test_a_name_without_a_living_address_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolve(monkeypatch, NAME, "127.0.0.1", "127.0.0.2")
    owner = Dialer()
    with pytest.raises(OSError, match="Connect call failed"):
        await peer(owner, port_for(owner))


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"https_proxy": "http://proxy.example:3128"}, True),
        ({"https_proxy": "http://proxy.example:3128", "no_proxy": "hub.example"}, False),
        ({"https_proxy": "http://proxy.example:3128", "no_proxy": "other.example"}, True),
    ],
)
def test_a_proxy_makes_the_connection_where_the_environment_names_one(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: bool
) -> None:
    for name in ("socks_proxy", "https_proxy", "http_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_proxied("wss://hub.example:8443/ws") is expected
