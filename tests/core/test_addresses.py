"""Connecting to a name with several addresses, some of which are dead."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.runtime.addresses import Connector, Dialer, any_socket, is_proxied, refusal
from rsnotify.sync.retry import Alternatives
from tests.ports import port_for
from tests.resolving import not_answering, resolve

NAME = "hub.example"


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server at the last of two addresses, the first of which refuses; its port."""
    resolve(monkeypatch, NAME, "127.0.0.1", "127.0.0.2")
    with socket.create_server(("127.0.0.2", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch, alive: int) -> Iterator[int]:
    """The same where the first address does not answer."""
    resolve(monkeypatch, NAME, "127.0.0.3", "127.0.0.2")
    with not_answering("127.0.0.3", alive):
        yield alive


async def peer(dialer: Dialer, port: int) -> str:
    with await dialer.dial(NAME, port) as connected:
        host: str = connected.getpeername()[0]
        return host


@pytest.mark.parametrize("server", ["alive", "late"])
async def test_an_address_that_refuses_or_does_not_answer_is_passed_over(
    server: str, request: pytest.FixtureRequest
) -> None:
    assert await peer(Dialer(), request.getfixturevalue(server)) == "127.0.0.2"


async def test_an_address_that_failed_after_it_was_dialled_comes_last_next_time(alive: int) -> None:
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


class CancellingSocket(socket.socket):
    """Cancels a task when it is closed: the moment in which another attempt has connected."""

    task: asyncio.Task[Any] | None = None

    def close(self) -> None:
        if self.task is not None:
            self.task.cancel()
        super().close()


def cancelling(info: Any) -> socket.socket:
    return CancellingSocket(*info[:3])


async def dial(port: int) -> None:
    await Dialer(create=cancelling).dial(NAME, port)


async def request(port: int) -> None:
    connector = Connector(socket_factory=cancelling, resolver=aiohttp.ThreadedResolver())
    async with aiohttp.ClientSession(connector=connector) as session:
        await session.get(f"http://{NAME}:{port}/")


@pytest.mark.parametrize("connect", [dial, request])
async def test_a_cancellation_while_the_slower_attempt_ends_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, late: int, connect: Callable[[int], Coroutine[Any, Any, None]]
) -> None:
    connecting = asyncio.create_task(connect(late))
    monkeypatch.setattr(CancellingSocket, "task", connecting)
    with pytest.raises(asyncio.CancelledError):
        await connecting


async def test_the_time_limit_of_a_request_holds_in_that_moment_too(late: int) -> None:
    expired = asyncio.timeout(None)

    class Expiring(socket.socket):
        def close(self) -> None:
            if expired.when() is None:
                expired.reschedule(0)
            super().close()

    async def dial_and_wait() -> None:
        async with expired:
            with await Dialer(create=lambda info: Expiring(*info[:3])).dial(NAME, late):
                await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await dial_and_wait()


# Which addresses a stranger may make us dial; `tests/security/addresses.toml` has single ones.


def test_what_is_no_ip_address_is_refused() -> None:
    assert refusal("public.example")


PRIVATE = [
    IPv4Network(network)
    for network in ("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16",
                    "172.16.0.0/12", "192.168.0.0/16", "224.0.0.0/4", "240.0.0.0/4")
]  # fmt: skip
#: Where an IPv6 address holds an IPv4 address: the bits before it, and those after it.
CLOTHES = {
    "mapped (RFC 4291 §2.5.5.2)": ("::ffff:0:0", 0),
    "compatible (RFC 4291 §2.5.5.1)": ("::", 0),
    "translated (RFC 2765 §2.1)": ("::ffff:0:0:0", 0),
    "NAT64 (RFC 6052 §2.1)": ("64:ff9b::", 0),
    "local NAT64 (RFC 8215)": ("64:ff9b:1::", 0),
    "6to4 (RFC 3056 §2)": ("2002::", 80),
    "Teredo's server (RFC 4380 §4)": ("2001::", 64),
    "ISATAP (RFC 5214 §6.1)": ("2606:4700::5efe:0:0", 0),
    "link-local ISATAP": ("fe80::5efe:0:0", 0),
}

private_addresses = st.sampled_from(PRIVATE).flatmap(
    lambda network: st.integers(0, network.num_addresses - 1).map(lambda number: network[number])
)


@given(private_addresses, st.sampled_from(sorted(CLOTHES)), st.sampled_from(["", "%eth0", "%1"]))
def test_no_private_address_is_dialled_in_whatever_clothes(
    address: IPv4Address, clothes: str, zone: str
) -> None:
    prefix, shift = CLOTHES[clothes]
    dressed = IPv6Address(int(IPv6Address(prefix)) | int(address) << shift)
    assert refusal(str(address))
    for spelling in (str(dressed), dressed.exploded, str(dressed).upper()):
        assert refusal(spelling + zone), (clothes, spelling)


@given(st.integers(0, 2**128 - 1))
def test_of_ipv6_only_the_internet_s_own_unicast_is_dialled(number: int) -> None:
    address = IPv6Address(number)
    if refusal(str(address)) is None:
        assert number >> 125 == 1 or address.ipv4_mapped is not None


# Names are looked up in threads, also in a process that was forked.


#: Seconds; only what hangs takes them.
PATIENCE = 60

FORKING = f"""
import asyncio, os, time
from rsnotify.runtime import addresses
from rsnotify.runtime.addresses import look_up

async def main():
    async with asyncio.timeout({PATIENCE}):
        return await look_up("127.0.0.1", 80)

asyncio.run(main())
while not addresses._lookup_threads._idle._value:
    time.sleep(0.01)  # until the thread waits for the next name
child = os.fork()
if child == 0:
    os._exit(0 if asyncio.run(main()) else 1)
assert asyncio.run(main())
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_process_that_was_forked_after_a_lookup_looks_up_names():
    ended = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING],
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE,
        check=False,
    )
    assert (ended.stdout, ended.stderr) == ("0\n", "")
