"""How a hub logs in to NATS: what its client is given, and files that cannot be used."""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import Any

from rsnotify.errors import ConfigurationError
from rsnotify_hub.store.jetstream.settings import NatsSettings

_JWT = re.compile(r"-BEGIN NATS USER JWT-++\s++[\w.-]++\s++-++END NATS USER JWT-")
_SEED = re.compile(r"-BEGIN USER NKEY SEED-++\s++(\w++)\s++-++END USER NKEY SEED-")


def login_options(settings: NatsSettings) -> dict[str, Any]:
    """Return the options of the client.

    Raises:
        ConfigurationError: A file cannot be read, or has something else.
    """
    files = settings.files
    for path in (files.ca, files.certificate, files.key):
        if path is not None:
            _read(path)
    options: dict[str, Any] = {}
    if settings.user is not None:
        options |= {"user": settings.user, "password": settings.password}
    if files.credentials is not None:
        _check_credentials(files.credentials)
        options["user_credentials"] = str(files.credentials)
    if files.nkey is not None:
        seed = _read(files.nkey).strip()
        _check_seed(files.nkey, seed)
        options["nkeys_seed_str"] = seed
    if settings.is_tls:
        options["tls"] = _tls(settings)
    return options


def refuses_certificate(error: object) -> bool:
    """Return whether a server has refused the certificate of this hub, or that it has none."""
    reason = getattr(error, "reason", None) if isinstance(error, ssl.SSLError) else None
    return reason is not None and "ALERT" in reason and ("CERT" in reason or "_CA" in reason)


def _read(path: Path) -> str:
    try:
        return path.read_text("latin-1")
    except OSError as error:
        raise ConfigurationError(f"cannot read {path} for NATS: {error.strerror}") from None


def _check_credentials(path: Path) -> None:
    text = _read(path)
    if not _JWT.search(text):  # the library would look for it for ever
        raise ConfigurationError(f"{path} has no JWT of a user: name a .creds file of NATS")
    found = _SEED.search(text)
    _check_seed(path, found[1] if found else "")


def _check_seed(path: Path, seed: str) -> None:
    import nkeys  # type: ignore[import-untyped]

    try:
        nkeys.from_seed(seed.encode())
    except Exception:  # the library raises many
        raise ConfigurationError(
            f"{path} has no NKey: name a file with the seed of a user, which begins with SU, or a "
            ".creds file of NATS"
        ) from None


def _tls(settings: NatsSettings) -> ssl.SSLContext:
    files = settings.files
    context = ssl.create_default_context(cafile=files.ca)
    if files.certificate is not None:
        try:
            context.load_cert_chain(files.certificate, files.key)
        except (ssl.SSLError, OSError) as error:
            raise ConfigurationError(
                f"{files.certificate} and {files.key} are not a certificate for NATS and its key: "
                f"{error}"
            ) from None
    return context
