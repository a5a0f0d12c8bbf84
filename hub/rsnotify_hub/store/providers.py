"""The interface to open a store, and the stores that packages provide.

A package with a store registers a subclass of `StoreProvider` in the entry-point group
`rsnotify.stores`, under each scheme of its URLs. The fields of the subclass are settings of the
hub. The hub imports the package just to read these settings, so the package must not import the
store's dependencies before `open`.
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
    """Facts about this node for the store and the other nodes.

    `bridges` tells whether a bridge to a broker is configured, and `largest_fragment` is the
    maximum size of a fragment, in bytes. `NodeInfo` describes the other fields.
    """

    name: str = ""
    url: str = ""
    version: str = ""
    bridges: bool = True
    largest_fragment: int = 0


class OpenStore(Protocol):
    """An open store, and the nodes that share it."""

    @property
    def store(self) -> Store: ...

    @property
    def nodes(self) -> HubNodes: ...

    @property
    def folder(self) -> Path | None:
        """The data folder, if the store is in one."""

    @property
    def moved(self) -> Mapping[str, int]:
        """The numbers of shards that this node has taken, released and lost."""

    async def leave(self) -> None:
        """Hand over everything that this node owns to the other nodes. Delivery still works."""

    def describe(self) -> NodeList:
        """Return the nodes and the state that they share."""

    async def check_servers(self) -> None:
        """Check the store's servers, and log any problems."""

    def trouble(self) -> str | None:
        """Return why this node currently cannot use the store; None if it can."""


class StoreProvider(
    Struct,
    frozen=True,
    kw_only=True,
    rename=lambda name: "store" if name == "url" else f"store_{name}",
):
    """The settings of a store, and a method to open it.

    A subclass adds further settings, whose names begin with `store_`. If there is no URL, the hub
    uses a folder, and `checked` refuses the other settings.
    """

    url: str | None = None

    def checked(self) -> StoreProvider:
        """Check the settings, and return them with the content of the files that they name.

        Raises:
            WrongSetting: A setting is wrong.
        """
        raise NotImplementedError

    def open(
        self, retention: LogRetention, node: NodeFacts, clock: Callable[[], Instant]
    ) -> AbstractAsyncContextManager[OpenStore]:
        """Return a context with the open store. Leaving the context closes the store.

        Raises:
            ConfigurationError: The store cannot be used, or needs another package.
            StorageError: The store's content cannot be read.
        """
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"  # without secrets


@cache
def store_providers() -> dict[str, type[StoreProvider]]:
    """Return the installed providers by URL scheme."""
    found = {}
    for name, point in offered("stores").items():
        try:
            found[name] = point.load()
        except ModuleNotFoundError as error:
            if error.name != point.module.partition(".")[0]:
                raise  # the package is installed, but one of its imports is missing
    return found


def provider_of(url: str) -> type[StoreProvider]:
    """Return the provider for a store's URL.

    Raises:
        ConfigurationError: No provider is installed for the URL.
    """
    scheme = url.partition("://")[0] if "://" in url else ""
    providers = store_providers()
    if scheme in providers:
        return providers[scheme]
    if (extra := extra_of("stores", scheme)) is not None:
        raise missing_package(f"a store in {extra.upper()}", extra)
    known = " or ".join(f"{name}://host:port" for name in known_names("stores"))
    raise ConfigurationError(f"no store is known for this URL: write it as {known}")
