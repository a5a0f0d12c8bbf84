"""What a Source offers for one set of resources, as its Capability List says (core §9)."""

from __future__ import annotations

from msgspec import Struct

from rsnotify.errors import WrongDocument
from rsnotify.links import resolve
from rsnotify.model import Document
from rsnotify.vocabulary import Capability, Rel


class Offer(Struct, frozen=True):
    """The documents and channels of one set of resources, each None where not offered.

    Args:
        channel: The topic under which fragments are published.
        hubs: The ways in to hubs; the URI scheme says the transport.
    """

    source_description: str | None = None
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


def read_offer(capability_list: Document, uri: str) -> Offer:
    """Read a Capability List. Capabilities that rsnotify does not know are passed over.

    Args:
        capability_list: The document.
        uri: Where it was found; relative references are resolved against it.

    Raises:
        WrongDocument: It is not a Capability List.
    """
    if capability_list.capability != Capability.CAPABILITY_LIST:
        raise WrongDocument(
            f"a Capability List was expected, not {capability_list.capability!r}", source=uri
        )
    offered = {resource.capability: resource for resource in capability_list.resources}

    def uri_of(capability: str) -> str | None:
        resource = offered.get(capability)
        return None if resource is None else resolve(uri, resource.uri)

    channel = offered.get(Capability.CHANGE_NOTIFICATION)
    up = capability_list.link(Rel.UP)
    return Offer(
        source_description=None if up is None else resolve(uri, up),
        capability_list=uri,
        resource_list=uri_of(Capability.RESOURCE_LIST),
        resource_dump=uri_of(Capability.RESOURCE_DUMP),
        change_list=uri_of(Capability.CHANGE_LIST),
        change_dump=uri_of(Capability.CHANGE_DUMP),
        resource_list_archive=uri_of(Capability.RESOURCE_LIST_ARCHIVE),
        resource_dump_archive=uri_of(Capability.RESOURCE_DUMP_ARCHIVE),
        change_list_archive=uri_of(Capability.CHANGE_LIST_ARCHIVE),
        change_dump_archive=uri_of(Capability.CHANGE_DUMP_ARCHIVE),
        channel=uri_of(Capability.CHANGE_NOTIFICATION),
        hubs=tuple(
            resolve(uri, link.href)
            for link in (channel.links if channel else ())
            if link.rel == Rel.HUB
        ),
    )
