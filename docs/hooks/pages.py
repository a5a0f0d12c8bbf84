"""Collects the pages of the site: those of the repository, what they link to, and the reference.

Every file keeps its path in the repository, so that relative links are the same in both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from posixpath import dirname, join, normpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure import StructureItem
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

from docs.hooks.blocks import split
from docs.hooks.reference import PAGES as GENERATED

ROOT = Path(__file__).parents[2]
_PAGES = ("*.md", "[a-z]*/README.md", "extensions/*/README.md", "docs/**/*.md", "deploy/**/*.md")
_LINK = re.compile(r"(?:\]\(|src(?:set)?=\")(?!https?:|#)([^)#\"]+)")
_ELSEWHERE = re.compile(r"<(?:script|link|img|iframe)[^>]* (?:src|href)=\"?https?:[^>]*>")
#: The theme would keep the colours of the first visit, and the diagrams have those of the system.
_COLOURS = """
Object.keys(localStorage).filter(key => key.endsWith("__palette")).forEach(
    key => localStorage.removeItem(key));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => location.reload());
"""
#: A link to a folder, which has no page in the site.
_FOLDER = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)(?=\))")
_REPOSITORY = "https://github.com/rsnotify/rsnotify/tree/main/"
#: A picture in light or dark, whose address MkDocs leaves as it is.
_PICTURE = re.compile(r"(<(?:img|source) [^>]*?\bsrc(?:set)?=\")(?!https?:)([^\"]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the pages of the repository, the files that they link to, and the generated pages."""
    pages = sorted(path for pattern in _PAGES for path in ROOT.glob(pattern))
    paths = dict.fromkeys(pages)
    for page in pages:
        paths |= dict.fromkeys(_targets(page))
    paths |= dict.fromkeys(ROOT.glob("docs/images/*"))
    found = [_file(str(path.relative_to(ROOT)), config) for path in paths]
    for path, text in GENERATED.items():
        found.append(File.generated(config, path, content=text()))
        found[-1].dest_uri = _destination(path)
    theme = [file for file in files if file.src_dir != config.docs_dir]
    return Files([*theme, *found])


def _targets(page: Path) -> Iterator[Path]:
    for link in _LINK.findall(page.read_text()):
        there = (page.parent / link).resolve()
        if there.is_file():
            yield there


def _file(path: str, config: MkDocsConfig) -> File:
    return File(path, str(ROOT), config.site_dir, False, dest_uri=_destination(path))


def _destination(path: str) -> str:
    """Return the path in the site: docs/mqtt.md is mqtt.html."""
    if not path.endswith(".md"):
        return path
    name = path.removeprefix("docs/").removesuffix(".md")
    return f"{re.sub('README$', 'index', name)}.html"


def on_post_page(output: str, page: Page, **_: object) -> str:
    """Return the page with the colours of the system.

    Raises:
        PluginError: The page needs another host, or has no link to another page of its section.
    """
    if elsewhere := _ELSEWHERE.search(output):
        raise PluginError(f"{page.file.src_uri} would load {elsewhere[0]}")
    for other in _pages_in(page.ancestors[-1:]):
        link = get_relative_url(other.url, page.url)
        if other is not page and f'href="{link}"' not in output:
            raise PluginError(f"{page.file.src_uri} has no link to {other.file.src_uri}")
    output = output.replace('role="dialog"', 'role="dialog" aria-label="Search"')
    return output.replace("</head>", f"<script>{_COLOURS}</script></head>", 1)


def _pages_in(items: Sequence[StructureItem]) -> Iterator[Page]:
    for item in items:
        if isinstance(item, Page):
            yield item
        yield from _pages_in(item.children or [])


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Return the text as Python-Markdown reads it, with pictures at their places in the site.

    Each command that runs until Ctrl-C has a block of its own. Links to folders lead to the
    repository.
    """
    folder = dirname(page.file.src_uri)

    def place(found: re.Match[str]) -> str:
        return found[1] + get_relative_url(normpath(join(folder, found[2])), page.url)

    def link(found: re.Match[str]) -> str:
        target = normpath(join(folder, found[1]))
        return _REPOSITORY + target if (ROOT / target).is_dir() else found[1]

    markdown = _FOLDER.sub(link, split(_PICTURE.sub(place, markdown)))
    # It needs four spaces below an item.
    return re.sub(r"^ {2}(?=[-*] )", "    ", markdown, flags=re.MULTILINE)
