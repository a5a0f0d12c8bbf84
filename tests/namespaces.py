"""Machines of their own for processes: network namespaces on one switch, which can be cut off."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import pytest

T = TypeVar("T")

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000
#: Where Debian keeps `ip`, too.
_ENVIRONMENT = {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}


class Namespace:
    """A network namespace with an interface of its own, which ends with this process."""

    def __init__(self, address: str = "") -> None:
        self.address = address
        # `cat` ends with this process, and the namespace with it.
        self._holder = subprocess.Popen(
            ("unshare", "--net", "cat"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.write(b"ready\n")
        self._holder.stdin.flush()
        if self._holder.stdout.readline() != b"ready\n":
            pytest.skip("network namespaces cannot be made here: they need root")
        self._file = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self.ip("link", "set", "lo", "up")

    @property
    def pid(self) -> int:
        return self._holder.pid

    def ip(self, *arguments: str) -> None:
        command = ("nsenter", f"--net=/proc/{self.pid}/ns/net", "ip", *arguments)
        subprocess.run(command, check=True, env=_ENVIRONMENT, capture_output=True)

    def enter(self) -> None:
        """Move this thread into it; as `preexec_fn`, a process."""
        if _LIBC.setns(self._file, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")

    def call(self, function: Callable[[], T]) -> T:
        found: list[T] = []

        def run() -> None:
            self.enter()
            found.append(function())

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return found[0]

    def listen(self, port: int = 0) -> socket.socket:
        """Return a socket that listens on its loopback address."""
        return self.call(lambda: socket.create_server(("127.0.0.1", port)))

    def connect(self, port: int) -> socket.socket:
        return self.call(lambda: socket.create_connection(("127.0.0.1", port)))

    def close(self) -> None:
        os.close(self._file)
        self._holder.kill()
        self._holder.communicate()


class Network:
    """Namespaces that reach each other by their addresses."""

    def __init__(self, switch: Namespace, machines: Sequence[Namespace]) -> None:
        self._switch = switch
        self.machines = machines
        switch.ip("link", "add", "bridge", "type", "bridge")
        switch.ip("link", "set", "bridge", "up")
        for number, machine in enumerate(machines):
            pair = ("link", "add", f"port{number}", "type", "veth")
            switch.ip(*pair, "peer", "name", "eth0", "netns", str(machine.pid))
            switch.ip("link", "set", f"port{number}", "up", "master", "bridge")
            machine.ip("address", "add", f"{machine.address}/24", "dev", "eth0")
            machine.ip("link", "set", "eth0", "up")

    def cut_off(self, machine: Namespace) -> None:
        """Lose all packets between a machine and the others."""
        self._switch.ip("link", "set", f"port{self.machines.index(machine)}", "nomaster")

    def heal(self, machine: Namespace) -> None:
        port = f"port{self.machines.index(machine)}"
        self._switch.ip("link", "set", port, "master", "bridge")


@contextmanager
def network(number: int) -> Iterator[Network]:
    """Make some machines; skip the test where that is not permitted."""
    if os.geteuid() != 0 or any(shutil.which(tool) is None for tool in ("unshare", "nsenter")):
        pytest.skip("network namespaces need root, unshare and nsenter")
    made: list[Namespace] = []
    try:
        made.append(Namespace())
        made.extend(Namespace(f"10.77.0.{each + 1}") for each in range(number))
        yield Network(made[0], made[1:])
    finally:
        for namespace in made:
            namespace.close()
