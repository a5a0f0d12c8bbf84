"""Tokens in settings: files and memory hold only their digests."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.config.line_numbers import SettingPath

#: A shorter token could be guessed.
MIN_TOKEN = 16

_NO_TOKEN = (
    "a token must not be in a file; write its SHA-256, as token_sha256 "
    "(`rsnotify hub token` makes both)"
)
_NO_SECRET = "a secret must not be here; put it into a file of its own, named by jwt_key_file"
_NO_PASSWORD = "a password must not be here; put it into a file of its own, named by {}"


def digest(token: str) -> str:
    return sha256(token.encode(errors="surrogateescape")).hexdigest()


def find_secrets(settings: dict[str, Any]) -> Iterator[tuple[SettingPath, str]]:
    """Yield the path of each secret that must not be in a settings file, and what to do instead."""
    for name, tables in settings.items():
        for number, table in enumerate(tables if isinstance(tables, list) else []):
            if isinstance(table, dict) and "token" in table:
                yield (name, number, "token"), _NO_TOKEN
    key = settings.get("jwt_key")
    if isinstance(key, str) and "PUBLIC KEY-----" not in key:
        yield ("jwt_key",), _NO_SECRET
    for name in ("mqtt_password", "xmpp_password", "store_password"):
        if name in settings:
            yield (name,), _NO_PASSWORD.format(f"{name}_file")
    store = settings.get("store")
    if isinstance(store, str) and ":" in store.partition("://")[2].rpartition("@")[0]:
        yield ("store",), _NO_PASSWORD.format("store_password_file")


def with_digests(value: Any, place: str) -> Any:
    """Return a setting with each token in an array of tables replaced by its digest.

    `place` begins the sentence that refuses a token that is too short.
    """
    if not isinstance(value, (list, tuple)):
        return value
    return [_with_digest(each, place) if isinstance(each, dict) else each for each in value]


def _with_digest(table: dict[str, Any], place: str) -> dict[str, Any]:
    if "token" not in table:
        return table
    token = table["token"]
    if not isinstance(token, str) or len(token) < MIN_TOKEN:
        reason = f"a token is a text of {MIN_TOKEN} characters or more"
        raise ConfigurationError(f"{place}: token: {reason}")
    others = {name: value for name, value in table.items() if name != "token"}
    return {"token_sha256": digest(token), **others}
