from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from msgspec.structs import replace

from rsnotify.errors import RefusedAddress, RsnotifyError
from rsnotify.writing import write_document
from rsnotify_subscriber import PushState
from tests.subscriber.conftest import Destination
from tests.subscriber.hub import SmallHub
from tests.subscriber.source import Answer, SmallSource, body, path_of


@pytest.fixture
def elsewhere(source: SmallSource) -> str:
    """The same server at another address of loopback, which the user did not name."""
    return source.site.replace("127.0.0.1", "localhost")


def redirect(target: str) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound(target)

    return answer


async def test_a_resource_at_a_private_address_is_refused(
    source: SmallSource, destination: Destination, elsewhere: str
) -> None:
    source.put("a", b"secret")
    listed = source._resource_list()
    moved = replace(listed.resources[0], uri=source.base.replace(source.site, elsewhere) + "a")
    source.answers["/data/resourcelist.xml"] = body(
        write_document(replace(listed, resources=(moved,)))
    )
    source.changes.clear()
    with pytest.raises(RsnotifyError, match="not public"):
        await destination.catch_up()
    assert source.gets[path_of("a")] == 0
    await destination.catch_up(allow_private_addresses=True)
    assert list(destination.files().values()) == [b"secret"]


async def test_a_redirect_to_a_private_address_is_refused(
    source: SmallSource, destination: Destination, elsewhere: str
) -> None:
    source.put("a", b"secret")
    source.answers["/data/resourcelist.xml"] = redirect(elsewhere + "data/list.xml")
    source.answers["/data/list.xml"] = source._answer
    with pytest.raises(RefusedAddress, match="not public"):
        await destination.catch_up()
    assert source.gets["/data/list.xml"] == 0


async def test_a_redirect_at_the_named_host_is_followed(
    source: SmallSource, destination: Destination
) -> None:
    source.put("a", b"1")
    source.put("b", b"2")
    source.answers[path_of("a")] = redirect("/data/b")
    source.described["a"] = source.described["b"]
    source.changes.clear()
    await destination.catch_up()
    assert destination.files() == {"a": b"2", "b": b"2"}


async def test_redirects_without_end_are_given_up(
    source: SmallSource, destination: Destination
) -> None:
    source.put("a", b"1")
    source.answers["/data/resourcelist.xml"] = redirect("/data/resourcelist.xml")
    with pytest.raises(RsnotifyError, match="redirects"):
        await destination.catch_up()


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://x/"])
async def test_a_redirect_to_another_scheme_is_refused(
    target: str, source: SmallSource, destination: Destination
) -> None:
    source.put("a", b"1")
    source.answers["/data/resourcelist.xml"] = redirect(target)
    with pytest.raises(RefusedAddress, match="http or https"):
        await destination.catch_up()


async def test_a_hub_at_a_private_address_is_not_dialled(
    source: SmallSource, hub: SmallHub, destination: Destination
) -> None:
    source.put("a", b"1")
    source.hubs = [hub.url.replace("127.0.0.1", "localhost")]
    async with destination.subscriber() as subscriber:
        await destination.until_equal()
        assert subscriber.status.push is PushState.DOWN
    assert hub.subscriptions == []
    async with destination.subscriber(allow_private_addresses=True) as subscriber:
        async with asyncio.timeout(30):
            await hub.subscribed()
