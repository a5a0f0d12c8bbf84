"""`POST /websub`: fragments and pings from Sources, subscription requests from Destinations."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from aiohttp import HttpVersion11, web

from rsnotify.errors import DocumentError
from rsnotify.format.links import parse_links
from rsnotify.format.model import Rel
from rsnotify_hub.access.limits import RateLimits
from rsnotify_hub.intake import FragmentIntake
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.topic_log import TopicLogs
from rsnotify_hub.urls import check_url
from rsnotify_hub.websub.forms import Ping, parse_form
from rsnotify_hub.websub.pings import TopicFetcher
from rsnotify_hub.websub.verification import IntentVerification, client_of

_FORM = "application/x-www-form-urlencoded"
_MAX_FORM_BYTES = 64 * 1024
_CONTINUE = "100-continue"


@dataclass(eq=False, repr=False)
class WebSubHandler:
    intake: FragmentIntake
    topics: TopicLogs
    pings: TopicFetcher
    verification: IntentVerification
    limits: RateLimits

    async def handle(self, request: web.Request) -> web.Response:
        """Answer 202 when content is durable or a subscription request awaits verification."""
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
            raise Refusal(Code.BAD_REQUEST, 'send exactly one Link with rel="self": the topic')
        topic = check_url(topics[0], 'the Link with rel="self"')
        permission = self.intake.authorizer.check_publisher(request, topic)
        body = await self._body(request, self.intake.max_bytes)
        try:
            content = await self.intake.read_publication(body, content_type)
            permission.check()  # grants may have changed since the first check
            await self.topics.publish_in_time(topic, content)
        except DocumentError as error:
            raise Refusal(Code.INVALID_FRAGMENT, str(error)) from None

    async def _form(self, request: web.Request) -> None:
        form = parse_form(await self._body(request, _MAX_FORM_BYTES))
        if isinstance(form, Ping):
            await self._ping(request, form)
        else:
            self.limits.subscriptions.check(request.remote)
            await self.verification.forward(form, client_of(request.remote))

    async def _ping(self, request: web.Request, ping: Ping) -> None:
        for topic in ping.topics:
            self.intake.authorizer.check_ping(request, topic)
            if self.intake.authorizer.is_open(topic):  # anybody may make the hub fetch the topic
                self.limits.pings.check(request.remote)
        await asyncio.gather(*(self.pings.fetch(topic) for topic in ping.topics))

    async def _body(self, request: web.Request, most: int) -> bytes:
        _check_size(request.content_length or 0, most)
        await send_continue(request)
        try:
            async with asyncio.timeout(self.intake.request_seconds):
                body = await request.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout(text="the body did not arrive in time\n") from None
        except ConnectionError:
            # The client has disconnected. aiohttp would log another exception as the hub's failure.
            raise web.HTTPBadRequest(text="the body ended early\n") from None
        _check_size(len(body), most)  # a chunked body has no Content-Length
        return body


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise web.HTTPRequestEntityTooLarge(most, size)


async def defer_continue(request: web.Request) -> None:
    """Do not send `100 Continue` yet (an aiohttp `expect_handler`; RFC 9110 §10.1.1).

    The hub can then refuse a request by its headers, before the client sends the body.
    """


async def send_continue(request: web.Request) -> None:
    if request.version < HttpVersion11:
        return  # HTTP/1.0 has no interim responses, and Expect must be ignored
    expected = request.headers.get("Expect", "").lower()
    if expected not in ("", _CONTINUE):
        raise web.HTTPExpectationFailed(text="the hub does not support this expectation\n")
    if expected:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the final response has not begun
