"""Fragments of several kinds on one topic, which would make a copy wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rsnotify.errors import WrongDocument
from rsnotify.format.model import Capability
from rsnotify_hub.fragments import Fragment, count_chained, read_fragment
from rsnotify_hub.intake import read_content
from rsnotify_hub.topic_log import TopicLogs
from tests.hub.helpers import TOPIC, Client, Clock, at, fragment
from tests.hub.storing import Listener, kept, logs, made


def notice(from_: float, *seconds: float, until: float | None = None) -> Fragment:
    return read_fragment(notice_body(from_, *seconds, until=until))


def notice_body(from_: float, *seconds: float, until: float | None) -> bytes:
    kind = Capability.FRAMEWORK_NOTIFICATION
    return fragment(from_, *seconds, until=until, capability=kind)


PAGE = read_content(b"an error page", content_type="text/plain", received=at(100))
ABOUT_CHANGES, ABOUT_DOCUMENTS = "about changes of resources", "about documents"


@pytest.mark.parametrize(
    ("first", "other", "next", "reason"),
    [
        (made(0, 1), notice(1, 2), made(1, 2), ABOUT_CHANGES),
        (made(0, 1), notice(1, until=2), made(1, 2), ABOUT_CHANGES),
        (made(0, 1), notice(0, until=1), made(1, 2), ABOUT_CHANGES),
        (made(0, 1), PAGE, made(1, 2), "about changes"),
        (notice(0, 1), made(1, 2), notice(1, 2), ABOUT_DOCUMENTS),
    ],
)
async def test_a_topic_accepts_only_what_is_of_the_kind_of_its_first_fragment(
    topics: TopicLogs,
    listener: Listener,
    first: Fragment,
    other: Fragment,
    next: Fragment,
    reason: str,
):
    await topics.publish(TOPIC, first)
    with pytest.raises(WrongDocument, match=reason):
        await topics.publish(TOPIC, other)
    await topics.publish(TOPIC, next)
    assert await kept(topics) == listener.fragments == [first, next]


async def test_the_kind_of_a_topic_is_known_after_a_restart(tmp_path: Path, clock: Clock):
    async with logs(tmp_path, clock) as (topics, _):
        await topics.publish(TOPIC, notice(0, 1))
    async with logs(tmp_path, clock) as (topics, _):
        with pytest.raises(WrongDocument, match=ABOUT_DOCUMENTS):
            await topics.publish(TOPIC, made(1, 2))


async def test_a_topic_has_another_kind_after_its_log_was_deleted(topics: TopicLogs):
    await topics.publish(TOPIC, notice(0, 1))
    await topics.publish(TOPIC, notice(1, 2))
    await topics.delete(TOPIC)
    await topics.publish(TOPIC, made(2, 3))
    with pytest.raises(WrongDocument, match=ABOUT_CHANGES):
        await topics.publish(TOPIC, notice(3, 4))


@pytest.mark.parametrize("other", [notice(1, 2), PAGE])
async def test_concurrent_publications_of_two_kinds_do_not_mix(
    topics: TopicLogs, listener: Listener, other: Fragment
):
    results = await asyncio.gather(
        *[topics.publish(TOPIC, each) for each in (made(0, 1), other, made(1, 3))],
        return_exceptions=True,
    )
    assert [type(each) for each in results] == [type(None), WrongDocument, type(None)]
    assert await kept(topics) == listener.fragments == [made(0, 1), made(1, 3)]


def test_fragments_of_two_kinds_are_never_merged():
    fragments = [made(0, 1), notice(1, until=2), made(2, 3)]
    assert count_chained(fragments, max_bytes=10**9) == 1
    assert count_chained(fragments[1:], max_bytes=10**9) == 1


def test_a_capability_with_a_character_reference_is_recognized():
    plain, written = b"framework-notification", b"framework&#45;notification"
    hidden = read_fragment(notice_body(1, until=2).replace(plain, written))
    assert written in hidden.body
    assert count_chained([made(0, 1), hidden], max_bytes=10**9) == 1


async def test_a_publisher_is_told_which_kind_a_topic_has(hub: Client):
    await hub.accepted(fragment(0, 1))
    status, reason = await hub.publish(notice_body(1, until=2))
    assert status == 400
    assert ABOUT_CHANGES in reason
    source = await hub.source()
    await source.send_str(notice_body(1, until=2).decode())
    refusal = await source.receive_json()
    assert refusal["code"] == "invalid-fragment"
    assert ABOUT_CHANGES in refusal["message"]
