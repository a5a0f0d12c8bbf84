"""The file of an export."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from rsnotify import __version__
from rsnotify.errors import ConfigurationError
from rsnotify.format.limits import DocumentLimits
from rsnotify.runtime.disk import flush
from rsnotify_hub.store.interface import Store
from rsnotify_hub.transfer.exporting import read_store
from rsnotify_hub.transfer.importing import ImportReport, import_records
from rsnotify_hub.transfer.records import (
    ExportedFragment,
    ExportedSubscription,
    ExportEnd,
    ExportHeader,
    decode,
    encode,
)


class ExportCounts(Struct):
    """The numbers of exported records."""

    subscriptions: int = 0
    fragments: int = 0
    records: int = 0


async def write_export(path: Path, store: Store) -> ExportCounts:
    """Write a new file that only its owner may read; return what it has.

    Raises:
        ConfigurationError: The file exists, or cannot be written.
        StorageError: The store cannot be read.
    """
    counts = ExportCounts()
    with _new_file(path) as file:
        file.write(encode(ExportHeader(exported=datetime.now(UTC), hub=__version__)))
        async for record in read_store(store):
            file.write(encode(record))
            counts.records += 1
            counts.subscriptions += isinstance(record, ExportedSubscription)
            counts.fragments += isinstance(record, ExportedFragment)
        file.write(encode(ExportEnd(records=counts.records)))
    return counts


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """Return a context with a new file, which is deleted if an error ends it."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigurationError(f"{path} exists; name a new file") from None
    except OSError as error:
        raise _unusable("write", path, error) from None
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        flush(path.parent)
    except BaseException as error:
        path.unlink()
        if isinstance(error, OSError):
            raise _unusable("write", path, error) from None
        raise


def check_export(path: Path, limits: DocumentLimits) -> None:
    """Check a whole file; `limits` are those of what is published.

    Raises:
        ConfigurationError: It is not an export, or cannot be read.
    """
    try:
        for _ in decode(_lines_of(path), limits):
            pass
    except OSError as error:
        raise _unusable("read", path, error) from None
    except ConfigurationError as error:
        raise ConfigurationError(f"cannot import {path}: {error}") from None


async def read_export(path: Path, store: Store, limits: DocumentLimits) -> ImportReport:
    """Import a checked file into a store that was just opened; return what was imported."""
    with closing(_lines_of(path)) as lines:
        return await import_records(store, decode(lines, limits), datetime.now(UTC))


def _lines_of(path: Path) -> Generator[bytes, None, None]:
    with path.open("rb") as file:
        yield from file


def _unusable(action: str, path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"cannot {action} {path}: {error.strerror}")
