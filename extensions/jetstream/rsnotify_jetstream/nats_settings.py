"""The settings for a hub's connection to NATS: the servers and the login."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from rsnotify.errors import ConfigurationError

_DEFAULT_PORT = 4222
_FORM = "write it as nats://host:port[,host:port…][?prefix=…&replicas=…], or tls://… for TLS"
_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,64}")
_REPLICAS = range(1, 6, 2)


class NatsFiles(Struct, frozen=True):
    """The files that a hub uses to log in to NATS. See `NatsProvider`."""

    credentials: Path | None = None
    nkey: Path | None = None
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


_NO_FILES = NatsFiles()


class NatsSettings(Struct, frozen=True):
    """The address of NATS, the login, and the names of the hub's data there.

    `servers` are URLs without user and password. The names of streams and subjects begin with
    `prefix`. If `replicas` is None, new streams have three copies on a cluster, and otherwise one.
    """

    servers: tuple[str, ...]
    user: str | None = None
    password: str | None = None
    prefix: str = "rsnotify"
    replicas: int | None = None
    files: NatsFiles = _NO_FILES

    @property
    def place(self) -> str:
        """The servers' URLs, for messages."""
        return ", ".join(self.servers)

    @property
    def is_tls(self) -> bool:
        return self.servers[0].startswith("tls:") or self.files.ca is not None

    def __repr__(self) -> str:
        return f"NatsSettings({self.place})"  # without the password


def parse_nats_url(url: str, files: NatsFiles = _NO_FILES) -> NatsSettings:
    """Parse `nats://[user:password@]host:port[,host:port…][?prefix=…&replicas=…]`, or `tls://…`.

    Raises:
        ConfigurationError: The URL does not have this form. The message does not contain the
            password.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in ("nats", "tls"):
        raise ConfigurationError(f"the URL of the store is not a NATS URL: {_FORM}")
    location, _, query = rest.partition("?")
    login, _, hosts = location.rpartition("@")
    user, _, password = login.partition(":")
    servers = tuple(_server(scheme, host) for host in hosts.rstrip("/").split(","))
    options = _options(query)
    return NatsSettings(
        servers=servers,
        user=unquote(user) if login else None,
        password=unquote(password) if login else None,
        prefix=_prefix(options.get("prefix", "rsnotify")),
        replicas=_replicas(options["replicas"]) if "replicas" in options else None,
        files=files,
    )


def _server(scheme: str, host: str) -> str:
    try:
        parts = urlsplit(f"{scheme}://{host}")
        port = parts.port or _DEFAULT_PORT
    except ValueError:
        raise ConfigurationError(f"{host!r} is not a host and port of NATS: {_FORM}") from None
    if not parts.hostname or parts.path or parts.fragment:
        raise ConfigurationError(f"{host!r} is not a host and port of NATS: {_FORM}")
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{scheme}://{name}:{port}"


def _options(query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := sorted(options.keys() - {"prefix", "replicas"}):
        raise ConfigurationError(
            f"the URL of NATS has an unknown option {unknown[0]!r}; use prefix or replicas"
        )
    return options


def _prefix(prefix: str) -> str:
    if not _PREFIX.fullmatch(prefix):
        raise ConfigurationError(
            f"the prefix {prefix!r} in the URL of NATS must consist of up to 64 letters, digits, "
            "hyphens and underscores"
        )
    return prefix


def _replicas(value: str) -> int:
    if value not in map(str, _REPLICAS):
        raise ConfigurationError(f"replicas={value} in the URL of NATS must be 1, 3 or 5")
    return int(value)
