"""Opens connections to hosts: name resolution, fallback between addresses, and address checks.

A host may have several addresses, some of them unreachable; `Dialer` tries them in order.
`open_session` returns an aiohttp client for untrusted URLs: of topics and callbacks in a hub, of
documents in a subscriber or gateway. The function that creates the sockets decides which addresses
are allowed: `any_socket`, or one returned by `public_sockets`.

Untrusted input can only cause connections to public addresses. `refusal` has its own table, because
`ipaddress.is_global` accepts NAT64, 6to4 and v4-compatible addresses, which reach an arbitrary IPv4
address.

`look_up` resolves names in dedicated threads. If the server of a name does not answer, the thread
blocks for many seconds. In the shared thread pool, a few such names would delay all other work, and
the program would wait for them when it stops.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from ipaddress import IPv6Address, ip_address, ip_network
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohappyeyeballs
import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection

from rsnotify.runtime.tasks import complete
from rsnotify.sync.retry import Alternatives

#: Maximum time to connect to any address of a host, in seconds.
TIMEOUT = 10.0
#: Time after which to try the next address in parallel, in seconds (RFC 8305 §8).
_HAPPY_EYEBALLS_DELAY = 0.25

#: Maximum number of unread responses per connection in a session.
MAX_RESPONSES = 20

#: An IP address and a port.
Address = tuple[str, int]


def any_socket(info: Any) -> socket.socket:
    """Return a socket for an address, as returned by `getaddrinfo`."""
    return socket.socket(*info[:3])


def is_proxied(websocket: str) -> bool:
    """Return whether the environment has a proxy that `websockets` may use for a URI."""
    parts = urlsplit(websocket)
    schemes = {"wss": ("wss", "socks", "https")}.get(parts.scheme, ("ws", "socks", "https", "http"))
    names_one = any(scheme in getproxies() for scheme in schemes)
    return names_one and not proxy_bypass(parts.netloc)


class Dialer:
    """Opens the TCP connections for one attempt to use a service.

    `memory` has the addresses that failed in earlier attempts. `create` returns a socket for an
    address, or raises OSError if the address is not allowed.
    """

    def __init__(
        self,
        memory: Alternatives[Address] | None = None,
        create: Callable[[Any], socket.socket] = any_socket,
    ) -> None:
        self.memory: Alternatives[Address] = Alternatives() if memory is None else memory
        self._create = create
        self._dialled: dict[Address, None] = {}

    async def dial(self, host: str, port: int) -> socket.socket:
        """Return a socket connected to the first allowed address that accepts a connection.

        Raises:
            OSError: No address is reachable. If all fail in the same way, this is their error.
            TimeoutError: No address answers in time.
        """
        requested = _cancellations()
        async with asyncio.timeout(TIMEOUT):
            try:
                found = await look_up(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
                infos = {_address(info): info for info in found}
                order = self.memory.order(infos)
                connected = await aiohappyeyeballs.start_connection(
                    [infos[address] for address in order],
                    happy_eyeballs_delay=_HAPPY_EYEBALLS_DELAY,
                    socket_factory=self.create_socket,
                )
            # Raised by aiohappyeyeballs and uvloop. ValueError also means an invalid host name.
            except (RuntimeError, ValueError) as error:
                raise OSError(str(error)) from error
            if _cancellations() > requested:
                connected.close()
                raise asyncio.CancelledError
            return connected

    def create_socket(self, info: Any) -> socket.socket:
        """Return a socket for an address, and record the attempt."""
        sock = self._create(info)
        self._dialled[_address(info)] = None
        return sock

    def failed(self) -> None:
        """Record a failure of all dialled addresses, which the next attempt then tries last."""
        for address in self._dialled:
            self.memory.failed(address)
        self._dialled.clear()


class Connector(aiohttp.TCPConnector):
    """An aiohttp connector that does not lose cancellations."""

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[aiohttp.tracing.Trace],
        timeout: aiohttp.ClientTimeout,
    ) -> Connection:
        requested = _cancellations()
        connection = await super().connect(req, traces, timeout)
        if _cancellations() > requested:
            connection.close()
            raise asyncio.CancelledError
        return connection


def _cancellations() -> int:
    """Return how many cancellations of this task were requested.

    `aiohappyeyeballs` loses a cancellation that arrives after one attempt has connected, while it
    ends the slower attempts. The task would continue, and its canceller would wait forever.
    """
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _address(info: Any) -> Address:
    host, port = info[4][:2]
    return host, port


# In IPv6, only 2000::/3 is global unicast, except for the networks listed below.
_GLOBAL_6 = ip_network("2000::/3")
_REFUSED = [
    (ip_network(network), name)
    for network, name in (
        ("0.0.0.0/8", "this network"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared (carrier-grade NAT)"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "internal services of a cloud"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved for protocols"),
        ("192.0.2.0/24", "documentation"),
        ("192.31.196.0/24", "AS112"),
        ("192.52.193.0/24", "AMT"),
        ("192.88.99.0/24", "6to4 relay"),
        ("192.168.0.0/16", "private"),
        ("192.175.48.0/24", "AS112"),
        ("198.18.0.0/15", "benchmarking"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
        ("2001::/23", "reserved for protocols such as Teredo"),
        ("2001:db8::/32", "documentation"),
        ("2002::/16", "6to4"),
        ("2620:4f:8000::/48", "AS112"),
        ("3fff::/20", "documentation"),
    )
]
# The interface identifiers of ISATAP (RFC 5214 §6.1), followed by an IPv4 address.
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)


def refusal(address: str) -> str | None:
    """Return why an IP address is not allowed for untrusted input; None if it is allowed."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return "not an IP address"
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        elif ip not in _GLOBAL_6:
            return "not a public IPv6 address"
        elif (int(ip) >> 32) & 0xFFFF_FFFF in _ISATAP:
            return "ISATAP"
    return next((name for network, name in _REFUSED if ip in network), None)


def public_sockets(refused: Callable[[str], OSError]) -> Callable[[Any], socket.socket]:
    """Return a variant of `any_socket` for public addresses only.

    For other addresses, it raises the error that `refused` returns for a reason.
    """

    def make(info: Any) -> socket.socket:
        if (reason := refusal(str(info[4][0]))) is not None:
            raise refused(reason)
        return any_socket(info)

    return make


#: Maximum number of names to resolve concurrently.
MAX_LOOKUPS = 128


class _LookupThreads:
    """A pool of daemon threads. Unlike the threads of an executor, they do not delay the exit."""

    def __init__(self) -> None:
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin)  # the child has no threads

    def _begin(self) -> None:
        self._count = 0
        self._idle = Semaphore(0)
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._work.put((future, work))
        if not self._idle.acquire(blocking=False) and self._count < MAX_LOOKUPS:
            self._count += 1
            Thread(target=self._run, name=f"lookup-{self._count}", daemon=True).start()
        return future

    def _run(self) -> None:
        while True:
            future, work = self._work.get()
            if future.set_running_or_notify_cancel():
                complete(future, work)
            self._idle.release()


_lookup_threads = _LookupThreads()


async def look_up(host: str, port: int, **options: Any) -> list[Any]:
    """Call `socket.getaddrinfo` in a dedicated thread, and return its result."""
    work = partial(socket.getaddrinfo, host, port, **options)
    return await asyncio.wrap_future(_lookup_threads.submit(work))


def _address_text(address: Any) -> str:
    """Return the IP address in a sockaddr. A link-local IPv6 address includes its interface."""
    host, scope = address[0], address[3] if len(address) == 4 else 0
    return f"{host}%{scope}" if scope else str(host)


class AddressResolver(AbstractResolver):
    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await look_up(
            host, port, type=socket.SOCK_STREAM, family=family, flags=socket.AI_ADDRCONFIG
        )
        return [
            ResolveResult(
                hostname=host,
                host=_address_text(address),
                port=int(address[1]),
                family=kind,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, protocol, _, address in found
        ]

    async def close(self) -> None: ...


class _BoundedResponses(ResponseHandler):
    """Aborts a connection with more responses than one request can have.

    aiohttp accepts any number of 1xx responses, and keeps them in memory until they are read.
    """

    def feed_data(self, data: Any, size: int = 0) -> None:
        if len(self._buffer) < MAX_RESPONSES:
            super().feed_data(data, size)
        elif self.transport is not None:
            self.transport.abort()


def open_session(
    create_socket: Callable[[Any], socket.socket],
    fields: Mapping[str, str],
    *,
    timeout: aiohttp.ClientTimeout,
    tls: ssl.SSLContext | None = None,
) -> aiohttp.ClientSession:
    """Return a session without cookies. The caller must limit the number of concurrent requests.

    `create_socket` raises OSError for an address that is not allowed. `fields` are the header
    fields of all requests. Without `tls`, the system's certificates are trusted.
    """
    connector = Connector(
        resolver=AddressResolver(), socket_factory=create_socket, limit=0, ssl=tls or True
    )
    factory = partial(_BoundedResponses, loop=asyncio.get_running_loop())
    connector._factory = factory  # type: ignore[assignment]
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=timeout,
        auto_decompress=False,  # against decompression bombs
        headers=fields,
    )
