"""Putting in place what was committed and may not have been flushed before a crash."""

from __future__ import annotations

import logging
from pathlib import Path

from rsnotify.format.coverage import EARLIEST
from rsnotify.format.model import Resource
from rsnotify.format.vocabulary import ChangeType
from rsnotify_subscriber.handlers import LocatedHandler, Received, deferred_handler
from rsnotify_subscriber.storage.destination_state import DestinationState

logger = logging.getLogger("rsnotify.subscriber")


def apply_unfinished(handler: object, state: DestinationState, folder: Path) -> None:
    """Apply again, durably, what an earlier run has committed and not flushed.

    These resources are fetched again if the handler defers nothing, or holds the copy in another
    place: an empty one may be the mount point of the right one.

    Args:
        handler: The handler, prepared for the set of resources of the state.
        state: The state, just opened.
        folder: The folder of temporary content.
    """
    unfinished = state.contents.unfinished
    if not unfinished:
        return
    identity = state.identity()
    is_elsewhere = (
        isinstance(handler, LocatedHandler)
        and identity is not None
        and handler.place != identity.place
    )
    deferred = deferred_handler(handler)
    if deferred is not None and not is_elsewhere:
        with state.transactions.storage_errors():
            changes = [
                _written(uri, data, folder / f"again-{number}")
                for number, (uri, data) in enumerate(unfinished.items())
            ]
            deferred.apply_again(changes)
        logger.info("%d changes were put in place again after a crash", len(changes))
    else:
        state.forget(list(unfinished))
    state.contents.set_flushed(state.contents.last)
    state.delete_flushed()


def _written(uri: str, data: bytes | None, path: Path) -> Received:
    resource = Resource(uri)
    if data is None:
        return Received(ChangeType.DELETED, uri, EARLIEST, resource, None)
    path.write_bytes(data)
    return Received(ChangeType.UPDATED, uri, EARLIEST, resource, path)
