"""The version in each record and message of a cluster, which nodes of several versions share.

A version increases when a hub of the version before could not read the record. Additional fields do
not increase it: a hub ignores those that it does not know.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct

from rsnotify.errors import StorageError

T = TypeVar("T")


class _Versioned(Struct):
    version: int


def decode_versioned(value: bytes, kind: type[T], version: int, what: str) -> T:
    """Read a record in msgpack.

    Args:
        value: The record.
        kind: Its type.
        version: The newest version that this hub reads.
        what: What it is, for errors.

    Raises:
        StorageError: It is damaged, or a newer hub has written it.
    """
    try:
        found = msgspec.msgpack.decode(value, type=_Versioned).version
        if found <= version:
            return msgspec.msgpack.decode(value, type=kind)
    except msgspec.DecodeError as error:
        raise StorageError(f"{what} cannot be read: {error}") from None
    raise StorageError(newer(what, found, version))


def newer(what: str, found: int, version: int) -> str:
    """Return what to do about a record of a newer version."""
    return (
        f"{what} has version {found}, and this hub reads version {version}: it was written by a "
        "newer hub; upgrade this hub, too"
    )
