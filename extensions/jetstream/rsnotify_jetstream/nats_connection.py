"""A hub's connection to NATS. It reconnects until it is closed."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

import msgspec
from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.runtime.reasons import Repetitions, reason_of
from rsnotify.runtime.tasks import cancel
from rsnotify_jetstream.nats_settings import NatsSettings

logger = logging.getLogger("rsnotify.hub.store")

#: Timeouts of the first connection, and of a request with all its retries, in seconds. A NATS
#: cluster needs up to 10 seconds to elect a new leader.
CONNECT_SECONDS = 10.0
REQUEST_TIMEOUT_SECONDS = 20.0
#: Seconds after which an unanswered request is retried.
RETRY_AFTER_SECONDS = 2.0
#: Seconds between pings to the server, and the number of unanswered pings after which the client
#: considers the connection broken.
_PING_SECONDS, _MAX_UNANSWERED_PINGS = 1, 2
_RECONNECT_SECONDS = 0.25
_RETRY_SECONDS = 0.1
#: Errors after which reconnecting is pointless.
_PERMANENT_ERRORS = (errors.AuthorizationError, ssl.SSLCertVerificationError)
#: Errors that occur when a connection breaks or cannot be opened.
_CONNECTION_ERRORS = (OSError, errors.StaleConnectionError, errors.NoServersError)
#: The oldest supported version of NATS.
MIN_VERSION = (2, 12)
#: Error code: JetStream has no leader at the moment.
_UNAVAILABLE = 10008
#: Maximum number of batches that a connection sends concurrently. A stream accepts at most 50
#: concurrent batches from all nodes together.
_MAX_BATCHES = 8
#: The error in the answer to an incomplete batch. Messages are missing if there were too many
#: concurrent batches, or if the stream's leader changed.
_INCOMPLETE_BATCH = b'"err_code":10176,'
_BATCH_ATTEMPTS = 3

_JWT = re.compile(r"-BEGIN NATS USER JWT-++\s++[\w.-]++\s++-++END NATS USER JWT-")
_SEED = re.compile(r"-BEGIN USER NKEY SEED-++\s++(\w++)\s++-++END USER NKEY SEED-")


class ApiError(StorageError):
    """JetStream refused a request.

    `what` describes the request, and `error` is the error in the answer.
    """

    def __init__(self, what: str, error: Mapping[str, Any]) -> None:
        self.code = int(error.get("err_code", 0))
        self.status = int(error.get("code", 0))
        self.description = str(error.get("description", "no reason"))
        super().__init__(f"NATS refused {what}: {self.description}")


def parse_headers(raw: bytes) -> dict[str, str]:
    """Parse the headers of a message, without the version line that precedes them."""
    headers = {}
    for line in raw.decode("utf-8", "replace").split("\r\n"):
        name, separator, value = line.partition(":")
        if separator:
            headers[name] = value.strip()
    return headers


class _Client(Client):
    """The library's client, with faster handling of headers.

    Each record of the log has about 20 headers. The library examines each character of their names,
    and uses several calls to send each header.
    """

    _parse_header_lines = staticmethod(parse_headers)

    async def _send_publish(
        self,
        subject: str,
        reply: str,
        payload: bytes,
        payload_size: int,
        headers: dict[str, Any] | None,
    ) -> None:
        # The library handles values with line breaks, which it replaces.
        lines = "".join([f"{name}: {value}\r\n" for name, value in (headers or {}).items()])
        if headers is None or lines.count("\n") != len(headers):
            await super()._send_publish(subject, reply, payload, payload_size, headers)
            return
        head = f"NATS/1.0\r\n{lines}\r\n".encode()
        command = f"HPUB {subject} {reply} {len(head)} {len(head) + payload_size}\r\n".encode()
        await self._send_command(b"%b%b%b\r\n" % (command, head, payload))
        if self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()


class NatsConnection:
    """A connection to one of the NATS servers.

    Attributes:
        client: The library's client.
        reconnected: Functions to call after each reconnection, and after the client has dropped
            messages because this process was too slow.
    """

    def __init__(self, settings: NatsSettings) -> None:
        self.settings = settings
        self.client: Client = _Client()
        self.reconnected: list[Callable[[], None]] = []
        self._connected = asyncio.Event()
        self._batches = asyncio.Semaphore(_MAX_BATCHES)
        self._limits: set[asyncio.Timeout] = set()
        self._warnings = Repetitions()
        self._last_error: Exception | None = None
        self._refused = asyncio.Event()

    async def open(self, name: str) -> None:
        """Connect to a server. `name` is the name of this client there.

        Raises:
            ConfigurationError: No server could be reached, a server refused the login, or the
                server is too old.
        """
        connecting = asyncio.create_task(
            self.client.connect(
                list(self.settings.servers),
                name=name,
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
                connect_timeout=2,
                reconnect_time_wait=_RECONNECT_SECONDS,  # type: ignore[arg-type]
                max_reconnect_attempts=-1,
                ping_interval=_PING_SECONDS,
                max_outstanding_pings=_MAX_UNANSWERED_PINGS,
                **login_options(self.settings),
            )
        )
        refused = asyncio.create_task(self._refused.wait())
        await asyncio.wait(
            (connecting, refused), timeout=CONNECT_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        refused.cancel()
        if connecting.done() and connecting.exception() is None:
            if (reason := self.outdated()) is not None:
                await self.close()
                raise ConfigurationError(reason)
            self._connected.set()
            return
        error = (connecting.done() and connecting.exception()) or self._last_error
        await cancel([connecting])
        await self.close()
        raise ConfigurationError(self._reason(error))

    def outdated(self) -> str | None:
        """Return an error message if the server is too old for a hub. Otherwise, return None."""
        found = self.client.connected_server_version
        if (found.major, found.minor) >= MIN_VERSION:
            return None
        version = self.client._server_info.get("version", "")
        return (
            f"NATS {version} at {self.settings.place} is too old: servers before "
            f"{'.'.join(map(str, MIN_VERSION))} can report a wrong leader, and lose acknowledged "
            "records; upgrade all servers of the cluster"
        )

    def _reason(self, error: object) -> str:
        place = self.settings.place
        if isinstance(error, ssl.SSLCertVerificationError):
            return (
                f"NATS at {place} has a certificate that is not trusted: {reason_of(error)}; or "
                "configure the certificate of its authority"
            )
        if refuses_certificate(error):
            return (
                f"NATS at {place} requires a certificate, or refuses this hub's certificate: "
                "configure one signed by an authority that the servers trust, and its key"
            )
        if self._refused.is_set():
            return f"NATS at {place} refuses the login: check the user and password, or the files"
        shown = reason_of(error, str(error)) if isinstance(error, Exception) else "no answer"
        shown = shown.partition(";")[0]  # omit the library's advice
        return f"cannot connect to NATS at {place}: {shown}; start the servers, or correct the URL"

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error
        is_hopeless = isinstance(error, _PERMANENT_ERRORS) or refuses_certificate(error)
        if is_hopeless or "uthorization" in str(error):
            self._refused.set()
        if isinstance(error, errors.SlowConsumerError):
            self._notify()
        # `_on_disconnected` logs a warning for connection errors.
        elif self._connected.is_set() and not isinstance(error, _CONNECTION_ERRORS):
            self.warn(logger, f"NATS: {error or type(error).__name__}")

    async def _on_disconnected(self) -> None:
        if self._connected.is_set() and not self.client.is_closed:
            self.warn(logger, "lost the connection to NATS, reconnecting")
        self._connected.clear()
        for limit in self._limits:  # pending requests will not be answered
            if not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time())

    async def _on_reconnected(self) -> None:
        logger.info("reconnected to NATS")
        self._connected.set()
        self._notify()

    @property
    def server(self) -> str | None:
        """The name of the connected server, or None while there is no connection."""
        if not self._connected.is_set():
            return None
        return str(self.client._server_info.get("server_name", ""))

    def warn(self, logger: logging.Logger, text: str) -> None:
        """Log a warning, unless the same warning was logged within the last minute.

        A single failure of NATS affects many shards and records, and all their retries.
        """
        if self._warnings.is_new(text):
            logger.warning("%s", text)

    def _notify(self) -> None:
        for call in self.reconnected:
            call()

    async def request(
        self, subject: str, payload: bytes, *, headers: dict[str, str] | None = None
    ) -> Msg:
        """Send a request, and retry until it is answered. The receiver must tolerate duplicates.

        Raises:
            StorageError: No answer arrived in time.
        """
        return await self._answered(
            lambda: self.client.request(subject, payload, REQUEST_TIMEOUT_SECONDS, headers=headers)
        )

    async def request_batch(
        self, subject: str, messages: Sequence[tuple[bytes, Mapping[str, str]]]
    ) -> Msg:
        """Send messages that a stream stores either all or not at all. See `request`.

        Each attempt is a separate batch, so no attempt can complete an earlier one.
        """

        async def send() -> Msg:
            async with self._batches:
                for _ in range(_BATCH_ATTEMPTS):
                    answer = await self._send_batch(subject, messages)
                    if _INCOMPLETE_BATCH not in answer.data:
                        break
                    await asyncio.sleep(_RETRY_SECONDS)
                return answer

        return await self._answered(send)

    async def _send_batch(
        self, subject: str, messages: Sequence[tuple[bytes, Mapping[str, str]]]
    ) -> Msg:
        identifier = token_hex(8)
        for number, (payload, own) in enumerate(messages, 1):
            headers = {**own, "Nats-Batch-Id": identifier, "Nats-Batch-Sequence": str(number)}
            if number < len(messages):
                await self.client.publish(subject, payload, headers=headers)
        headers["Nats-Batch-Commit"] = "1"
        return await self.client.request(subject, payload, REQUEST_TIMEOUT_SECONDS, headers=headers)

    async def _answered(self, send: Callable[[], Awaitable[Msg]]) -> Msg:
        """Call `send` until an attempt is answered, and return the answer."""
        loop = asyncio.get_running_loop()
        end = loop.time() + REQUEST_TIMEOUT_SECONDS
        while (left := end - loop.time()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._connected.wait()
                async with self._until_disconnected(min(RETRY_AFTER_SECONDS, left)):
                    return await send()
            except errors.NoRespondersError:
                await asyncio.sleep(_RETRY_SECONDS)
            except (errors.ConnectionClosedError, errors.ConnectionDrainingError):
                raise StorageError("the hub's connection to NATS is closed") from None
            except (TimeoutError, errors.OutboundBufferLimitError, OSError):
                await asyncio.sleep(0)
        raise StorageError(
            f"NATS at {self.settings.place} does not answer; check that most of its servers run"
        )

    @asynccontextmanager
    async def _until_disconnected(self, seconds: float) -> AsyncIterator[None]:
        """Raise TimeoutError after `seconds`, or as soon as the connection breaks."""
        async with asyncio.timeout(seconds) as limit:
            self._limits.add(limit)
            try:
                yield
            finally:
                self._limits.discard(limit)

    async def api(
        self, subject: str, payload: Mapping[str, Any] | None = None, *, what: str
    ) -> dict[str, Any]:
        """Send a request to the JetStream API, and return the answer.

        `subject` does not include `$JS.API.`. `what` describes the request in error messages.

        Raises:
            ApiError: JetStream refused the request.
            StorageError: No answer arrived in time.
        """
        body = msgspec.json.encode(payload) if payload is not None else b""
        loop = asyncio.get_running_loop()
        end = loop.time() + REQUEST_TIMEOUT_SECONDS
        while True:
            message = await self.request(f"$JS.API.{subject}", body)
            answer: dict[str, Any] = msgspec.json.decode(message.data)
            error = answer.get("error")
            if error is None:
                return answer
            refused = ApiError(what, error)
            if refused.code != _UNAVAILABLE or loop.time() > end:
                raise refused
            await asyncio.sleep(_RETRY_SECONDS)

    async def close(self) -> None:
        self._connected.clear()
        with suppress(Exception):
            async with asyncio.timeout(2):
                await self.client.close()


def login_options(settings: NatsSettings) -> dict[str, Any]:
    """Return the client options for logging in.

    Raises:
        ConfigurationError: A file cannot be read, or has the wrong content.
    """
    files = settings.files
    for path in (files.ca, files.certificate, files.key):
        if path is not None:
            _read(path)
    options: dict[str, Any] = {}
    if settings.user is not None:
        options |= {"user": settings.user, "password": settings.password}
    if files.credentials is not None:
        _check_credentials(files.credentials)
        options["user_credentials"] = str(files.credentials)
    if files.nkey is not None:
        seed = _read(files.nkey).strip()
        _check_seed(files.nkey, seed)
        options["nkeys_seed_str"] = seed
    if settings.is_tls:
        options["tls"] = _tls(settings)
    return options


def refuses_certificate(error: object) -> bool:
    """Return whether a server has refused this hub's certificate, or requires one."""
    reason = getattr(error, "reason", None) if isinstance(error, ssl.SSLError) else None
    return reason is not None and "ALERT" in reason and ("CERT" in reason or "_CA" in reason)


def _read(path: Path) -> str:
    try:
        return path.read_text("latin-1")
    except OSError as error:
        raise ConfigurationError(f"cannot read {path} for NATS: {reason_of(error)}") from None


def _check_credentials(path: Path) -> None:
    text = _read(path)
    if not _JWT.search(text):  # the library would search for it forever
        raise ConfigurationError(f"{path} contains no user JWT; specify a .creds file of NATS")
    found = _SEED.search(text)
    _check_seed(path, found[1] if found else "")


def _check_seed(path: Path, seed: str) -> None:
    import nkeys  # type: ignore[import-untyped]

    try:
        nkeys.from_seed(seed.encode())
    except Exception:  # the library raises many types of exceptions
        raise ConfigurationError(
            f"{path} contains no NKey; specify a file with a user's seed, which begins with SU, or "
            "a .creds file of NATS"
        ) from None


def _tls(settings: NatsSettings) -> ssl.SSLContext:
    files = settings.files
    context = ssl.create_default_context(cafile=files.ca)
    if files.certificate is not None:
        try:
            context.load_cert_chain(files.certificate, files.key)
        except (ssl.SSLError, OSError) as error:
            raise ConfigurationError(
                f"{files.certificate} and {files.key} are not a certificate for NATS and its key: "
                f"{reason_of(error)}"
            ) from None
    return context
