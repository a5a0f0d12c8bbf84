"""A Destination in step by WebSub, at the real hub."""

from __future__ import annotations

import signal
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import pytest
from aiohttp import web
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError
from rsnotify.format.writer import write_document
from rsnotify_subscriber import PushState, Subscriber, Via
from rsnotify_subscriber.commands.follow_options import CallbackServer
from rsnotify_subscriber.push import endpoint_failover as failover
from tests.subscriber.destination import PACE, Destination
from tests.subscriber.processes import outcome, rsnotify, running, until_reported
from tests.subscriber.source import SmallSource, status
from tests.subscriber.websub.conftest import RunHub
from tests.subscriber.websub.desk import TERMS, Desk, open_desk

#: So rare that what is in step is so by push, or by what follows from it.
RARE = replace(PACE, poll=600, poll_with_push=600)


pytestmark = pytest.mark.usefixtures("some_content")


def following(
    destination: Destination, desk: Desk, **options: object
) -> AbstractAsyncContextManager[Subscriber]:
    options = {"via": Via.WEBSUB, "pace": RARE, "callbacks": desk.callbacks, **options}
    return destination.following(**options)


async def push(source: SmallSource, desk: Desk, hub: str) -> None:
    """Push the last change at the hub, under the topic that the Source has."""
    topic = source.base + "channel.xml"
    await desk.publish_at(hub, topic, source.latest()[0], "application/xml")


async def test_a_change_is_applied_without_a_poll(
    source: SmallSource, hub: str, destination: Destination, desk: Desk
) -> None:
    source.hubs = [hub + "websub"]
    async with following(destination, desk) as subscriber:
        await desk.subscriptions_at(hub, 1)
        source.answers["/data/changelist.xml"] = status(503)
        source.put_inline("new", b"it travels inside")
        await push(source, desk, hub)
        await destination.until(lambda: subscriber.status.applied == 6)
        assert destination.equals_source()
    await desk.subscriptions_at(hub, 0)


async def test_a_hub_that_lost_its_data_gets_a_new_subscription(
    source: SmallSource,
    run_hub: RunHub,
    destination: Destination,
    unused_tcp_port: int,
    tmp_path: Path,
) -> None:
    source.hubs = [f"http://127.0.0.1:{unused_tcp_port}/websub"]
    async with open_desk(replace(TERMS, quiet=0.2)) as desk, AsyncExitStack() as life:
        await life.enter_async_context(run_hub(port=unused_tcp_port))
        async with following(destination, desk) as subscriber:
            await life.aclose()
            await destination.until(lambda: subscriber.status.push is PushState.DOWN)
            source.put("meanwhile", b"nobody pushes it")
            data = str(tmp_path / "another")
            hub = await life.enter_async_context(run_hub(port=unused_tcp_port, data=data))
            await destination.until(lambda: subscriber.status.push is PushState.UP)
            await destination.until_equal()
            await desk.subscriptions_at(hub, 1)
            source.answers["/data/changelist.xml"] = status(503)
            source.put_inline("after", b"it is pushed")
            await push(source, desk, hub)
            await destination.until_equal()


async def test_a_change_list_may_be_a_topic_itself(
    source: SmallSource, hub: str, destination: Destination, desk: Desk
) -> None:
    topic = source.base + "changelist.xml"

    async def linked(request: web.Request) -> web.Response:
        return web.Response(
            body=write_document(source.change_list()),
            content_type="application/xml",
            headers={"Link": f'<{hub}websub>; rel="hub", <{topic}>; rel="self"'},
        )

    source.answers["/data/changelist.xml"] = linked
    async with following(destination, desk):
        await desk.subscriptions_at(hub, 1)
        source.put("new", b"told by the whole list")
        await desk.ping_at(hub, topic)
        await destination.until_equal()


async def test_auto_uses_websub_where_a_hub_offers_nothing_better(
    source: SmallSource,
    hub: str,
    destination: Destination,
    desk: Desk,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failover, "HOLD_TIME", 0.01)
    source.hubs = [hub + "websub"]
    async with following(destination, desk, via=Via.AUTO):
        await desk.subscriptions_at(hub, 1)
    better = hub.replace("http", "ws") + "ws"
    source.hubs = [better, hub + "websub"]
    gate = source.hold("/data/capabilitylist.xml")
    options = {"via": Via.AUTO, "pace": RARE, "callbacks": desk.callbacks}
    async with destination.subscriber(**options) as subscriber:
        await destination.until(lambda: subscriber.status.way == (f"{hub}websub",))
        gate.set()
        await destination.until(lambda: better in subscriber.status.way)
        await desk.subscriptions_at(hub, 0)
        assert subscriber.status.way == (better,)
        source.answers["/data/changelist.xml"] = status(503)
        source.put_inline("new", b"it comes by the better way")
        await push(source, desk, hub)
        await destination.until_equal()


async def test_the_status_has_the_reason_of_a_refusal_until_push_works(
    source: SmallSource, hub: str, destination: Destination, desk: Desk
) -> None:
    refusing = source.base + "no-hub"
    source.hubs = [refusing]
    options = {"via": Via.WEBSUB, "pace": RARE, "callbacks": desk.callbacks}
    async with destination.subscriber(**options) as subscriber:
        await destination.until(lambda: subscriber.status.level)
        await destination.until(lambda: subscriber.status.error is not None)
        assert subscriber.status.push is PushState.DOWN
        assert f"{refusing}: it answered 4" in str(subscriber.status.error)
        topic = source.base + "channel.xml"
        links = {"Link": f'<{hub}websub>; rel="hub", <{topic}>; rel="self"'}
        source.answers["/data/channel.xml"] = status(200, headers=links)
        await destination.until(lambda: subscriber.status.push is PushState.UP)
        assert subscriber.status.error is None
        assert subscriber.status.way == (f"{hub}websub",), "that of the topic"


async def test_websub_needs_a_topic_to_subscribe_to(
    source: SmallSource, destination: Destination, desk: Desk
) -> None:
    alone = source.publish("alone.xml", replace(source.resource_list(), links=()))
    with pytest.raises(ConfigurationError, match="offers no hub that supports WebSub"):
        await destination.catch_up(alone, via=Via.WEBSUB, callbacks=desk.callbacks)


# The command


async def test_the_command_listens_for_hubs_and_unsubscribes_at_the_end(
    source: SmallSource, hub: str, destination: Destination, desk: Desk, unused_tcp_port: int
) -> None:
    source.hubs = [hub + "websub"]
    callback = f"http://127.0.0.1:{unused_tcp_port}/from/hubs"
    options = ("--via", "websub", "--callback-url", callback, "--json")
    follow = ("follow", source.url, destination.folder, *options)
    async with running(*follow) as process:
        await until_reported(process, push="up", applied=5)
        await desk.subscriptions_at(hub, 1)
        process.kill()
        await process.wait()
    async with running(*follow) as process:
        await until_reported(process, push="up")
        await desk.subscriptions_at(hub, 2)
        source.put_inline("new", b"pushed")
        await push(source, desk, hub)
        await until_reported(process, applied=1)
        await desk.subscriptions_at(hub, 1)  # the one that was left behind is gone
        process.send_signal(signal.SIGTERM)
        await process.wait()
        assert process.returncode == 0
    await desk.subscriptions_at(hub, 0)


async def test_a_command_without_a_callback_url_says_so(
    source: SmallSource, destination: Destination
) -> None:
    process = await rsnotify("follow", source.url, destination.folder, "--via", "websub")
    reason = "WebSub requires a callback URL"
    assert await outcome(process) == (2, "", f"rsnotify: {reason}\n")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("https://a.example/cb", "127.0.0.1", None), "give the port .* --callback-port"),
        (("a.example", "127.0.0.1", 9), "'a.example' is not a callback URL"),
        (
            ("http://192.0.2.1:9/", "192.0.2.1", None),
            "cannot listen on 192.0.2.1 port 9: .* another --callback-host or --callback-port",
        ),
    ],
)
def test_callback_options_that_cannot_work_are_reported(
    options: tuple[str, str, int | None], reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        CallbackServer(*options)
