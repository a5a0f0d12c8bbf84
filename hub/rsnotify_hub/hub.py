"""The hub put together: the store, the logs, the channels and the handlers."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, timedelta
from importlib.metadata import version
from pathlib import Path

import aiohttp
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from rsnotify.errors import StorageError
from rsnotify.format.datetimes import Instant
from rsnotify.runtime.mqtt.names import parse_broker
from rsnotify.sync.retry import Retry
from rsnotify_hub.access.gate import Gate
from rsnotify_hub.access.grants import grants_of
from rsnotify_hub.access.limits import Limits
from rsnotify_hub.access.topic_room import TopicRoom
from rsnotify_hub.admin.api import AdminApi
from rsnotify_hub.admin.office import Office
from rsnotify_hub.admin.rates import Rates
from rsnotify_hub.admin.reports import Reports
from rsnotify_hub.admin.views import lag_seconds
from rsnotify_hub.client import open_client
from rsnotify_hub.configuration import Configuration
from rsnotify_hub.health import Readiness
from rsnotify_hub.intake import Intake
from rsnotify_hub.log.sqlite_log import Retention
from rsnotify_hub.log.sqlite_store import SqliteStore
from rsnotify_hub.log.store import Store
from rsnotify_hub.log.topics import Topics
from rsnotify_hub.memory.handler import ChangeMemory
from rsnotify_hub.metrics import Metrics, Readings
from rsnotify_hub.mqtt.bridge import Bridge
from rsnotify_hub.selecting.sieve import Sieve
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.websocket.handler import WebSocketHandler
from rsnotify_hub.websocket.selections import SelectionGroups
from rsnotify_hub.websocket.subscribers import WebSocketChannel
from rsnotify_hub.websub.channel import WebSubChannel
from rsnotify_hub.websub.delivery.requests import CallbackRequests
from rsnotify_hub.websub.handler import WebSubHandler
from rsnotify_hub.websub.intent_requests import IntentRequests
from rsnotify_hub.websub.pinging.pings import PingHandler
from rsnotify_hub.websub.verification import IntentVerification

log = logging.getLogger("rsnotify.hub")

Clock = Callable[[], Instant]

_VERSION = version("rsnotify")

#: How often leases are ended and quiet logs trimmed, in seconds.
_HOUSEKEEPING_SECONDS = 60


class Hub:
    """A hub, apart from its HTTP server. Made by `open_hub`.

    Args:
        configuration: The settings.
        store: Keeps everything.
        client: The guarded HTTP client.
        requests: Makes the requests to callbacks.
        gate: Says who may do what.
        limits: Say how often.
        public_url: How others reach it, ending in `/`.
        clock: Tells the current instant.

    Attributes:
        store: Keeps everything.
        gate: Says who may do what.
        limits: Say how often one client may.
        statistics: What it has done.
        websub: Handles `POST /websub`.
        websockets: Handles `GET /ws`.
        memory: Handles `GET /topics`.
        admin: Handles `/admin/`.
        metrics: Answers `GET /metrics`.
        connections: Counts the connections to its server; whoever serves it sets this.
        readiness: Says whether the hub can do its work.
    """

    def __init__(
        self,
        configuration: Configuration,
        store: Store,
        client: aiohttp.ClientSession,
        requests: CallbackRequests,
        gate: Gate,
        limits: Limits,
        *,
        public_url: str,
        clock: Clock,
    ) -> None:
        self.store = store
        self.gate = gate
        self.limits = limits
        self.statistics = Statistics()
        self._clock = clock
        self._intent_requests = IntentRequests(
            requests, Retry(configuration.retry_seconds), configuration.callback_seconds
        )
        self._live = WebSocketChannel(configuration, self.statistics)
        self._sieve = Sieve()
        self._selections = SelectionGroups(self._live, self._sieve, configuration.max_selections)
        self._callbacks = WebSubChannel(
            store, requests, self._intent_requests, configuration, clock, self.statistics
        )
        rates = Rates(clock)
        self._bridge = None
        broker = None
        if configuration.mqtt_url is not None:
            self._bridge = Bridge(
                configuration.mqtt_url, configuration, store, self.statistics, self._sieve
            )
            broker = parse_broker(configuration.mqtt_public_url or configuration.mqtt_url)
        channels = (self._live, self._selections, self._callbacks, rates)
        self._topics = Topics(
            store, (*channels, self._bridge) if self._bridge else channels, self.statistics
        )
        gate.room = TopicRoom(self._topics, configuration.max_topics_per_publisher)
        self._verification = IntentVerification(
            self._callbacks, self._topics, self._intent_requests, configuration, clock
        )
        self._intake = intake = Intake(gate, configuration, clock)
        self._pings = PingHandler(self._topics, client, configuration, clock)
        self.websub = WebSubHandler(
            intake, self._topics, self._pings, self._verification, limits, configuration
        )
        self.memory = ChangeMemory(self._topics, public_url + "topics", broker)
        self.websockets = WebSocketHandler(
            intake,
            self._topics,
            self._live,
            self._selections,
            limits,
            self.statistics,
            configuration,
            public_url=public_url,
        )
        reports = Reports(
            self._topics,
            self._live,
            self.websockets,
            self._callbacks,
            self.statistics,
            rates,
            version=_VERSION,
            clock=clock,
        )
        office = Office(self._topics, self._callbacks, reports)
        self.metrics = Metrics(self._readings)
        self.connections: Callable[[], int] = lambda: 0
        self.readiness = Readiness(store)
        self.admin = AdminApi(office, gate, self.statistics, version=_VERSION)

    async def start(self) -> None:
        """Take up what the store kept.

        Raises:
            StorageError: It cannot be read.
        """
        self._topics.start(await self.store.logs())
        self._callbacks.start(
            self._topics, await self.store.subscriptions(), await self.store.troubles()
        )
        if self._bridge is not None:
            await self._bridge.start(self._topics, self._intake)

    async def close(self) -> None:
        """Let what was published become durable, and stop delivering."""
        await self.readiness.close()
        await self._verification.close()
        await self._intent_requests.close()
        await self._pings.close()
        if self._bridge is not None:
            await self._bridge.close()
        await self._topics.close()
        self._selections.close()
        self._sieve.close()
        await self._callbacks.close()

    def _readings(self) -> Readings:
        """Look at everything that `/metrics` tells."""
        now, deliveries = self._clock(), self._callbacks.all()
        return Readings(
            version=_VERSION,
            statistics=self.statistics,
            logs=self._topics.states(),
            subscriptions=Counter(each.state for each in deliveries),
            lags=[lag_seconds(each, now) for each in deliveries if not each.subscription.suspended],
            connections=self.connections(),
            websockets=self.websockets.count(),
            websocket_queue=self.websockets.queued(),
            delivery_queue=self._callbacks.waiting(),
            commit_queue=self.store.queued(),
            mqtt=self._bridge.reading(self._topics) if self._bridge else None,
        )

    async def keep_house(self) -> None:
        """End leases, and trim logs that nobody publishes to."""
        try:
            await self._callbacks.expire()
            await self._topics.trim()
        except StorageError as error:
            log.warning("housekeeping must wait: %s", error)


@asynccontextmanager
async def open_hub(
    configuration: Configuration, *, public_url: str, anonymous: bool, clock: Clock
) -> AsyncIterator[Hub]:
    """Open everything a hub needs, and close it in order.

    Args:
        configuration: The settings.
        public_url: How others reach it, ending in `/`.
        anonymous: Whether local peers may publish without a token if there are no publishers.
        clock: Tells the current instant.

    Raises:
        ConfigurationError: The data folder cannot be used.
        StorageError: What is in it cannot be read.
    """
    retention = Retention(
        size=configuration.log_bytes, age=timedelta(seconds=configuration.log_seconds)
    )
    async with AsyncExitStack() as stack:
        store = SqliteStore(Path(configuration.data), retention, clock)
        stack.push_async_callback(store.close)
        client = await stack.enter_async_context(
            open_client(
                allow_private_addresses=configuration.allow_private_addresses,
                seconds=configuration.callback_seconds,
            )
        )
        callback_client = await stack.enter_async_context(
            open_client(
                allow_private_addresses=configuration.allow_private_addresses,
                seconds=None,
                connections=0,
                per_host=0,
            )
        )
        requests = CallbackRequests(
            callback_client,
            public_url + "websub",
            method=configuration.signature,
            clock=clock,
            allow_private_addresses=configuration.allow_private_addresses,
        )
        stack.callback(requests.close)
        limits = Limits(configuration)
        gate = Gate(grants_of(configuration, anonymous=anonymous), limits.tokens)
        hub = Hub(
            configuration, store, client, requests, gate, limits, public_url=public_url, clock=clock
        )
        stack.push_async_callback(hub.close)
        await hub.start()
        scheduler = AsyncIOScheduler(timezone=UTC)
        scheduler.add_job(hub.keep_house, "interval", seconds=_HOUSEKEEPING_SECONDS)
        scheduler.start()
        stack.callback(scheduler.shutdown, wait=False)
        yield hub
