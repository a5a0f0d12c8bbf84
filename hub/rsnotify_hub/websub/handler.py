"""`POST /websub`: fragments and pings from Sources, subscriptions from Destinations."""

from __future__ import annotations

import asyncio

from aiohttp import web

from rsnotify.errors import DocumentError
from rsnotify.format.links import parse_links
from rsnotify.format.vocabulary import Rel
from rsnotify_hub.access.limits import RateLimits
from rsnotify_hub.intake import FragmentIntake
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.urls import check_url
from rsnotify_hub.websub.continuing import go_on
from rsnotify_hub.websub.forms import Intent, Ping, parse_form
from rsnotify_hub.websub.pinging.pings import Pings
from rsnotify_hub.websub.room import client_of
from rsnotify_hub.websub.verification import Verification

_FORM = "application/x-www-form-urlencoded"
_MAX_FORM_BYTES = 64 * 1024


class WebSub:
    """The handler of `POST /websub`.

    Args:
        intake: Says who may publish, and reads fragments.
        topics: The logs.
        pings: Fetches channels.
        verification: Verifies subscribers.
        limits: How often one client may ask.
    """

    def __init__(
        self,
        intake: FragmentIntake,
        topics: TopicLogs,
        pings: Pings,
        verification: Verification,
        limits: RateLimits,
    ) -> None:
        self._intake = intake
        self._topics = topics
        self._pings = pings
        self._verification = verification
        self._limits = limits

    async def handle(self, request: web.Request) -> web.Response:
        """Answer 202 once what was asked for is durable, or, to a subscriber, is checked next."""
        if request.content_type == _FORM:
            await self._form(request)
        else:
            await self._content(request)
        return web.Response(status=202)

    async def _content(self, request: web.Request) -> None:
        content_type = request.headers.get("Content-Type", "")
        if not content_type:
            raise web.HTTPUnsupportedMediaType(text="it has no Content-Type\n")
        topics = [
            target
            for relation, target in parse_links(request.headers.getall("Link", []))
            if relation == Rel.SELF
        ]
        if len(topics) != 1:
            raise Refusal(Code.BAD_REQUEST, 'it needs one Link with rel="self", the topic')
        topic = check_url(topics[0], 'the Link with rel="self"')
        permission = self._intake.gate.check_publisher(request, topic)
        body = await self._body(request, self._intake.max_bytes)
        try:
            content = await self._intake.read_content(body, content_type)
            permission.check()  # others may have come meanwhile
            await self._topics.publish(topic, content)
        except DocumentError as error:
            raise Refusal(Code.INVALID_FRAGMENT, str(error)) from None

    async def _form(self, request: web.Request) -> None:
        form = parse_form(await self._body(request, _MAX_FORM_BYTES))
        if isinstance(form, Intent):
            self._intent(request, form)
        else:
            await self._ping(request, form)

    async def _ping(self, request: web.Request, ping: Ping) -> None:
        for topic in ping.topics:
            self._intake.gate.check_ping(request, topic)
            if self._pings.is_open(topic):  # little to ask for, and much to fetch
                self._limits.pings.check(request.remote)
        await asyncio.gather(*(self._pings.fetch(topic) for topic in ping.topics))

    def _intent(self, request: web.Request, intent: Intent) -> None:
        self._limits.subscriptions.check(request.remote)
        client = client_of(request.remote)
        full = self._verification.refusal(intent, client)
        if full is not None:
            raise Refusal(Code.TOO_MANY, full)
        unknown = self._topics.state(intent.topic) is None
        served = self._intake.gate.grants.is_served(intent.topic)
        if intent.mode == "subscribe" and unknown and not served:
            self._verification.deny(intent, client, "this hub does not serve the topic")
        else:
            self._verification.verify(intent, client)

    async def _body(self, request: web.Request, most: int) -> bytes:
        _check_size(request.content_length or 0, most)
        await go_on(request)
        try:
            async with asyncio.timeout(self._intake.request_seconds):
                body = await request.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout(text="the body did not arrive in time\n") from None
        except ConnectionError:
            # Nobody hears this; anything else would be told as a fault of ours.
            raise web.HTTPBadRequest(text="the body broke off\n") from None
        _check_size(len(body), most)  # nobody needs to tell a length
        return body


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise web.HTTPRequestEntityTooLarge(most, size)
