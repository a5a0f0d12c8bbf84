from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rsnotify.errors import RefusedAddress, RsnotifyError
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.fetching.sessions import Sessions
from tests.subscriber.destination import Destination
from tests.subscriber.source import SmallSource, path_of, redirect


async def test_a_resource_at_a_private_address_is_refused(
    source: SmallSource, destination: Destination
) -> None:
    entry = source.put("a", b"secret")
    # The same server at another address, which the user did not name.
    source.list_only(replace(entry, uri=entry.uri.replace("127.0.0.1", "localhost")))
    source.changes.clear()
    with pytest.raises(RsnotifyError, match="not public"):
        await destination.catch_up()
    assert source.gets[path_of("a")] == 0
    await destination.catch_up(allow_private_addresses=True)
    assert list(destination.files().values()) == [b"secret"]


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
