"""Identifying the Source that a run follows, and what it offers now."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, RsnotifyError, Unavailable, without_credentials
from rsnotify.format.offer import Offer
from rsnotify.runtime.tasks import first_completed
from rsnotify.sync.retry import Retry
from rsnotify_subscriber.discovery.offers import OfferDiscovery, base_of
from rsnotify_subscriber.fetching.credentials import without_login
from rsnotify_subscriber.storage.identity import Identity

logger = logging.getLogger("rsnotify.subscriber")
_RETRY = Retry(first=1.0, most=60.0)


@dataclass
class SourceIdentification:
    """Identifies the Source of a run."""

    url: str
    #: The location of the state, for messages.
    place: object
    offers: OfferDiscovery
    #: Is set when the run is to end.
    stopping: asyncio.Event
    #: Is called with the reason while the Source cannot be reached.
    waiting: Callable[[str], None]
    #: Whether an offer has what the run needs.
    suffices: Callable[[Offer], bool]
    #: Whether the offer was read in this run.
    checked: bool = False

    async def identify(self, known: Identity | None, *, patient: bool) -> Identity | None:
        """Return the Source that is followed, and its offer; None when stopped.

        Args:
            known: The Source of the state; a state of another set is a `ConfigurationError`.
            patient: Whether to wait for a Source that cannot be reached. Then the offer of the
                state is returned unchecked, if it suffices.
        """
        if known is not None:  # an earlier version may have stored a password in it
            known = replace(known, url=without_login(known.url))
        if known is not None and known.url == self.url and patient and self.suffices(known.offer):
            return known
        self.checked = True
        return await self._unless_stopped(self._identified(known, patient=patient))

    async def _identified(self, known: Identity | None, *, patient: bool) -> Identity:
        if known is None:
            offer = await self._found(self.offers.find, patient=patient)
            return Identity(self.url, base_of(offer), offer, memory=self.offers.memory)
        if known.url == self.url:
            offer = await self._found(partial(self.offers.revalidate, known.offer), patient=patient)
        else:
            there = await self._found(self.offers.find, patient=patient)
            found = await same_set(self.offers, known, there)
            if found is None:
                raise ConfigurationError(
                    f"{self.place} holds the state of {without_credentials(known.url)}; "
                    f"to follow {without_credentials(self.url)} choose another place, "
                    "or remove that one"
                )
            offer = found
        return replace(known, url=self.url, offer=offer, memory=self.offers.memory)

    async def _found(self, find: Callable[[], Awaitable[Offer]], *, patient: bool) -> Offer:
        """Return the offer, if `patient` after waiting for a Source that is not up yet."""
        random = Random()
        attempts = 0
        while True:
            try:
                return await find()
            except Unavailable as error:
                if not patient:
                    raise
                attempts += 1
                level = logging.WARNING if attempts == 1 else logging.INFO
                logger.log(level, "waiting for the Source: %s", error)
                self.waiting(str(error))
            await asyncio.sleep(_RETRY.delay(attempts, random))

    async def _unless_stopped(self, work: Coroutine[Any, Any, Identity]) -> Identity | None:
        """Return the result; None as soon as the run is stopped, even if the Source is slow."""
        found: Identity | None = None
        async with first_completed(work, self.stopping.wait()) as (working, _):
            if working.done():
                found = working.result()
        return found


async def same_set(offers: OfferDiscovery, known: Identity, offer: Offer) -> Offer | None:
    """Return the present offer of the set of a state, if an `offer` found elsewhere is its own."""
    before = known.offer
    if _overlap(before, offer) and (offer.capability_list or not before.capability_list):
        return offer
    if before.capability_list is None:
        return None
    try:  # it may have moved there, or the URL leads to a part of the offer
        now = await offers.revalidate(before)
    except RsnotifyError:
        return None
    return now if _overlap(now, offer) else None


def _overlap(one: Offer, other: Offer) -> bool:
    if one.capability_list is not None and one.capability_list == other.capability_list:
        return True
    return bool(set(one.documents.values()) & set(other.documents.values()))
