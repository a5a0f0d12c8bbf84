"""Stores besides the folder of SQLite: found by the scheme of their URL, and opened.

A package that has such a store names a subclass of `StoreProvider` in the entry-point group
`rsnotify.stores`, under each scheme of its URLs. The fields of the subclass are settings of the
hub. The hub imports the package only to read these settings, and so it must not import what the
store needs before `open`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import cache
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from rsnotify.errors import ConfigurationError
from rsnotify.format.datetimes import Instant
from rsnotify.runtime.extensions import extra_of, known_names, missing_package, offered
from rsnotify_hub.store.interface import LogRetention, Store
from rsnotify_hub.store.nodes import HubNodes, NodeList


class NodeFacts(Struct, frozen=True):
    """What a store, or the other nodes that share it, should know about this node.

    Args:
        name: The name of its machine.
        url: Its URL.
        version: The version of its software.
        bridges: Whether it has the settings of a bridge to a broker.
        largest_fragment: The bytes of the largest fragment that it accepts.
    """

    name: str = ""
    url: str = ""
    version: str = ""
    bridges: bool = True
    largest_fragment: int = 0


class OpenStore(Protocol):
    """A store, and the nodes that share it."""

    @property
    def store(self) -> Store: ...

    @property
    def nodes(self) -> HubNodes: ...

    @property
    def folder(self) -> Path | None:
        """The data folder, if the store is in one."""

    @property
    def moved(self) -> Mapping[str, int]:
        """How many shards of the subscriptions this node has taken, released and lost."""

    async def leave(self) -> None:
        """Release what this node owns to the others, while it can still deliver."""

    def describe(self) -> NodeList:
        """Return the nodes, and what they share."""

    async def check_servers(self) -> None:
        """Check the servers of the started store, and log what is wrong with them."""

    def trouble(self) -> str | None:
        """Return why this node cannot use the store at the moment; None if it can."""


class StoreProvider(
    Struct,
    frozen=True,
    kw_only=True,
    rename=lambda name: "store" if name == "url" else f"store_{name}",
):
    """The settings of a store, and how it is opened.

    A subclass adds its settings, whose names begin with `store_`. Without a URL the hub uses a
    folder; then `checked` refuses the other settings.
    """

    url: str | None = None

    def checked(self) -> StoreProvider:
        """Check the settings, and return them with the content of the files that they name.

        Raises:
            WrongSetting: One is wrong.
        """
        raise NotImplementedError

    def open(
        self, retention: LogRetention, node: NodeFacts, clock: Callable[[], Instant]
    ) -> AbstractAsyncContextManager[OpenStore]:
        """Return a context with the store, which is closed at its end.

        Args:
            retention: How much of each log is kept.
            node: This node.
            clock: Returns the current instant.

        Raises:
            ConfigurationError: The store cannot be used, or needs another package.
            StorageError: Its content cannot be read.
        """
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"  # without secrets


@cache
def store_providers() -> dict[str, type[StoreProvider]]:
    """Return the providers that are installed by their schemes."""
    found = {}
    for name, point in offered("stores").items():
        try:
            found[name] = point.load()
        except ModuleNotFoundError as error:
            if error.name != point.module.partition(".")[0]:
                raise  # a part of the package is missing, not the package
    return found


def provider_of(url: str) -> type[StoreProvider]:
    """Return the provider of a store.

    Raises:
        ConfigurationError: None is installed for the URL.
    """
    scheme = url.partition("://")[0] if "://" in url else ""
    providers = store_providers()
    if scheme in providers:
        return providers[scheme]
    if (extra := extra_of("stores", scheme)) is not None:
        raise missing_package(f"a store in {extra.upper()}", extra)
    known = " or ".join(f"{name}://host:port" for name in known_names("stores"))
    raise ConfigurationError(f"there is no store for this URL: write it as {known}")
