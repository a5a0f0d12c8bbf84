"""The cause of the failure of a task group."""

from __future__ import annotations


def first_cause(error: Exception) -> Exception:
    """Return the first error of a group at any depth, or the error itself if it is none."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
