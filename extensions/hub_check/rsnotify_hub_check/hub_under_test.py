"""The hub under test, and the server of topics and simulated callbacks that it sends requests to.

A callback records and answers verifications and deliveries. This module also registers the checks.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import chain
from urllib.parse import parse_qsl, urlencode

import aiohttp
from aiohttp import web
from msgspec import Struct
from multidict import CIMultiDictProxy

from rsnotify.format.links import format_links
from rsnotify.runtime.listening import address, listen
from rsnotify.runtime.reasons import reason_of
from rsnotify.runtime.serving import serving
from rsnotify_hub_check.outcomes import (
    CheckSettings,
    PublishMethod,
    Requirement,
    RequirementBroken,
    RequirementLevel,
    expect,
)


class ReceivedVerification(Struct, frozen=True):
    """A GET request to a callback, and the parameters that the hub appended."""

    target: str
    appended: dict[str, str]

    @property
    def challenge(self) -> str:
        return self.appended.get("hub.challenge", "")


class ReceivedDelivery(Struct, frozen=True):
    target: str
    headers: CIMultiDictProxy[str]
    body: bytes


class CallbackReply(Struct, frozen=True):
    status: int = 200
    body: str = ""
    headers: dict[str, str] = {}


def echo(verification: ReceivedVerification) -> CallbackReply:
    """Confirm the intent by repeating the challenge."""
    return CallbackReply(body=verification.challenge)


def decline(verification: ReceivedVerification) -> CallbackReply:
    """Answer that the subscriber does not agree (WebSub §5.3.1)."""
    return CallbackReply(status=404)


class SimulatedCallback:
    """A subscriber's callback.

    Attributes:
        target: The callback's path and query.
        reply: A function that returns the answer to a verification.
        answers: The answers to the next deliveries, in order.
        answer: The answer to all later deliveries.
        drops: Whether to close the connection without an answer.
        open: An event that answers wait for.
        subscribed: The topics to which the callback is subscribed, according to its answers.
    """

    def __init__(self, base: str, token: str, query: str, path: str) -> None:
        self.token = token
        self.target = f"/callback/{self.token}{path}" + (f"?{query}" if query else "")
        self.url = base + self.target
        self.reply: Callable[[ReceivedVerification], CallbackReply] = echo
        self.answers: list[CallbackReply] = []
        self.answer = CallbackReply()
        self.drops = False
        self.open = asyncio.Event()
        self.open.set()
        self.verifications: list[ReceivedVerification] = []
        self.deliveries: list[ReceivedDelivery] = []
        self.subscribed: set[str] = set()

    def read(self, target: str) -> ReceivedVerification:
        """Parse the target of a verification into the parameters that the hub appended."""
        added = target[len(self.target) :] if target.startswith(self.target) else target
        query = added.lstrip("?&") if added is not target else target.partition("?")[2]
        return ReceivedVerification(target, dict(parse_qsl(query, keep_blank_values=True)))

    def verify(self, verification: ReceivedVerification) -> CallbackReply:
        self.verifications.append(verification)
        reply = self.reply(verification)
        if 200 <= reply.status < 300 and reply.body == verification.challenge:
            begins = verification.appended.get("hub.mode") == "subscribe"
            change = self.subscribed.add if begins else self.subscribed.discard
            change(verification.appended.get("hub.topic", ""))
        return reply


#: Maximum size of a body that is accepted from a hub.
_MAX_BODY_BYTES = 64 * 1024 * 1024


def html(words: str) -> bytes:
    return f"<!doctype html>\n<title>A topic</title>\n<p>{words}</p>\n".encode()


class SimulatedTopic:
    """A publisher's resource. Each version has different content; the last one is the newest."""

    def __init__(self, base: str, content_type: str, write: Callable[[str], bytes]) -> None:
        self.token = secrets.token_hex(12)
        self.url = f"{base}/topic/{self.token}"
        self.content_type = content_type
        self._write = write
        self.versions: list[bytes] = []
        self.gets = 0
        self.change()

    def change(self) -> bytes:
        self.versions.append(self._write(f"version {len(self.versions)} of {self.token}"))
        return self.versions[-1]


class SimulatedEndpoints:
    """A server of callbacks, and of topics that advertise a hub."""

    def __init__(self, base: str, hub: str) -> None:
        self.base = base
        self._hub = hub
        self._callbacks: dict[str, list[SimulatedCallback]] = {}
        self._topics: dict[str, SimulatedTopic] = {}
        self._received = asyncio.Condition()

    def callback(
        self, query: str = "", path: str = "", *, beside: SimulatedCallback | None = None
    ) -> SimulatedCallback:
        """Add a callback. If `beside` is given, the paths of both share a prefix."""
        token = beside.token if beside else secrets.token_hex(12)
        callback = SimulatedCallback(self.base, token, query, path)
        self._callbacks.setdefault(token, []).append(callback)
        return callback

    def topic(
        self, content_type: str = "text/html", write: Callable[[str], bytes] = html
    ) -> SimulatedTopic:
        """Add a topic. `write` returns a body that contains the given words."""
        topic = SimulatedTopic(self.base, content_type, write)
        self._topics[topic.token] = topic
        return topic

    def links(self, topic: SimulatedTopic) -> str:
        return format_links([("self", topic.url), ("hub", self._hub)])

    async def until(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Wait until requests make `holds` true, and return whether that happened in time."""
        try:
            async with asyncio.timeout(seconds), self._received:
                await self._received.wait_for(holds)
        except TimeoutError:
            return holds()
        return True

    async def handle(self, request: web.Request) -> web.StreamResponse:
        kind, _, rest = request.raw_path.lstrip("/").partition("/")
        token = rest[:24]
        if kind == "topic" and token in self._topics:
            return self._content(self._topics[token])
        if kind == "callback" and token in self._callbacks:
            these = self._callbacks[token]
            named = (each for each in these if request.raw_path.startswith(each.target))
            return await self._call(next(named, these[0]), request)
        return web.Response(status=404)

    def _content(self, topic: SimulatedTopic) -> web.Response:
        topic.gets += 1
        headers = {"Content-Type": topic.content_type, "Link": self.links(topic)}
        return web.Response(body=topic.versions[-1], headers=headers)

    async def _call(self, callback: SimulatedCallback, request: web.Request) -> web.StreamResponse:
        reply = await self._record(callback, request)
        async with self._received:
            self._received.notify_all()
        await callback.open.wait()
        if callback.drops and request.transport is not None:
            request.transport.abort()
        return web.Response(status=reply.status, text=reply.body, headers=reply.headers)

    async def _record(self, callback: SimulatedCallback, request: web.Request) -> CallbackReply:
        if request.method == "GET":
            return callback.verify(callback.read(request.raw_path))
        body = await request.read()
        callback.deliveries.append(ReceivedDelivery(request.raw_path, request.headers, body))
        return callback.answers.pop(0) if callback.answers else callback.answer

    def subscribed(self) -> list[tuple[SimulatedCallback, str]]:
        """Return the callback and topic of each subscription, as far as the callbacks know."""
        callbacks = chain.from_iterable(self._callbacks.values())
        return [(each, topic) for each in callbacks for topic in each.subscribed]

    def release(self) -> None:
        """Release the answers that callbacks hold back."""
        for callback in chain.from_iterable(self._callbacks.values()):
            callback.open.set()


@asynccontextmanager
async def serve_endpoints(
    hub: str, *, host: str = "127.0.0.1", port: int = 0, base: str | None = None
) -> AsyncIterator[SimulatedEndpoints]:
    """Serve callbacks, and topics that advertise a hub, within the context.

    `base` is the URL at which the hub reaches this server. By default, it has the host and port.
    """
    with listen(host, port, "another --listen") as listener:
        endpoints = SimulatedEndpoints((base or address(host, listener)).rstrip("/"), hub)
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_route("*", "/{any:.*}", endpoints.handle)
        async with serving(app, listener, shutdown_timeout=0.1):
            yield endpoints
            endpoints.release()


_FORM = "application/x-www-form-urlencoded"
_MAX_REASON_BYTES = 300
#: Initial delay before publishing again if nothing was delivered, in seconds.
_FIRST_PAUSE = 0.05
#: The parameters that name the topic in a ping. Hubs know one or the other.
_NAMES = {
    PublishMethod.PING: ("hub.url", "hub.topic"),
    PublishMethod.URL: ("hub.url",),
    PublishMethod.TOPIC: ("hub.topic",),
}


class HubResponse(Struct, frozen=True):
    status: int
    content_type: str
    text: str

    def expect_accepted(self) -> None:
        expect(self.status == 202, f"the hub answers {self}, not 202")

    def __str__(self) -> str:
        text = self.text.strip()[:_MAX_REASON_BYTES]
        return f"{self.status} {text!r}" if text else str(self.status)


def request_form(
    mode: str, topic: str, callback: SimulatedCallback, **fields: str
) -> dict[str, str]:
    """Return the form of a request. Pass additional `fields` without the prefix `hub.`."""
    form = {"mode": mode, "topic": topic, "callback": callback.url, **fields}
    return {"hub." + name: value for name, value in form.items()}


class HubUnderTest:
    def __init__(
        self, settings: CheckSettings, endpoints: SimulatedEndpoints, session: aiohttp.ClientSession
    ) -> None:
        self.settings = settings
        self.endpoints = endpoints
        self.topic = endpoints.topic
        self.callback = endpoints.callback
        self._session = session

    async def check_reachable(self) -> None:
        """Check that the hub does not redirect (WebSub §5.1.2), and accepts publications."""
        response = await self.post({})
        expect(response.status not in (307, 308), "it redirects to another hub; check that one")
        topic = self.topic()
        try:
            await self.publish(topic)
        except RequirementBroken as refused:
            # Some hubs accept updates only for topics with a subscriber.
            await self._publish_to_a_subscriber(topic, refused)

    async def _publish_to_a_subscriber(
        self, topic: SimulatedTopic, refused: RequirementBroken
    ) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self.settings.settle
        with suppress(RequirementBroken):
            await self.subscribe(topic, self.callback())
            while loop.time() < end:
                with suppress(RequirementBroken):
                    await self.publish(topic)
                    return
                await asyncio.sleep(_FIRST_PAUSE)
        raise refused

    async def post(self, form: Mapping[str, str] | bytes, **headers: str) -> HubResponse:
        body = form if isinstance(form, bytes) else urlencode(form).encode()
        return await self._post(self.settings.hub, body, {"Content-Type": _FORM, **headers})

    async def _post(self, url: str, body: bytes, headers: dict[str, str]) -> HubResponse:
        try:
            async with (
                asyncio.timeout(self.settings.patience),
                self._session.post(url, data=body, headers=headers, allow_redirects=False) as got,
            ):
                text = (await got.content.read(_MAX_REASON_BYTES * 4)).decode(errors="replace")
                return HubResponse(got.status, got.content_type, text)
        except TimeoutError:
            raise RequirementBroken(f"no answer within {self.settings.patience:g} s") from None
        except aiohttp.ClientError as error:
            raise RequirementBroken(reason_of(error)) from None

    async def request(
        self, mode: str, topic: SimulatedTopic, callback: SimulatedCallback, **fields: str
    ) -> HubResponse:
        """Request a subscription (mode `subscribe`) or its end (`unsubscribe`)."""
        return await self.post(request_form(mode, topic.url, callback, **fields))

    async def request_and_verify(
        self, mode: str, topic: SimulatedTopic, callback: SimulatedCallback, **fields: str
    ) -> ReceivedVerification:
        before = len(callback.verifications)
        (await self.request(mode, topic, callback, **fields)).expect_accepted()
        return await self.wait_for_verification(callback, before)

    async def subscribe(
        self, topic: SimulatedTopic, callback: SimulatedCallback, **fields: str
    ) -> ReceivedVerification:
        return await self.request_and_verify("subscribe", topic, callback, **fields)

    async def subscribed(self, **fields: str) -> tuple[SimulatedTopic, SimulatedCallback]:
        """Subscribe a new callback to a new topic, and return both."""
        topic, callback = self.topic(), self.callback()
        await self.subscribe(topic, callback, **fields)
        return topic, callback

    async def served(self, **fields: str) -> tuple[SimulatedTopic, SimulatedCallback]:
        """Subscribe a new callback to a new topic, expect a delivery, and return both."""
        topic, callback = await self.subscribed(**fields)
        await self.expect_delivery(topic, callback)
        return topic, callback

    async def unsubscribe_all(self) -> None:
        """End all subscriptions, so that none remains at the hub."""
        self.endpoints.release()
        for callback, topic in self.endpoints.subscribed():
            callback.reply, callback.drops = echo, False
            with suppress(RequirementBroken):
                await self.post(request_form("unsubscribe", topic, callback))
        await self.endpoints.until(lambda: not self.endpoints.subscribed(), self.settings.patience)

    async def wait_for_verification(
        self, callback: SimulatedCallback, number: int = 0
    ) -> ReceivedVerification:
        """Wait for a verification of a callback. Fail if it does not arrive in time.

        `number` is the verification's index among all verifications of the callback.
        """
        seen = callback.verifications
        came = await self.endpoints.until(lambda: len(seen) > number, self.settings.patience)
        expect(came, "the hub does not GET the callback to verify the intent")
        return seen[number]

    async def publish(self, topic: SimulatedTopic, *, method: PublishMethod | None = None) -> bytes:
        body = topic.change()
        await self.notify(topic, method=method)
        return body

    async def notify(self, topic: SimulatedTopic, *, method: PublishMethod | None = None) -> None:
        headers = {"Content-Type": _FORM}
        if self.settings.token is not None:
            headers["Authorization"] = f"Bearer {self.settings.token}"
        method = method or self.settings.publish_method
        if method is PublishMethod.CONTENT:
            headers |= {"Content-Type": topic.content_type, "Link": self.endpoints.links(topic)}
            body = topic.versions[-1]
        else:
            form = {"hub.mode": "publish", **dict.fromkeys(_NAMES[method], topic.url)}
            body = urlencode(form).encode()
        response = await self._post(self.settings.publish_url or self.settings.hub, body, headers)
        expect(200 <= response.status < 300, f"the hub answers a publication with {response}")

    async def expect_delivery(
        self,
        topic: SimulatedTopic,
        callback: SimulatedCallback,
        wanted: Callable[[ReceivedDelivery], bool] = lambda delivery: True,
        *,
        method: PublishMethod | None = None,
    ) -> ReceivedDelivery:
        """Publish until a callback receives a new version, not necessarily the first one."""
        before, versions = len(callback.deliveries), len(topic.versions)
        loop = asyncio.get_running_loop()
        end = loop.time() + self.settings.patience

        def fresh() -> list[ReceivedDelivery]:
            news = callback.deliveries[before:]
            return [
                each for each in news if each.body in topic.versions[versions:] and wanted(each)
            ]

        pause, refused = _FIRST_PAUSE, None
        while not fresh() and loop.time() < end:
            try:
                await self.publish(topic, method=method)
            except RequirementBroken as error:  # the hub may not know the subscription yet
                refused = error
            await self.endpoints.until(lambda: bool(fresh()), min(pause, self.settings.settle))
            pause *= 2
        if not fresh():
            if refused is not None:
                raise refused
            raise RequirementBroken(_missed(callback.deliveries[before:], topic))
        return fresh()[0]

    async def wait_until_idle(self, topic: SimulatedTopic, callback: SimulatedCallback) -> None:
        """Wait until the last version that `expect_delivery` published has been delivered."""
        await self.endpoints.until(
            lambda: callback.deliveries[-1].body == topic.versions[-1], self.settings.settle
        )

    async def expect_ended(
        self, topic: SimulatedTopic, callback: SimulatedCallback, otherwise: str
    ) -> None:
        """Expect deliveries to a callback to end, at the latest after `settle` seconds."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.settings.settle
        while True:
            before = len(callback.deliveries)
            await self.publish_to_witness(topic)
            came = await self.endpoints.until(
                lambda before=before: len(callback.deliveries) > before,  # type: ignore[misc]
                self.settings.quiet,
            )
            if not came:
                return
            expect(loop.time() < end, otherwise)

    async def publish_to_witness(self, topic: SimulatedTopic) -> None:
        """Publish until a second subscriber gets a delivery, so that earlier ones are finished."""
        witness = self.callback()
        await self.subscribe(topic, witness)
        await self.expect_delivery(topic, witness)

    async def expect_nothing(self, came: Callable[[], bool], otherwise: str) -> None:
        """Expect a condition to stay false for `quiet` seconds."""
        expect(not await self.endpoints.until(came, self.settings.quiet), otherwise)


def _missed(deliveries: Sequence[ReceivedDelivery], topic: SimulatedTopic) -> str:
    if not deliveries:
        return "the new version is not delivered"
    if deliveries[-1].body not in topic.versions:
        return "the body of the delivery is not the content of the topic"
    return "the expected delivery does not come"


Run = Callable[[HubUnderTest], Coroutine[None, None, None]]


class ConformanceCheck(Requirement, frozen=True):
    """A requirement, and the coroutine that checks it.

    The coroutine raises `RequirementBroken` or `Inconclusive`.
    """

    run: Run


#: All checks by name, registered with `check`.
CHECKS: dict[str, ConformanceCheck] = {}


def check(
    section: str, level: RequirementLevel, *rocks: int, name: str = "", title: str = ""
) -> Callable[[Run], Run]:
    """Register a coroutine as a check.

    The default name and title are the coroutine's name and the first line of its docstring.
    """

    def register(run: Run) -> Run:
        key = (name or run.__name__).replace("_", "-")
        assert key not in CHECKS, key
        rule = title or (run.__doc__ or "").partition("\n")[0]
        CHECKS[key] = ConformanceCheck(key, section, level, rocks, rule, run)
        return run

    return register
