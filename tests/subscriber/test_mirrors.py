"""Mirrors of a resource (core §14.2): which are used, and that none delays the rest."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rsnotify.errors import Unavailable
from rsnotify.format.model import Link, Rel
from tests.subscriber.destination import PACE, Destination
from tests.subscriber.source import Answer, SmallSource, path_of, status

ONE_AT_A_TIME = replace(PACE, in_flight=1)


#: The mirror has a private address.
ANY = {"allow_private_addresses": True}


@pytest.fixture
async def mirror(other_source: SmallSource, destination: Destination) -> SmallSource:
    """Another server, which documents name; the Destination has read the lists once."""
    await destination.catch_up(**ANY)
    return other_source


def duplicate(mirror: SmallSource, name: str, pri: int | None = 1) -> Link:
    return Link(Rel.DUPLICATE, mirror.base + name, pri=pri)


@pytest.mark.parametrize(
    ("pri", "answer", "is_up", "gets"),
    [
        (1, None, True, (0, 1)),
        (1, None, False, (1, 0)),
        (None, None, True, (1, 0)),
        (None, status(500), True, (1, 1)),
    ],
    ids=["first", "down", "of low priority", "of low priority, while the Source fails"],
)
async def test_a_mirror_with_a_priority_spares_the_source_and_any_helps_it(
    source: SmallSource,
    mirror: SmallSource,
    destination: Destination,
    pri: int | None,
    answer: Answer | None,
    is_up: bool,
    gets: tuple[int, int],
) -> None:
    mirror.contents["a"] = b"content"
    source.put("a", b"content", links=(duplicate(mirror, "a", pri),))
    if answer is not None:
        source.answers[path_of("a")] = answer
    if not is_up:
        await mirror.server.stop()
    await destination.become_equal(**ANY)
    assert (source.gets[path_of("a")], mirror.gets[path_of("a")]) == gets


async def test_a_mirror_with_other_content_is_skipped(
    source: SmallSource, mirror: SmallSource, destination: Destination
) -> None:
    mirror.contents |= {"late": b"older", "good": b"content"}
    links = (duplicate(mirror, "none", 1), duplicate(mirror, "late", 2))
    source.put("a", b"content", links=(*links, duplicate(mirror, "good", 3)))
    source.put("b", b"content", links=links)
    await destination.become_equal(**ANY)
    assert (source.gets[path_of("a")], source.gets[path_of("b")]) == (0, 1)


async def test_a_mirror_that_does_not_answer_delays_nothing(
    source: SmallSource, mirror: SmallSource, destination: Destination
) -> None:
    for name in ("a", "b", "c"):
        mirror.answers[path_of(name)] = status(500)
        source.put(name, b"content", links=(duplicate(mirror, name),))
    await destination.become_equal(pace=ONE_AT_A_TIME, **ANY)
    assert sum(mirror.gets.values()) == 1


async def test_the_error_is_that_of_the_resource_itself(
    source: SmallSource, mirror: SmallSource, destination: Destination
) -> None:
    source.answers[path_of("a")] = status(503)
    source.put("a", b"content", links=(duplicate(mirror, "a"), duplicate(mirror, "a", None)))
    with pytest.raises(Unavailable, match="503") as caught:
        await destination.catch_up(**ANY)
    assert caught.value.uri == source.base + "a"


async def test_a_mirror_at_a_private_address_is_not_dialled(
    source: SmallSource, mirror: SmallSource, destination: Destination
) -> None:
    mirror.contents["a"] = b"content"
    href = mirror.base.replace("127.0.0.1", "localhost") + "a"
    source.put("a", b"content", links=(Link(Rel.DUPLICATE, href, pri=1),))
    await destination.become_equal()
    assert mirror.gets[path_of("a")] == 0
