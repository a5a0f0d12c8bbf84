"""A Source that publishes at a PubSub service, without a hub."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from rsnotify.errors import ConfigurationError, Unavailable
from rsnotify.format.model import Document
from rsnotify.format.reader import read_document
from rsnotify_publisher import parse_hub
from rsnotify_publisher.hubs import parse_hubs
from rsnotify_xmpp.xmpp_connection import connect
from rsnotify_xmpp.xmpp_service import XmppLogin, parse_service
from tests.prosody import DOMAIN, SERVICE, Prosody
from tests.publisher.helpers import BASE, PATIENCE, quick_publisher

CHANNEL = BASE + "channel.xml"
PLACE = parse_service(f"xmpp:{SERVICE}")


async def newest(server: Prosody, uri: str) -> Document:
    """Wait until the newest fragment of the node is about a resource, and return it."""
    async with asyncio.timeout(PATIENCE), connect(server.login("hub")) as reader:
        while True:
            with suppress(Unavailable):  # there is no node yet
                body = await reader.subscribe(PLACE, CHANNEL)
                found = read_document(body) if body else None
                if found and [entry.uri for entry in found.resources] == [uri]:
                    return found


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_a_restarted_service_misses_nothing(
    tmp_path: Path, prosody: Prosody, how: signal.Signals
):
    hub = parse_hub(prosody.url, logins={"xmpp": prosody.login("hub")})
    async with quick_publisher(tmp_path / "state", hub) as publisher:
        await publisher.aupdated(BASE + "before")
        first = await newest(prosody, BASE + "before")
        await prosody.stop(how)
        await publisher.aupdated(BASE + "away")
        await prosody.start()
        assert (await newest(prosody, BASE + "away")).from_ == first.until


async def test_a_refused_login_is_a_warning(
    tmp_path: Path, prosody: Prosody, caplog: pytest.LogCaptureFixture
):
    hub = parse_hub(prosody.url, logins={"xmpp": prosody.login("hub", "wrong")})
    async with quick_publisher(tmp_path / "state", hub):
        async with asyncio.timeout(PATIENCE):
            while "Client disconnected" not in "".join(prosody.lines) or not caplog.records:
                await prosody.news()
    assert f"it refused the login of 'hub@{DOMAIN}'" in caplog.text


def test_invalid_services_are_refused():
    with pytest.raises(ConfigurationError, match="name an account"):
        parse_hubs([PLACE.url])
    with pytest.raises(ConfigurationError, match="needs a password"):
        parse_hub(PLACE.url, logins={"xmpp": XmppLogin(jid="me@a.example")})
    with pytest.raises(ConfigurationError, match="not the URI of a PubSub service"):
        parse_hub("xmpp://pubsub.example")
