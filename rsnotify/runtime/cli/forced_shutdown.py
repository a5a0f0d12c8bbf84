"""Ending a process that cannot end in its own order, since code that is not ours never returns."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

#: Seconds that a program has to end in its own order, once it was asked to.
PATIENCE = 30.0
_ERRORS = 2


class ForcedShutdown:
    """Ends the process when it is asked to a second time, or has not ended within a while.

    It ends as by a crash, so what was not committed is as if it had not begun.

    Args:
        explain: Says, in a sentence, what keeps it from ending; called in any thread.
        patience: Seconds.
    """

    def __init__(self, explain: Callable[[], str], patience: float = PATIENCE) -> None:
        self._explain = explain
        self._patience = patience
        self._timer: threading.Timer | None = None
        self._others: dict[int, Any] = {}

    @contextmanager
    def after(self, signals: Sequence[signal.Signals]) -> Iterator[None]:
        """Look out for signals within the context; in the main thread.

        To be entered after the event loop has its own handlers, which go on being told: these
        here are called even while code that blocks holds up the loop.
        """
        self._others = {number: signal.signal(number, self._asked) for number in signals}
        try:
            yield
        finally:
            # The loop, which has ended by now, would have put these back.
            for number in signals:
                usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
                signal.signal(number, usual)
            if self._timer is not None:
                self._timer.cancel()

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self._timer is not None:
            self._leave()
        self._timer = threading.Timer(self._patience, self._leave)
        self._timer.daemon = True
        self._timer.start()
        other = self._others[number]
        if callable(other):
            other(number, frame)

    def _leave(self) -> None:
        # By the descriptor: whatever was interrupted may hold the stream.
        os.write(_ERRORS, f"rsnotify: {self._explain()}\n".encode())
        os._exit(1)
