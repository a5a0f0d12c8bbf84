"""The end of catching up: whether it is reached, and why the copy may still be wrong."""

from __future__ import annotations

from collections.abc import Mapping

from rsnotify.errors import FetchError, NotCopied, RsnotifyError, TooLarge, Unavailable
from rsnotify.sync.fallback_order import resource_documents
from rsnotify.sync.follower import Follower
from rsnotify_subscriber.storage.identity import Identity

#: How often the lists are tried before catching up fails; a list that is too large, once more.
TRIES = 5
_TRIES_OF_TOO_LARGE = 2


def has_ended(follower: Follower, now: float) -> bool:
    """Return whether a run that only catches up is level, or without a way to become so."""
    return follower.level or follower.failures >= _tries(follower) or follower.is_stuck(now)


def failure(
    follower: Follower,
    identity: Identity,
    doubts: Mapping[str, str],
    errors: Mapping[str, RsnotifyError],
) -> RsnotifyError | None:
    """Return why a run that has ended did not succeed; None if it did.

    By URI, `doubts` are the reasons why the copy may be wrong although the follower is level, and
    `errors` those why changes could not be applied.
    """
    if follower.level:
        return next((Unavailable(*doubt) for doubt in doubts.items()), None)
    if follower.failures:
        return follower.error
    failing = follower.failing()
    if not failing:
        cure = follower.cure_of_gap or _cure(identity)
        gap = f"its lists leave out a part of the past; {cure}"
        return Unavailable(identity.url, gap if follower.gap_is_uncovered else follower.doubts[0])
    error = errors.get(failing[0].uri)
    reason = error.reason if isinstance(error, FetchError) else str(error)
    return NotCopied([change.resource.uri for change in failing], reason)


def _tries(follower: Follower) -> int:
    return _TRIES_OF_TOO_LARGE if isinstance(follower.error, TooLarge) else TRIES


def _cure(identity: Identity) -> str:
    if resource_documents(identity.offer):
        return "it can be made up for once its Resource List is newer than its oldest Change List"
    return (
        "it offers no list of all its resources that could make up for it, so the copy may differ "
        "for good; remove its state to begin again with its current documents"
    )
