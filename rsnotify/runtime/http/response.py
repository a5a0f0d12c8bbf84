"""Responses: bytes in, an `HttpReply` out, all of it bounded.

Theory of operation. A 2xx counts as soon as its head has arrived, unless its content is wanted. Of
any other response the first bytes of the body are kept too. The rest of a body is read and dropped,
so that the connection can be used again; but one limit on the bytes of a response covers
everything: heads, 1xx responses before them, chunk extensions, trailers and bodies.
"""

from __future__ import annotations

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from msgspec import Struct

from rsnotify.errors import RsnotifyError

#: The bytes of one response after which its connection is aborted.
ANSWER_BYTES = 64 * 1024

#: The same while its head is incomplete.
HEAD_BYTES = 16 * 1024

#: How much of the body of a failed response is kept.
EXCERPT_BYTES = 4096

#: How many 1xx responses may precede the final one.
INTERIM = 20


class HttpReply(Struct, frozen=True, gc=False):
    """A final response; the excerpt is empty unless it is a failure."""

    status: int
    retry_after: str = ""
    excerpt: bytes = b""


class ContentReply(HttpReply, frozen=True, gc=False):
    """A whole response, with its fields in the order in which they came."""

    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""


class NoReply(RsnotifyError):
    """The host was reached, but did not answer with valid HTTP, or with too many bytes."""


class Unreachable(RsnotifyError):
    """No connection could be opened; the cause says why."""


class StaleConnection(NoReply):
    """A kept connection had already ended; the request may or may not have arrived."""


class ResponseReader:
    """Reads the responses of one connection, one after another.

    Attributes:
        begun: Whether any byte of the current response has arrived.
        status: Its status; 0 while unknown.
        size: How many bytes of it have arrived.
        complete: Whether all of it has arrived.
        reusable: Whether another request can be sent after it.
        waits_for_excerpt: Whether the first bytes of a failed response's body are enough.
    """

    waits_for_excerpt = True

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self.start()

    def start(self) -> None:
        """Expect the response to a new request."""
        self.begun = self.complete = self.reusable = False
        self.status = self.size = self._interim = 0
        self._retry_after = self._excerpt = b""

    def feed(self, data: bytes | memoryview) -> None:
        """Parse bytes that have arrived.

        Raises:
            NoReply: They are no HTTP response, or exceed a limit. `rest` returns the part that
                is known.
        """
        if self.size > (ANSWER_BYTES if self.status else HEAD_BYTES):
            raise NoReply("answers with too many bytes")
        self.begun = True
        self.size += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            raise NoReply("answers with another protocol") from None
        except HttpParserError as error:
            if isinstance(error.__context__, NoReply):
                raise error.__context__ from None
            raise NoReply("does not answer with HTTP") from None

    def reply(self) -> HttpReply | None:
        """Return the response as soon as enough of it is known; None before."""
        if 200 <= self.status < 300:
            return HttpReply(self.status)
        if self.complete or len(self._excerpt) >= EXCERPT_BYTES:
            return self.rest()
        return None

    def rest(self) -> HttpReply | None:
        """Return the response as far as it is known; None if not even its status is."""
        if not self.status:
            return None
        excerpt = self._excerpt[:EXCERPT_BYTES]
        return HttpReply(self.status, self._retry_after.decode("latin-1"), excerpt)

    # Callbacks of llhttp.

    def on_message_begin(self) -> None:
        if self.complete:
            self.reusable = False  # this response has no request
            raise NoReply("answers without a request")

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) == 11 and name.lower() == b"retry-after":
            self._retry_after = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status
            return
        self._interim += 1
        self._retry_after = b""
        if status == 101:
            raise NoReply("answers with another protocol")
        if self._interim > INTERIM:
            raise NoReply("answers with too many 1xx")

    def on_body(self, body: bytes) -> None:
        if len(self._excerpt) < EXCERPT_BYTES and self.status >= 300:
            self._excerpt += body

    def on_message_complete(self) -> None:
        if self.status:
            self.complete = True
            self.reusable = self._parser.should_keep_alive()


class ContentReader(ResponseReader):
    """Reads whole responses of a bounded size; the reply is a `ContentReply`."""

    waits_for_excerpt = False

    def start(self) -> None:
        super().start()
        self._headers: list[tuple[bytes, bytes]] = []
        self._body = b""

    def reply(self) -> ContentReply | None:
        if not self.complete:
            return None
        return ContentReply(self.status, headers=tuple(self._headers), body=self._body)

    rest = reply

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if not self.status:
            self._headers.clear()

    def on_body(self, body: bytes) -> None:
        self._body += body
