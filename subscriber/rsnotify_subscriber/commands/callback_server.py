"""The listener for WebSub callbacks, as the options of a command describe it."""

from __future__ import annotations

import socket
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rsnotify.errors import ConfigurationError
from rsnotify_subscriber.push.websub.terms import DEFAULT_TERMS, WebSubTerms

if TYPE_CHECKING:
    from rsnotify_subscriber.push.websub.callbacks import Callbacks


class CallbackServer:
    """Listens for hubs; a context manager that binds the port at once and closes it at the end.

    Args:
        url: The URL from outside; None if no hub delivers to this process.
        host: The address to listen on.
        port: The port to listen on; None for that of the URL.
        terms: The terms of subscriptions.
    """

    def __init__(
        self, url: str | None, host: str, port: int | None, terms: WebSubTerms = DEFAULT_TERMS
    ) -> None:
        self.callbacks: Callbacks | None = None
        self._socket: socket.socket | None = None
        if url is not None:
            from rsnotify.runtime.listening import listen
            from rsnotify_subscriber.push.websub.callbacks import Callbacks

            self.callbacks = Callbacks(url, terms)
            port = port or urlsplit(url).port
            if port is None:
                raise ConfigurationError("name the port to listen on with --callback-port")
            self._socket = listen(host, port, "another --callback-host or --callback-port")

    def __enter__(self) -> CallbackServer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            self._socket.close()

    def serving(self) -> AbstractAsyncContextManager[None]:
        if self.callbacks is None or self._socket is None:
            return nullcontext()
        from rsnotify_subscriber.push.websub.listener import listening

        return listening(self.callbacks, self._socket)
