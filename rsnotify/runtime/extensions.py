"""Finds and loads extensions, which installed packages offer through entry points.

A group is a kind of extension. A name in a group is a value that users write, such as a view, a URL
scheme or a media type. An extension is imported on first use, and the cores work without any.

| group                 | name            | object                                                |
|-----------------------|-----------------|-------------------------------------------------------|
| `rsnotify.commands`   | subcommand      | a typer function or application                       |
| `rsnotify.hub`        | `follow`        | `rsnotify_hub.config.loading.HubFollower`        |
| `rsnotify.origins`    | type of origin  | `rsnotify_gateway.OriginType`                         |
| `rsnotify.patches`    | media type      | `rsnotify_subscriber.Patch`                           |
| `rsnotify.stores`     | scheme of a URL | a subclass of `StoreProvider`, in `rsnotify_hub`      |
| `rsnotify.transports` | scheme of a URL | `rsnotify.runtime.transport_extensions.PushTransport` |
| `rsnotify.views`      | name            | `rsnotify_publisher.View`                             |
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from rsnotify.errors import ConfigurationError

#: The extras of this distribution that install an extension's dependencies, by group and name.
_EXTRAS = {
    ("hub", "follow"): "gateway",
    ("origins", "feed"): "feeds",
    ("origins", "ldes"): "ldes",
    ("origins", "postgresql"): "postgresql",
    ("patches", "application/json-patch"): "patching",
    ("patches", "application/json-patch+json"): "patching",
    ("patches", "application/merge-patch+json"): "patching",
    ("patches", "application/xml-patch+xml"): "patching",
    ("stores", "nats"): "nats",
    ("stores", "tls"): "nats",
    ("transports", "xmpp"): "xmpp",
}


class MissingExtension(ConfigurationError):
    """A required extension is not installed. The message says what to install."""


@cache
def offered(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points that installed packages offer in a group, by name."""
    return {point.name: point for point in entry_points(group=f"rsnotify.{group}")}


def load_extension(group: str, name: str, thing: str) -> Any:
    """Import an extension. `thing` describes it in messages, for example "the view iiif".

    Raises MissingExtension if the extension or one of its dependencies is not installed.
    """
    point = offered(group).get(name)
    if point is None:
        raise MissingExtension(f"{thing} is not installed{_remedy(group, name)}")
    try:
        return point.load()
    except ImportError as error:
        reason = f"{thing} cannot be imported ({error})"
        raise MissingExtension(f"{reason}{_remedy(group, name)}") from error


def missing_package(thing: str, extra: str) -> MissingExtension:
    """Return the error for a thing, such as "an XMPP account", that needs an extra."""
    return MissingExtension(f"{thing} needs another package: pip install 'rsnotify[{extra}]'")


def extra_of(group: str, name: str) -> str | None:
    """Return the extra that installs an extension's dependencies; None if there is none."""
    return _EXTRAS.get((group, name))


def known_names(group: str) -> list[str]:
    """Return the names in a group that are installed, or that an extra would install."""
    return sorted({*offered(group), *(name for kind, name in _EXTRAS if kind == group)})


def _remedy(group: str, name: str) -> str:
    extra = extra_of(group, name)
    if extra is not None:
        return f"; install it with pip install 'rsnotify[{extra}]'"
    names = ", ".join(sorted(offered(group))) or "none"
    return f"; installed: {names}"
