"""Many small cases in one test: as tests of their own, their collection costs more than they do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def case(*names: object) -> Iterator[None]:
    """Name the case in the report of an error that is raised within the context."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the case {', '.join(map(str, names))}")
        raise


def for_each(values: Iterable[T]) -> Callable[[Callable[[T], None]], Callable[[], None]]:
    """Return a decorator for a test of one argument, which is then called with each value."""

    def decorated(test: Callable[[T], None]) -> Callable[[], None]:
        @wraps(test)
        def run() -> None:
            for value in values:
                with case(value):
                    test(value)

        del run.__wrapped__  # pytest would take its argument for a fixture
        return run

    return decorated
