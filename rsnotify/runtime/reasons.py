"""Explains errors of the operating system, the network and libraries to users, as clauses.

A clause states the problem and, where possible, the remedy. The caller adds the place. The
library's own message is omitted, because it mentions internals and may contain a URL with a secret.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from typing import Any

from rsnotify.errors import RsnotifyError

_NO_ROUTE = "the network has no route to it; check the address and the network"
_NO_ANSWER = "no answer in time; check the address and the network"
_NO_RIGHTS = "permission denied; check the permissions and the owner"
_FULL = "the disk is full; free some space"
_CLOSED = "it closed the connection"
_SYSTEM = {
    errno.EACCES: _NO_RIGHTS,
    errno.EPERM: _NO_RIGHTS,
    errno.ENOENT: "it does not exist",
    errno.EEXIST: "a file with this name already exists",
    errno.ENOTDIR: "a part of its path is a file, not a folder",
    errno.EISDIR: "it is a folder, not a file",
    errno.ENAMETOOLONG: "its name is too long",
    errno.ELOOP: "its symbolic links form a loop",
    errno.ENOSPC: _FULL,
    errno.EDQUOT: "this user's disk quota is exceeded; free some space",
    errno.EFBIG: "the file would exceed the maximum size; raise it (ulimit -f)",
    errno.EROFS: "the file system is read-only; remount it for writing",
    errno.EIO: "the disk failed to read or write; check it",
    errno.EMFILE: "too many files are open in this process; raise the limit (ulimit -n)",
    errno.ENFILE: "too many files are open on this system",
    errno.EADDRINUSE: "another program uses it",
    errno.EADDRNOTAVAIL: "this machine does not have this address",
    errno.ECONNREFUSED: "connection refused; check the port, and whether the server is running",
    errno.ECONNRESET: _CLOSED,
    errno.ECONNABORTED: _CLOSED,
    errno.EPIPE: _CLOSED,
    errno.ETIMEDOUT: _NO_ANSWER,
    errno.EHOSTUNREACH: _NO_ROUTE,
    errno.ENETUNREACH: _NO_ROUTE,
}
_UNKNOWN_HOST = "unknown host name; check its spelling"

_AUTHORITY = "set SSL_CERT_FILE to the certificates of a private authority"
#: Reasons by OpenSSL's verification result.
_CERTIFICATES = {
    9: "its certificate is not valid yet; check the clocks of both machines",
    10: "its certificate has expired; renew it",
    18: f"its certificate is self-signed; {_AUTHORITY}",
    19: f"its certificate is from an untrusted authority; {_AUTHORITY}",
    20: f"its certificate is from an untrusted authority; {_AUTHORITY}",
    21: f"its certificate is from an untrusted authority; {_AUTHORITY}",
    23: "its certificate is revoked; replace it",
    62: "its certificate is for another host name; use a name in the certificate",
    64: "its certificate is for another address; use a name in the certificate",
}
_NO_TLS = "it does not use TLS; check the port, or use the scheme without TLS"
#: Reasons by the name of OpenSSL's error.
_TLS = {
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "RECORD_LAYER_FAILURE": _NO_TLS,
    "PACKET_LENGTH_TOO_LONG": _NO_TLS,
    "HTTP_REQUEST": _NO_TLS,
    "UNEXPECTED_EOF_WHILE_READING": "it closed the connection during the TLS handshake",
    "KEY_VALUES_MISMATCH": "the key does not belong to the certificate",
    "NO_CERTIFICATE_OR_CRL_FOUND": "it has no certificate in PEM format",
    "UNSUPPORTED_PROTOCOL": "it supports no secure version of TLS; update it",
    "NO_SHARED_CIPHER": "it supports no secure cipher; update it",
}
#: Reasons by the primary result code of SQLite.
_SQLITE = {
    3: _NO_RIGHTS,
    5: "another process uses the database; stop it first",
    6: "another process uses the database; stop it first",
    8: "it cannot be written; check the permissions of the file and its folder",
    10: "the disk is full, or failed to read or write; check it",
    11: "the database is damaged; restore a backup",
    13: _FULL,
    14: "it cannot be opened; check the permissions of the file and its folder",
    26: "it is not a database, or is damaged; restore a backup",
}
#: Reasons by a part of psycopg's or libpq's message. Other messages already contain the reason.
_POSTGRESQL = {
    "No such file": "no server listens on its socket; check the host and the port",
    "resolve host": _UNKNOWN_HOST,
    "translate host": _UNKNOWN_HOST,
    "timeout expired": _NO_ANSWER,
    "connection is closed": _CLOSED,
    "connection is lost": _CLOSED,
    "closed the connection": _CLOSED,
    **{os.strerror(number): reason for number, reason in _SYSTEM.items()},
}
#: Reasons by the class names of errors in libraries, which are slow to import.
_LIBRARIES = {
    "ServerDisconnectedError": "it closed the connection without an answer",
    "ClientPayloadError": "its response is incomplete",
    "PayloadEncodingError": "its response is incomplete",
    "ClientConnectorDNSError": _UNKNOWN_HOST,
    "IncompleteReadError": _CLOSED,
    "ClientResponseError": "it does not answer with HTTP; check the port",
    "BadHttpMessage": "it does not answer with HTTP; check the port",
    "InvalidURL": "its URL is invalid",
    "ConnectionClosed": _CLOSED,
    "InvalidStatus": "it refuses the WebSocket",
    "InvalidMessage": "it does not answer as a WebSocket; check its URL",
    "InvalidHandshake": "it does not answer as a WebSocket; check its URL",
}


class Repetitions:
    """Remembers recently reported reasons, so that each is logged at most once a minute."""

    _INTERVAL_SECONDS, _MAX_REASONS = 60.0, 1_000
    _DIGITS = dict.fromkeys(b"0123456789")

    def __init__(self) -> None:
        self._reported: dict[str, float] = {}

    def is_new(self, reason: str) -> bool:
        """Return whether a reason was not reported in the last minute, and record it.

        Reasons that differ only in numbers count as the same.
        """
        import asyncio  # slow to import, not needed for the help

        reason = reason.translate(self._DIGITS)
        now = asyncio.get_running_loop().time()
        if now - self._reported.get(reason, float("-inf")) < self._INTERVAL_SECONDS:
            return False
        if len(self._reported) >= self._MAX_REASONS:
            self._reported.clear()
        self._reported[reason] = now
        return True


def reason_of(error: BaseException, otherwise: str | None = None) -> str:
    """Return the reason for an error, as a clause without the place.

    If another error caused it, that one explains more. `otherwise` is the reason if this module
    does not know the error.
    """
    causes = [*_causes(error)]
    for cause in causes:
        if (reason := _known_reason(cause)) is not None:
            return reason
    # An OSError without a number was raised by Python code, so only its text explains it.
    made = (each.strerror or str(each) for each in causes if isinstance(each, OSError))
    return otherwise or next(filter(None, made), f"an unexpected error ({type(error).__name__})")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, the original cause first."""
    if error.__cause__ is not None:
        yield from _causes(error.__cause__)
    yield error


def _known_reason(error: BaseException) -> str | None:
    if isinstance(error, RsnotifyError):
        return str(getattr(error, "strerror", None) or error) or None
    if isinstance(error, TimeoutError) and not error.errno:
        return _NO_ANSWER
    names = [each.__name__ for each in type(error).__mro__]
    if isinstance(error, OSError) and "SSLError" in names:
        return _tls_reason(error)
    if isinstance(error, OSError) and error.errno:
        return _system_reason(error)
    for name in names:
        if name in _LIBRARIES:
            return _LIBRARIES[name] + _detail(error)
    if "psycopg.Error" in [f"{each.__module__}.{each.__name__}" for each in type(error).__mro__]:
        return _postgresql_reason(error)
    return _sqlite_reason(error) if type(error).__module__ == "sqlite3" else None


def _detail(error: Any) -> str:
    """Return the server's reason for closing a WebSocket, or the status of its refusal."""
    closed = getattr(getattr(error, "rcvd", None), "reason", None)
    status = getattr(getattr(error, "response", None), "status_code", None)
    return f": {closed}" if closed else f" (status {status})" if status else ""


def _system_reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        is_down = error.errno == socket.EAI_AGAIN
        return "the name server does not answer; check the network" if is_down else _UNKNOWN_HOST
    # `strerror` may contain the address, or asyncio's wording of the reason.
    number = error.errno or 0
    return _SYSTEM.get(number) or f"the system reports: {os.strerror(number).lower()}"


def _tls_reason(error: OSError) -> str:
    code = getattr(error, "verify_code", None)
    if code is not None:
        return _CERTIFICATES.get(code) or f"its certificate cannot be trusted (reason {code})"
    name = getattr(error, "reason", None) or ""
    if "ALERT" in name:
        is_certificate = "CERT" in name or "_CA" in name
        what = "the certificate of this client, or requires one" if is_certificate else "TLS"
        return f"it refuses {what}"
    if not name and "PEM" in str(error):
        return "it has no certificate, or no key, in PEM format"
    return _TLS.get(name) or "the TLS connection failed" + (f" ({name.lower()})" if name else "")


def _postgresql_reason(error: Any) -> str:
    """Return the reason without the host, and without further lines (statement and hints)."""
    text = str(error).partition("\n")[0]
    if error.sqlstate is None:
        for part, reason in _POSTGRESQL.items():
            if part in text:
                return reason
    reported = text.rpartition(" failed: ")[2].removeprefix("FATAL:").strip()
    return f"the database reports: {reported}"


def _sqlite_reason(error: BaseException) -> str:
    code = getattr(error, "sqlite_errorcode", None)
    reason = None if code is None else _SQLITE.get(code & 0xFF)
    return reason or f"the database reports: {error}"
