"""Ending a process that cannot shut down gracefully, because foreign code does not return."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

#: Seconds that a program has for a graceful shutdown.
PATIENCE = 30.0
_STDERR = 2


class ForcedShutdown:
    """Ends the process at a second signal, or when a graceful shutdown takes too long.

    This is like a crash: uncommitted work is lost, and nothing else. `explain` is called in any
    thread, and returns a sentence with the reason for the delay.
    """

    def __init__(self, explain: Callable[[], str], patience: float = PATIENCE) -> None:
        self._explain = explain
        self._patience = patience
        self._timer: threading.Timer | None = None
        self._others: dict[int, Any] = {}

    @contextmanager
    def after(self, signals: Sequence[signal.Signals]) -> Iterator[None]:
        """Return a context that handles signals; for the main thread.

        Enter it after the event loop has installed its own handlers, which it calls too. Unlike
        those, its handlers also run while blocking code holds up the loop.
        """
        self._others = {number: signal.signal(number, self._on_signal) for number in signals}
        try:
            yield
        finally:
            # The default handlers, which the loop restores when it ends.
            for number in signals:
                usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
                signal.signal(number, usual)
            if self._timer is not None:
                self._timer.cancel()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._timer is not None:
            self._exit()
        self._timer = threading.Timer(self._patience, self._exit)
        self._timer.daemon = True
        self._timer.start()
        other = self._others[number]
        if callable(other):
            other(number, frame)

    def _exit(self) -> None:
        # To the descriptor, since the interrupted code may hold the lock of the stream.
        os.write(_STDERR, f"rsnotify: {self._explain()}\n".encode())
        os._exit(1)
