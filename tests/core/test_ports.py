"""Free ports, as programs and tests count on them."""

from __future__ import annotations

import os
import random
import socket

import pytest

from rsnotify.runtime.processes import ProcessError
from tests import ports
from tests.ports import free_port


def offer(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    """Try these first, one after another."""
    choice, rest = random.choice, iter(ports)
    monkeypatch.setattr(random, "choice", lambda every: next(rest, None) or choice(every))


def test_a_port_is_given_once_though_it_was_used_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = free_port(), free_port()
    with socket.create_server(("127.0.0.1", one)), socket.create_server(("127.0.0.1", other)):
        pass
    offer(monkeypatch, one, other)
    assert free_port() not in (one, other)


def test_a_port_that_somebody_listens_on_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        offer(monkeypatch, port)
        assert free_port() != port


def test_ports_are_given_again_after_the_test_that_they_were_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = free_port()
    descriptors = len(os.listdir("/proc/self/fd"))
    with ports.released():
        one = free_port()
        assert len(os.listdir("/proc/self/fd")) == descriptors + 1
    assert len(os.listdir("/proc/self/fd")) == descriptors
    offer(monkeypatch, before, one)
    assert free_port() == one


def test_it_is_an_error_if_no_port_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_PORTS", [free_port()] * 3)
    with pytest.raises(ProcessError, match="no port of this machine is free"):
        free_port()
