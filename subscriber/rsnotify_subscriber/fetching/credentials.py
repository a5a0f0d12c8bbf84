"""Credentials for a Source: HTTP Basic, Bearer, or arbitrary header fields."""

from __future__ import annotations

import logging
import netrc
import os
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from rsnotify.errors import ConfigurationError

logger = logging.getLogger("rsnotify.subscriber")

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
#: Fields that the HTTP client sets itself, for framing, caching and content negotiation.
_RESERVED = frozenset(
    {"accept-datetime", "accept-encoding", "cache-control", "connection", "content-length"}
    | {"expect", "host", "pragma", "range", "te", "trailer", "transfer-encoding", "upgrade"}
)
_AUTHORIZATION = "Authorization"


class Credentials(Struct, frozen=True, kw_only=True):
    """Credentials to send with each request to the origin of the Source's URL, and to no other.

    Args:
        login: A user and a password for HTTP Basic authentication, as `user:password`.
        bearer: A token for Bearer authentication (RFC 6750), instead of `login`.
        headers: Other header fields, by name.
    """

    login: str | None = None
    bearer: str | None = None
    headers: Mapping[str, str] = {}

    def __repr__(self) -> str:
        """Return the names of the credentials, without the secrets."""
        names = [name for name in ("login", "bearer") if getattr(self, name) is not None]
        return f"Credentials({', '.join([*names, *self.headers])})"

    def fields(self) -> dict[str, str]:
        """Return the header fields.

        Raises:
            ConfigurationError: A value is not valid. The message contains no secret.
        """
        found: dict[str, str] = {}
        for name, value in self.headers.items():
            _check(name, value)
            found[name] = value
        given = [_AUTHORIZATION for name in found if name.lower() == "authorization"]
        if self.login is not None:
            if ":" not in self.login:
                raise ConfigurationError("the login has no colon; write USER:PASSWORD")
            given.append(_AUTHORIZATION)
            found[_AUTHORIZATION] = basic(self.login)
        if self.bearer is not None:
            if not _VALUE.fullmatch(self.bearer) or " " in self.bearer:
                raise ConfigurationError("the bearer token contains invalid characters")
            given.append(_AUTHORIZATION)
            found[_AUTHORIZATION] = f"Bearer {self.bearer}"
        if len(given) > 1:
            raise ConfigurationError(
                "a login, a bearer token and an Authorization header exclude each other; give one"
            )
        return found


NO_CREDENTIALS = Credentials()


def _check(name: str, value: str) -> None:
    if not _TOKEN.fullmatch(name):
        raise ConfigurationError(f"{name!r} is not the name of a header field; write NAME: VALUE")
    if name.lower() in _RESERVED or name.lower().startswith("if-"):
        raise ConfigurationError(f"rsnotify sets the header field {name} itself; remove it")
    if not _VALUE.fullmatch(value):
        raise ConfigurationError(f"the value of the header field {name} has invalid characters")


def basic(login: str) -> str:
    """Return the value of the Authorization field for `user:password` (RFC 7617)."""
    return f"Basic {b64encode(login.encode()).decode()}"


def parse_header_lines(lines: Iterable[str]) -> dict[str, str]:
    """Parse header fields, each written as `NAME: VALUE`.

    Raises:
        ConfigurationError: A line has no colon. The message omits the line, which may be a secret.
    """
    found = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise ConfigurationError("a header field has no colon; write NAME: VALUE")
        found[name.strip()] = value.strip()
    return found


def split_login(url: str) -> tuple[str, str | None]:
    """Split a URL into the URL without its login, and the login as `user:password`, or None."""
    if "@" not in url:
        return url, None
    try:
        parts = urlsplit(url)
    except ValueError:
        return url, None  # the request reports the error
    login, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, None
    user, _, password = login.partition(":")
    bare = parts._replace(netloc=host).geturl()
    return bare, f"{unquote(user)}:{unquote(password)}" if login else None


def without_login(url: str) -> str:
    """Return a URL without its user and password, if any."""
    return split_login(url)[0]


def from_netrc(host: str) -> str | None:
    """Return the login for a host from the user's netrc file, as `user:password`, or None.

    The file is `~/.netrc`, or the one that the environment variable NETRC names. Its `default`
    entry is ignored, because it would be sent to any Source.
    """
    path = os.environ.get("NETRC") or os.path.expanduser("~/.netrc")
    try:
        machines = netrc.netrc(path).hosts
    except FileNotFoundError:
        return None
    except (OSError, UnicodeError, netrc.NetrcParseError) as error:
        reason = getattr(error, "strerror", None) or getattr(error, "msg", None) or "unreadable"
        logger.warning("ignoring %s: %s", path, reason)
        return None
    for machine, (user, _, password) in machines.items():
        if machine != "default" and machine.lower() == host.lower():
            return f"{user}:{password or ''}"
    return None
