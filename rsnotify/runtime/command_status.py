"""The status server of long-running commands, and its options."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from msgspec import Struct

from rsnotify.runtime.command_line import option

if TYPE_CHECKING:
    from prometheus_client import Metric

_status = partial(option, "Status")


class StatusArguments(Struct, frozen=True, kw_only=True):
    """The options for the address of the status server."""

    status_port: Annotated[
        int | None,
        _status(
            "PORT",
            "Serve /metrics, /healthz, /readyz, and a page about followed Sources on this port; 0 "
            "for any free port.",
        ),
    ] = None
    status_host: Annotated[str, _status("HOST", "Address of the status server.", advanced=True)] = (
        "127.0.0.1"
    )

    def server(self) -> StatusServer:
        return StatusServer(self.status_host, self.status_port)


class StatusServer:
    """A context manager that serves the status, if a port is given.

    The constructor binds the port, before the modules that serve on it are imported.
    """

    def __init__(self, host: str, port: int | None) -> None:
        self._host = host
        self._socket: socket.socket | None = None
        if port is not None:
            from rsnotify.runtime.listening import listen

            self._socket = listen(host, port, "another --status-host or --status-port")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            self._socket.close()

    @property
    def is_listening(self) -> bool:
        return self._socket is not None

    def serving(
        self, families: Callable[[], Iterable[Metric]], not_ready: Callable[[], str], *routes: Any
    ) -> AbstractAsyncContextManager[None]:
        """Serve the status while the context is active. See `serving_status` for the arguments."""
        assert self._socket is not None
        from rsnotify.runtime.listening import address
        from rsnotify.runtime.status_endpoints import serving_status

        typer.echo(f"status at {address(self._host, self._socket)}", err=True)
        return serving_status(self._socket, families, not_ready, *routes)
