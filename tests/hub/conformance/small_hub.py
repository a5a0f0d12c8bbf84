"""A WebSub hub of one page, that can be made to break each rule: what the suite is tried on."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlencode

import aiohttp
from aiohttp import web
from yarl import URL

from tests.hub.helpers import serving

DENIED = "http://denied.example/topic"
KNOWN = {"hub." + name for name in ("mode", "topic", "callback", "lease_seconds", "secret", "url")}
DAY = 86_400


class Wrong(Exception):
    pass


@dataclass
class Subscription:
    topic: str
    callback: str
    secret: str | None
    lease: int
    expires: float
    waiting: asyncio.Queue[tuple[bytes, str]] = field(default_factory=asyncio.Queue)


class SmallHub:
    def __init__(self, session: aiohttp.ClientSession, fault: str) -> None:
        self.url = ""
        self.session = session
        self.fault = fault
        self.subscriptions: dict[object, Subscription] = {}
        self.contents: dict[str, bytes] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: object) -> asyncio.Task[None]:
        task = asyncio.create_task(work)  # type: ignore[arg-type]
        self.tasks.add(task)
        return task

    async def handle(self, request: web.Request) -> web.Response:
        try:
            return await self.decide(self.parse(await request.text()))
        except Wrong as wrong:
            if self.fault == "json errors":
                return web.json_response({"error": str(wrong)}, status=400)
            status = 202 if self.fault == "anything goes" else 400
            return web.Response(status=status, text=f"{wrong}\n")

    def parse(self, body: str) -> dict[str, str]:
        pairs = parse_qsl(body, keep_blank_values=True)
        names = [unquote(name) for name, _ in pairs]
        if self.fault == "raw names":
            names = [part.partition("=")[0] for part in body.split("&") if part]
        if self.fault == "mode first" and names[:1] != ["hub.mode"]:
            raise Wrong("hub.mode is not the first")
        if self.fault == "strict parameters" and not KNOWN.issuperset(names):
            raise Wrong("there is an unknown parameter")
        return dict(zip(names, (value for _, value in pairs), strict=True))

    async def decide(self, form: dict[str, str]) -> web.Response:
        mode = form.get("hub.mode")
        if mode == "publish":
            return self.publish(form)
        if mode not in ("subscribe", "unsubscribe"):
            raise Wrong("hub.mode is wrong")
        topic, callback = form.get("hub.topic", ""), form.get("hub.callback", "")
        if not (topic.startswith("http") and callback.startswith("http")):
            raise Wrong("hub.topic or hub.callback is no URL")
        self.check(mode, form)
        unknown = self.key(topic, callback) not in self.subscriptions
        if self.fault == "knows the known only" and mode == "unsubscribe" and unknown:
            return web.Response(status=404)
        if self.fault == "forgets while pending":
            self.subscriptions.pop(self.key(topic, callback), None)
        work = self.begin(self.verify(mode, topic, callback, form))
        if self.fault in ("verifies first", "tells the outcome"):
            await work
            known = self.key(topic, callback) in self.subscriptions
            if self.fault == "tells the outcome" and known != (mode == "subscribe"):
                return web.Response(status=409)
        return web.Response(status=200 if self.fault == "200" else 202)

    def check(self, mode: str, form: dict[str, str]) -> None:
        secret, lease = form.get("hub.secret", ""), form.get("hub.lease_seconds", "1")
        if self.fault == "no secrets" and secret:
            raise Wrong("hub.secret is not supported")
        limit = {"short secrets": 100, "long secrets": 1000}.get(self.fault, 200)
        if len(secret.encode()) >= limit:
            raise Wrong("hub.secret is too long")
        matters = mode == "subscribe" or self.fault == "lease of unsubscriptions"
        if matters and not (lease.isdigit() and int(lease) > 0):
            raise Wrong("hub.lease_seconds is wrong")
        key = self.key(form["hub.topic"], form["hub.callback"])
        if self.fault == "no renewals" and mode == "subscribe" and key in self.subscriptions:
            raise Wrong("it is subscribed already")

    def key(self, topic: str, callback: str) -> object:
        if self.fault == "any number":
            return secrets.token_hex(8)
        if self.fault == "key without query":
            return topic, callback.partition("?")[0]
        return callback if self.fault == "key without topic" else (topic, callback)

    def lease(self, form: dict[str, str]) -> int:
        if self.fault == "a fixed lease":
            return 3600
        if self.fault == "a long default" and "hub.lease_seconds" not in form:
            return 300 * DAY
        asked = int(form.get("hub.lease_seconds", DAY))
        if self.fault == "one lease" and self.subscriptions:
            return 60
        return asked if self.fault == "any lease" else min(asked, 10 * DAY)

    def verification(self, mode: str, topic: str, callback: str, lease: int) -> tuple[URL, str]:
        challenge = "one" if self.fault == "one challenge" else secrets.token_urlsafe(24)
        query = {"hub.mode": mode, "hub.topic": topic, "hub.challenge": challenge}
        if mode == "subscribe" and self.fault != "no lease told":
            query["hub.lease_seconds"] = str(lease)
        if mode == "unsubscribe" and self.fault == "no topic told":
            del query["hub.topic"]
        return self.at(callback, query), challenge

    def at(self, callback: str, query: dict[str, str]) -> URL:
        if self.fault == "drops queries":
            callback = callback.partition("?")[0]
        if self.fault == "overwrites":
            return URL(callback).update_query(query)
        if self.fault == "normalises":
            callback = str(URL(callback))
        joint = "&" if "?" in callback else "?"
        return URL(callback + (joint + urlencode(query) if query else ""), encoded=True)

    async def verify(self, mode: str, topic: str, callback: str, form: dict[str, str]) -> None:
        if topic == DENIED:
            if self.fault != "denies in silence":
                url = self.at(callback, {"hub.mode": "denied", "hub.topic": topic})
                await self.session.get(url)
            return
        lease = 0 if mode == "unsubscribe" else self.lease(form)
        url, challenge = self.verification(mode, topic, callback, lease)
        if self.fault == "unsubscribes at once" and mode == "unsubscribe":
            self.subscriptions.pop(self.key(topic, callback), None)
        try:
            follow = self.fault == "follows verifications"
            async with self.session.get(url, allow_redirects=follow) as response:
                confirmed = self.confirms(response.status, await response.text(), challenge)
        except aiohttp.ClientError:
            return
        if confirmed and mode == "unsubscribe" and self.fault != "never unsubscribes":
            self.subscriptions.pop(self.key(topic, callback), None)
        elif confirmed and mode == "subscribe":
            self.subscribe(topic, callback, form.get("hub.secret") or None, lease)

    def confirms(self, status: int, body: str, challenge: str) -> bool:
        good = status == 200 if self.fault == "only 200 confirms" else 200 <= status < 300
        if self.fault == "any status confirms":
            good = True
        if self.fault == "any body confirms":
            return good
        return good and (challenge in body if self.fault == "contains" else body == challenge)

    def subscribe(self, topic: str, callback: str, secret: str | None, lease: int) -> None:
        key = self.key(topic, callback)
        old = self.subscriptions.get(key)
        if old is not None and self.fault == "keeps the secret":
            secret = old.secret
        new = Subscription(topic, callback, secret, lease, time.monotonic() + lease)
        if old is not None:
            new.waiting = old.waiting
        self.subscriptions[key] = new
        if old is None:
            in_pairs = self.fault == "in pairs"  # which is none
            self.begin(self.serve_pairs(key) if in_pairs else self.serve(key))

    def publish(self, form: dict[str, str]) -> web.Response:
        form = {name: url for name, url in form.items() if self.fault != f"no ping by {name}"}
        topic = form.get("hub.url") or form.get("hub.topic")
        known = any(one.topic == topic for one in self.subscriptions.values())
        if self.fault == "publishes nothing":
            raise Wrong("nothing is published here")
        if self.fault == "publishes to subscribers only" and not known:
            raise Wrong("nobody has subscribed to this topic")
        if topic:
            self.begin(self.fetch(topic))
        return web.Response(status=202)

    async def fetch(self, topic: str) -> None:
        async with self.session.get(topic) as response:
            body, content_type = await response.read(), response.headers["Content-Type"]
        if self.contents.get(topic) == body and self.fault != "sends the same again":
            return
        if self.fault == "one update" and topic in self.contents:
            return
        self.contents[topic] = body
        for subscription in self.subscriptions.values():
            if subscription.topic == topic:
                subscription.waiting.put_nowait((body, content_type))

    async def serve(self, key: object) -> None:
        while key in self.subscriptions:
            body, content_type = await self.subscriptions[key].waiting.get()
            for _ in range(20):
                subscription = self.subscriptions.get(key)
                expired = subscription is not None and subscription.expires < time.monotonic()
                if subscription is None or (expired and self.fault != "never expires"):
                    self.subscriptions.pop(key, None)
                    return
                if await self.deliver(key, subscription, body, content_type):
                    break
                await asyncio.sleep(0.02)

    async def serve_pairs(self, key: object) -> None:
        """Deliver two at a time, so that the second is under way when the first is answered."""
        while subscription := self.subscriptions.get(key):
            for body, content_type in [await subscription.waiting.get() for _ in range(2)]:
                await self.deliver(key, subscription, body, content_type)

    async def deliver(
        self, key: object, subscription: Subscription, body: bytes, content_type: str
    ) -> bool:
        """Return whether to go on to the next."""
        headers = self.headers(subscription, body, content_type)
        url = self.at(subscription.callback, {})
        if self.fault == "cuts":
            body = body[:65536]
        if self.fault == "query in the body":
            body, url = body + url.raw_query_string.encode(), url.with_query(None)
        follow = self.fault == "follows deliveries"
        async with self.session.post(
            url, data=body, headers=headers, allow_redirects=follow
        ) as response:
            status, text = response.status, await response.text()
        good = status == 200 if self.fault == "only 200 is a success" else 200 <= status < 300
        if self.fault == "reads answers" and "error" in text:
            good = False
        ends = (status == 410 and self.fault != "ignores 410") or (
            not good and self.fault == "one strike"
        )
        if ends:
            self.subscriptions.pop(key, None)
        return good or ends or self.fault == "no retries"

    def headers(
        self, subscription: Subscription, body: bytes, content_type: str
    ) -> list[tuple[str, str]]:
        links = [f'<{subscription.topic}>; rel="self"', f'<{self.url}>; rel="hub"']
        headers = [("Link", ", ".join(links))]
        if self.fault == "two links":
            headers = [("Link", link) for link in links]
        if self.fault == "no links":
            headers = []
        kind = "text/plain" if self.fault == "one type" else content_type
        secret = subscription.secret
        if self.fault == "always signs":
            secret = secret or "a default"
        if secret is not None and self.fault != "signs nothing":
            method = "sha1" if self.fault == "sha1" else "sha256"
            charset = "ascii" if self.fault == "secrets in ASCII" else "utf-8"
            digest = hmac.new(secret.encode(charset, "replace"), body, method).hexdigest()
            headers.append(("X-Hub-Signature", f"{method}={digest}"))
        return [*headers, ("Content-Type", kind)]


@asynccontextmanager
async def small_hub(fault: str = "") -> AsyncIterator[str]:
    """Run the hub, and give its URL."""
    async with aiohttp.ClientSession() as session:
        hub = SmallHub(session, fault)
        async with serving(post=hub.handle) as url:
            hub.url = url + "/"
            try:
                yield hub.url
            finally:
                for task in hub.tasks:
                    task.cancel()
                await asyncio.gather(*hub.tasks, return_exceptions=True)
