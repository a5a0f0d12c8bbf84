"""A client of the admin API, based on the same table of operations as the server."""

from __future__ import annotations

import re
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, FetchError, NotFound, Unavailable
from rsnotify.runtime.reasons import reason_of
from rsnotify_hub.admin.operations import ID, OPERATIONS, PREFIX, Operation
from rsnotify_hub.admin.schemas import ID_PREFIX, MAX_ROWS, Problem
from rsnotify_hub.urls import check_url

_TIMEOUT = aiohttp.ClientTimeout(total=30)
_OPERATIONS = {operation.name: operation for operation in OPERATIONS}
#: Maximum number of rows to search for an id, and of ids to list in a message.
_MAX_SEARCHED_ROWS = 10_000
_MAX_LISTED_IDS = 10
_HINT_WITHOUT_TOKEN = "; set RSNOTIFY_ADMIN_TOKEN or --token"
_HINT_WITH_TOKEN = (
    "; the token in RSNOTIFY_ADMIN_TOKEN or --token is not that of an admin of this hub; a hub on "
    "a loopback address without admins needs no token"
)


class AdminClient:
    """A client of one hub. The token is an admin's, or None for a hub that needs none."""

    def __init__(self, url: str, token: str | None) -> None:
        self._url = check_url(url, "--url").rstrip("/") + PREFIX
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._hint = _HINT_WITH_TOKEN if token else _HINT_WITHOUT_TOKEN

    async def call(self, name: str, id: str = "", body: Struct | None = None, **query: Any) -> Any:
        """Execute an operation by name, and return an instance of its `answer`.

        An id can be abbreviated to a unique prefix. Query parameters set to None are omitted.

        Raises:
            ConfigurationError: The id is invalid or ambiguous.
            FetchError: The hub refused the request or cannot be reached.
        """
        operation = _OPERATIONS[name]
        if "{id}" in operation.path and not re.fullmatch(ID, id):
            id = await self._complete_id(operation.path.split("/")[1], id)
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
            raise Unavailable(url, f"{reason_of(error)}; check --url") from None

    async def _complete_id(self, kind: str, first: str) -> str:
        """Return the only id that begins with `first` among the rows of the operation `kind`."""
        if not re.fullmatch(ID_PREFIX, first):
            raise ConfigurationError(
                f"{first!r} is not an id: give all 32 hexadecimal digits, or at least the first 4"
            )
        page = await self.call_paged(kind, limit=_MAX_SEARCHED_ROWS, search=first)
        rows = getattr(page, page.__struct_fields__[0])
        found = [row for row in rows if row.id.startswith(first)]
        if not found and page.next is None:
            raise NotFound(self._url, f"none of the {kind} has an id that begins with {first}")
        if len(found) == 1 and page.next is None:
            return str(found[0].id)
        # A connection has an address instead of a topic.
        facts = [getattr(row, "topic", None) or row.address for row in found]
        listed = list(zip(found, facts, strict=True))[:_MAX_LISTED_IDS]
        names = "".join(f"\n  {row.id}  {fact}" for row, fact in listed)
        rest = len(found) - len(listed)
        more = f"\n  and {rest:,} more" if rest else ""
        raise ConfigurationError(
            f"several ids of {kind} begin with {first}; give more digits:{names}{more}"
        )

    async def call_paged(self, name: str, *, limit: int, **query: Any) -> Any:
        """Execute an operation that returns pages, and return up to `limit` rows as one page."""
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
            reason = msgspec.json.decode(body, type=Problem).error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise FetchError(url, f"answered {status}, but not as the hub's admin API") from None
        if status == 404:
            raise NotFound(url, reason)
        raise FetchError(url, reason + (self._hint if status in (401, 403) else ""))
