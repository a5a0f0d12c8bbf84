"""The status endpoints `/metrics`, `/healthz` and `/readyz`, and helpers for metrics."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from ipaddress import ip_address
from time import perf_counter

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CollectorRegistry, Metric, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from rsnotify.runtime.counters import Durations, Histogram
from rsnotify.runtime.serving import add_security_headers, host_in, serving

#: How long to cache metrics, as a multiple of the time to collect them.
CACHE_FACTOR = 10


class Families:
    """Creates metric families whose names have a common prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def gauge(self, name: str, about: str, value: float) -> Metric:
        return GaugeMetricFamily(self._prefix + name, about, value=value)

    def counter(self, name: str, about: str, value: float) -> Metric:
        return CounterMetricFamily(self._prefix + name, about, value=value)

    def gauges(self, name: str, about: str, label: str, values: Mapping[str, float]) -> Metric:
        """Return a gauge with one sample for each value of a label."""
        return _labelled(GaugeMetricFamily(self._prefix + name, about, labels=[label]), values)

    def counters(self, name: str, about: str, label: str, values: Mapping[str, float]) -> Metric:
        return _labelled(CounterMetricFamily(self._prefix + name, about, labels=[label]), values)

    def histogram(self, name: str, about: str, found: Histogram) -> Metric:
        return HistogramMetricFamily(
            self._prefix + name, about, buckets=found.buckets(), sum_value=found.sum
        )

    def durations(self, name: str, about: str, found: Durations) -> Metric:
        return SummaryMetricFamily(
            self._prefix + name, about, count_value=found.count, sum_value=found.seconds
        )


def _labelled(
    family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[str, float]
) -> Metric:
    for label, value in values.items():
        family.add_metric([label], value)
    return family


class MetricsText(Collector):
    """The metrics of a role and its process as text.

    The text is cached for ten times as long as it took to collect, so that frequent requests do not
    keep the program busy.
    """

    def __init__(
        self,
        families: Callable[[], Iterable[Metric]],
        timer: Callable[[], float] = perf_counter,
    ) -> None:
        self._families = families
        self._timer = timer
        self._body, self._stale = b"", timer()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def collect(self) -> Iterable[Metric]:
        return self._families()

    def text(self) -> bytes:
        begin = self._timer()
        if begin >= self._stale:
            self._body = generate_latest(self._registry)
            end = self._timer()
            self._stale = end + CACHE_FACTOR * (end - begin)
        return self._body

    def answer(self) -> web.Response:
        return metrics_response(self.text())


def metrics_response(body: bytes) -> web.Response:
    return web.Response(
        body=body,
        headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4, "Cache-Control": "no-store"},
    )


@asynccontextmanager
async def serving_status(
    listener: socket.socket,
    families: Callable[[], Iterable[Metric]],
    not_ready: Callable[[], str],
    *routes: web.RouteDef,
) -> AsyncIterator[None]:
    """Serve the status while the context is active, and close the socket at the end.

    `families` returns the metrics, and is called in a thread. `not_ready` returns a sentence that
    explains why the program is not ready, or "" if it is.
    """
    metrics = MetricsText(families)
    making = asyncio.Lock()

    async def answer_metrics(request: web.Request) -> web.Response:
        async with making:  # in a thread, because a fleet may have thousands of Sources
            return metrics_response(await asyncio.to_thread(metrics.text))

    async def healthz(request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(request: web.Request) -> web.Response:
        reason = not_ready()
        return web.Response(text=f"{reason or 'ready'}\n", status=503 if reason else 200)

    app = web.Application(middlewares=[_own_names(listener)])
    app.on_response_prepare.append(add_security_headers)
    app.router.add_get("/metrics", answer_metrics)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.add_routes(routes)
    async with serving(app, listener, shutdown_timeout=1, most=100):
        yield


def _own_names(listener: socket.socket) -> Middleware:
    """Refuse foreign host names at a loopback address, against DNS rebinding."""
    is_local = _is_loopback(listener.getsockname()[0])

    @web.middleware
    async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
        host = host_in(request.host) or ""
        if is_local and host != "localhost" and not _is_loopback(host):
            raise web.HTTPForbidden(text="use the address of this server, or localhost\n")
        return await handler(request)

    return checked


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False
