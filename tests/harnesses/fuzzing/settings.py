"""The surfaces of files and databases that people and programs write for rsnotify."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from msgspec import json

from rsnotify.errors import ConfigurationError
from rsnotify.format.model import Resource
from rsnotify.format.writer import entry
from rsnotify_gateway.config import load_gateway
from rsnotify_hub.config.loading import load_configuration
from rsnotify_hub.export_file import decode
from rsnotify_publisher.config import load_configuration as load_source
from rsnotify_publisher.outbox.forwarder import Forwarder, OutboxLine
from rsnotify_subscriber.fleet.configuration import load as load_fleet
from tests.harnesses.fuzzing.surface import Surface


def _file(load: Callable[[Path], object], suffix: str = ".toml") -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        with tempfile.NamedTemporaryFile(dir="/dev/shm", suffix=suffix) as file:
            file.write(data)
            file.flush()
            load(Path(file.name))

    return read


def _hub(path: Path) -> None:
    load_configuration(str(path))


def _record(changes: list[Resource]) -> None:
    for change in changes:
        json.decode(json.encode(change), type=Resource)
        entry(change)


def _outbox(data: bytes) -> None:
    """Forward a line of an outbox: whatever is in it, no other change may wait for it."""
    publisher = SimpleNamespace(record=_record)
    forwarder: Any = SimpleNamespace(_decode=json.Decoder(Resource).decode, _publisher=publisher)
    Forwarder._record(forwarder, [OutboxLine(1, data.decode("utf-8", "replace"))])


_HUB = b"""
public_url = "https://hub.example/" # a
log_bytes = 1_000_000
open_topics = ["https://e.example/"]
trusted_proxies = ["10.0.0.0/8", '''::1''']
[[publishers]]
token_sha256 = "0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a"
topics = ["https://e.example/"]
"""
_FLEET = b"""
[defaults]
dest = "a/{name}"
prefer = ["text/turtle"]
[limits]
[websub]
url = "https://e.example/c/"
[[source]]
name = "b"
url = "https://e.example/a?b"
only = ["*.ttl"]
[[source]]
name = "c"
url = "https://user:pass@e.example/"
handler = "a:b"
options = { a = 1.5, b = 2013-01-03T09:00:00Z }
"""
_SOURCE = b"""
base_url = "https://e.example/"
hubs = ["https://hub.example/"]
token = "t"
[options]
rotate = "500 changes or 1 h"
keep = "30 days, cron: 0 4 * * sun"

[[set]]
name = "a.b"
folder = "a"
"""
_GATEWAY = b"""
contact = "mailto:a@e.example"
base_url = "https://e.example/"
[[origin]]
name = "a"
type = "events"
url = "https://e.example/s"
[origin.event]
uri = "/meta/uri"
datetime = "/a~1b"
only = { "/a" = 1 }
"""
_EXPORT = (
    b'{"type":"header","version":1,"exported":"2013-01-03T09:00:00Z","hub":"0"}\n'
    b'{"type":"subscription","topic":"http://e.example/a","callback":"http://e.example/b","secret":'
    b'null,"expires":"2013-01-03T09:00:00Z","position":1,"suspended":false,"client":"c"}\n'
    b'{"type":"broker","broker":"m","cursors":{"http://e.example/a {\\"types\\":[\\"a/b\\"]}":1}}\n'
    b'{"type":"fragment","topic":"http://e.example/a","position":1,"content_type":"a/b","from":null,'
    b'"until":"2013-01-03T09:00:00Z","begins":"1970-01-01T00:00:00Z","heartbeat":false,"whole":true,'
    b'"body":"YQ=="}\n{"type":"end","records":3}\n'
)
SETTINGS = {
    "hub-settings": Surface(_file(_hub), (_HUB,), (ConfigurationError,)),
    "hub-settings-json": Surface(
        _file(_hub, ".json"),
        (b'{"log_bytes": 5000000, "open_topics": ["https://e.example/"]}',),
        (ConfigurationError,),
    ),
    "fleet-settings": Surface(_file(load_fleet), (_FLEET,), (ConfigurationError,)),
    "source-settings": Surface(_file(load_source), (_SOURCE,), (ConfigurationError,)),
    "gateway-settings": Surface(_file(load_gateway), (_GATEWAY,), (ConfigurationError,)),
    "outbox": Surface(
        _outbox,
        (
            b'{"uri":"http://e.example/a","change":"updated","lastmod":"2013-01-03T09:00:00Z",'
            b'"hash":"sha-256:0a","length":5,"links":[{"rel":"up","href":"http://e.example/b",'
            b'"modified":"2013-01-03T09:00:00+01:00"}],"attributes":[["{urn:a}b","c"]]}',
            b'{"uri":"http://e.example/a","change":"deleted","more":[[1.5e3,null]]}',
        ),
        (),
    ),
    "hub-export": Surface(
        lambda data: list(decode(data.splitlines(keepends=True))), (_EXPORT,), (ConfigurationError,)
    ),
}
