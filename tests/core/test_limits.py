"""The reader accepts a document at each limit, and refuses one just beyond it."""

from __future__ import annotations

import pytest

from rsnotify.errors import TooLarge
from rsnotify.format.model import RS_NS, SITEMAP_NS, DocumentLimits
from rsnotify.format.reader import read_document

LINK = '<rs:ln rel="up" href="b"/>'


def url(content: str = "") -> str:
    return f"<url><loc>a</loc>{content}</url>"


def link(href: str) -> str:
    return f'<rs:ln rel="up" href="{href}"/>'


@pytest.mark.parametrize(
    ("limits", "allowed", "refused", "entry"),
    [
        (DocumentLimits(entries=2), url() * 2, url() * 3, None),
        (DocumentLimits(entry_elements=3), url(LINK * 2), url() + url(LINK * 3), 2),
        (DocumentLimits(entry_elements=3), LINK + url(LINK * 2) + LINK, LINK + url() + LINK * 2,
         None),
        (
            DocumentLimits(entry_length=20),
            url('<rs:md hash="1234567890123456"/>') * 2,
            url('<rs:md hash="12345678901234567"/>'),
            1,
        ),
        (DocumentLimits(entry_length=20), LINK + url(LINK * 2) + LINK, LINK * 2 + url() + LINK,
         None),
        (DocumentLimits(uri_length=20), f"<url><loc>{'a' * 20}</loc></url>" * 2,
         f"<url><loc>{'a' * 21}</loc></url>", 1),
        (DocumentLimits(uri_length=20), url(link("b" * 20)), url(link("b" * 21)), 1),
        (DocumentLimits(uri_length=20, inline_length=30), link("data:" + "b" * 25),
         link("data:" + "b" * 26), None),
        (DocumentLimits(uri_length=20), url(f"<changefreq>{'c' * 20}</changefreq>"),
         url(f"<changefreq>{'c' * 21}</changefreq>"), 1),
        (DocumentLimits(links=2), LINK * 2 + url(LINK * 2) * 2, url() + url(LINK * 3), 2),
        (DocumentLimits(links=2), LINK * 2, LINK * 3, None),
        (DocumentLimits(depth=2), "<x><y/><y/></x>" * 2, "<x><y><z/></y></x>", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 10_000], ids=["byte by byte", "at once"])
@pytest.mark.parametrize("comment", ["", "<!-- -->"], ids=["plain", "with a comment"])
def test_the_reader_keeps_to_each_limit(
    limits: DocumentLimits,
    allowed: str,
    refused: str,
    entry: int | None,
    size: int,
    comment: str,
) -> None:
    def read(content: str) -> None:
        document = f'<urlset xmlns="{SITEMAP_NS}" xmlns:rs="{RS_NS}">{comment}{content}</urlset>'
        data = document.encode()
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        read_document(pieces, limits=limits)

    read(allowed)
    with pytest.raises(TooLarge) as caught:
        read(refused)
    assert caught.value.entry == entry
