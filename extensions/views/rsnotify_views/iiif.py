"""The view as IIIF Change Discovery 1.0: a paged ActivityStreams collection of activities.

Consumers begin at the last page and follow `prev` (§3.5). The last page, which has the changes of
the open Change List, keeps its URI. A consumer that has just read the collection therefore finds
the newest changes there, even if older ones have moved to a separate page in the meantime.

`next` leads only to pages of closed Change Lists. A consumer that followed it to the last page
could miss changes that move to a separate page at that moment.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import json

from rsnotify.format.datetimes import format_datetime
from rsnotify.format.model import ChangeType, Rel, Resource
from rsnotify_publisher import FinishedDocument, View

_CONTEXT = "http://iiif.io/api/discovery/1/context.json"
#: The context defines the classes of this namespace by their local names (§3.3).
_PRESENTATION = "http://iiif.io/api/presentation/3#"
_COLLECTION = "resourcesync/iiif.json"
_LAST = "resourcesync/iiif-last.json"
_RESOURCE_LIST = "resourcelist.xml"
_ACTIVITIES = {
    ChangeType.CREATED: "Create",
    ChangeType.UPDATED: "Update",
    ChangeType.DELETED: "Delete",
}


class IIIFView(View):
    suffix = ".json"
    media_type = f'application/ld+json;profile="{_CONTEXT}"'
    live = (_LAST, _COLLECTION)
    root = _COLLECTION
    heads_change = True
    between = b",\n"
    end = b"\n]}\n"

    def entry(self, change: Resource) -> bytes:
        assert change.change is not None
        assert change.datetime is not None
        types = (link.href for link in change.links if link.rel == Rel.TYPE)
        resource = {
            "id": change.uri,
            "type": next(types, "Document").removeprefix(_PRESENTATION),
        }
        if change.type is not None:
            resource["format"] = change.type
        return json.encode(
            {
                "type": _ACTIVITIES[change.change],
                "object": resource,
                "endTime": format_datetime(change.datetime),
            }
        )

    def head(self, name: str, before: str | None, after: str | None) -> bytes:
        page = {
            "@context": _CONTEXT,
            "id": self.uri(name),
            "type": "OrderedCollectionPage",
            "partOf": self._link(_COLLECTION, "OrderedCollection"),
        }
        if before is not None:
            page["prev"] = self._link(before)
        if after is not None:
            page["next"] = self._link(after)
        return json.encode({**page, "orderedItems": []}).removesuffix(b"]}") + b"\n"

    def documents(
        self, closed: Sequence[FinishedDocument], begin: int, entries: Sequence[bytes]
    ) -> dict[str, list[bytes]]:
        # A collection must have a last page, and a page must have an activity (§3.1, §3.2).
        pages = [self.name(each) for each in (*closed[:1], *closed[-1:])]
        documents = {}
        if entries:
            head = self.head(_LAST, pages[-1] if pages else None, None)
            documents[_LAST] = self.page(head, entries)
            pages.append(_LAST)
        if pages:
            documents[_COLLECTION] = [self._collection(pages[0], pages[-1])]
        return documents

    def _collection(self, first: str, last: str) -> bytes:
        resource_list = {
            "id": self.uri(_RESOURCE_LIST),
            "type": "Dataset",
            "format": "application/xml",
            "label": {"en": ["All current resources, as a ResourceSync Resource List"]},
        }
        collection = {
            "@context": _CONTEXT,
            "id": self.uri(_COLLECTION),
            "type": "OrderedCollection",
            "first": self._link(first),
            "last": self._link(last),
            "seeAlso": [resource_list],
        }
        return json.encode(collection) + b"\n"

    def _link(self, name: str, kind: str = "OrderedCollectionPage") -> dict[str, str]:
        return {"id": self.uri(name), "type": kind}
