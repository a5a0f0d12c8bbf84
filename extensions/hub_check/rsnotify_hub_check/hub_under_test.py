"""The hub under test, the operations that the checks use, and the registration of checks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from urllib.parse import urlencode

import aiohttp
from msgspec import Struct

from rsnotify.runtime.reasons import reason_of
from rsnotify_hub_check.outcomes import (
    Requirement,
    RequirementBroken,
    RequirementLevel,
    expect,
)
from rsnotify_hub_check.simulated_endpoints import (
    ReceivedDelivery,
    ReceivedVerification,
    SimulatedCallback,
    SimulatedEndpoints,
    SimulatedTopic,
    echo,
)


class PublishMethod(StrEnum):
    """How to publish: a ping, or the content. WebSub does not specify this (§6)."""

    PING = "ping"
    URL = "url"
    TOPIC = "topic"
    CONTENT = "content"


class CheckSettings(Struct, frozen=True, kw_only=True):
    """The settings of a run of checks. Times are in seconds.

    Args:
        hub: The hub's URL.
        publish_url: The URL to publish to; by default, the hub's URL.
        publish_method: A form with `hub.url`, `hub.topic` or both, or the content itself.
        token: A bearer token for publishing, if the hub requires one.
        patience: How long to wait for a request or response that the hub should send immediately.
        quiet: How long to wait for a request that the hub should not send.
        settle: How long the hub may need to process a verification.
        retry: How long to wait until the hub retries a failed delivery.
        denied_topic: A topic for which the hub denies subscriptions, if any.
    """

    hub: str
    publish_url: str | None = None
    publish_method: PublishMethod = PublishMethod.PING
    token: str | None = None
    patience: float = 10.0
    quiet: float = 2.0
    settle: float = 1.0
    retry: float = 60.0
    denied_topic: str | None = None


_FORM = "application/x-www-form-urlencoded"
_MAX_TEXT_LENGTH = 300
#: Initial delay before publishing again if nothing was delivered, in seconds.
_INITIAL_PAUSE_SECONDS = 0.05
#: The parameters that name the topic in a ping. Many hubs support only one of them.
_TOPIC_PARAMETERS = {
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
        text = self.text.strip()[:_MAX_TEXT_LENGTH]
        return f"{self.status} {text!r}" if text else str(self.status)


def request_form(
    mode: str, topic: str, callback: SimulatedCallback, **fields: str
) -> dict[str, str]:
    """Return the form of a request. The names of `fields` do not include the prefix `hub.`."""
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
            # Some hubs only accept updates of topics with a subscriber.
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
                await asyncio.sleep(_INITIAL_PAUSE_SECONDS)
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
                text = (await got.content.read(_MAX_TEXT_LENGTH * 4)).decode(errors="replace")
                return HubResponse(got.status, got.content_type, text)
        except TimeoutError:
            raise RequirementBroken(f"no answer within {self.settings.patience:g} s") from None
        except aiohttp.ClientError as error:
            raise RequirementBroken(reason_of(error)) from None

    async def request(
        self, mode: str, topic: SimulatedTopic, callback: SimulatedCallback, **fields: str
    ) -> HubResponse:
        """Send a request with the mode `subscribe` or `unsubscribe`."""
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
        """End all subscriptions, so that the hub keeps none."""
        self.endpoints.release()
        for callback, topic in self.endpoints.subscribed():
            callback.reply, callback.drops = echo, False
            with suppress(RequirementBroken):
                await self.post(request_form("unsubscribe", topic, callback))
        await self.endpoints.until(lambda: not self.endpoints.subscribed(), self.settings.patience)

    async def wait_for_verification(
        self, callback: SimulatedCallback, number: int = 0
    ) -> ReceivedVerification:
        """Wait for a verification of a callback, and fail if it does not arrive in time.

        `number` is the index of the verification among all those of the callback.
        """
        seen = callback.verifications
        arrived = await self.endpoints.until(lambda: len(seen) > number, self.settings.patience)
        expect(arrived, "the hub does not send a GET request to verify the intent")
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
            form = {"hub.mode": "publish", **dict.fromkeys(_TOPIC_PARAMETERS[method], topic.url)}
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
        """Publish new versions until a callback receives one of them."""
        before, versions = len(callback.deliveries), len(topic.versions)
        loop = asyncio.get_running_loop()
        end = loop.time() + self.settings.patience

        def fresh() -> list[ReceivedDelivery]:
            news = callback.deliveries[before:]
            return [
                each for each in news if each.body in topic.versions[versions:] and wanted(each)
            ]

        pause, refused = _INITIAL_PAUSE_SECONDS, None
        while not fresh() and loop.time() < end:
            try:
                await self.publish(topic, method=method)
            except RequirementBroken as error:  # the hub may not have the subscription yet
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
        """Expect deliveries to a callback to end within `settle` seconds."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.settings.settle
        while True:
            before = len(callback.deliveries)
            await self.publish_to_witness(topic)
            delivered = await self.endpoints.until(
                lambda before=before: len(callback.deliveries) > before,  # type: ignore[misc]
                self.settings.quiet,
            )
            if not delivered:
                return
            expect(loop.time() < end, otherwise)

    async def publish_to_witness(self, topic: SimulatedTopic) -> None:
        """Publish until a second subscriber has received a delivery, after all earlier ones."""
        witness = self.callback()
        await self.subscribe(topic, witness)
        await self.expect_delivery(topic, witness)

    async def expect_nothing(self, happens: Callable[[], bool], otherwise: str) -> None:
        """Expect a condition to stay false for `quiet` seconds."""
        expect(not await self.endpoints.until(happens, self.settings.quiet), otherwise)


def _missed(deliveries: Sequence[ReceivedDelivery], topic: SimulatedTopic) -> str:
    if not deliveries:
        return "the new version was not delivered"
    if deliveries[-1].body not in topic.versions:
        return "the body of the delivery is not the content of the topic"
    return "the expected delivery did not arrive"


Run = Callable[[HubUnderTest], Coroutine[None, None, None]]


class ConformanceCheck(Requirement, frozen=True):
    """A requirement, and the coroutine that checks it.

    The coroutine may raise `RequirementBroken` or `Inconclusive`.
    """

    run: Run


#: All checks by name, as registered by `check`.
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
