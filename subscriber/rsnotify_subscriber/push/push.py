"""Keeping a connection to a hub: lost ones are taken up again, with backoff and jitter."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random
from typing import Protocol

from rsnotify.datetimes import Instant
from rsnotify.errors import FetchError
from rsnotify.retry import Retry
from rsnotify_subscriber.push.transport import Listener, Transport

logger = logging.getLogger("rsnotify.subscriber")
_RETRY = Retry(first=0.25, most=30.0)


class Events(Listener, Protocol):
    """Who is told what arrives, and when nothing does any more."""

    def down(self) -> None:
        """Hear that the connection is lost."""


class Push:
    """A lasting subscription.

    Args:
        transport: The way to the hub.
        events: Who is told.
        since: Gives the instant to join at.
        random: The source of jitter.
    """

    def __init__(
        self,
        transport: Transport,
        events: Events,
        since: Callable[[], Instant | None],
        random: Random,
    ) -> None:
        self._transport = transport
        self._events = events
        self._since = since
        self._random = random
        self._attempts = 0
        self.connected = False

    async def run(self) -> None:
        """Receive until cancelled."""
        while True:
            self._attempts += 1
            wish = 0.0
            receiving = asyncio.create_task(self._transport.receive(self._since(), self))
            try:
                await asyncio.wait({receiving})
                receiving.result()
            except FetchError as error:
                wish = error.retry_after or 0.0
                logger.log(
                    logging.WARNING if self.connected or self._attempts == 1 else logging.INFO,
                    "push is away, the lists are polled: %s",
                    error,
                )
            finally:
                self.connected = False
                self._events.down()
                # To take leave of a hub may take a while, and what comes next need not wait.
                receiving.cancel()
                await asyncio.gather(receiving, return_exceptions=True)
            await asyncio.sleep(_RETRY.delay(self._attempts, self._random, at_least=wish))

    def up(self) -> None:
        """Hear that the hub has accepted the subscription."""
        self._attempts = 0
        self.connected = True
        self._events.up()

    def gap(self) -> None:
        """Hear that the hub does not reach back."""
        self._events.gap()

    def fragment(self, document: bytes) -> None:
        """Take a fragment."""
        self._events.fragment(document)
