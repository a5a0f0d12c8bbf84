"""An XMPP server that accepts every login, and at one stage of it sends without end."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import chain, cycle, product, repeat
from pathlib import Path

from rsnotify_xmpp.xmpp_service import XmppLogin
from tests.certificates import Authority
from tests.prosody import DOMAIN
from tests.waiting import PATIENCE

#: What a client accepts, with the buffers of both sockets, if it has a limit; in bytes.
BOUNDED = 24 * 1024 * 1024
#: When the server gives up: the client has no limit.
ENDLESS = 3 * BOUNDED

_HEADER = (
    f'<stream:stream from="{DOMAIN}" id="1" version="1.0" xmlns="jabber:client"'
    ' xmlns:stream="http://etherx.jabber.org/streams">'
)
_TLS = '<starttls xmlns="urn:ietf:params:xml:ns:xmpp-tls"><required/></starttls>'
_SASL = "urn:ietf:params:xml:ns:xmpp-sasl"
_PLAIN = f'<mechanisms xmlns="{_SASL}"><mechanism>PLAIN</mechanism></mechanisms>'
_BIND = '<bind xmlns="urn:ietf:params:xml:ns:xmpp-bind">{}</bind>'

#: By a name: what is sent once, and then what is repeated.
FLOODS = {
    "nested elements": ("", "<a>"),
    "an attribute": ('<message to="', "x" * 1000),
    "text": ("<message><body>", "x" * 1000),
    "elements beside each other": ("<message>", "<a/>" * 1000),
    "white space": ("", " " * 1000),
    "comments": ("<message>", f"<!--{'x' * 1000}-->"),
    "a DOCTYPE": ("<!DOCTYPE stream [", f'<!ENTITY a "{"x" * 1000}">'),
}
STAGES = ("connection", "encryption", "login")
#: Complete stanzas may have any number once the client is logged in.
_STANZAS = {"requests": ("", '<iq type="get" id="1" from="a@b"><query xmlns="c"/></iq>' * 10)}
#: Each flood at one stage, and one of them at each: one parser reads all that arrives.
CASES = sorted(
    {*zip(FLOODS, cycle(STAGES)), *product(["text"], STAGES), *product(_STANZAS, STAGES[:2])}
)


class HostileXmpp:
    """A running server.

    Attributes:
        accepted: How many bytes of the flood its clients have accepted.
    """

    def __init__(self, folder: Path, flood: str, stage: str) -> None:
        authority = Authority(folder)
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(*authority.certificate(DOMAIN))
        self._ca = authority.file
        self._flood = (FLOODS | _STANZAS)[flood]
        self._stage = stage
        self.port = 0
        self.accepted = 0
        self.connections = 0
        self.closed = asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()

    def login(self, user: str) -> XmppLogin:
        server = f"127.0.0.1:{self.port}"
        return XmppLogin(jid=f"{user}@{DOMAIN}", password="a", server=server, ca=self._ca)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        serving = asyncio.current_task()
        assert serving is not None
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._log_in(reader, writer)
                await self._send_flood(writer)
        finally:
            writer.transport.abort()

    async def ended(self) -> None:
        """Wait until each connection has ended, even if TLS has just begun on it."""
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*self._serving)

    async def _log_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def answer(until: str, text: str) -> str:
            request = (await reader.readuntil(until.encode())).decode()
            writer.write(text.replace("ID", _attribute(request, "id")).encode())
            return request

        header = "<?xml version='1.0'?>" if self._flood[0].startswith("<!") else _HEADER
        if self._stage == "connection":
            await answer("version='1.0'>", header)
            return
        await answer("version='1.0'>", f"{_HEADER}{_features(_TLS)}")
        await answer("/>", '<proceed xmlns="urn:ietf:params:xml:ns:xmpp-tls"/>')
        await writer.start_tls(self._context)
        if self._stage == "encryption":
            await answer("version='1.0'>", header)
            return
        await answer("version='1.0'>", f"{_HEADER}{_features(_PLAIN)}")
        await answer("</auth>", f'<success xmlns="{_SASL}"/>')
        await answer("version='1.0'>", f"{_HEADER}{_features(_BIND.format(''))}")
        jid = _BIND.format(f"<jid>reader@{DOMAIN}/1</jid>")
        await answer("</iq>", f'<iq type="result" id="ID">{jid}</iq>')
        await answer("<presence/>", "")

    async def _send_flood(self, writer: asyncio.StreamWriter) -> None:
        once, repeated = self._flood
        piece = repeated * (10_000 // len(repeated))
        try:
            for part in chain([once], repeat(piece)):
                writer.write(part.encode())
                await writer.drain()
                await asyncio.sleep(0)  # a loss of the connection is noticed by the event loop
                self.accepted += len(part)
                if writer.is_closing() or self.accepted > ENDLESS:
                    return
        finally:
            self.closed.set()


def _features(inner: str) -> str:
    return f"<stream:features>{inner}</stream:features>"


def _attribute(request: str, name: str) -> str:
    _, _, rest = request.partition(f'{name}="')
    return rest.partition('"')[0]


@asynccontextmanager
async def hostile_server(folder: Path, flood: str, stage: str) -> AsyncIterator[HostileXmpp]:
    hostile = HostileXmpp(folder, flood, stage)
    listener = socket.create_server(("127.0.0.1", 0))
    hostile.port = listener.getsockname()[1]
    async with await asyncio.start_server(hostile.serve, sock=listener):
        try:
            yield hostile
        finally:
            await hostile.ended()
