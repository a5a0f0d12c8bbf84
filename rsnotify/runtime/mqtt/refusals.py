"""Errors for what a broker refuses; they say what to change where waiting does not help."""

from __future__ import annotations

from paho.mqtt.reasoncodes import ReasonCode

from rsnotify.errors import Unavailable

_TOO_LARGE = 0x95
_OTHER_VERSION = 0x84
_NOT_AUTHORIZED = 0x87
#: Bad user name or password, not authorized, banned, bad authentication method.
_LOGIN_REFUSED = frozenset({0x86, _NOT_AUTHORIZED, 0x8A, 0x8C})


class NotPermitted(Unavailable):
    """A broker answers that it does not permit something; waiting does not help.

    Args:
        uri: The broker.
        reason: What it says.
        remedy: What the user has to change, as a clause.
    """

    def __init__(self, uri: str, reason: str, remedy: str) -> None:
        super().__init__(uri, f"{reason}; {remedy}")
        self.remedy = remedy


class ConnectionRefused(Unavailable):
    """A broker does not take a message, and says so (MQTT 5).

    Args:
        uri: The broker.
        reason: What it says.
        too_large: Whether that is for its size, so that no later try can do better.
        remedy: What the user has to change, as a clause; None if it may pass by itself.
    """

    def __init__(
        self, uri: str, reason: str, *, too_large: bool = False, remedy: str | None = None
    ) -> None:
        super().__init__(uri, reason if remedy is None else f"{reason}; {remedy}")
        self.too_large = too_large
        self.remedy = remedy


class UnsupportedVersion(Unavailable):
    """A broker seems not to speak the version of MQTT that it was spoken to in.

    It says so (5 §3.2.2.2), or goes away without an answer, as it also may (5 §3.1.2.2).

    Args:
        uri: The broker.
        reason: What it says.
        told: Whether it says so.
    """

    def __init__(self, uri: str, reason: str, *, told: bool) -> None:
        super().__init__(uri, reason)
        self.told = told


def connection_refusal(url: str, user: str | None, reason: ReasonCode) -> Unavailable:
    """Return the error for a connection that is refused.

    Args:
        url: The broker.
        user: The user of the login, if it has one.
        reason: What the broker says.
    """
    said = f"it refuses the connection: {reason}"
    if reason.value == _OTHER_VERSION:
        return UnsupportedVersion(url, said, told=True)
    if reason.value not in _LOGIN_REFUSED:
        return Unavailable(url, said)
    if not user:
        remedy = "configure the MQTT user and password that it wants"
        return NotPermitted(url, f"it refuses the login without a user: {reason}", remedy)
    remedy = "correct the MQTT user and password, or what the broker allows this user"
    return NotPermitted(url, f"it refuses the login of {user!r}: {reason}", remedy)


def publish_refusal(url: str, reason: ReasonCode) -> ConnectionRefused:
    """Return the error for a message that is refused."""
    allow = "let the broker allow this user to publish it"
    return ConnectionRefused(
        url,
        f"it takes no message: {reason}",
        too_large=reason.value == _TOO_LARGE,
        remedy=allow if reason.value == _NOT_AUTHORIZED else None,
    )


def subscription_refusal(url: str, reason: ReasonCode) -> Unavailable:
    """Return the error for a subscription that is refused."""
    said = f"it grants no subscription: {reason}"
    if reason.value == _NOT_AUTHORIZED:
        return NotPermitted(url, said, "let the broker allow this user to subscribe")
    return Unavailable(url, said)
