"""The kinds of ResourceSync documents, with their required and recommended parts, as one table.

The table combines Appendix A of the core specification with the sections of the core and of
Archives. `rules` derives rules from it.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.model import Capability
from rsnotify_validation.findings import Severity

_AT = "at"
_FROM = "from"
#: For an entry that leads to a document of any kind.
_EITHER = "at from"


class Kind(Struct, frozen=True, kw_only=True):
    """One kind of document, identified by its capability and its root element.

    Args:
        name: The name of the kind, with an article.
        capability: The value of `rs:md/@capability` in the document.
        section: The section of the specification that defines the kind.
        index: Whether the root is a `sitemapindex`.
        time: The times of the document: `at` (and `completed`), `from` (and `until`), or neither.
        entry_time: The times of each entry, as for `time`, or both.
        required: The parts that the document must have.
        recommended: The parts that the document should have.
        entry_required: The parts that each entry must have.
        entry_recommended: The parts that each entry should have.
        ordered: The severity if the entries are not in chronological order; None if they may have
            any order.
        changes: Whether the entries are changes.
        packages: Whether the entries are packages.
        documents: Whether the entries are ResourceSync documents.
    """

    name: str
    capability: str
    section: str
    index: bool = False
    time: str = ""
    entry_time: str = ""
    required: tuple[str, ...] = ()
    recommended: tuple[str, ...] = ()
    entry_required: tuple[str, ...] = ()
    entry_recommended: tuple[str, ...] = ()
    ordered: Severity | None = None
    changes: bool = False
    packages: bool = False
    documents: bool = False

    @property
    def id(self) -> str:
        """The prefix of the ids of this kind's rules."""
        return f"{self.capability}-index" if self.index else self.capability

    @property
    def is_manifest(self) -> bool:
        """Whether this kind is a manifest, which lists the content of a package."""
        return self.capability.endswith("-manifest")

    @property
    def is_archive(self) -> bool:
        """Whether this kind is an Archive or an Archive Index."""
        return self.capability.endswith("-archive")


def _archives(name: str, core: str, section: str, time: str) -> tuple[Kind, Kind]:
    """Return the kinds for an Archive and for its Index (archives §3 to §6, §3.1)."""
    archive = Kind(
        name=f"a {name} Archive",
        capability=f"{core}-archive",
        section=section,
        entry_time=time,
        required=("up",),
        entry_recommended=(_AT,) if time == _AT else (),
        ordered=Severity.ERROR if time == _FROM else None,
        documents=True,
    )
    return archive, _index(archive, "archives §3.1")


def _index(kind: Kind, section: str) -> Kind:
    """Return the kind for an index of documents of the given kind (core §10.2, §12.2)."""
    has_changes = kind.time == _FROM
    return Kind(
        name=f"{kind.name} Index",
        capability=kind.capability,
        section=section,
        index=True,
        time=kind.time,
        entry_time=kind.time or kind.entry_time,
        required=kind.required,
        entry_recommended=(_FROM,) if has_changes else (),
        ordered=Severity.ERROR if has_changes else None,
        documents=True,
    )


_DESCRIPTION = Kind(
    name="a Source Description",
    capability=Capability.DESCRIPTION,
    section="core §8",
    recommended=("describedby",),
    entry_recommended=("describedby",),
    documents=True,
)
_RESOURCE_LIST = Kind(
    name="a Resource List",
    capability=Capability.RESOURCE_LIST,
    section="core §10.1",
    time=_AT,
    required=(_AT, "up"),
)
_RESOURCE_DUMP = Kind(
    name="a Resource Dump",
    capability=Capability.RESOURCE_DUMP,
    section="core §11.1",
    time=_AT,
    entry_time=_AT,
    required=(_AT, "up"),
    entry_recommended=("type", "length"),
    packages=True,
)
_CHANGE_LIST = Kind(
    name="a Change List",
    capability=Capability.CHANGE_LIST,
    section="core §12.1",
    time=_FROM,
    required=(_FROM, "up"),
    entry_required=("change", "lastmod"),
    ordered=Severity.ERROR,
    changes=True,
)
_CHANGE_DUMP = Kind(
    name="a Change Dump",
    capability=Capability.CHANGE_DUMP,
    section="core §13.1",
    time=_FROM,
    entry_time=_FROM,
    required=(_FROM, "up"),
    entry_recommended=(_FROM, "type", "length"),
    ordered=Severity.WARNING,
    packages=True,
)

KINDS: tuple[Kind, ...] = (
    _DESCRIPTION,
    _index(_DESCRIPTION, "core §8"),
    Kind(
        name="a Capability List",
        capability=Capability.CAPABILITY_LIST,
        section="core §9",
        required=("up",),
        recommended=("describedby",),
        entry_required=("capability",),
        documents=True,
    ),
    _RESOURCE_LIST,
    _index(_RESOURCE_LIST, "core §10.2"),
    _RESOURCE_DUMP,
    _index(_RESOURCE_DUMP, "core §11.1"),
    replace(
        _RESOURCE_LIST,
        name="a Resource Dump Manifest",
        capability=Capability.RESOURCE_DUMP_MANIFEST,
        section="core §11.2",
        entry_required=("path",),
        entry_recommended=("type",),
    ),
    _CHANGE_LIST,
    _index(_CHANGE_LIST, "core §12.2"),
    _CHANGE_DUMP,
    _index(_CHANGE_DUMP, "core §13.1"),
    replace(
        _CHANGE_LIST,
        name="a Change Dump Manifest",
        capability=Capability.CHANGE_DUMP_MANIFEST,
        section="core §13.2",
        entry_required=("change", "lastmod", "path"),
        entry_recommended=("type",),
    ),
    *_archives("Resource List", Capability.RESOURCE_LIST, "archives §3", _AT),
    *_archives("Resource Dump", Capability.RESOURCE_DUMP, "archives §4", _AT),
    *_archives("Change List", Capability.CHANGE_LIST, "archives §5", _FROM),
    *_archives("Change Dump", Capability.CHANGE_DUMP, "archives §6", _FROM),
    Kind(
        name="a Framework Notification",
        capability=Capability.FRAMEWORK_NOTIFICATION,
        section="framework notification §3",
        time=_FROM,
        entry_time=_EITHER,
        required=("up",),
        entry_required=("capability", "change"),
        ordered=Severity.ERROR,
        changes=True,
    ),
)

_BY_CAPABILITY = {(kind.capability, kind.index): kind for kind in KINDS}
#: The capabilities of documents that are defined in other specifications.
SPECIFIED_ELSEWHERE = frozenset({Capability.CHANGE_NOTIFICATION})
#: All values of `rs:md/@capability`.
CAPABILITIES = frozenset(kind.capability for kind in KINDS) | SPECIFIED_ELSEWHERE
#: Capabilities that a Capability List must not list: of documents above it, or within packages.
NOT_OFFERED = frozenset(
    {
        Capability.DESCRIPTION,
        Capability.CAPABILITY_LIST,
        Capability.RESOURCE_DUMP_MANIFEST,
        Capability.CHANGE_DUMP_MANIFEST,
        Capability.FRAMEWORK_NOTIFICATION,
    }
)
#: Capabilities whose entries lead to a channel, not to a document.
TOPICS = frozenset({Capability.CHANGE_NOTIFICATION, Capability.FRAMEWORK_NOTIFICATION})
#: The capabilities of entries in a Source Description: a set of resources, or the channel for
#: Framework Notifications (framework notification §5).
DESCRIBED = frozenset({Capability.CAPABILITY_LIST, Capability.FRAMEWORK_NOTIFICATION})


def kind_of(capability: str | None, *, index: bool) -> Kind | None:
    """Return the kind of a document, or None if the specifications have no such kind."""
    return None if capability is None else _BY_CAPABILITY.get((capability, index))
