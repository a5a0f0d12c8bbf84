"""A server that sends without end is left before its bytes fill the memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from rsnotify.errors import FetchError
from rsnotify_xmpp.destination import XmppTransport
from rsnotify_xmpp.xmpp_service import parse_service
from tests.prosody import SERVICE
from tests.subscriber.heard import Heard
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
        transport = XmppTransport(PLACE, "https://a.example/c", server.login("reader"))
        with pytest.raises(FetchError, match="it sends"):
            await transport.receive(None, Heard())
        await server.closed.wait()
        assert server.accepted < BOUNDED
