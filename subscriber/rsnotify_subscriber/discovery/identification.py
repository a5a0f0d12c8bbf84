"""Identifying the Source that a run follows, and what it offers now."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
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


class SourceIdentification:
    """Identifies the Source of a run.

    Args:
        url: The URL that the user named.
        place: The location of the state, for messages.
        offers: Reads the offer of the Source.
        stopping: Is set when the run is to end.
        waiting: Is called with the reason while the Source cannot be reached.
    """

    def __init__(
        self,
        url: str,
        place: object,
        offers: OfferDiscovery,
        stopping: asyncio.Event,
        waiting: Callable[[str], None],
    ) -> None:
        self._url = url
        self._place = place
        self._offers = offers
        self._stopping = stopping
        self._waiting = waiting
        #: Whether the offer was read in this run.
        self.checked = False

    async def identify(self, known: Identity | None, *, patient: bool) -> Identity | None:
        """Return the Source that is followed, and its offer; None when stopped.

        Args:
            known: The Source of the state.
            patient: Whether to wait for a Source that cannot be reached. Then the offer of the
                state is returned unchecked.

        Raises:
            ConfigurationError: The state belongs to another set of resources.
            RsnotifyError: The offer could not be read.
        """
        if known is not None:  # an earlier version may have stored a password in it
            known = replace(known, url=without_login(known.url))
        if known is not None and known.url == self._url and patient:
            return known
        self.checked = True
        return await self._unless_stopped(self._identified(known, patient=patient))

    async def _identified(self, known: Identity | None, *, patient: bool) -> Identity:
        if known is None:
            offer = await self._found(patient=patient)
            return Identity(self._url, base_of(offer), offer, memory=self._offers.memory)
        if known.url == self._url:
            offer = await self._offers.revalidate(known.offer)
        else:
            offer = await self._same(known, await self._found(patient=patient))
        return replace(known, url=self._url, offer=offer, memory=self._offers.memory)

    async def _same(self, known: Identity, offer: Offer) -> Offer:
        now = await same_set(self._offers, known, offer)
        if now is None:
            raise ConfigurationError(
                f"{self._place} holds the state of {without_credentials(known.url)}; "
                f"to follow {without_credentials(self._url)} choose another place, "
                "or remove that one"
            )
        return now

    async def _found(self, *, patient: bool) -> Offer:
        """Return the offer, if `patient` after waiting for a Source that is not up yet."""
        random = Random()
        attempts = 0
        while True:
            try:
                return await self._offers.find()
            except Unavailable as error:
                if not patient:
                    raise
                attempts += 1
                level = logging.WARNING if attempts == 1 else logging.INFO
                logger.log(level, "waiting for the Source: %s", error)
                self._waiting(str(error))
            await asyncio.sleep(_RETRY.delay(attempts, random))

    async def _unless_stopped(self, work: Coroutine[Any, Any, Identity]) -> Identity | None:
        """Return the result; None as soon as the run is stopped, even if the Source is slow."""
        found: Identity | None = None
        async with first_completed(work, self._stopping.wait()) as (working, _):
            if working.done():
                found = working.result()
        return found


async def same_set(offers: OfferDiscovery, known: Identity, offer: Offer) -> Offer | None:
    """Return the present offer of the set of a state, if another URL leads to that set.

    Args:
        offers: Reads the offer of the Source.
        known: The Source of the state.
        offer: The offer that the other URL leads to.
    """
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
