"""Ports that stay free for the test or benchmark that reserved them."""

from __future__ import annotations

import atexit
import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from weakref import finalize

from rsnotify.runtime.processes import ProcessError

#: Below the range of ephemeral ports, which systems assign themselves.
_PORTS = range(20_000, 32_000)
_claims: list[socket.socket] = []


def free_port() -> int:
    """Return a free port of loopback, which stays free until it is used.

    The system does not assign it to other programs, since it is not an ephemeral port. And this
    function does not return it again, in any process, until the test that reserved it has ended.
    """
    for _ in _PORTS:
        port = random.choice(_PORTS)
        if _claim(port):
            return port
    raise ProcessError("no port of this machine is free")


def _claim(port: int) -> bool:
    """Reserve a port by opening the UDP port of the same number."""
    with ExitStack() as stack, socket.socket() as listener:
        claim = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        try:
            claim.bind(("127.0.0.1", port))
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        _claims.append(claim)
        stack.pop_all()
        return True


@contextmanager
def released() -> Iterator[None]:
    before = len(_claims)
    try:
        yield
    finally:
        _release(before)


def _release(kept: int = 0) -> None:
    while len(_claims) > kept:
        _claims.pop().close()


atexit.register(_release)


def port_for(owner: object, host: str = "127.0.0.1", port: int = 0) -> int:
    """Return a port of loopback that stays reserved as long as its owner exists.

    Args:
        owner: The listener, which uses SO_REUSEADDR, and may stop and start again.
        host: Its address.
        port: The port; 0 for any that is free.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # It is bound and does not listen, so that connections to it are refused.
    holder.bind((host, port))
    finalize(owner, holder.close)
    bound: int = holder.getsockname()[1]
    return bound
