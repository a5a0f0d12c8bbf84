"""What a topic says of itself (WebSub §4)."""

from __future__ import annotations

import pytest

from rsnotify.errors import NotFound
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_subscriber.push.websub_transport import DiscoveredTopic, discover_topic
from tests.subscriber.websub.blog import Blog

SITEMAP = (
    '<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'
    ' xmlns:rs="http://www.openarchives.org/rs/terms/">'
    '<rs:ln rel="hub" href="https://hub.example/"/><rs:ln rel="self" href="/list.xml"/></urlset>'
)


async def found(blog: Blog, path: str = "") -> DiscoveredTopic:
    async with Sessions(blog.topic) as sessions:
        return await discover_topic(sessions, blog.topic + path)


async def test_hubs_by_https_come_first_and_others_keep_their_order(blog: Blog) -> None:
    hubs = ["http://a.example/", "wss://b.example/", "https://c.example/", "http://d.example/"]
    blog.headers = [("Link", f'<{hub}>; rel="hub"') for hub in [*hubs, hubs[0]]]
    assert (await found(blog)).hubs == (
        "https://c.example/",
        "http://a.example/",
        "http://d.example/",
    )


async def test_a_topic_without_a_self_link_is_its_own_url(blog: Blog) -> None:
    blog.link(hub="https://hub.example/")
    assert (await found(blog)).topic == blog.topic
    blog.moves["/blog"] = (301, "/elsewhere")
    assert (await found(blog)).topic == blog.site + "/elsewhere"


async def test_links_are_relative_to_where_the_topic_is(blog: Blog) -> None:
    blog.moves["/blog"] = (302, "/a/b/")
    blog.link(self="../c", hub="hub")
    assert await found(blog) == DiscoveredTopic(blog.site + "/a/c", (blog.site + "/a/b/hub",))


@pytest.mark.parametrize(
    ("links", "type", "topic", "hubs"),
    [
        ({}, "application/xml", "/list.xml", ("https://hub.example/",)),
        # Headers and body complete each other.
        ({"self": "/other"}, "application/xml", "/other", ("https://hub.example/",)),
        # A body that is neither a page nor a feed is not searched.
        ({}, "text/plain", "/blog", ()),
    ],
)
async def test_a_sitemap_may_have_its_links_inside(
    blog: Blog, links: dict[str, str], type: str, topic: str, hubs: tuple[str, ...]
) -> None:
    blog.link(**links)
    blog.body, blog.type = SITEMAP, type
    assert await found(blog) == DiscoveredTopic(blog.site + topic, hubs)


async def test_a_topic_that_is_not_there_has_no_hub(blog: Blog) -> None:
    blog.moves["/blog"] = (404, "")
    with pytest.raises(NotFound):
        await found(blog)
