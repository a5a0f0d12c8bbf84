"""The hub under test on the bench: what is asked of it, and what is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
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
#: How soon is published again what was not delivered, in seconds; the waits grow.
_FIRST_PAUSE = 0.05
#: What a ping names the topic by: hubs know one name or the other.
_NAMES = {
    PublishMethod.PING: ("hub.url", "hub.topic"),
    PublishMethod.URL: ("hub.url",),
    PublishMethod.TOPIC: ("hub.topic",),
}


class HubResponse(Struct, frozen=True):
    """What the hub answered."""

    status: int
    content_type: str
    text: str

    def __str__(self) -> str:
        """Return it for a message."""
        text = self.text.strip()[:_MAX_REASON_BYTES]
        return f"{self.status} {text!r}" if text else str(self.status)


def html(words: str) -> bytes:
    """Write a page."""
    return f"<!doctype html>\n<title>A topic</title>\n<p>{words}</p>\n".encode()


class HubUnderTest:
    """One check's place of work.

    Args:
        settings: How to ask, and how long to wait.
        ends: Serves topics and callbacks.
        session: An HTTP client.

    Attributes:
        settings: How to ask, and how long to wait.
        ends: Serves topics and callbacks.
    """

    def __init__(
        self, settings: CheckSettings, ends: SimulatedEndpoints, session: aiohttp.ClientSession
    ) -> None:
        self.settings = settings
        self.ends = ends
        self._session = session

    def topic(
        self, content_type: str = "text/html", write: Callable[[str], bytes] = html
    ) -> SimulatedTopic:
        """Begin to serve a topic."""
        return self.ends.topic(content_type, write)

    def callback(
        self, query: str = "", path: str = "", *, beside: SimulatedCallback | None = None
    ) -> SimulatedCallback:
        """Begin to serve a callback (`SimulatedEndpoints.callback`)."""
        return self.ends.callback(query, path, beside=beside)

    async def reach(self) -> None:
        """See whether there is a hub at all, and whether it can be told of updates.

        Raises:
            Broken: Nothing answers, it sends subscribers elsewhere (WebSub §5.1.2), or it does
                not let us publish.
        """
        response = await self.post([])
        expect(response.status not in (307, 308), "it redirects to another hub; check that one")
        topic = self.topic()
        try:
            await self.publish(topic)
        except RequirementBroken as refused:
            # Some hubs accept updates of a topic only once somebody has subscribed to it.
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

    async def post(self, form: Sequence[tuple[str, str]] | bytes, **headers: str) -> HubResponse:
        """POST a form to the hub."""
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

    async def ask(
        self, mode: str, topic: SimulatedTopic, callback: SimulatedCallback, **fields: str
    ) -> HubResponse:
        """Ask to subscribe or unsubscribe.

        Args:
            mode: `subscribe` or `unsubscribe`.
            topic: What for.
            callback: Whose.
            fields: More parameters, without the `hub.` before their names.
        """
        form = {"mode": mode, "topic": topic.url, "callback": callback.url, **fields}
        return await self.post([("hub." + name, value) for name, value in form.items()])

    async def intend(
        self, mode: str, topic: SimulatedTopic, callback: SimulatedCallback, **fields: str
    ) -> ReceivedVerification:
        """Ask as `ask` does, and wait until the hub has asked back.

        Raises:
            Broken: The hub does not accept it, or does not verify it.
        """
        before = len(callback.verifications)
        response = await self.ask(mode, topic, callback, **fields)
        expect(response.status == 202, f"the hub answers {response}, not 202")
        return await self.verification(callback, before)

    async def subscribe(
        self, topic: SimulatedTopic, callback: SimulatedCallback, **fields: str
    ) -> ReceivedVerification:
        """Subscribe, up to the callback's answer."""
        return await self.intend("subscribe", topic, callback, **fields)

    async def leave(self) -> None:
        """End all subscriptions, so that the hub has no more of them than before."""
        self.ends.release()
        for callback, topic in self.ends.subscribed():
            callback.reply, callback.drops = echo, False
            form = {"mode": "unsubscribe", "topic": topic, "callback": callback.url}
            with suppress(RequirementBroken):
                await self.post([("hub." + name, value) for name, value in form.items()])
        await self.ends.until(lambda: not self.ends.subscribed(), self.settings.patience)

    async def verification(
        self, callback: SimulatedCallback, number: int = 0
    ) -> ReceivedVerification:
        """Wait for a GET of a callback.

        Raises:
            Broken: None came.
        """
        seen = callback.verifications
        came = await self.ends.until(lambda: len(seen) > number, self.settings.patience)
        expect(came, "the hub does not GET the callback to verify the intent")
        return seen[number]

    async def publish(self, topic: SimulatedTopic, *, way: PublishMethod | None = None) -> bytes:
        """Change a topic, and tell the hub.

        Raises:
            Broken: The hub does not accept that.
        """
        body = topic.change()
        await self.tell(topic, way=way)
        return body

    async def tell(self, topic: SimulatedTopic, *, way: PublishMethod | None = None) -> None:
        """Tell the hub that a topic has changed."""
        headers = {"Content-Type": _FORM}
        if self.settings.token is not None:
            headers["Authorization"] = f"Bearer {self.settings.token}"
        way = way or self.settings.way
        if way is PublishMethod.CONTENT:
            headers |= {"Content-Type": topic.content_type, "Link": self.ends.links(topic)}
            body = topic.versions[-1]
        else:
            form = {"hub.mode": "publish", **dict.fromkeys(_NAMES[way], topic.url)}
            body = urlencode(form).encode()
        response = await self._post(self.settings.publish or self.settings.hub, body, headers)
        expect(200 <= response.status < 300, f"publishing is answered {response}")

    async def delivered(
        self,
        topic: SimulatedTopic,
        callback: SimulatedCallback,
        wanted: Callable[[ReceivedDelivery], bool] = lambda delivery: True,
        *,
        way: PublishMethod | None = None,
    ) -> ReceivedDelivery:
        """Publish until a callback is sent what was published, which it may not be at once.

        Args:
            topic: What to publish on.
            callback: Whose delivery is waited for.
            wanted: Tells the delivery that is waited for from others.
            way: How the hub is told; by default as the settings say.

        Raises:
            Broken: No such delivery came.
        """
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
                await self.publish(topic, way=way)
            except RequirementBroken as error:  # it may not have taken note of the subscription yet
                refused = error
            await self.ends.until(lambda: bool(fresh()), min(pause, self.settings.settle))
            pause *= 2
        if not fresh():
            if refused is not None:
                raise refused
            raise RequirementBroken(_missed(callback.deliveries[before:], topic))
        return fresh()[0]

    async def quieted(self, topic: SimulatedTopic, callback: SimulatedCallback) -> None:
        """Wait until nothing that `delivered` published is under way to a callback any more."""
        await self.ends.until(
            lambda: callback.deliveries[-1].body == topic.versions[-1], self.settings.settle
        )

    async def ended(
        self, topic: SimulatedTopic, callback: SimulatedCallback, otherwise: str
    ) -> None:
        """Expect that a callback is delivered to no more, or will not be in a moment.

        Raises:
            Broken: It still is.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + self.settings.settle
        while True:
            before = len(callback.deliveries)
            await self.witnessed(topic)
            came = await self.ends.until(
                lambda before=before: len(callback.deliveries) > before,  # type: ignore[misc]
                self.settings.quiet,
            )
            if not came:
                return
            expect(loop.time() < end, otherwise)

    async def witnessed(self, topic: SimulatedTopic) -> None:
        """Publish until somebody else was sent it, so that nothing is left under way."""
        witness = self.callback()
        await self.subscribe(topic, witness)
        await self.delivered(topic, witness)

    async def nothing(self, came: Callable[[], bool], otherwise: str) -> None:
        """Expect that something does not come.

        Raises:
            Broken: It came.
        """
        expect(not await self.ends.until(came, self.settings.quiet), otherwise)


def _missed(deliveries: Sequence[ReceivedDelivery], topic: SimulatedTopic) -> str:
    if not deliveries:
        return "what was published is not delivered"
    if deliveries[-1].body not in topic.versions:
        return "the body of the delivery is not the content of the topic"
    return "no such delivery comes"
