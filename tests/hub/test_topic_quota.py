"""How many topics a publisher may begin."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rsnotify_hub.access.grants import granted_ranges, prefix_grants
from rsnotify_hub.admin.schema_conversion import topic_id
from rsnotify_hub.topic_log import SortedNames
from tests.hub.helpers import Client, RunHub, fragment

MAPS, BOOKS = "a-token-for-the-maps", "a-token-for-the-books"
HERE = "https://a.example/"
PUBLISHERS = [
    {"token": MAPS, "topics": [HERE + "maps", HERE + "maps/old/"]},
    {"token": BOOKS, "topics": [HERE + "books/"]},
]


async def begin(hub: Client, token: str, name: str, *, second: int = 1) -> tuple[int, str]:
    body = fragment(second - 1, second)
    return await hub.publish(body, topic=HERE + name, Authorization=f"Bearer {token}")


async def test_a_publisher_begins_a_limited_number_of_topics(run_hub: RunHub):
    async with run_hub(publishers=PUBLISHERS, max_topics_per_publisher=2) as hub:
        for name in ("maps", "maps/old/1"):
            assert (await begin(hub, MAPS, name))[0] == 202
        status, reason = await begin(hub, MAPS, "maps/2")
        assert (status, reason) == (
            429,
            "the token already has 2 topics, the maximum\n",
        )
        assert (await begin(hub, MAPS, "maps", second=2))[0] == 202
        assert (await begin(hub, BOOKS, "books/1"))[0] == 202
        assert len(await hub.topics()) == 3


async def test_a_dropped_topic_allows_another(run_hub: RunHub):
    async with run_hub(publishers=PUBLISHERS, max_topics_per_publisher=1) as hub:
        assert (await begin(hub, BOOKS, "books/1"))[0] == 202
        assert (await begin(hub, BOOKS, "books/2"))[0] == 429
        await hub.admin("DELETE", f"topics/{topic_id(HERE + 'books/1')}")
        assert (await begin(hub, BOOKS, "books/2"))[0] == 202
        assert (await begin(hub, BOOKS, "books/1"))[0] == 429


async def test_concurrent_requests_do_not_exceed_the_quota(run_hub: RunHub):
    async with run_hub(publishers=PUBLISHERS, max_topics_per_publisher=5) as hub:
        answers = await asyncio.gather(
            *(begin(hub, BOOKS, f"books/{number}") for number in range(40))
        )
        assert Counter(status for status, _ in answers) == {202: 5, 429: 35}
        assert len(await hub.topics()) == 5


async def test_the_quota_applies_to_websockets_too(run_hub: RunHub):
    async with run_hub(publishers=PUBLISHERS, max_topics_per_publisher=1) as hub:
        token = f"Bearer {BOOKS}"
        names = ("books/1", "books/2")
        sources = [await hub.source(topic=HERE + name, Authorization=token) for name in names]
        said = []
        for socket in sources:
            await socket.send_str(fragment(0, 1).decode())
            frame: dict[str, Any] = await socket.receive_json()
            said.append((frame["type"], frame.get("code")))
        assert said == [("accepted", None), ("error", "too-many")]


async def test_a_local_hub_has_no_quota(run_hub: RunHub):
    async with run_hub(max_topics_per_publisher=1) as hub:
        for number in range(3):
            await hub.accepted(fragment(0, 1), topic=f"{HERE}{number}")


TOPICS = st.lists(st.text("/?.ab0@~", max_size=6).map(lambda end: HERE + end), unique=True)


@given(topics=TOPICS, prefixes=TOPICS, late=TOPICS, gone=st.randoms(use_true_random=False))
def test_granted_topics_are_counted_by_their_ranges(
    topics: list[str], prefixes: list[str], late: list[str], gone: Any
):
    # What could be taken for another topic elsewhere is never granted, and so never there.
    there = {topic for topic in topics if prefix_grants(HERE, topic)}
    names = SortedNames(there)
    for topic in {topic for topic in late if prefix_grants(HERE, topic)} - there:
        names.add(topic)
        there.add(topic)
    for topic in gone.sample(sorted(there), len(there) // 3):
        names.remove(topic)
        there.remove(topic)
    granted = {topic for topic in there if any(prefix_grants(one, topic) for one in prefixes)}
    assert names.count(granted_ranges(prefixes)) == len(granted)
