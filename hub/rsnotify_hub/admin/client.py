"""A client of the admin API, made from the same table of operations as the server."""

from __future__ import annotations

import re
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from rsnotify.errors import (
    ConfigurationError,
    FetchError,
    NotFound,
    RsnotifyError,
    Unavailable,
)
from rsnotify.runtime.reasons import reason_of
from rsnotify_hub.admin.operations import ID, OPERATIONS, PREFIX, Operation
from rsnotify_hub.admin.schemas import (
    MAX_ROWS,
    Problem,
)
from rsnotify_hub.urls import check_url

_TIMEOUT = aiohttp.ClientTimeout(total=30)
_OPERATIONS = {operation.name: operation for operation in OPERATIONS}
_WITHOUT_TOKEN = "; set RSNOTIFY_ADMIN_TOKEN, or --token"
_WITH_TOKEN = (
    "; the token in RSNOTIFY_ADMIN_TOKEN or --token is not an admin's there; send no token to a "
    "hub on a loopback address that has no admins"
)


class AdminClient:
    """A client of one hub; the token is an admin's, or None for a hub that needs none."""

    def __init__(self, url: str, token: str | None) -> None:
        self._url = check_url(url, "--url").rstrip("/") + PREFIX
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._hint = _WITH_TOKEN if token else _WITHOUT_TOKEN

    async def call(self, name: str, id: str = "", body: Struct | None = None, **query: Any) -> Any:
        """Execute one operation by its name, and return an instance of its `answer`.

        A parameter of the query that is None is left out.

        Raises:
            ConfigurationError: The id is invalid.
            FetchError: The hub refuses, or cannot be reached.
        """
        operation = _OPERATIONS[name]
        if "{id}" in operation.path and not re.fullmatch(ID, id):
            raise ConfigurationError(f"{id!r} is no id: those are 32 hexadecimal digits")
        url = self._url + operation.path.replace("{id}", id)
        params = {key: str(value) for key, value in query.items() if value is not None}
        try:
            async with (
                aiohttp.ClientSession(headers=self._headers, timeout=_TIMEOUT) as session,
                session.request(
                    operation.method,
                    url,
                    params=params,
                    json=None if body is None else to_builtins(body),
                    allow_redirects=False,
                ) as response,
            ):
                return self._decoded(operation, url, response.status, await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise Unavailable(url, f"{reason_of(error)}; --url names the hub") from None

    async def call_paged(self, name: str, *, limit: int, **query: Any) -> Any:
        """Execute an operation that answers with pages, and join the pages up to `limit` rows."""
        page = await self.call(name, limit=min(limit, MAX_ROWS), **query)
        field = page.__struct_fields__[0]
        rows = getattr(page, field)
        while page.next is not None and len(rows) < limit:
            rest = min(limit - len(rows), MAX_ROWS)
            page = await self.call(name, limit=rest, after=page.next, **query)
            rows += getattr(page, field)
        return replace(page, **{field: rows})

    def _decoded(self, operation: Operation, url: str, status: int, body: bytes) -> Any:
        try:
            if 200 <= status < 300:
                schema = operation.answer
                return None if schema is None else msgspec.json.decode(body, type=schema)
            raise self._refused(url, status, msgspec.json.decode(body, type=Problem).error)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise FetchError(url, f"answers {status}, but not as the hub's admin API") from None

    def _refused(self, url: str, status: int, reason: str) -> RsnotifyError:
        if status == 404:
            return NotFound(url, reason)
        return FetchError(url, reason + (self._hint if status in (401, 403) else ""))
