"""Documents as other Sources write them: XML made by hand, also where it is wrong.

Nothing here uses `rsnotify.format.writer`, which would refuse or repair most of it. Times are
instants, or strings that are written unchanged; `seconds`, `days` and `zoned` write an instant as
Sources with a coarser clock do.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from base64 import b64encode
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from xml.sax.saxutils import escape, quoteattr

from rsnotify.format.datetimes import format_datetime

NAMESPACES = (
    'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" '
    'xmlns:rs="http://www.openarchives.org/rs/terms/"'
)
Time = datetime | str


# Times and digests


def seconds(moment: datetime) -> str:
    """Write an instant in whole seconds, as most Sources do."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def days(moment: datetime) -> str:
    """Write the day only, as most Sitemaps do."""
    return moment.strftime("%Y-%m-%d")


def zoned(moment: datetime, hours: int) -> str:
    """Write an instant in the time of a zone."""
    return moment.astimezone(timezone(timedelta(hours=hours))).isoformat(timespec="seconds")


def _time(moment: Time) -> str:
    return moment if isinstance(moment, str) else format_datetime(moment)


def sha256(content: bytes) -> str:
    return "sha-256:" + hashlib.sha256(content).hexdigest()


def md5(content: bytes) -> str:
    return "md5:" + hashlib.md5(content).hexdigest()


# Elements


def md(**attributes: Time | int | None) -> str:
    """Write `rs:md`; `from_` is `from`, and what is None is left out."""
    return _element("rs:md", attributes)


def ln(rel: str, href: str, **attributes: Time | int | None) -> str:
    return _element("rs:ln", {"rel": rel, "href": href, **attributes})


def _element(name: str, attributes: dict[str, Time | int | None]) -> str:
    written = "".join(
        f" {key.rstrip('_')}={quoteattr(str(value) if isinstance(value, int) else _time(value))}"
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}/>" if written else ""


def entry(
    uri: str,
    change: str | None = None,
    *,
    lastmod: Time | None = None,
    datetime: Time | None = None,
    content: bytes | None = None,
    hash: str | None = None,
    length: int | None = None,
    links: Iterable[str] = (),
    element: str = "url",
    **attributes: Time | int | None,
) -> str:
    """Write an entry.

    Args:
        uri: Its `loc`.
        change: What happened to it, in a list of changes.
        lastmod: As in ResourceSync 1.0.
        datetime: As in ResourceSync 1.1.
        content: Announce its SHA-256 and length.
        hash: Announce this instead.
        length: Announce this instead.
        links: Elements as `ln` writes them.
        element: `sitemap` for a member of an index.
        attributes: More of `rs:md`.
    """
    if content is not None:
        hash, length = hash or sha256(content), len(content) if length is None else length
    modified = "" if lastmod is None else f"<lastmod>{_time(lastmod)}</lastmod>"
    about = md(change=change, datetime=datetime, hash=hash, length=length, **attributes)
    inner = f"<loc>{escape(uri)}</loc>{modified}{about}{''.join(links)}"
    return f"  <{element}>{inner}</{element}>\n"


def inline(content: bytes, type: str = "application/octet-stream") -> str:
    """Write the link that carries the content of an entry itself."""
    return ln("duplicate", f"data:{type};base64,{b64encode(content).decode()}")


# Documents


def urlset(entries: Iterable[str] = (), *head: str, root: str = "urlset") -> bytes:
    """Write a document: what stands before its entries, and the entries in this order."""
    top = "".join(f"  {line}\n" for line in head if line)
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{root} {NAMESPACES}>\n{top}'
    return f"{text}{''.join(entries)}</{root}>\n".encode()


def _listing(
    capability: str, entries: Iterable[str], links: Iterable[str], root: str, **told: Time | None
) -> bytes:
    return urlset(entries, md(capability=capability, **told), *links, root=root)


def resource_list(
    entries: Iterable[str] = (),
    at: Time | None = None,
    *,
    completed: Time | None = None,
    links: Iterable[str] = (),
) -> bytes:
    return _listing("resourcelist", entries, links, "urlset", at=at, completed=completed)


def change_list(
    entries: Iterable[str] = (),
    from_: Time | None = None,
    until: Time | None = None,
    *,
    links: Iterable[str] = (),
) -> bytes:
    """Write a Change List: open without `until`."""
    return _listing("changelist", entries, links, "urlset", from_=from_, until=until)


def fragment(
    entries: Iterable[str] = (),
    from_: Time | None = None,
    until: Time | None = None,
    *,
    links: Iterable[str] = (),
) -> bytes:
    return _listing("change-notification", entries, links, "urlset", from_=from_, until=until)


def capability_list(offered: dict[str, str], *, links: Iterable[str] = ()) -> bytes:
    entries = [entry(uri, capability=name) for name, uri in offered.items()]
    return _listing("capabilitylist", entries, links, "urlset")


def description(capability_lists: Sequence[str]) -> bytes:
    entries = [entry(uri, capability="capabilitylist") for uri in capability_lists]
    return _listing("description", entries, (), "urlset")


def index(
    capability: str, members: Iterable[str], *, links: Iterable[str] = (), **told: Time | None
) -> bytes:
    """Write an index; its members are entries with `element="sitemap"` (see `member`)."""
    return _listing(capability, members, links, "sitemapindex", **told)


def package(manifest: bytes, contents: dict[str, bytes]) -> bytes:
    """Write a package of a dump."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr("manifest.xml", manifest)
        for path, content in contents.items():
            packed.writestr(path, content)
    return file.getvalue()


def change_package(
    entries: Iterable[str], contents: dict[str, bytes], **bounds: Time | None
) -> bytes:
    """Write a package of a Change Dump."""
    return package(urlset(entries, md(capability="changedump-manifest", **bounds)), contents)


def member(uri: str, lastmod: Time | None = None, **told: Time | None) -> str:
    """Write a member of an index, with `at`, `from_` and `until` where it has them."""
    return entry(uri, lastmod=lastmod, element="sitemap", **told)
