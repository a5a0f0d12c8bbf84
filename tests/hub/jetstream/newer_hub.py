"""A hub of a later version, in a process of its own: it adds a field to all that it writes."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import msgspec
from msgspec import Struct

from rsnotify_jetstream import jetstream_log as appending
from rsnotify_jetstream.log_records import LogRecord
from tests.hub.jetstream import hub_process

ADDED = "added"

_encode = msgspec.msgpack.encode
_headers_of = appending.headers_of


def encode(value: Any) -> bytes:
    if isinstance(value, Struct) and hasattr(value, "version"):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        return _encode(fields | {ADDED: {"of": "a later version"}})
    return _encode(value)


def headers_of(record: LogRecord, content_type: str | None = None) -> dict[str, str]:
    return _headers_of(record, content_type) | {"Rs-Added": "of a later version"}


if __name__ == "__main__":
    msgspec.msgpack.encode = encode
    appending.headers_of = headers_of
    asyncio.run(hub_process.main(*sys.argv[1:]))
