"""A subscription that is kept up: leases, silence, hubs that are lost, others that are there."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rsnotify.errors import FetchError, RefusedAddress, Unavailable
from rsnotify.sync.retry import Retry
from rsnotify_subscriber import WebSubTerms
from rsnotify_subscriber.fetching.sessions import Connections, Sessions
from rsnotify_subscriber.push.websub_callbacks import CallbackSubscription, HubSilence
from rsnotify_subscriber.push.websub_transport import WebSubTransport
from tests.certificates import Authority
from tests.subscriber.recording import RecordingListener
from tests.subscriber.source import Server
from tests.subscriber.websub.blog import Blog
from tests.subscriber.websub.conftest import RunHub
from tests.subscriber.websub.desk import TERMS, Desk, open_desk

QUICK = replace(TERMS, retry=Retry(first=0.02, most=0.05))


@pytest.fixture
def short_lease(blog: Blog) -> None:
    """Grant a first lease that is so short that it is soon renewed."""
    blog.lease = 1


async def prolong(blog: Blog, desk: Desk) -> None:
    """Confirm the subscription once more, for long: it was decided already when it is renewed."""
    (callback,) = blog.confirmed
    again = {"mode": "subscribe", "topic": blog.topic, "lease_seconds": "1000"}
    assert await desk.ask(callback, challenge="c", **again) == (200, "c")
    blog.lease = 1000


async def test_earlier_changes_are_pulled_at_once_and_when_the_hub_must_have_begun(
    blog: Blog, desk: Desk
) -> None:
    async with desk.receiving(blog.topic) as recorder:
        await recorder.until(lambda: recorder.events == ["up", "gap", "gap"])


@pytest.mark.usefixtures("short_lease")
async def test_a_lease_is_renewed_early_with_another_callback_and_secret(
    blog: Blog, desk: Desk
) -> None:
    blog.letting_go.clear()
    async with desk.receiving(blog.topic) as recorder:
        await prolong(blog, desk)
        first = await blog.until_requests(1)
        again = await blog.until_requests(2)
        assert again["hub.mode"] == "subscribe"
        assert again["hub.callback"] != first["hub.callback"]
        assert again["hub.secret"] != first["hub.secret"]
        # Until the old one is ended, what comes by it is taken too.
        assert set(await blog.publish(b"by both")) == {204}
        await recorder.until(lambda: len(recorder.documents) == 2)
        blog.letting_go.set()
        ended = await blog.until_requests(3)
        assert ended["hub.mode"] == "unsubscribe"
        assert ended["hub.callback"] == first["hub.callback"]
        await blog.until_confirmed(1)
        assert await blog.publish(b"by one") == [204]
        assert recorder.ups == 1


async def test_leases_are_renewed_at_the_hub_without_a_gap(
    blog: Blog, desk: Desk, run_hub: RunHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirm = CallbackSubscription.verify

    def hasty(one: CallbackSubscription, asked: Mapping[str, str], now: float) -> str | None:
        """Take every lease for a short one: it is renewed soon, and cannot end before."""
        return confirm(one, {**asked, "hub.lease_seconds": "1"}, now)

    monkeypatch.setattr(CallbackSubscription, "verify", hasty)
    async with run_hub() as hub:

        async def ids() -> list[str]:
            return [each["id"] for each in await desk.any_subscriptions_at(hub)]

        blog.link(self=blog.topic, hub=hub + "websub")
        async with desk.receiving(blog.topic) as recorder:
            first = (await desk.subscriptions_at(hub, 1))[0]["id"]
            bodies: list[bytes] = []
            while len(bodies) < 3 or first in await ids():
                bodies.append(f"post {len(bodies)}".encode())
                await desk.publish_at(hub, blog.topic, bodies[-1])
                # A whole content takes the place of the one before it, so each is waited for.
                await recorder.until(lambda: bodies[-1] in recorder.documents or len(bodies) == 1)
            assert recorder.ups == 1


@pytest.mark.usefixtures("short_lease")
async def test_a_renewal_that_fails_is_tried_again_while_the_hub_delivers(blog: Blog) -> None:
    async with open_desk(QUICK) as desk, desk.receiving(blog.topic) as recorder:
        await prolong(blog, desk)
        blog.status = 503
        await blog.until_requests(3)
        assert await blog.publish(b"still here") == [204]
        blog.status = 202
        await blog.until_confirmed(2)
        assert recorder.ups == 1


@pytest.mark.usefixtures("short_lease")
async def test_a_hub_that_renews_no_lease_is_lost_when_it_ends(blog: Blog) -> None:
    async with open_desk(QUICK) as desk, desk.receiving(blog.topic) as recorder:
        blog.status, blog.reason = 503, "too busy\n"
        with pytest.raises(Unavailable, match="answered 503 to subscribe: 'too busy'"):
            await recorder.ended()


async def test_a_lease_that_would_be_renewed_all_the_time_is_refused(blog: Blog) -> None:
    blog.lease = 9
    async with open_desk(WebSubTerms()) as desk:
        error = await desk.fails_to_receive(blog.topic, Unavailable, "a lease of only 9 s")
    assert error.retry_after == 300


async def test_a_short_lease_is_accepted_if_it_was_requested(blog: Blog) -> None:
    blog.lease = 9
    async with open_desk(WebSubTerms(lease=9)) as desk, desk.receiving(blog.topic) as recorder:
        assert recorder.ups == 1


async def test_the_subscription_at_a_silent_hub_is_renewed_and_kept_if_it_answers(
    blog: Blog,
) -> None:
    async with (
        open_desk(replace(TERMS, quiet=0.05)) as desk,
        desk.receiving(blog.topic) as recorder,
    ):
        await blog.until_requests(3)  # the second subscription, and the end of the first
        assert recorder.ups == 1


async def test_a_silent_hub_that_is_gone_is_lost(blog: Blog) -> None:
    terms = replace(TERMS, quiet=0.1)
    async with open_desk(terms) as desk, desk.receiving(blog.topic, (blog.hub,)) as recorder:
        await blog.server.stop()
        with pytest.raises(Unavailable, match="cannot connect"):
            await recorder.ended()
        assert len(desk.callbacks) == 0


@given(st.lists(st.floats(0.001, 1000), max_size=20), st.floats(0.1, 100))
def test_a_subscription_is_renewed_only_after_more_than_the_usual_silence(
    waits: list[float], least: float
) -> None:
    now = 0.0
    silence = HubSilence(now, least)
    for wait in waits:
        now += wait
        silence.end(now)
    patience, longest = silence.due - now, max(waits, default=0.0)
    assert patience > 0.999 * least
    assert patience > longest or not waits
    assert patience < 1.001 * max(least, 2 * longest)


# Which hub


async def test_the_first_hub_that_accepts_is_used(blog: Blog, desk: Desk) -> None:
    async with Server(web.Application()) as server:
        other = f"http://127.0.0.1:{server.port}/hub"  # answers 404
        blog.headers = [("Link", f'<{other}>; rel="hub", <{blog.hub}>; rel="hub"')]
        async with desk.receiving(blog.topic):
            assert len(blog.confirmed) == 1


async def test_the_hubs_of_the_documents_are_used_while_the_topic_is_away(
    blog: Blog, desk: Desk
) -> None:
    blog.moves["/blog"] = (503, "")
    async with desk.receiving(blog.topic, (blog.hub,)) as recorder:
        assert blog.requests[0]["hub.topic"] == blog.topic
        assert await blog.publish(b"x") == [204]
        await recorder.until(lambda: recorder.documents)
    await desk.fails_to_receive(blog.topic, Unavailable, "503")


async def test_the_hubs_of_the_documents_are_used_if_the_topic_names_none(
    blog: Blog, desk: Desk
) -> None:
    blog.link(self=blog.topic + "?self")
    async with desk.receiving(blog.topic, (blog.hub,)):
        assert blog.requests[0]["hub.topic"] == blog.topic + "?self"
    await desk.fails_to_receive(blog.topic, Unavailable, "names no hub that supports WebSub")


async def test_a_hub_that_sends_retry_after_gets_no_requests_until_then(
    blog: Blog, desk: Desk
) -> None:
    async def busy(request: web.Request) -> web.Response:
        return web.Response(status=429, headers={"Retry-After": "77"})

    app = web.Application()
    app.router.add_post("/hub", busy)
    async with Server(app) as server:
        blog.link(hub=f"http://127.0.0.1:{server.port}/hub")
        error = await desk.fails_to_receive(blog.topic, Unavailable, "429")
    assert error.retry_after == 77


# Where one does not go


@pytest.mark.parametrize(
    ("hub", "move", "error", "told"),
    [
        ("localhost", None, RefusedAddress, "not public"),
        ("127.0.0.1", (307, "http://localhost:{}/hub/inner"), RefusedAddress, "not public"),
        ("127.0.0.1", (308, "http://127.0.0.1:{}/hub"), Unavailable, "redirects"),
        ("127.0.0.1", (303, "http://127.0.0.1:{}/blog"), Unavailable, "303"),
    ],
    ids=["a private address", "a redirect to one", "redirects in a circle", "See Other"],
)
async def test_a_hub_that_leads_elsewhere_is_given_up_and_gets_no_form(
    blog: Blog,
    desk: Desk,
    hub: str,
    move: tuple[int, str] | None,
    error: type[FetchError],
    told: str,
) -> None:
    blog.link(hub=blog.hub.replace("127.0.0.1", hub))
    if move is not None:
        blog.moves["/hub"] = (move[0], move[1].format(blog.server.port))
    await desk.fails_to_receive(blog.topic, error, told)
    assert blog.requests == []


async def test_a_secret_that_is_sent_by_https_is_not_sent_on_by_http(
    blog: Blog, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    secured = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    secured.load_cert_chain(*authority.certificate("hub.test"))
    trusting = ssl.create_default_context(cafile=authority.file)

    async def move(request: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": blog.hub})

    app = web.Application()
    app.router.add_post("/hub", move)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=secured).start()
    hub = f"https://127.0.0.1:{runner.addresses[0][1]}/hub"
    async with Connections(tls=trusting) as trusted, Sessions(hub, shared=trusted) as sessions:
        with pytest.raises(RefusedAddress, match="from https to http"):
            async with sessions.post(hub, {"hub.secret": "canary"}):
                pass
    await runner.cleanup()
    assert blog.requests == []


async def test_a_subscription_that_timed_out_is_ended_at_the_hub(blog: Blog, desk: Desk) -> None:
    blog.answering.clear()
    async with Sessions(blog.topic) as sessions:
        transport = WebSubTransport(blog.topic, (), sessions=sessions, callbacks=desk.callbacks)
        task = asyncio.create_task(transport.receive(None, RecordingListener()))
        await blog.until_confirmed(1)
        task.cancel()
        await blog.until_confirmed(0)
        blog.answering.set()
        await asyncio.wait({task})
    assert len(desk.callbacks) == 0


async def test_an_error_of_the_listener_does_not_count_as_one_of_the_hub(
    blog: Blog, desk: Desk
) -> None:
    async with desk.receiving(blog.topic) as recorder:
        recorder.failure = ZeroDivisionError()
        await blog.publish(b"x")
        with pytest.raises(ZeroDivisionError):
            await recorder.ended()
