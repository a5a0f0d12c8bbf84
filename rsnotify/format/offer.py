"""A Source's offer for one set of resources, and a hub's endpoints.

The offer is in a Capability List (core §9), and the endpoints are in the hub's document
(docs/protocol.md).
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import InvalidDocument, WrongDocument
from rsnotify.format.links import resolve
from rsnotify.format.model import Capability, Document, Link, Rel, Resource

#: The field of `Offer` for each capability.
FIELDS: dict[str | None, str] = {
    Capability.RESOURCE_LIST: "resource_list",
    Capability.RESOURCE_DUMP: "resource_dump",
    Capability.CHANGE_LIST: "change_list",
    Capability.CHANGE_DUMP: "change_dump",
    Capability.RESOURCE_LIST_ARCHIVE: "resource_list_archive",
    Capability.RESOURCE_DUMP_ARCHIVE: "resource_dump_archive",
    Capability.CHANGE_LIST_ARCHIVE: "change_list_archive",
    Capability.CHANGE_DUMP_ARCHIVE: "change_dump_archive",
}


class Offer(Struct, frozen=True):
    """The documents and channels offered for one set of resources.

    Fields are None for anything that the Source does not offer.

    Args:
        listed: Whether the Source Description lists the Capability List.
        channel: The topic of fragments.
        hubs: The endpoints of hubs. The URI scheme identifies the transport.
        framework: The topic of Framework Notifications, which announce documents.
        framework_hubs: The endpoints of hubs for Framework Notifications.
    """

    source_description: str | None = None
    listed: bool = False
    capability_list: str | None = None
    resource_list: str | None = None
    resource_dump: str | None = None
    change_list: str | None = None
    change_dump: str | None = None
    resource_list_archive: str | None = None
    resource_dump_archive: str | None = None
    change_list_archive: str | None = None
    change_dump_archive: str | None = None
    channel: str | None = None
    hubs: tuple[str, ...] = ()
    framework: str | None = None
    framework_hubs: tuple[str, ...] = ()

    @property
    def documents(self) -> dict[str | None, str]:
        """The URIs of the set's documents, by capability."""
        found = {kind: getattr(self, field) for kind, field in FIELDS.items()}
        return {kind: uri for kind, uri in found.items() if uri is not None}

    @property
    def uri(self) -> str | None:
        """The URI of the set: that of its Capability List or, without one, its first document."""
        return self.capability_list or next(iter(self.documents.values()), None)

    @property
    def top(self) -> str | None:
        """The URI of the topmost document that links to the set."""
        return self.source_description if self.listed else self.uri


def read_offer(capability_list: Document, uri: str) -> Offer:
    """Return the offer in a Capability List, ignoring capabilities that rsnotify does not know.

    Relative references are resolved against the list's URI.

    Raises:
        WrongDocument: The document is not a Capability List.
        InvalidDocument: It lists two documents with the same capability, so neither of them
            describes the whole set.
    """
    if capability_list.capability != Capability.CAPABILITY_LIST:
        raise WrongDocument(
            f"a Capability List was expected, not {capability_list.capability!r}", source=uri
        )
    if (repeated := repeated_capability(capability_list.resources, uri)) is not None:
        raise InvalidDocument(repeated, source=uri)
    offered = {resource.capability: resource for resource in capability_list.resources}
    uris = {kind: resolve(uri, resource.uri) for kind, resource in offered.items()}
    channel = offered.get(Capability.CHANGE_NOTIFICATION)
    up = capability_list.link(Rel.UP)
    offer = Offer(
        source_description=None if up is None else resolve(uri, up),
        capability_list=uri,
        channel=uris.get(Capability.CHANGE_NOTIFICATION),
        hubs=_hubs(channel.links if channel else (), uri),
    )
    return replace(offer, **{field: uris.get(kind) for kind, field in FIELDS.items()})


def repeated_capability(entries: Iterable[Resource], uri: str) -> str | None:
    """Return an error if a Capability List has two documents with one capability, else None."""
    known: dict[str | None, str] = {}
    for resource in entries:
        if (kind := resource.capability) not in FIELDS:
            continue
        place = resolve(uri, resource.uri)
        first = known.setdefault(kind, place)
        if first != place:
            return (
                f"it lists two documents with the capability {kind}, {first} and {place}, but must "
                "list only one (core §9); the parts of one list need an index"
            )
    return None


def _hubs(links: Iterable[Link], uri: str) -> tuple[str, ...]:
    return tuple(resolve(uri, link.href) for link in links if link.rel == Rel.HUB)


def read_framework(offer: Offer, description: Document, uri: str) -> Offer:
    """Complete an offer with the information in the Source Description at `uri`.

    The channel of Framework Notifications is named by a link in the set's entry, by a link of the
    document, or by an entry, in this order (framework notification §5).
    """
    entries = description.resources
    own = [each for each in entries if resolve(uri, each.uri) == offer.capability_list]
    offer = replace(offer, listed=bool(own))
    for links in (*(each.links for each in own), description.links):
        topic = next((link.href for link in links if link.rel == Rel.MONITOR_GROUP), None)
        if topic is not None:
            return _with_framework(offer, topic, links, uri)
    for each in entries:
        if each.capability == Capability.FRAMEWORK_NOTIFICATION:
            return _with_framework(offer, each.uri, each.links, uri)
    return replace(offer, framework=None, framework_hubs=())


def _with_framework(offer: Offer, topic: str, links: Iterable[Link], uri: str) -> Offer:
    return replace(offer, framework=resolve(uri, topic), framework_hubs=_hubs(links, uri))


#: The path of the hub's document, relative to the URL of the hub.
HUB_DOCUMENT = ".well-known/rsnotify-hub"


class HubDocument(Struct, frozen=True, omit_defaults=True):
    """The endpoints of a hub.

    Args:
        websub: The URL for requests from WebSub subscribers and publishers.
        websocket: The URL of the hub's WebSocket.
        events: The URL of the hub's event streams, without the `topic` parameter.
        mqtt: The MQTT broker to which the hub publishes, if any. If the URL has no path, or one
            that ends in `/`, append the channel's MQTT topic (docs/mqtt.md).
        xmpp: The PubSub service to which the hub publishes, if any. Append the node to the URI in
            the same way (docs/xmpp.md).
    """

    websub: str | None = None
    websocket: str | None = None
    events: str | None = None
    mqtt: str | None = None
    xmpp: str | None = None
