"""Errors for the reason codes by which an MQTT broker refuses something."""

from __future__ import annotations

from paho.mqtt.reasoncodes import ReasonCode

from rsnotify.errors import Unavailable
from rsnotify.runtime.refusals import ConnectionRefused, NotPermitted

_TOO_LARGE = 0x95
_OTHER_VERSION = 0x84
_NOT_AUTHORIZED = 0x87
#: Bad user name or password, not authorized, banned, bad authentication method.
_LOGIN_REFUSED = frozenset({0x86, _NOT_AUTHORIZED, 0x8A, 0x8C})


class UnsupportedVersion(Unavailable):
    """A broker seems not to support the version of MQTT of the CONNECT packet.

    It may answer so (`stated`, MQTT 5 §3.2.2.2), or close the connection without an answer
    (§3.1.2.2).
    """

    def __init__(self, uri: str, reason: str, *, stated: bool) -> None:
        super().__init__(uri, reason)
        self.stated = stated


def connection_refusal(url: str, user: str | None, reason: ReasonCode) -> Unavailable:
    """Return the error for a connection that is refused to a user, or to a client without one."""
    refusal = f"it refuses the connection: {reason}"
    if reason.value == _OTHER_VERSION:
        return UnsupportedVersion(url, refusal, stated=True)
    if reason.value not in _LOGIN_REFUSED:
        return Unavailable(url, refusal)
    if not user:
        remedy = "configure the MQTT user and password that it wants"
        return NotPermitted(url, f"it refuses the login without a user: {reason}", remedy)
    remedy = "correct the MQTT user and password, or what the broker allows this user"
    return NotPermitted(url, f"it refuses the login of {user!r}: {reason}", remedy)


def publish_refusal(url: str, reason: ReasonCode) -> ConnectionRefused:
    allow = "let the broker allow this user to publish it"
    return ConnectionRefused(
        url,
        f"it refuses the message: {reason}",
        is_final=reason.value == _TOO_LARGE,
        remedy=allow if reason.value == _NOT_AUTHORIZED else None,
    )


def subscription_refusal(url: str, reason: ReasonCode) -> Unavailable:
    refusal = f"it refuses the subscription: {reason}"
    if reason.value == _NOT_AUTHORIZED:
        return NotPermitted(url, refusal, "let the broker allow this user to subscribe")
    return Unavailable(url, refusal)
