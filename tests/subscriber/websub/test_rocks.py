"""The public tests of subscribers at websub.rocks, by their numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rsnotify.errors import Unavailable
from rsnotify_subscriber import WebSubTerms
from tests.subscriber.websub.blog import Blog
from tests.subscriber.websub.desk import TERMS, Desk, open_desk

HTML = '<html><head><link rel="hub" href="{hub}"><link rel="self" href="{topic}"></head></html>'
ATOM = (
    '<feed xmlns="http://www.w3.org/2005/Atom"><link href="{topic}" rel="self"/>'
    '<link href="{hub}" rel="hub"/><entry/></feed>'
)
RSS = (
    '<rss version="2.0" xmlns:atom="http://www.w3.org/2005/Atom"><channel>'
    '<atom:link href="{topic}" rel="self"/><atom:link href="{hub}" rel="hub"/></channel></rss>'
)


def by_headers(blog: Blog, hub: str) -> None:
    blog.link(self=blog.topic, hub=hub)


def by_html(blog: Blog, hub: str) -> None:
    blog.link()
    blog.body, blog.type = HTML.format(hub=hub, topic=blog.topic), "text/html"


def by_atom(blog: Blog, hub: str) -> None:
    blog.link()
    blog.body, blog.type = ATOM.format(hub=hub, topic=blog.topic), "application/atom+xml"


def by_rss(blog: Blog, hub: str) -> None:
    blog.link()
    blog.body, blog.type = RSS.format(hub=hub, topic=blog.topic), "text/xml"


def by_both(blog: Blog, hub: str) -> None:
    wrong = hub + "?error=wrongtag"
    blog.body, blog.type = ATOM.format(hub=wrong, topic=blog.topic), "text/xml"
    blog.link(self=blog.topic, hub=hub)


def with_another_self(blog: Blog, hub: str) -> None:
    blog.link(self=blog.topic + "?self=other", hub=hub)


def moved_for_now(blog: Blog, hub: str) -> None:
    blog.moves["/blog"] = (302, "/blog?redirect=complete")
    blog.link(self=blog.topic + "?redirect=complete", hub=hub)


def moved_for_good(blog: Blog, hub: str) -> None:
    blog.moves["/blog"] = (301, blog.topic + "?redirect=complete")
    blog.link(self=blog.topic + "?redirect=complete", hub=hub)


def hub_moved_for_now(blog: Blog, hub: str) -> None:
    blog.moves["/hub?redirect=true"] = (307, hub)
    blog.link(self=blog.topic, hub=blog.hub + "?redirect=true")


def hub_moved_for_good(blog: Blog, hub: str) -> None:
    blog.moves["/hub?redirect=true"] = (308, hub)
    blog.link(self=blog.topic, hub=blog.hub + "?redirect=true")


Arrange = Callable[[Blog, str], None]
TESTS = [
    pytest.param(by_headers, "", id="100 HTTP header discovery"),
    pytest.param(by_html, "", id="101 HTML tag discovery"),
    pytest.param(by_atom, "", id="102 Atom feed discovery"),
    pytest.param(by_rss, "", id="103 RSS feed discovery"),
    pytest.param(by_both, "", id="104 discovery priority"),
    pytest.param(with_another_self, "?self=other", id="200 a different rel=self"),
    pytest.param(moved_for_now, "?redirect=complete", id="201 a temporarily redirected topic"),
    pytest.param(moved_for_good, "?redirect=complete", id="202 a permanently redirected topic"),
    pytest.param(hub_moved_for_now, "", id="203 a temporarily redirected hub"),
    pytest.param(hub_moved_for_good, "", id="204 a permanently redirected hub"),
]


@pytest.mark.parametrize(("arrange", "suffix"), TESTS)
async def test_it_subscribes_and_unsubscribes_at_a_test_hub(
    blog: Blog, desk: Desk, arrange: Arrange, suffix: str
) -> None:
    """A delivery is answered with 2xx: 300."""
    arrange(blog, blog.hub)
    async with desk.receiving(blog.topic) as recorder:
        (request,) = blog.requests
        assert request["hub.topic"] == blog.topic + suffix
        assert request["path"] == "/hub"
        assert await blog.publish(b"a post") == [204]
        await recorder.until(lambda: recorder.documents == [b"a post"])
    await blog.until_confirmed(0)


@pytest.mark.parametrize(("arrange", "suffix"), [TESTS[0], TESTS[5], TESTS[-1]])
async def test_it_subscribes_and_unsubscribes_at_the_hub(
    blog: Blog, desk: Desk, hub: str, arrange: Arrange, suffix: str
) -> None:
    arrange(blog, hub + "websub")
    async with desk.receiving(blog.topic) as recorder:
        topic = blog.topic + suffix
        body = b""
        # It may not be delivered at once: the hub has the answer, and has yet to take it up.
        while not recorder.documents:
            body += b"."
            await desk.publish_at(hub, topic, body)
    await desk.subscriptions_at(hub, 0)
    assert set(desk.statuses("GET")) == {200}


@pytest.mark.parametrize(
    ("asks", "told"),
    [
        ({"hub.topic": "https://a.example/another"}, r"hub\.topic='.*another'"),
        ({"hub.lease_seconds": "0"}, r"hub\.lease_seconds='0'"),
    ],
    ids=["205 another topic", "a lease of no seconds"],
)
async def test_a_verification_of_something_else_is_not_confirmed_and_reported(
    blog: Blog, asks: dict[str, str], told: str
) -> None:
    blog.asks = asks
    async with open_desk(WebSubTerms(patience=0.2)) as hasty:
        told = f"a verification with {told}, which is wrong"
        await hasty.fails_to_receive(blog.topic, Unavailable, told)
        assert hasty.statuses("GET") == [404]
        assert len(hasty.callbacks) == 0


@pytest.mark.parametrize(
    "signed",
    [pytest.param("wrong", id="301 wrong"), pytest.param("not at all", id="302 not at all")],
)
async def test_a_delivery_with_no_right_signature_is_rejected(
    blog: Blog, desk: Desk, signed: str
) -> None:
    async with desk.receiving(blog.topic) as recorder:
        assert await blog.publish(b"forged", signed=signed) == [403]
        assert await blog.publish(b"a post") == [204]
        await recorder.until(lambda: recorder.documents)
        assert recorder.documents == [b"a post"]


async def test_a_forged_delivery_can_be_ignored_instead(blog: Blog) -> None:
    async with open_desk(WebSubTerms(refuse=False)) as desk, desk.receiving(blog.topic) as recorder:
        assert await blog.publish(b"forged", signed="wrong") == [204]
        assert await blog.publish(b"a post") == [204]
        await recorder.until(lambda: recorder.documents)
        assert recorder.documents == [b"a post"]
    assert TERMS.refuse
