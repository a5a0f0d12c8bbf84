"""A server that sends without end is left; a connection that is given up leaves nothing open."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from rsnotify.errors import FetchError
from rsnotify_xmpp.xmpp_service import parse_service
from rsnotify_xmpp.xmpp_transport import XmppReader
from tests.prosody import SERVICE
from tests.subscriber.recording import RecordingListener
from tests.waiting import PATIENCE
from tests.xmpp.hostile import BOUNDED, CASES, hostile_server

PLACE = parse_service(f"xmpp:{SERVICE}")


@pytest.mark.parametrize(("flood", "stage"), CASES)
async def test_a_subscriber_leaves_a_server_that_sends_without_end(
    tmp_path: Path, flood: str, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine, the flood may take longer than an answer may.
    monkeypatch.setattr("rsnotify_xmpp.xmpp_connection.TIMEOUT", PATIENCE)
    async with hostile_server(tmp_path, flood, stage) as server:
        transport = XmppReader(PLACE, "https://a.example/c", server.login("reader"))
        with pytest.raises(FetchError, match="it sent"):
            await transport.receive(None, RecordingListener())
        await server.closed.wait()
        assert server.accepted < BOUNDED


async def test_a_connection_that_is_given_up_at_any_step_of_its_start_leaves_nothing_open(
    tmp_path: Path,
) -> None:
    async with hostile_server(tmp_path, "text", "encryption") as server:
        transport = XmppReader(PLACE, "https://a.example/c", server.login("reader"))
        for steps in range(40):  # at the last ones the handshake of TLS has begun
            receiving = asyncio.create_task(transport.receive(None, RecordingListener()))
            for _ in range(steps):
                await asyncio.sleep(0)
            receiving.cancel()
            await asyncio.wait([receiving])
        with pytest.raises(FetchError, match="it sent"):  # all were accepted before this one
            await transport.receive(None, RecordingListener())
    gc.collect()  # pytest reports what is still open
