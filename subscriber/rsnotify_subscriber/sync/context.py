"""The parts that one run of a subscriber works with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from msgspec import Struct

from rsnotify.format.coverage import Change
from rsnotify_subscriber.discovery.offers import OfferDiscovery
from rsnotify_subscriber.events import Announcer
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.handlers import Handler, TransactionalHandler
from rsnotify_subscriber.options import FollowOptions
from rsnotify_subscriber.push.endpoints import Transports
from rsnotify_subscriber.storage.destination_state import DestinationState
from rsnotify_subscriber.storage.identity import Identity


class RunContext(Struct, frozen=True, kw_only=True):
    """The parts of one run.

    Args:
        identity: The Source, and its last known offer.
        offer_checked: Whether that offer was read in this run.
        worker: Runs calls that block on the disk, one after another.
    """

    identity: Identity
    offer_checked: bool
    state: DestinationState
    worker: Executor
    fetcher: Fetcher
    offers: OfferDiscovery
    ways: Transports
    handler: Handler | TransactionalHandler
    options: FollowOptions


class RunObservers(Struct, frozen=True):
    """The functions that a run calls.

    Args:
        moved: Is called whenever the status may have changed.
        on_committed: Is called with changes once they are durable.
    """

    moved: Callable[[], None]
    announce: Announcer
    on_committed: Callable[[Sequence[Change]], None] | None = None
