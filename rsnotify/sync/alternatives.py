"""The order in which equal services are tried: nodes of a hub, or addresses of a name."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

#: How many failures are remembered.
_MOST = 1_000

T = TypeVar("T", bound=Hashable)


class Alternatives(Generic[T]):
    """Remembers which alternatives failed, and when relative to each other."""

    def __init__(self) -> None:
        self._failed: dict[T, None] = {}  # the least recently failed first

    def failed(self, alternative: T) -> None:
        """Put an alternative behind all others."""
        self._failed.pop(alternative, None)
        self._failed[alternative] = None
        if len(self._failed) > _MOST:
            del self._failed[next(iter(self._failed))]

    def order(self, alternatives: Iterable[T]) -> list[T]:
        """Return those that have not failed, as given, then the least recently failed first."""
        rank = {alternative: number for number, alternative in enumerate(self._failed)}
        return sorted(alternatives, key=lambda one: rank.get(one, -1))
