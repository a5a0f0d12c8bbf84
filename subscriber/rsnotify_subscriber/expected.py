"""What a Destination should hold, as the Source's lists have it now."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.baseline import Baseline
from rsnotify.coverage import Change, Frontier
from rsnotify.datetimes import Instant, format_datetime
from rsnotify.errors import DocumentError, FetchError
from rsnotify.model import Resource
from rsnotify.offer import Offer
from rsnotify.pull import Pull
from rsnotify.vocabulary import ChangeType
from rsnotify_subscriber.fetching import Fetcher

_EARLIEST = datetime.min.replace(tzinfo=UTC)
#: Entries of Resource Lists, each with the instant that its list speaks of.
_Listed = dict[str, tuple[Resource, Instant]]


class Expected(Struct):
    """The resources of a Source.

    Args:
        resources: By URI, the entry that tells most recently how it is.
        doubts: Why the lists may not tell all.
    """

    resources: dict[str, Resource]
    doubts: tuple[str, ...] = ()


async def read_expected(fetcher: Fetcher, offer: Offer) -> Expected:
    """Read the Resource List, and the Change Lists after its `at`.

    Raises:
        FetchError: The Resource List could not be had.
        DocumentError: The Resource List could not be read.
    """
    if offer.resource_list is None:
        return Expected({}, ("the Source offers no Resource List",))
    listed, at = await _read_resource_lists(fetcher, offer)
    expected = Expected({uri: resource for uri, (resource, _) in listed.items()})
    if offer.change_list is not None:
        try:
            await _read_change_lists(fetcher, offer, at, listed, expected)
        except (FetchError, DocumentError) as error:
            expected.doubts += (str(error),)
    return expected


async def _read_resource_lists(fetcher: Fetcher, offer: Offer) -> tuple[_Listed, Instant]:
    listed: _Listed = {}
    baseline = Baseline(replace(offer, resource_dump=None), _EARLIEST)
    while True:
        uri = baseline.current.uri
        try:
            part = baseline.read(await fetcher.document(uri))
        except DocumentError as error:
            raise error.at(uri) from None
        if part is not None:
            listed |= {resource.uri: (resource, part.at) for resource in part.resources}
        if baseline.next() is None:
            return listed, baseline.at


async def _read_change_lists(
    fetcher: Fetcher,
    offer: Offer,
    at: Instant,
    listed: _Listed,
    expected: Expected,
) -> None:
    pull = Pull(replace(offer, change_dump=None, change_dump_archive=None))
    frontier = Frontier.at(at)
    while True:
        step = pull.read(await fetcher.document(pull.current.uri), frontier)
        if step.coverage is not None:
            for change in frontier.fresh(step.coverage):
                _apply(change, listed, expected.resources)
            if step.coverage.until is not None:
                closed = step.coverage.closed
                frontier.advance(step.coverage.until, step.coverage.changes, over=closed)
        if step.hole is not None:
            expected.doubts += (
                f"no list tells of the time from {format_datetime(frontier.instant)} "
                f"to {format_datetime(step.hole)}",
            )
        if step.fetch is None:
            return


def _apply(change: Change, listed: _Listed, resources: dict[str, Resource]) -> None:
    if change.uri in listed and listed[change.uri][1] > change.at:
        return  # a later part of the Resource List has it already
    if change.change is ChangeType.DELETED:
        resources.pop(change.uri, None)
    else:
        resources[change.uri] = change.resource
