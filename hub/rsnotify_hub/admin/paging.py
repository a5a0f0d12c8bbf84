"""Pages of rows, merged from the rows of all nodes.

Rows may change while a client reads page after page. Each page begins after the key of the previous
page's last row. Therefore a row whose key does not change is on exactly one page, whatever happens
to other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import nlargest, nsmallest
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from rsnotify_hub.admin.schemas import PageQuery
from rsnotify_hub.refusals import Code, Refusal

T = TypeVar("T")
U = TypeVar("U")


class RowOrder(Struct, Generic[T], frozen=True):
    """An order of rows by a unique key of the given type."""

    key: Callable[[T], tuple[Any, ...]]
    type: Any
    descending: bool = False


class RowPage(Struct, Generic[T], frozen=True):
    """A page. `total` counts the rows on all pages, and `next` is the `after` of the next page."""

    rows: list[T]
    total: int
    next: str | None


class NodeRows(Struct, Generic[T], frozen=True):
    """One node's candidates for a page: its first rows with their keys, and its number of rows.

    There is up to one row more than the page has, so that it is known whether a page follows.
    """

    rows: list[tuple[str, T]]
    total: int

    def with_rows(self, rows: Iterable[U]) -> NodeRows[U]:
        """Return the same candidates with other rows."""
        keyed = [(key, row) for (key, _), row in zip(self.rows, rows, strict=True)]
        return NodeRows(keyed, self.total)


def rows_of_node(rows: Iterable[T], order: RowOrder[T], query: PageQuery) -> NodeRows[T]:
    keyed = [(order.key(row), row) for row in rows]
    first = nlargest if order.descending else nsmallest
    found = first(query.limit + 1, _after(keyed, order, query.after))
    return NodeRows([(_encode(key), row) for key, row in found], len(keyed))


def merge_rows(nodes: Iterable[NodeRows[T]], order: RowOrder[Any], limit: int) -> RowPage[T]:
    """Merge the rows of all nodes into a page."""
    nodes = list(nodes)
    rows = [
        (msgspec.json.decode(key, type=order.type), row) for node in nodes for key, row in node.rows
    ]
    rows.sort(key=lambda pair: pair[0], reverse=order.descending)
    following = _encode(rows[limit - 1][0]) if len(rows) > limit else None
    page = [row for _, row in rows[:limit]]
    return RowPage(page, sum(node.total for node in nodes), following)


def page_of(rows: Iterable[T], order: RowOrder[T], query: PageQuery) -> RowPage[T]:
    return merge_rows([rows_of_node(rows, order, query)], order, query.limit)


def _after(
    keyed: list[tuple[tuple[Any, ...], T]], order: RowOrder[T], after: str
) -> list[tuple[tuple[Any, ...], T]]:
    if not after:
        return keyed
    try:
        key = msgspec.json.decode(after, type=order.type)
    except (msgspec.DecodeError, UnicodeError):
        raise Refusal(Code.BAD_REQUEST, "after is not the next of a page in this order") from None
    if order.descending:
        return [pair for pair in keyed if pair[0] < key]
    return [pair for pair in keyed if pair[0] > key]


def _encode(key: tuple[Any, ...]) -> str:
    return msgspec.json.encode(key).decode()
