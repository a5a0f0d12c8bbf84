"""A Source with a document of nearly every kind, in which everything agrees."""

from __future__ import annotations

import hashlib
import io
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

_OPEN = (
    '<{root} xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" '
    'xmlns:rs="http://www.openarchives.org/rs/terms/">\n'
)
_UP = '<rs:ln rel="up" href="{base}capabilitylist.xml"/>\n'
_ABOUT = '<rs:ln rel="describedby" href="{base}about.html"/>\n'
_AT = 'at="2013-01-03T09:00:00Z"'

#: By name, with `{base}` in the place of the base URL.
DOCUMENTS = {
    ".well-known/resourcesync": _ABOUT
    + '<rs:md capability="description"/>\n'
    + '<url><loc>{base}capabilitylist.xml</loc><rs:md capability="capabilitylist"/>'
    + '<rs:ln rel="describedby" href="{base}set.html"/></url>\n',
    "capabilitylist.xml": _ABOUT
    + '<rs:ln rel="up" href="{base}.well-known/resourcesync"/>\n'
    + '<rs:md capability="capabilitylist"/>\n'
    + "".join(
        f'<url><loc>{{base}}{name}.xml</loc><rs:md capability="{name}"/></url>\n'
        for name in ("resourcelist", "resourcedump", "changelist", "changedump")
    )
    + '<url><loc>{base}archive.xml</loc><rs:md capability="changelist-archive"/></url>\n'
    + '<url><loc>{base}channel.xml</loc><rs:md capability="change-notification"/></url>\n',
    "resourcelist.xml": _UP
    + f'<rs:md capability="resourcelist" {_AT}/>\n'
    + f"<sitemap><loc>{{base}}resources1.xml</loc><rs:md {_AT}/></sitemap>\n",
    "resources1.xml": _UP
    + '<rs:ln rel="index" href="{base}resourcelist.xml"/>\n'
    + f'<rs:md capability="resourcelist" {_AT}/>\n'
    + "<url><loc>{base}res1</loc></url>\n",
    "changelist.xml": _UP
    + '<rs:md capability="changelist" from="2013-01-02T00:00:00Z"/>\n'
    + '<sitemap><loc>{base}changes1.xml</loc><rs:md from="2013-01-02T00:00:00Z" '
    + 'until="2013-01-03T00:00:00Z"/></sitemap>\n'
    + '<sitemap><loc>{base}changes2.xml</loc><rs:md from="2013-01-03T00:00:00Z"/></sitemap>\n',
    "changes1.xml": _UP
    + '<rs:ln rel="index" href="{base}changelist.xml"/>\n'
    + '<rs:md capability="changelist" from="2013-01-02T00:00:00Z" '
    + 'until="2013-01-03T00:00:00Z"/>\n',
    "changes2.xml": _UP
    + '<rs:ln rel="index" href="{base}changelist.xml"/>\n'
    + '<rs:ln rel="archives" href="{base}archive.xml"/>\n'
    + '<rs:md capability="changelist" from="2013-01-03T00:00:00Z"/>\n',
    "archive.xml": _UP
    + '<rs:md capability="changelist-archive"/>\n'
    + '<url><loc>{base}old.xml</loc><rs:md from="2013-01-01T00:00:00Z" '
    + 'until="2013-01-02T00:00:00Z"/></url>\n',
    "old.xml": _UP
    + '<rs:md capability="changelist" from="2013-01-01T00:00:00Z" '
    + 'until="2013-01-02T00:00:00Z"/>\n',
    "resourcedump.xml": _UP
    + f'<rs:md capability="resourcedump" {_AT}/>\n'
    + '<url><loc>{base}dump.zip</loc><rs:md type="application/zip" '
    + f'length="{{length of dump.zip}}" hash="{{hash of dump.zip}}" {_AT}/>'
    + '<rs:ln rel="contents" href="{base}manifest.xml"/></url>\n',
    "manifest.xml": _UP
    + f'<rs:md capability="resourcedump-manifest" {_AT}/>\n'
    + '<url><loc>{base}res1</loc><rs:md type="text/plain" path="/res1" length="3" '
    + f'hash="md5:{hashlib.md5(b"one").hexdigest()}"/></url>\n',
    "changedump.xml": _UP
    + '<rs:md capability="changedump" from="2013-01-03T00:00:00Z"/>\n'
    + '<url><loc>{base}changes.zip</loc><rs:md type="application/zip" '
    + 'length="{length of changes.zip}" hash="{hash of changes.zip}" '
    + 'from="2013-01-03T00:00:00Z" until="2013-01-04T00:00:00Z"/></url>\n',
    "changes.zip!manifest.xml": _UP
    + '<rs:md capability="changedump-manifest" from="2013-01-03T00:00:00Z" '
    + 'until="2013-01-04T00:00:00Z"/>\n'
    + '<url><loc>{base}res1</loc>'
    + '<rs:md change="updated" type="text/plain" path="/res1"/></url>\n',
}  # fmt: skip
_INDEXES = frozenset({"resourcelist.xml", "resourcelist-2013.xml", "changelist.xml"})
#: What is in the packages, beside their Manifests.
MEMBERS = {"dump.zip": {"res1": b"one"}, "changes.zip": {"res1": b"two"}}


def package(members: dict[str, bytes]) -> bytes:
    """Make a ZIP; the same bytes each time, so without the time of day."""
    data = io.BytesIO()
    with ZipFile(data, "w") as file:
        for name, content in members.items():
            file.writestr(ZipInfo(name), content, ZIP_DEFLATED)
    return data.getvalue()


class Tree:
    """The Source at a base URL; change `documents` or `members`, or set `instead` of a package.

    Its `pages` are served as HTML, in place of documents.

    Args:
        base: Ends in a slash.
    """

    def __init__(self, base: str) -> None:
        self.base = base
        self.documents = {**DOCUMENTS, "dump.zip!manifest.xml": DOCUMENTS["manifest.xml"]}
        self.members = {name: dict(members) for name, members in MEMBERS.items()}
        self.instead: dict[str, bytes] = {}
        self.pages: dict[str, bytes] = {}

    def edit(self, name: str, old: str, new: str) -> None:
        assert old in self.documents[name]
        self.documents[name] = self.documents[name].replace(old, new, 1)

    def files(self) -> dict[str, bytes]:
        """Return everything by its name below the base URL."""
        texts = {name: self._document(name) for name in self.documents}
        files = {}
        for name, members in self.members.items():
            manifest = texts.pop(f"{name}!manifest.xml", None)
            named = {} if manifest is None else {"manifest.xml": manifest.encode()}
            files[name] = self.instead.get(name) or package(named | members)
            hash_ = f"sha-256:{hashlib.sha256(files[name]).hexdigest()}"
            for document, text in texts.items():
                text = text.replace(f"{{hash of {name}}}", hash_)
                texts[document] = text.replace(f"{{length of {name}}}", str(len(files[name])))
        return files | {name: text.encode() for name, text in texts.items()}

    def _document(self, name: str) -> str:
        root = "sitemapindex" if name in _INDEXES else "urlset"
        body = self.documents[name].replace("{base}", self.base)
        return f"{_OPEN.format(root=root)}{body}</{root}>\n"
