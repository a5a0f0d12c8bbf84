"""One valid document of each kind, in version 1.1 and also in 1.0 unless it says otherwise."""

from __future__ import annotations

_NAMESPACES = (
    'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" '
    'xmlns:rs="http://www.openarchives.org/rs/terms/"'
)
UP = '<rs:ln rel="up" href="http://example.com/capabilitylist.xml"/>\n'
INDEX = '<rs:ln rel="index" href="http://example.com/index.xml"/>\n'
ABOUT = '<rs:ln rel="describedby" href="http://example.com/about.html"/>\n'
HASH = "md5:1584abdf8ebdc9802ac0c6a7402c03b6"


def _document(root: str, body: str) -> str:
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{root} {_NAMESPACES}>\n{body}</{root}>\n'


def urlset(body: str) -> str:
    return _document("urlset", body)


def sitemapindex(body: str) -> str:
    return _document("sitemapindex", body)


_SNAPSHOTS = """\
<sitemap>
<loc>http://example.com/part1.xml</loc>
<lastmod>2013-01-03T09:05:00Z</lastmod>
<rs:md at="2013-01-03T09:00:00Z" completed="2013-01-03T09:01:00Z"/>
</sitemap>
<sitemap>
<loc>http://example.com/part2.xml</loc>
<rs:md at="2013-01-03T09:02:00Z"/>
</sitemap>
"""
_INTERVALS = """\
<sitemap>
<loc>http://example.com/part1.xml</loc>
<rs:md from="2013-01-03T00:00:00Z" until="2013-01-03T12:00:00Z"/>
</sitemap>
<sitemap>
<loc>http://example.com/part2.xml</loc>
<rs:md from="2013-01-03T12:00:00Z"/>
</sitemap>
"""
_ARCHIVED_SNAPSHOTS = """\
<url>
<loc>http://example.com/one.xml</loc>
<lastmod>2013-01-01T09:05:00Z</lastmod>
<rs:md at="2013-01-01T09:00:00Z" completed="2013-01-01T09:01:00Z"/>
</url>
<url>
<loc>http://example.com/two.xml</loc>
<rs:md at="2013-01-02T09:00:00Z"/>
</url>
"""
_ARCHIVED_INTERVALS = """\
<url>
<loc>http://example.com/one.xml</loc>
<rs:md from="2013-01-01T00:00:00Z" until="2013-01-02T00:00:00Z"/>
</url>
<url>
<loc>http://example.com/two.xml</loc>
<rs:md from="2013-01-02T00:00:00Z" until="2013-01-03T00:00:00Z"/>
</url>
"""
_ARCHIVES = """\
<sitemap>
<loc>http://example.com/archive1.xml</loc>
</sitemap>
<sitemap>
<loc>http://example.com/archive2.xml</loc>
</sitemap>
"""
_SNAPSHOT_MD = 'at="2013-01-03T09:00:00Z" completed="2013-01-03T09:10:00Z"/>\n'
_INTERVAL_MD = 'from="2013-01-03T00:00:00Z"/>\n'

#: By the name of the kind.
VALID: dict[str, str] = {
    "description": urlset(
        ABOUT
        + """<rs:md capability="description"/>
<url>
<loc>http://example.com/capabilitylist.xml</loc>
<rs:md capability="capabilitylist"/>
<rs:ln rel="describedby" href="http://example.com/set.html"/>
</url>
"""
    ),
    "description-index": sitemapindex(
        """<rs:md capability="description"/>
<sitemap>
<loc>http://example.com/description1.xml</loc>
</sitemap>
"""
    ),
    "capabilitylist": urlset(
        ABOUT
        + '<rs:ln rel="up" href="http://example.com/.well-known/resourcesync"/>\n'
        + """<rs:md capability="capabilitylist"/>
<url>
<loc>http://example.com/resourcelist.xml</loc>
<rs:md capability="resourcelist"/>
</url>
<url>
<loc>http://example.com/changelist-archive.xml</loc>
<rs:md capability="changelist-archive"/>
</url>
<url>
<loc>http://example.com/channel.xml</loc>
<rs:md capability="change-notification"/>
<rs:ln rel="hub" href="wss://hub.example.com/ws"/>
</url>
"""
    ),
    "resourcelist": urlset(
        UP
        + INDEX
        + f"""<rs:md capability="resourcelist" {_SNAPSHOT_MD}"""
        + f"""<url>
<loc>http://example.com/res1</loc>
<lastmod>2013-01-02T13:00:00Z</lastmod>
<changefreq>weekly</changefreq>
<priority>0.5</priority>
<rs:md hash="{HASH}" length="8876" type="text/html; charset=utf-8" encoding="gzip"/>
<rs:ln rel="duplicate" href="http://mirror.example.com/res1" pri="1"/>
<rs:ln rel="alternate" href="http://example.com/res1.pdf" type="application/pdf"/>
<rs:ln rel="timegate" href="http://example.com/timegate/res1"/>
<rs:ln rel="memento" href="http://example.com/20130102/res1" modified="2013-01-02T13:00:00Z"/>
<rs:ln rel="via" href="http://original.example.com/res1"/>
<rs:ln rel="http://example.com/terms/like" href="http://example.com/res2"/>
</url>
<url>
<loc>http://example.com/res2</loc>
</url>
"""
    ),
    "resourcelist-index": sitemapindex(
        f'{UP}<rs:md capability="resourcelist" {_SNAPSHOT_MD}{_SNAPSHOTS}'
    ),
    "resourcedump": urlset(
        UP
        + f'<rs:md capability="resourcedump" {_SNAPSHOT_MD}'
        + """<url>
<loc>http://example.com/part1.zip</loc>
<rs:md type="application/zip" length="4765" at="2013-01-03T09:00:00Z"/>
<rs:ln rel="contents" href="http://example.com/manifest1.xml" type="application/xml"/>
</url>
<url>
<loc>http://example.com/part2.zip</loc>
<rs:md type="application/zip" length="9875" at="2013-01-03T09:01:00Z"/>
</url>
"""
    ),
    "resourcedump-index": sitemapindex(
        f'{UP}<rs:md capability="resourcedump" {_SNAPSHOT_MD}{_SNAPSHOTS}'
    ),
    "resourcedump-manifest": urlset(
        UP
        + f'<rs:md capability="resourcedump-manifest" {_SNAPSHOT_MD}'
        + f"""<url>
<loc>http://example.com/res1</loc>
<rs:md hash="{HASH}" length="8876" type="text/html" path="/resources/res 1"/>
</url>
"""
    ),
    "changelist": urlset(
        UP
        + '<rs:ln rel="archives" href="http://example.com/changelist-archive.xml"/>\n'
        + f'<rs:md capability="changelist" {_INTERVAL_MD}'
        + f"""<url>
<loc>http://example.com/res1</loc>
<lastmod>2013-01-03T11:00:00Z</lastmod>
<rs:md change="created" hash="{HASH}" length="8876" type="text/html"/>
</url>
<url>
<loc>http://example.com/res2</loc>
<lastmod>2013-01-03T12:00:00Z</lastmod>
<rs:md change="updated"/>
<rs:ln rel="http://www.openarchives.org/rs/terms/patch" href="http://example.com/patch2" type="application/json-patch+json"/>
</url>
<url>
<loc>http://example.com/res1</loc>
<lastmod>2013-01-03T13:00:00Z</lastmod>
<rs:md change="deleted"/>
</url>
"""  # noqa: E501
    ),
    "changelist-index": sitemapindex(
        f'{UP}<rs:md capability="changelist" {_INTERVAL_MD}{_INTERVALS}'
    ),
    "changedump": urlset(
        UP
        + f'<rs:md capability="changedump" {_INTERVAL_MD}'
        + """<url>
<loc>http://example.com/part1.zip</loc>
<rs:md type="application/zip" length="9" from="2013-01-03T00:00:00Z" until="2013-01-03T12:00:00Z"/>
<rs:ln rel="contents" href="http://example.com/manifest1.xml"/>
</url>
<url>
<loc>http://example.com/part2.zip</loc>
<rs:md type="application/zip" length="9" from="2013-01-03T12:00:00Z" until="2013-01-03T13:00:00Z"/>
</url>
"""
    ),
    "changedump-index": sitemapindex(
        f'{UP}<rs:md capability="changedump" {_INTERVAL_MD}{_INTERVALS}'
    ),
    "changedump-manifest": urlset(
        UP
        + f'<rs:md capability="changedump-manifest" {_INTERVAL_MD}'
        + """<url>
<loc>http://example.com/res1</loc>
<lastmod>2013-01-03T11:00:00Z</lastmod>
<rs:md change="updated" type="text/html" path="/changes/res1"/>
<rs:ln rel="http://www.openarchives.org/rs/terms/patch" href="http://example.com/p" type="a/b" path="/p"/>
</url>
<url>
<loc>http://example.com/res1</loc>
<lastmod>2013-01-03T12:00:00Z</lastmod>
<rs:md change="deleted"/>
</url>
"""  # noqa: E501
    ),
    "resourcelist-archive": urlset(
        f'{UP}<rs:md capability="resourcelist-archive"/>\n{_ARCHIVED_SNAPSHOTS}'
    ),
    "resourcelist-archive-index": sitemapindex(
        f'{UP}<rs:md capability="resourcelist-archive"/>\n{_ARCHIVES}'
    ),
    "resourcedump-archive": urlset(
        f'{UP}<rs:md capability="resourcedump-archive"/>\n{_ARCHIVED_SNAPSHOTS}'
    ),
    "resourcedump-archive-index": sitemapindex(
        f'{UP}<rs:md capability="resourcedump-archive"/>\n{_ARCHIVES}'
    ),
    "changelist-archive": urlset(
        f'{UP}<rs:md capability="changelist-archive"/>\n{_ARCHIVED_INTERVALS}'
    ),
    "changelist-archive-index": sitemapindex(
        f'{UP}<rs:md capability="changelist-archive"/>\n{_ARCHIVES}'
    ),
    "changedump-archive": urlset(
        f'{UP}<rs:md capability="changedump-archive"/>\n{_ARCHIVED_INTERVALS}'
    ),
    "changedump-archive-index": sitemapindex(
        f'{UP}<rs:md capability="changedump-archive"/>\n{_ARCHIVES}'
    ),
    "framework-notification": urlset(
        UP
        + f'<rs:md capability="framework-notification" {_INTERVAL_MD}'
        + """<url>
<loc>http://example.com/changelist1.xml</loc>
<lastmod>2013-01-03T11:00:00Z</lastmod>
<rs:md capability="changelist" change="created" from="2013-01-01T00:00:00Z"
 until="2013-01-02T00:00:00Z"/>
</url>
<url>
<loc>http://example.com/resourcelist.xml</loc>
<lastmod>2013-01-03T12:00:00Z</lastmod>
<rs:md capability="resourcelist" change="updated" at="2013-01-03T11:50:00Z"/>
</url>
"""
    ),
}
#: A Change List as only version 1.1 has it.
CHANGE_LIST_1_1 = urlset(
    UP
    + '<rs:md capability="changelist" from="2013-01-03T00:00:00Z" until="2013-01-04T00:00:00Z"/>\n'
    + """<url>
<loc>http://example.com/res1</loc>
<lastmod>2011-01-01T00:00:00Z</lastmod>
<rs:md change="created" datetime="2013-01-03T11:00:00Z"/>
</url>
<url>
<loc>http://example.com/res2</loc>
<rs:md change="updated" datetime="2013-01-03T12:00:00Z"/>
</url>
<url>
<loc>http://example.com/res3</loc>
<rs:md change="updated"/>
</url>
"""
)
