"""How long to wait before trying a hub again."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Exponential backoff with full jitter: many Sources must not return in step.

    Args:
        first: The longest first wait, in seconds.
        cap: The longest wait of all, in seconds.
        draw: Draws a number between two bounds, evenly.
    """

    def __init__(
        self,
        first: float = 0.1,
        cap: float = 30.0,
        draw: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._first = first
        self._cap = cap
        self._draw = draw
        self.failures = 0

    def succeed(self) -> None:
        """Begin anew: the hub took something."""
        self.failures = 0

    def fail(self, at_least: float = 0.0) -> float:
        """Count a failure.

        Args:
            at_least: Seconds that the hub asked to wait, which are kept up to the cap.

        Returns:
            Seconds to wait.
        """
        bound = min(self._cap, self._first * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return max(self._draw(0.0, bound), min(at_least, self._cap))
