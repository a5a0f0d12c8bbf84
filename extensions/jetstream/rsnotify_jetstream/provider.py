"""The entry point of the extension: a hub's settings for NATS, and opening the store.

The hub imports this module even if it does not use NATS, so only `open` imports nats-py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

from msgspec.structs import replace

from rsnotify.errors import ConfigurationError
from rsnotify.format.datetimes import Instant
from rsnotify.runtime.extensions import missing_package
from rsnotify.runtime.settings import WrongSetting, read_text
from rsnotify_hub.store.interface import LogRetention
from rsnotify_hub.store.providers import NodeFacts, OpenStore, StoreProvider
from rsnotify_jetstream.nats_settings import NatsFiles, NatsSettings, parse_nats_url

_FILES = NatsFiles.__struct_fields__


class NatsProvider(StoreProvider, frozen=True, kw_only=True):
    """A hub's settings for NATS.

    Args:
        password: The password. It takes precedence over a password in the URL.
        password_file: A file with the password.
        credentials: A file with a JWT and an NKey (`.creds`).
        nkey: A file with the seed of an NKey.
        ca: A file with the certificates of the authorities that the hub trusts to sign the servers'
            certificates. By default, it trusts the system's authorities.
        certificate: A file with the hub's certificate.
        key: A file with the private key of the hub's certificate.
    """

    password: str | None = None
    password_file: str | None = None
    credentials: str | None = None
    nkey: str | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    def checked(self) -> NatsProvider:
        if self.url is None:
            for name in ("password_file", *_FILES):
                if getattr(self, name):
                    reason = "this needs store, which names the servers"
                    raise WrongSetting((f"store_{name}",), reason)
            return self
        found = self
        if self.password_file is not None:
            found = replace(self, password=read_text(self.password_file).removesuffix("\n"))
        try:
            found.nats()
        except ConfigurationError as error:
            raise WrongSetting(("store",), str(error)) from None
        return found

    def nats(self) -> NatsSettings:
        """Return the address of NATS and the login.

        Raises:
            ConfigurationError: The URL is malformed.
        """
        assert self.url is not None
        files = {name: Path(value) for name in _FILES if (value := getattr(self, name))}
        settings = parse_nats_url(self.url, NatsFiles(**files))
        return replace(settings, password=self.password or settings.password)

    @asynccontextmanager
    async def open(
        self, retention: LogRetention, node: NodeFacts, clock: Callable[[], Instant]
    ) -> AsyncIterator[OpenStore]:
        if find_spec("nats") is None:
            raise missing_package("a store in NATS", "nats")
        from rsnotify_jetstream.jetstream_store import open_jetstream

        store = await open_jetstream(self.nats(), retention, clock, node)
        try:
            yield store
        finally:
            await store.close()

    def __repr__(self) -> str:
        return "NatsProvider()"  # without secrets
