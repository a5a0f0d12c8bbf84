"""Reading answers: bytes in, a `HttpReply` out, with bounds on all that may come before it ends.

Theory of operation. A 2xx counts as soon as its head is there. Of any other answer the beginning
of the body is wanted too. What remains of a body is read and thrown away, so that the connection
can be used again; but one bound on the bytes of an answer holds for everything: heads, 1xx before
them, chunk extensions, trailers and bodies.
"""

from __future__ import annotations

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from rsnotify_hub.websub.delivery.posting.replies import HttpReply, NoReply

#: After how many bytes of one answer no more are read, and its connection is given up.
ANSWER_BYTES = 64 * 1024

#: After how many bytes that is so while its head has not ended.
HEAD_BYTES = 16 * 1024

#: How much of the body of a failed answer is kept.
EXCERPT_BYTES = 4096

#: How many answers with 1xx may come before the one that counts.
INTERIM = 20


class ResponseReader:
    """Reads the answers of one connection, one after another.

    Attributes:
        begun: Whether anything has come of the present answer.
        status: Its status; 0 while that is not known.
        complete: Whether all of it has come.
        reusable: Whether another request can be sent after it.
    """

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self.start()

    def start(self) -> None:
        """Expect the answer to a new request."""
        self.begun = self.complete = self.reusable = False
        self.status = self._size = self._interim = 0
        self._retry_after = self._excerpt = b""

    def feed(self, data: bytes | memoryview) -> None:
        """Take what has come.

        Raises:
            NoReply: It is no answer, or none that ends; what is known of it stands.
        """
        if self._size > (ANSWER_BYTES if self.status else HEAD_BYTES):
            raise NoReply("answers with too much")
        self.begun = True
        self._size += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            raise NoReply("answers with another protocol") from None
        except HttpParserError as error:
            if isinstance(error.__context__, NoReply):
                raise error.__context__ from None
            raise NoReply("answers what is not HTTP") from None

    def reply(self) -> HttpReply | None:
        """Return the answer as soon as enough of it is known; None before."""
        if 200 <= self.status < 300:
            return HttpReply(self.status)
        if self.complete or len(self._excerpt) >= EXCERPT_BYTES:
            return self.rest()
        return None

    def rest(self) -> HttpReply | None:
        """Return the answer as far as it is known; None where not even its status is."""
        if not self.status:
            return None
        excerpt = self._excerpt[:EXCERPT_BYTES]
        return HttpReply(self.status, self._retry_after.decode("latin-1"), excerpt)

    # What llhttp calls.

    def on_message_begin(self) -> None:
        """Begin an answer."""
        if self.complete:
            self.reusable = False  # nobody asked for another answer
            raise NoReply("answers more than it was asked")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a trailer."""
        if len(name) == 11 and name.lower() == b"retry-after":
            self._retry_after = value

    def on_headers_complete(self) -> None:
        """Take the status."""
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status
            return
        self._interim += 1
        self._retry_after = b""
        if status == 101:
            raise NoReply("answers with another protocol")
        if self._interim > INTERIM:
            raise NoReply("answers with 1xx without end")

    def on_body(self, body: bytes) -> None:
        """Take some of the body."""
        if len(self._excerpt) < EXCERPT_BYTES and self.status >= 300:
            self._excerpt += body

    def on_message_complete(self) -> None:
        """End an answer."""
        if self.status:
            self.complete = True
            self.reusable = self._parser.should_keep_alive()
