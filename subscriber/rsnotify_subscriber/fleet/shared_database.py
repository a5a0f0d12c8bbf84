"""The leases and connections for the Sources whose states are in one database.

The leases of all these Sources are renewed together. A process that cannot renew them follows none
of the Sources, and reports them as failing. Every process reports the Sources that no process
follows.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from secrets import token_hex
from socket import gethostname

from rsnotify.errors import RsnotifyError
from rsnotify.runtime.extensions import missing_package
from rsnotify_subscriber.fleet.configuration import DEFAULT_SCHEMA, FollowedSource
from rsnotify_subscriber.fleet.fleet import FollowedSourceStatus, Phase
from rsnotify_subscriber.fleet.leases import RENEWAL_VALIDITY, FleetShare
from rsnotify_subscriber.status import Status
from rsnotify_subscriber.storage.state_database import StateLocation

logger = logging.getLogger("rsnotify.subscriber.fleet")

#: Seconds for a database to release the leases at the end.
_RELEASE_TIMEOUT = 3.0


class SharedDatabase:
    """The connections to a database, and this process's leases in it.

    Attributes:
        sources: The listed Sources, by the schemas of their states.
        share: The leases.
        wake: Set when there is work to do before the next renewal.
    """

    def __init__(self, conninfo: str, *, shares: bool) -> None:
        try:
            from rsnotify_subscriber.fleet.lease_tables import PostgreSQLLeases
            from rsnotify_subscriber.storage.postgresql import StatePool
        except ImportError:
            raise missing_package("a state in PostgreSQL", "postgresql") from None
        session = f"rsnotify {token_hex(8)}"  # unlike a process number, never reused
        self._pool = StatePool(conninfo, session)
        self._table = PostgreSQLLeases(conninfo, f"{gethostname()}:{os.getpid()}", session)
        self._worker = ThreadPoolExecutor(1, "rsnotify-leases")
        self._error = ""
        self.share = FleetShare(self._table, shares=shares)
        self.sources: dict[str, FollowedSource] = {}
        self.wake = asyncio.Event()

    def location(self, source: FollowedSource) -> StateLocation:
        from rsnotify_subscriber.storage.postgresql import LeasedState

        return LeasedState(self._pool, schema_of(source), self.share)

    @property
    def seconds_left(self) -> float:
        """Seconds until the leases must be checked again unless they are renewed."""
        left = self.share.seconds_left
        return left if left > 0 else RENEWAL_VALIDITY

    def fences(self) -> dict[str, int]:
        """Return the fence of each Source that this process should follow, by schema."""
        share = self.share
        if not share.is_valid:
            return {}
        requested = set(share.requested)
        return {schema: one for schema, one in share.held.items() if schema not in requested}

    def unleased(self, wrong: Mapping[str, str]) -> dict[str, FollowedSourceStatus]:
        """Return the statuses of the Sources that no other process follows, by name.

        A Source in the fleet has its own status instead. `wrong` maps the names of Sources to the
        reasons why this process cannot follow them.
        """
        share, is_valid = self.share, self.share.is_valid
        found = {}
        for schema, source in self.sources.items():
            if is_valid and schema in share.leases and schema not in share.held:
                continue  # another process follows it
            error = wrong.get(source.title)
            if not is_valid and self._error:
                error = f"its lease cannot be renewed: {self._error}"
            phase = Phase.WAITING if error is None else Phase.FAILED
            found[source.title] = FollowedSourceStatus(phase, Status(), error, source.url)
        return found

    def submit(self, work: Callable[..., None], *arguments: object) -> asyncio.Future[None]:
        return asyncio.get_running_loop().run_in_executor(self._worker, work, *arguments)

    def renew(self, ended: Collection[str] = ()) -> None:
        """Hand over the ended leases, and renew the others. A repeated error is logged once."""
        try:
            self.share.hand_over(ended)
            self.share.beat()
            self._error = ""
        except RsnotifyError as error:
            if str(error) != self._error:
                logger.warning("cannot renew leases: %s", error)
            self._error = str(error)
        except Exception as error:
            logger.exception("cannot renew leases")
            self._error = f"{type(error).__name__}: {error}"

    async def end(self, *, leave: bool) -> None:
        """Close all connections. With `leave`, release the leases first."""
        ending = self.submit(self._end, leave)
        self._worker.shutdown(wait=False)
        await asyncio.wait({ending}, timeout=_RELEASE_TIMEOUT)

    def _end(self, leave: bool) -> None:
        try:
            if leave:
                self.share.leave()
        except RsnotifyError as error:
            logger.warning("cannot release leases, which end in a few seconds: %s", error)
        self._table.close()
        self._pool.close()


def schema_of(source: FollowedSource) -> str:
    return source.schema or DEFAULT_SCHEMA
