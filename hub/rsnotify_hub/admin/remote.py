"""A client of the admin API, made from the same operations as the server."""

from __future__ import annotations

import re
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, FetchError, NotFound, RsnotifyError, Unavailable
from rsnotify_hub.admin.operations import ID, OPERATIONS, PREFIX, Operation
from rsnotify_hub.admin.questions import MAX_ROWS
from rsnotify_hub.admin.shapes import Problem
from rsnotify_hub.client import reason_of
from rsnotify_hub.urls import check_url

_TIMEOUT = aiohttp.ClientTimeout(total=30)
_OPERATIONS = {operation.name: operation for operation in OPERATIONS}
_WITHOUT_TOKEN = "; set RSNOTIFY_ADMIN_TOKEN, or --token"
_WITH_TOKEN = (
    "; the token in RSNOTIFY_ADMIN_TOKEN, or of --token, is no admin's there, and where a hub at "
    "loopback has no admins none is to be sent"
)


class Remote:
    """A hub somewhere.

    Args:
        url: Its URL.
        token: An admin's bearer token; None where the hub asks for none.

    Raises:
        Refusal: The URL is none.
    """

    def __init__(self, url: str, token: str | None) -> None:
        self._url = check_url(url, "--url").rstrip("/") + PREFIX
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._hint = _WITH_TOKEN if token else _WITHOUT_TOKEN

    async def ask(self, name: str, id: str = "", body: Struct | None = None, **query: Any) -> Any:
        """Do one operation.

        Args:
            name: The name of the operation.
            id: The topic or subscription it is about, if it is about one.
            body: What goes with it.
            query: Its parameters; None leaves one out.

        Returns:
            An instance of the operation's `answer`; None if it has none.

        Raises:
            ConfigurationError: The id is none.
            FetchError: The hub refuses, or cannot be asked.
        """
        operation = _OPERATIONS[name]
        if "{id}" in operation.path and not re.fullmatch(ID, id):
            raise ConfigurationError(f"{id!r} is no id: those are 32 hexadecimal digits")
        url = self._url + operation.path.replace("{id}", id)
        given = {key: str(value) for key, value in query.items() if value is not None}
        try:
            async with (
                aiohttp.ClientSession(headers=self._headers, timeout=_TIMEOUT) as session,
                session.request(
                    operation.method,
                    url,
                    params=given,
                    json=None if body is None else to_builtins(body),
                    allow_redirects=False,
                ) as response,
            ):
                return self._understood(operation, url, response.status, await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise Unavailable(url, f"{reason_of(error)}; --url names the hub") from None

    async def collect(self, name: str, *, limit: int, **query: Any) -> Any:
        """Do an operation that answers with pages, and join them.

        Args:
            name: The name of the operation.
            limit: How many rows at most.
            query: Its other parameters.

        Raises:
            FetchError: The hub refuses, or cannot be asked.
        """
        page = await self.ask(name, limit=min(limit, MAX_ROWS), **query)
        field = page.__struct_fields__[0]
        rows = getattr(page, field)
        while page.next is not None and len(rows) < limit:
            rest = min(limit - len(rows), MAX_ROWS)
            page = await self.ask(name, limit=rest, after=page.next, **query)
            rows += getattr(page, field)
        return replace(page, **{field: rows})

    def _understood(self, operation: Operation, url: str, status: int, body: bytes) -> Any:
        try:
            if 200 <= status < 300:
                shape = operation.answer
                return None if shape is None else msgspec.json.decode(body, type=shape)
            raise self._refused(url, status, msgspec.json.decode(body, type=Problem).error)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise FetchError(url, f"answers {status}, but not as the hub's admin API") from None

    def _refused(self, url: str, status: int, reason: str) -> RsnotifyError:
        if status == 404:
            return NotFound(url, reason)
        return FetchError(url, reason + (self._hint if status in (401, 403) else ""))
