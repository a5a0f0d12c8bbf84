"""Connects the parts of a hub: the store, the logs, the transports and the HTTP handlers."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC
from functools import cache
from shutil import disk_usage

import aiohttp
from aiohttp import web
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from rsnotify import __version__
from rsnotify.errors import StorageError
from rsnotify.format.datetimes import Instant
from rsnotify.format.offer import HubDocument
from rsnotify.runtime.mqtt_broker import parse_broker
from rsnotify.runtime.reasons import Repetitions
from rsnotify.runtime.settings import convert_settings
from rsnotify.runtime.status_endpoints import MetricsText
from rsnotify.runtime.tasks import retrieve_exception
from rsnotify.runtime.transport_extensions import ChannelPlace, place_of, transport_of
from rsnotify.sync.retry import Retry
from rsnotify_hub.access.authorization import Authorizer
from rsnotify_hub.access.grants import configured_grants
from rsnotify_hub.access.limits import RateLimits, TopicQuota
from rsnotify_hub.admin.api import AdminApi
from rsnotify_hub.admin.connection_operations import ConnectionOperations
from rsnotify_hub.admin.history import HubHistory
from rsnotify_hub.admin.hub_operations import ChangeOperations, ReadOperations
from rsnotify_hub.admin.hub_readings import HubReadings, TopicRates, lag_seconds
from rsnotify_hub.admin.operations import AdminOperations
from rsnotify_hub.admin.schemas import DiskInfo
from rsnotify_hub.bridging import Bridge, BridgeDependencies, Bridges, HubTransport
from rsnotify_hub.change_memory import HubChangeMemory
from rsnotify_hub.config.configuration import HubConfig
from rsnotify_hub.event_streams import EventStreamHandler
from rsnotify_hub.filtering import FilterCache
from rsnotify_hub.intake import FragmentIntake
from rsnotify_hub.live.connections import LiveConnections
from rsnotify_hub.live.subscribers import LiveChannel, Replays, SelectionGroups
from rsnotify_hub.metrics import metric_families
from rsnotify_hub.mqtt_bridge import MqttBridge
from rsnotify_hub.open_store import open_store
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.store.interface import Store
from rsnotify_hub.store.providers import OpenStore
from rsnotify_hub.topic_log import DeliveryChannel, TopicLogs
from rsnotify_hub.websocket.websocket_handler import WebSocketHandler
from rsnotify_hub.websub.callback_requests import CallbackRequests, open_client
from rsnotify_hub.websub.intent_requests import IntentRequests
from rsnotify_hub.websub.pings import TopicFetcher
from rsnotify_hub.websub.verification import IntentVerification
from rsnotify_hub.websub.websub_channel import WebSubChannel
from rsnotify_hub.websub.websub_handler import WebSubHandler

logger = logging.getLogger("rsnotify.hub")

#: The timeout of the readiness check, in seconds.
_TIMEOUT_SECONDS = 5.0


@dataclass(eq=False, repr=False)
class Readiness:
    """Checks whether this node can use the store."""

    store: Store
    trouble: Callable[[], str | None] = lambda: None
    seconds: float = _TIMEOUT_SECONDS
    is_draining: bool = False

    def __post_init__(self) -> None:
        self._checking: asyncio.Task[None] | None = None
        self._reported = Repetitions()

    def check_open(self) -> None:
        if self.is_draining:
            raise Refusal(Code.UNAVAILABLE, "this node is draining: use another one")

    async def check(self) -> None:
        """Check whether this node is ready. Concurrent calls share one test write.

        Raises:
            Refusal: The node is draining, or cannot use the store.
            StorageError: The test write failed.
        """
        self.check_open()
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self.store.check())
            self._checking.add_done_callback(retrieve_exception)
        checking = self._checking
        trouble = self.trouble()
        if trouble is None:
            await asyncio.wait([checking], timeout=self.seconds)
            trouble = self.trouble()
        if trouble is None and not checking.done():
            trouble = f"the store did not answer within {self.seconds:.0f} seconds"
        if trouble is not None:
            if self._reported.is_new(trouble):
                logger.error("this node is not ready: %s", trouble)
            raise Refusal(Code.UNAVAILABLE, trouble)
        checking.result()

    async def close(self) -> None:
        if self._checking is not None:
            await asyncio.wait([self._checking])


Clock = Callable[[], Instant]


#: The interval of `clean_up`, in seconds.
_CLEAN_UP_SECONDS = 60


class HubService:
    """A hub without its HTTP server. `open_hub` creates it.

    `connections` returns the number of open connections. The HTTP server sets it.
    """

    def __init__(
        self,
        configuration: HubConfig,
        opened: OpenStore,
        client: aiohttp.ClientSession,
        requests: CallbackRequests,
        *,
        public_url: str,
        anonymous: bool,
        clock: Clock,
    ) -> None:
        websub, websocket = configuration.websub, configuration.websocket
        store = opened.store
        self.store = store
        self._opened = opened
        self.statistics = Statistics(clock)
        self._clock = clock
        self._topics = TopicLogs(store, self.statistics, opened.nodes.count)
        limits = RateLimits(configuration.limits)
        self.authorizer = Authorizer(
            configured_grants(configuration, anonymous=anonymous),
            limits.tokens,
            TopicQuota(self._topics, configuration.limits.max_topics_per_publisher),
        )
        intake = FragmentIntake(self.authorizer, configuration.intake, clock)
        self.change_memory = HubChangeMemory(
            self._topics, public_url + "topics", _brokers_of(configuration)
        )
        self.document = HubDocument(
            websub=public_url + "websub",
            websocket="ws" + public_url.removeprefix("http") + "ws",
            events=public_url + "events",
            mqtt=configuration.mqtt.public_url or configuration.mqtt.url,
            xmpp=configuration.xmpp.url,
        )

        # WebSub
        self._intent_requests = IntentRequests(
            requests, Retry(websub.retry_seconds), websub.callback_seconds
        )
        self._callbacks = WebSubChannel(
            store, self._topics, requests, self._intent_requests, websub, clock, self.statistics
        )
        self._verification = IntentVerification(
            self._callbacks,
            self._topics,
            self._intent_requests,
            websub,
            clock,
            opened.nodes,
            is_served=lambda topic: self.authorizer.grants.is_served(topic),
        )
        self._pings = TopicFetcher(
            self._topics,
            client,
            websub,
            configuration.intake,
            is_open=self.authorizer.is_open,
            clock=clock,
        )
        self.websub = WebSubHandler(intake, self._topics, self._pings, self._verification, limits)

        # WebSockets and event streams
        self._live = LiveChannel(websocket, self.statistics)
        self._filters = FilterCache()
        self._selections = SelectionGroups(
            self._topics, self._live, self._filters, websocket.max_selections
        )
        self._connections = LiveConnections(
            limits, self.statistics, websocket, public_url=public_url, clock=clock
        )
        replays = Replays(self._topics)
        self.websockets = WebSocketHandler(
            intake,
            self._topics,
            self._live,
            self._selections,
            self._connections,
            replays,
            self.statistics,
        )
        self.event_streams = EventStreamHandler(
            self._live, self._connections, replays, public_url + "events"
        )

        # Brokers
        dependencies = BridgeDependencies(
            store=store,
            topics=self._topics,
            intake=intake,
            statistics=self.statistics,
            filters=self._filters,
            clock=clock,
            retry_seconds=websub.retry_seconds,
            max_selections=websocket.max_selections,
        )
        self._bridges = _make_bridges(configuration, dependencies)

        # Administration
        rates = TopicRates(clock)
        self._channels: list[DeliveryChannel] = [
            self._live,
            self._selections,
            self._callbacks,
            rates,
            *self._bridges.all,
        ]
        self._disk: DiskInfo | None = None
        self._history = HubHistory(opened.folder and opened.folder / "history.json", clock())
        reads = self._reads = ReadOperations(
            self._topics,
            self._live,
            self._callbacks,
            rates,
            self._readings,
            self._history,
            clock,
            opened.nodes,
            opened.describe,
        )
        connections = ConnectionOperations(
            self._connections, self._topics, tuple(self._bridges.states()), opened.nodes
        )
        changes = ChangeOperations(reads, self.drain)
        self.metrics = MetricsText(lambda: metric_families(self._readings()))
        self.connections: Callable[[], int] = lambda: 0
        self.readiness = Readiness(store, opened.trouble)
        self.admin = AdminApi(
            AdminOperations(reads, changes, connections), self.authorizer, self.statistics
        )

    async def start(self) -> None:
        await self._topics.start(self._channels)
        await self.store.assign(self._callbacks)
        if self._bridges.all:
            await self.store.assign_bridge(self._bridges)

    async def accept_websocket(self, request: web.Request) -> web.StreamResponse:
        self.readiness.check_open()
        return await self.websockets.handle(request)

    async def accept_event_stream(self, request: web.Request) -> web.StreamResponse:
        self.readiness.check_open()
        return await self.event_streams.handle(request)

    async def close_connections(self) -> None:
        """Close all WebSockets and event streams after everything from Sources is durable."""
        await self.websockets.finish()
        await self._connections.close()

    async def drain(self) -> None:
        """Hand over this node's work to the other nodes, and close its connections."""
        self.readiness.is_draining = True
        await self._opened.leave()
        await self.close_connections()

    async def close(self) -> None:
        """Wait until all published fragments are durable, and stop delivering."""
        await self._opened.leave()
        await self.readiness.close()
        await self._verification.close()
        await self._intent_requests.close()
        await self._pings.close()
        await self._bridges.close()
        await self._topics.close()
        self._selections.close()
        self._filters.close()
        await self._callbacks.close()
        await self._add_minute()

    async def measure_disk(self) -> None:
        if self._opened.folder is not None:
            with suppress(OSError):
                found = await asyncio.to_thread(disk_usage, self._opened.folder)
                self._disk = DiskInfo(found.free, found.total)

    async def _add_minute(self) -> None:
        self._history.add(self._readings(), self._clock())
        await self._history.save()

    def _readings(self) -> HubReadings:
        now, deliveries = self._clock(), self._callbacks.registry.all()
        return HubReadings(
            version=__version__,
            started=self._reads.started,
            now=now,
            silence_limit=self._reads.rates.silence_limits.limit,
            statistics=self.statistics,
            logs=self._topics.states(),
            subscriptions=Counter(each.state for each in deliveries),
            lags=cache(
                lambda: [
                    lag_seconds(each, now) for each in deliveries if not each.subscription.suspended
                ]
            ),
            connections=self.connections(),
            live=self._connections.counts(),
            delivery_queue=self._callbacks.waiting(),
            commit_queue=self.store.queued(),
            brokers=self._bridges.states(),
            nodes=self._opened.describe(),
            moved_shards=self._opened.moved,
            disk=self._disk,
        )

    async def clean_up(self) -> None:
        """End expired leases, trim quiet logs, update the history, and check disk and servers."""
        await self.measure_disk()
        await self._add_minute()
        try:
            await self._callbacks.expire()
            await self._topics.trim()
        except StorageError as error:
            logger.warning("cannot clean up leases and logs: %s", error)
        await self._opened.check_servers()


@asynccontextmanager
async def open_hub(
    configuration: HubConfig, *, public_url: str, anonymous: bool, clock: Clock
) -> AsyncIterator[HubService]:
    """Return a context with a running hub.

    `public_url` ends in `/`. With `anonymous`, programs on this machine may publish without a token
    if no publishers are configured.

    Raises:
        ConfigurationError: The data folder or the store's servers cannot be used.
        StorageError: The store cannot be read.
    """
    websub = configuration.websub
    async with AsyncExitStack() as stack:
        opened = await stack.enter_async_context(open_store(configuration, clock, public_url))
        client = await stack.enter_async_context(
            open_client(allow_private_addresses=websub.allow_private_addresses)
        )
        requests = CallbackRequests(
            client,
            public_url + "websub",
            method=websub.signature,
            clock=clock,
            allow_private_addresses=websub.allow_private_addresses,
        )
        stack.callback(requests.close)
        hub = HubService(
            configuration,
            opened,
            client,
            requests,
            public_url=public_url,
            anonymous=anonymous,
            clock=clock,
        )
        stack.push_async_callback(hub.close)
        await hub.start()
        await opened.check_servers()
        await hub.measure_disk()

        async def clean_up() -> None:
            # On shutdown, the scheduler cancels a running job, and would log an error.
            with suppress(asyncio.CancelledError):
                await hub.clean_up()

        scheduler = AsyncIOScheduler(timezone=UTC)
        scheduler.add_job(clean_up, "interval", seconds=_CLEAN_UP_SECONDS, name="clean up")
        scheduler.start()
        stack.callback(scheduler.shutdown, wait=False)
        yield hub


def _make_bridges(configuration: HubConfig, dependencies: BridgeDependencies) -> Bridges:
    bridges: list[Bridge] = []
    if configuration.mqtt.url is not None:
        bridges.append(MqttBridge(configuration.mqtt, dependencies))
    for scheme, table in configuration.transport_tables:
        transport: HubTransport = transport_of(scheme)
        settings = convert_settings(table, transport.settings)
        bridges.append(transport.bridge(settings, dependencies))
    return Bridges(bridges)


def _brokers_of(configuration: HubConfig) -> dict[str, ChannelPlace | None]:
    mqtt, xmpp = configuration.mqtt.public_url or configuration.mqtt.url, configuration.xmpp.url
    return {
        "mqtt": None if mqtt is None else parse_broker(mqtt),
        "xmpp": None if xmpp is None else place_of(xmpp),
    }
