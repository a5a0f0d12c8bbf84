"""What a client asks of the change memory."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from rsnotify.format.datetimes import Instant, parse_datetime
from rsnotify_hub.refusals import Code, Refusal

#: Changes in a page, where the client does not say, and at most.
USUAL_CHANGES, MOST_CHANGES = 1_000, 10_000
#: Topics in a page of their list, likewise.
USUAL_TOPICS, MOST_TOPICS = 100, 1_000


class ChangeMemoryQuestion(Struct, frozen=True):
    """Which changes of a topic are asked for.

    Args:
        topic: The topic.
        since: Those later than this; None for all that are known.
        limit: How many at most.
    """

    topic: str
    since: Instant | None
    limit: int


def read_question(query: Mapping[str, str]) -> ChangeMemoryQuestion:
    """Read the query of a page of changes.

    Raises:
        Refusal: Something in it makes no sense.
    """
    since = query.get("since")
    return ChangeMemoryQuestion(
        topic=query["topic"],
        since=None if since is None else _instant(since),
        limit=read_limit(query, usual=USUAL_CHANGES, most=MOST_CHANGES),
    )


def read_limit(query: Mapping[str, str], *, usual: int, most: int) -> int:
    """Read how many a page may have.

    Raises:
        Refusal: It is no number.
    """
    limit = query.get("limit", str(usual))
    if not re.fullmatch(r"0*[1-9]\d{0,17}", limit, re.ASCII):
        raise Refusal(Code.BAD_REQUEST, "limit: it is not a whole number above 0")
    return min(int(limit), most)


def _instant(text: str) -> Instant:
    try:
        # The + of a time zone that was not escaped arrives as a space.
        return parse_datetime(text.replace(" ", "+") if "T" in text else text)
    except ValueError as error:
        raise Refusal(Code.BAD_REQUEST, f"since: {error}") from None
