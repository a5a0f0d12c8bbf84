"""The hub under test: the requests to it, and the waiting for its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from urllib.parse import urlencode

import aiohttp
from msgspec import Struct

from rsnotify_hub_check.callback import (
    ReceivedDelivery,
    ReceivedVerification,
    SimulatedCallback,
    echo,
)
from rsnotify_hub_check.endpoints import SimulatedEndpoints, SimulatedTopic
from rsnotify_hub_check.outcomes import RequirementBroken, expect
from rsnotify_hub_check.settings import CheckSettings, PublishMethod

_FORM = "application/x-www-form-urlencoded"
_MAX_REASON_BYTES = 300
#: The delay before publishing again if nothing was delivered, in seconds; it grows.
_FIRST_PAUSE = 0.05
#: The parameters of a ping that name the topic: hubs know one or the other.
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
    """Return the form of a request; the names of more fields have no prefix `hub.`."""
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
            # Some hubs accept updates only of topics with a subscriber.
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
            raise RequirementBroken(
                getattr(error, "strerror", None) or type(error).__name__
            ) from None

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

    async def unsubscribe_all(self) -> None:
        """End all subscriptions, so that none of them remains at the hub."""
        self.endpoints.release()
        for callback, topic in self.endpoints.subscribed():
            callback.reply, callback.drops = echo, False
            with suppress(RequirementBroken):
                await self.post(request_form("unsubscribe", topic, callback))
        await self.endpoints.until(lambda: not self.endpoints.subscribed(), self.settings.patience)

    async def wait_for_verification(
        self, callback: SimulatedCallback, number: int = 0
    ) -> ReceivedVerification:
        """Expect a GET of a callback."""
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
        """Publish until a callback receives a new version, which may not be the first one."""
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
        """Wait until the last version that `expect_delivery` published is delivered."""
        await self.endpoints.until(
            lambda: callback.deliveries[-1].body == topic.versions[-1], self.settings.settle
        )

    async def expect_ended(
        self, topic: SimulatedTopic, callback: SimulatedCallback, otherwise: str
    ) -> None:
        """Expect that deliveries to a callback end, at once or after `settle` seconds."""
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
        """Publish until another subscriber receives it, so that earlier deliveries are done."""
        witness = self.callback()
        await self.subscribe(topic, witness)
        await self.expect_delivery(topic, witness)

    async def expect_nothing(self, came: Callable[[], bool], otherwise: str) -> None:
        """Expect that a condition stays false for `quiet` seconds."""
        expect(not await self.endpoints.until(came, self.settings.quiet), otherwise)


def _missed(deliveries: Sequence[ReceivedDelivery], topic: SimulatedTopic) -> str:
    if not deliveries:
        return "the new version is not delivered"
    if deliveries[-1].body not in topic.versions:
        return "the body of the delivery is not the content of the topic"
    return "the expected delivery does not come"
