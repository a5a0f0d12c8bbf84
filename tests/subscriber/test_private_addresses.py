from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rsnotify.errors import RefusedAddress, RsnotifyError
from rsnotify_subscriber import PushState
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.fetching.sessions import Sessions
from tests.subscriber.destination import Destination
from tests.subscriber.hub import SmallHub
from tests.subscriber.source import SmallSource, path_of, redirect


@pytest.fixture
def elsewhere(source: SmallSource) -> str:
    """The same server at another address of loopback, which the user did not name."""
    return source.site.replace("127.0.0.1", "localhost")


async def test_a_resource_at_a_private_address_is_refused(
    source: SmallSource, destination: Destination, elsewhere: str
) -> None:
    source.put("a", b"secret")
    listed = source.resource_list()
    moved = replace(listed.resources[0], uri=source.base.replace(source.site, elsewhere) + "a")
    source.publish("resourcelist.xml", replace(listed, resources=(moved,)))
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
    source.answers["/data/list.xml"] = source.answer
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


@pytest.mark.parametrize(
    ("target", "error", "told"),
    [
        ("/data/resourcelist.xml", RsnotifyError, "redirects"),
        ("file:///etc/passwd", RefusedAddress, "not an absolute http"),
        ("ftp://127.0.0.1/x", RefusedAddress, "not an absolute http"),
        ("gopher://x/", RefusedAddress, "not an absolute http"),
    ],
)
async def test_a_redirect_without_end_or_to_another_scheme_is_refused(
    target: str,
    error: type[RsnotifyError],
    told: str,
    source: SmallSource,
    destination: Destination,
) -> None:
    source.put("a", b"1")
    source.answers["/data/resourcelist.xml"] = redirect(target)
    with pytest.raises(error, match=told):
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
        await hub.subscribed()


def resolved(monkeypatch: pytest.MonkeyPatch, *answers: str) -> None:
    """Resolve source.example to these addresses, one after the other; the last one stays."""
    remaining = list(answers)
    resolve = socket.getaddrinfo

    def answer(host: Any, *arguments: Any, **options: Any) -> Any:
        if host != "source.example":
            return resolve(host, *arguments, **options)
        address = remaining.pop(0) if len(remaining) > 1 else remaining[0]
        return resolve(address, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", answer)


async def test_a_host_that_the_user_named_may_be_at_a_private_address_from_the_start(
    source: SmallSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.put("a", b"1")
    resolved(monkeypatch, "127.0.0.1")
    url = source.url.replace("127.0.0.1", "source.example")
    async with Sessions(url) as sessions:
        assert (await Fetcher(sessions, tmp_path).document(url)).resources


async def test_a_host_that_the_user_named_may_not_turn_to_a_private_address_later(
    source: SmallSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved(monkeypatch, "9.9.9.9", "127.0.0.1")
    url = source.url.replace("127.0.0.1", "source.example")
    async with Sessions(url) as sessions:
        with pytest.raises(RefusedAddress, match="not public"):
            await Fetcher(sessions, tmp_path).document(url)
        assert not await sessions.allows_any_address("source.example")
    assert not source.gets


async def test_a_private_host_that_the_user_named_is_not_dialled_at_another_port(
    source: SmallSource, other_source: SmallSource, destination: Destination
) -> None:
    other_source.contents["a"] = b"secret"
    source.put("a", b"secret")
    source.answers[path_of("a")] = redirect(other_source.base + "a")
    with pytest.raises(RsnotifyError, match="not public"):
        await destination.catch_up()
    assert not other_source.gets
    await destination.become_equal(allow_private_addresses=True)
