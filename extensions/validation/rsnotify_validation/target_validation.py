"""Validates a file or URL and, with `--deep`, all documents that it leads to.

Each document and package is fetched only once, even if several documents reference it. The number
of fetches is limited, because a document may reference a hundred thousand others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from msgspec.structs import replace

from rsnotify.errors import FetchError, RefusedAddress, RsnotifyError, SeveralSets, WrongDocument
from rsnotify.format.links import resolve
from rsnotify.format.model import WELL_KNOWN_PATH, Capability, Rel
from rsnotify.format.writer import Profile
from rsnotify_subscriber.discovery.discovery import find_top_document, was_answered
from rsnotify_subscriber.fetching.credentials import (
    NO_CREDENTIALS,
    Credentials,
    without_login,
)
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_validation.document_checker import DocumentChecker, ValidationResult
from rsnotify_validation.document_outline import Reference
from rsnotify_validation.reference_checks import (
    TreePosition,
    check_copy,
    check_pair,
    expected_up,
    is_directly_above,
    is_index,
    link_target,
    lists,
    references_below,
)

#: The suffixes of the paths of documents and packages.
_DOCUMENT_SUFFIXES = (".xml", ".gz", ".zip", "/.well-known/resourcesync")
#: Maximum number of documents and packages that are fetched.
_MAX_FETCHED = 1_000


async def validate_target(
    target: str,
    *,
    deep: bool = False,
    spec: Profile = Profile.V1_1,
    allow_private_addresses: bool = False,
    credentials: Credentials = NO_CREDENTIALS,
    progress: Callable[[str], None] = lambda name: None,
) -> ValidationResult:
    """Validate a document or, with `deep`, the whole tree that it leads to.

    Args:
        target: A file path or an http(s) URI: a document, a ZIP package of a dump, or a site, page
            or resource of a Source. In the last case, the Source's topmost document is validated.
        deep: Whether to also validate the documents that `target` leads to, and to compare them.
        spec: The version of the specification.
        allow_private_addresses: Whether documents may name hosts at private addresses.
        credentials: The credentials for the origin of a URI, as for a `Subscriber`.
        progress: Called with the name of each document or package that was read.

    Raises:
        FetchError: The document cannot be fetched.
        SeveralSets: The URI leads to several Sitemaps.
        OSError: The file cannot be read.
    """
    named = target if _is_uri(target) else ""
    uri = without_login(named)
    sessions = Sessions(
        named, allow_private_addresses=allow_private_addresses, credentials=credentials
    )
    result = ValidationResult(uri or target, str(spec))
    with TemporaryDirectory(prefix="rsnotify-validate-") as temporary:
        async with sessions:
            checker = DocumentChecker(sessions, Path(temporary), result, spec, progress)
            if uri:
                root = await _root(checker, Fetcher(sessions, Path(temporary)), uri)
                result.found = root.uri if root.uri != uri else None
            else:
                root = await checker.file(Path(target))
            if deep:
                await _TreeValidation(checker, root).run()
    for document in result.documents:
        document.findings.sort(key=lambda finding: finding.line or 0)
    return result


async def _root(checker: DocumentChecker, fetcher: Fetcher, uri: str) -> TreePosition:
    """Check the document at a URI or, if that is a site or page, its Source's topmost document.

    If the URI looks like a document, no other document is tried, because a missing list is an
    error.
    """
    path = urlsplit(uri).path.lower()
    if path.endswith(_DOCUMENT_SUFFIXES):
        return await checker.fetch(uri)
    try:
        return await checker.fetch(uri, may_be_page=True)
    except WrongDocument:
        try:
            found = await find_top_document(fetcher, uri)
        except SeveralSets:
            raise
        except RsnotifyError:
            return await checker.fetch(uri)  # to report its findings
    except FetchError as error:
        if not (path == "" or path.endswith("/")) or not was_answered(error):
            raise
        found = await find_top_document(fetcher, uri)
    return await checker.fetch(found)


def _is_uri(target: str) -> bool:
    return target.lower().startswith(("http://", "https://"))


class _TreeValidation:
    """Checks all documents below the root, breadth-first, and their links to each other."""

    def __init__(self, checker: DocumentChecker, root: TreePosition) -> None:
        self._checker = checker
        self._root = root
        self._places: dict[str, TreePosition | None] = {root.uri: root} if root.uri else {}
        self._peeked: dict[str, TreePosition | None] = {}
        self._waiting = deque([root])

    async def run(self) -> None:
        await self._check_parent(self._root)
        while self._waiting:
            parent = self._waiting.popleft()
            await self._check_well_known(parent)
            for reference in references_below(parent):
                if not await self._follow(parent, reference):
                    return

    async def _follow(self, parent: TreePosition, reference: Reference) -> bool:
        """Check a referenced document. Return False once the limit of fetches is reached."""
        if reference.uri not in self._places and len(self._places) >= _MAX_FETCHED:
            detail = f"only {_MAX_FETCHED} documents and packages are checked"
            self._report_reference(parent, "tree-not-followed", reference, detail)
            return False
        child = await self._fetch(parent, reference)
        if child is not None:
            self._checker.add_findings(check_pair(parent, reference, child))
            await self._check_up(parent, child)
            await self._check_index(parent, child)
            await self._check_copy(parent, reference, child)
        return True

    async def _fetch(self, parent: TreePosition, reference: Reference) -> TreePosition | None:
        uri = reference.uri
        if uri in self._places:
            return self._places[uri]
        self._places[uri] = None
        kind = parent.outline.kind
        is_package = kind is not None and kind.packages and uri != reference.contents
        try:
            if not _is_uri(uri):
                raise RefusedAddress(uri, "it is not an absolute http:// or https:// URL")
            examine = self._checker.fetch_package(reference) if is_package else None
            place = await (examine or self._checker.fetch(uri))
        except RefusedAddress as error:
            self._report_reference(parent, "tree-not-followed", reference, str(error))
            return None
        except FetchError as error:
            self._report_reference(parent, "tree-unreachable", reference, str(error))
            return None
        self._places[uri] = place
        self._waiting.append(place)
        return place

    def _report_reference(
        self, parent: TreePosition, rule: str, reference: Reference, detail: str
    ) -> None:
        finding = parent.finding(rule, reference.line, "loc", detail, reference.entry)
        self._checker.add_findings([finding])

    def _report_link(self, place: TreePosition, rel: str, detail: str) -> None:
        _, line = place.outline.links[rel]
        self._checker.add_findings([place.finding(f"tree-{rel}", line, "rs:ln", detail)])

    async def _check_copy(
        self, dump: TreePosition, reference: Reference, manifest: TreePosition
    ) -> None:
        """Compare a package's Manifest with the copy next to the package (core §11.1, §13.1)."""
        if reference.contents is None:
            return
        uri = resolve(dump.uri, reference.contents)
        beside = replace(reference, uri=uri, contents=uri)
        copy = await self._fetch(dump, beside)
        if copy is not None:
            self._checker.add_findings(check_pair(dump, beside, copy))
            self._checker.add_findings(check_copy(dump, reference, manifest, copy))

    async def _check_up(self, parent: TreePosition, child: TreePosition) -> None:
        """Check that the `up` link of a document leads to its parent (core §6.2)."""
        leads, expected = link_target(child, Rel.UP), expected_up(parent)
        if leads is None or leads == expected:
            return
        if is_directly_above(parent):
            # A document may have several URIs. This is common for Source Descriptions.
            above = await self._peek(leads)
            same = above is not None and above.outline.capability == parent.outline.capability
            if above is not None and same and lists(above, child.uri):
                return
        elif expected is None:
            return
        self._report_link(child, Rel.UP, f"it leads to {leads}, not {expected or parent.name}")

    async def _check_index(self, parent: TreePosition, child: TreePosition) -> None:
        """Check that the `index` link of a document leads to an index that lists it (core §6.2)."""
        leads = link_target(child, Rel.INDEX)
        if leads is None or leads == parent.uri or not (parent.uri and is_index(parent, child)):
            return
        index = await self._peek(leads)
        if index is None or not is_index(index, child):
            self._report_link(child, Rel.INDEX, f"{leads} does not list it")

    async def _check_parent(self, root: TreePosition) -> None:
        """Check that the parent of a Capability List can be fetched and lists it."""
        leads = link_target(root, Rel.UP)
        if root.outline.capability != Capability.CAPABILITY_LIST or not root.uri or not leads:
            return
        above = await self._peek(leads)
        if above is None:
            line = root.outline.links[Rel.UP][1]
            self._report_reference(root, "tree-unreachable", Reference(leads, line), leads)
        elif not lists(above, root.uri):
            self._report_link(root, Rel.UP, f"{leads} does not list it")

    async def _check_well_known(self, place: TreePosition) -> None:
        """Check that a Source Description is at the well-known URI (core §6.3.2)."""
        if place.outline.capability != Capability.DESCRIPTION or not place.uri:
            return
        there = resolve(place.uri, WELL_KNOWN_PATH)
        if place.uri == there:
            return
        found = await self._peek(there)
        if found is None or found.outline.capability != Capability.DESCRIPTION:
            line = place.outline.line
            self._checker.add_findings([place.finding("tree-well-known", line, "rs:md", there)])

    async def _peek(self, uri: str) -> TreePosition | None:
        """Return a document without checking it. Return None if it cannot be fetched."""
        if (known := self._places.get(uri)) is not None:
            return known
        if uri not in self._peeked:
            self._peeked[uri] = await self._checker.peek(uri)
        return self._peeked[uri]
