"""Writes the Resource List: one document, or an index and parts, streamed while the set changes.

`at` is promised before the first resource is read, and `completed` after the last: each resource
is listed as it was at some instant between, and the Change Lists have all changes since `at`
(core §10.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from rsnotify.format.model import Resource
from rsnotify.format.vocabulary import Capability
from rsnotify_publisher.documents.paging import Pager
from rsnotify_publisher.files import also_as
from rsnotify_publisher.journal import FinishedDocument
from rsnotify_publisher.source_context import SourceContext
from rsnotify_publisher.source_documents import RESOURCE_LIST, stem


def write_resource_list(
    source: SourceContext, at: int, resources: Iterable[Resource], completed: Callable[[], int]
) -> FinishedDocument:
    """Write the Resource List of the streamed set, which has all changes through `at` (µs).

    At the end, `completed` returns a datetime that no change in the set exceeds.
    """
    documents, folder = source.documents, source.documents_folder
    own = stem(Capability.RESOURCE_LIST, at)
    keeps = documents.keeps(Capability.RESOURCE_LIST)
    name = f"{own}.xml" if keeps else RESOURCE_LIST
    count, end = 0, at

    def entries() -> Iterator[bytes]:
        nonlocal count, end
        for resource in resources:
            count += 1
            yield documents.entry(resource)
        end = completed()

    parts = Pager(source).write(
        name,
        own,
        documents.resource_list_part(at, name),
        entries(),
        lambda parts: documents.resource_list(at, end, parts),
    )
    if keeps:
        parts = [name, *parts]
        also_as(folder / name, folder / RESOURCE_LIST)
    size = sum((folder / part).stat().st_size for part in parts)
    return FinishedDocument(Capability.RESOURCE_LIST, at, end, count, size, tuple(parts))
