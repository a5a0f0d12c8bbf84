"""Log lines that say which Source they are about."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rsnotify_subscriber.fleet.member import NAME


@contextmanager
def name_sources() -> Iterator[None]:
    """Let every line that is logged within the context say which Source it is about."""
    handlers = logging.getLogger().handlers
    for handler in handlers:
        handler.addFilter(_named)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(_named)


def _named(record: logging.LogRecord) -> bool:
    name = NAME.get()
    if name and not hasattr(record, "source"):  # another handler may have had it
        record.source = name
        # What is wrong with the arguments is told where they are put in.
        record.msg = f"{name.replace('%', '%%') if record.args else name}: {record.msg}"
    return True
