"""Errors for what a broker refuses; they say what to change where waiting does not help."""

from __future__ import annotations

from rsnotify.errors import Unavailable


class NotPermitted(Unavailable):
    """A broker does not allow something; waiting does not help, but `remedy` does."""

    def __init__(self, uri: str, reason: str, remedy: str) -> None:
        super().__init__(uri, f"{reason}; {remedy}")
        self.remedy = remedy


class ConnectionRefused(Unavailable):
    """A broker refuses a message.

    Args:
        uri: The broker.
        reason: The refusal.
        is_final: Whether every later attempt would fail, as for a message that is too large.
        remedy: What the user has to change, as a clause; None if the refusal may be temporary.
    """

    def __init__(
        self, uri: str, reason: str, *, is_final: bool = False, remedy: str | None = None
    ) -> None:
        super().__init__(uri, reason if remedy is None else f"{reason}; {remedy}")
        self.is_final = is_final
        self.remedy = remedy
