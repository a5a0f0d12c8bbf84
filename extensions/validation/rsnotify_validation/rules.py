"""All rules of the validator, by `id`.

The rules on the required and recommended parts of each kind of document are derived from the table
of kinds. All others are written out here. The documentation site lists all rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rsnotify_validation.findings import Finding, Rule, Severity
from rsnotify_validation.kinds import KINDS, Kind

_SEVERITIES = {"must": Severity.ERROR, "should": Severity.WARNING}
#: A rule in a table: a line with the `id`, the severity and the section, and the sentence in
#: indented lines.
_RULE = re.compile(r"^(\S+): (must|should), (.+)\n((?: +.+\n)+)", re.MULTILINE)


def _parse_rules(table: str) -> tuple[Rule, ...]:
    """Parse a table of rules. A line that begins with `#` is a heading."""
    return tuple(
        Rule(id, section, _SEVERITIES[verb], " ".join(sentence.split()))
        for id, verb, section, sentence in _RULE.findall(table)
    )


#: Rules about the whole document: its elements, its head and its times.
DOCUMENT_RULES = _parse_rules("""
# XML.
not-well-formed: must, core §7
    the document is not well-formed XML; correct it
doctype: must, safety
    the document has a DOCTYPE, which is unsafe to process; remove it
limit: must, safety
    the document exceeds a safety limit, and was not read any further; make it smaller
root-element: must, core §7
    the root must be urlset or sitemapindex in the namespace
    http://www.sitemaps.org/schemas/sitemap/0.9; rename it, or correct its namespace
# The kind of document.
plain-sitemap: should, core §6.1
    without an rs:md, this is a plain Sitemap; add one to make it a Resource List
md-missing: must, core §7
    a ResourceSync document must have an rs:md below its root; add one with its capability
md-repeated: must, core §7
    there is more than one rs:md in the same place; merge them
capability-missing: must, core §7
    the rs:md of the document must have a capability; add the kind of document
capability-unknown: should, core §7
    no known specification defines this capability; check its spelling
index-undefined: must, core §7
    there is no index for this kind of document; use a urlset
capabilitylist-index: should, core §9
    a Source should have no Capability List Index; write one Capability List per set
# Elements and attributes.
element-unknown: must, core §7
    the specifications define no such element here; remove it, or use your own namespace
element-misplaced: must, core §7
    this element does not belong here, and readers ignore it; a urlset contains url elements, a
    sitemapindex contains sitemap elements, and neither can be nested
element-repeated: must, core §7
    this element may occur only once; keep one of them
attribute-unknown: must, core §7
    ResourceSync defines no such attribute here; remove it, or use your own namespace
attribute-prefixed: must, core §7
    ResourceSync attributes must not have a prefix; remove it
entry-attributes: must, core §10.1
    url and sitemap must not have attributes; use child elements
document-link-attribute: should, core §7
    an rs:ln below the root has only href and rel; remove the other attributes
datetime-not-in-1.0: must, core §7
    version 1.0 has no datetime in rs:md; use lastmod, or validate against version 1.1
datetime-not-allowed: must, core 1.1 §7
    only entries of Change Lists and Change Dump Manifests have datetime; remove it
change-not-used: should, core §7
    only entries of Change Lists and Change Dump Manifests have change; remove it
path-not-allowed: must, core §7
    only entries of Manifests have path; remove it
entry-capability-not-used: should, core §7
    only entries of Source Descriptions, Capability Lists and Framework Notifications have
    capability; remove it
# Times.
document-at-not-allowed: must, core Appendix A
    this kind of document covers an interval; use from and until instead of at and completed
document-from-not-allowed: must, core Appendix A
    this kind of document is a snapshot; use at and completed instead of from and until
document-time-not-used: should, core §7
    at, completed, from and until have no meaning in this kind of document; remove them
entry-at-not-allowed: must, core Appendix A
    entries of this kind of document must not have at and completed; remove them
entry-from-not-allowed: must, core Appendix A
    entries of this kind of document must not have from and until; remove them
completed-before-at: must, core §7
    completed must not be before at, the start of the snapshot; correct one of them
completed-without-at: should, core §7
    completed has no meaning without at; add the start of the snapshot
until-before-from: must, core §7
    until must not be before from; correct one of them
until-without-from: should, core §7
    without from, the interval has no start; add from
entry-at-early: should, core §7
    the at of an entry should not be before the at of the document, which is the earliest; correct
    one of them
entry-interval-outside: should, core §7
    the interval of the entry exceeds the interval of the document; correct from or until
entry-interval-overlap: should, core §12.2
    the interval overlaps the previous one, so changes may be listed twice; set from to the until of
    the previous entry
datetime-outside: must, core 1.1 §7
    datetime must be between the document's from and until; correct it
lastmod-outside: should, core §12.1
    in version 1.0, lastmod is the datetime of the change, and should be between the document's from
    and until; correct it
change-not-unique: should, core §12.1
    in version 1.0, two changes of a resource should not have the same datetime; use fractions of a
    second
resource-repeated: should, RFC 3986 §6.2
    the resource is listed under two spellings of its URI, but a Destination keeps only one; remove
    the other
# The audit attributes.
audit-incomplete: must, audit
    an audit needs count, hash and digest; add the missing ones, or remove all three
audit-value: must, audit
    count must be a whole number, hash the name of a hash function, and digest 32 lowercase
    hexadecimal digits; correct it
audit-until-missing: must, audit
    an audit describes the set at the document's until; add until
# The document as a whole.
too-many-entries: must, core §7
    a document may have at most 50,000 entries; split it, and write an index
too-large: must, core §7
    a document may have at most 50 MB; split it, and write an index
capability-repeated: must, core §9
    a Capability List must not list a capability twice; use an index for several documents
capability-not-offered: must, core §9
    a Capability List lists the documents of one set, and this kind of document is not one of them;
    remove the entry
description-capability: must, core §8
    in a Source Description, the capability of an entry must be capabilitylist or framework-
    notification; correct it
packages-mixed: should, core §11.1
    all packages of a dump should have the same format; use one type
""")

#: Rules about single values and links.
VALUE_RULES = _parse_rules("""
# Values.
loc-missing: must, core §7
    the entry must have a loc; add the URI of the resource
loc-long: should, core §7
    in Sitemaps, a loc should be shorter than 2,048 characters; shorten the URI
uri-relative: must, core §7
    a URI must be absolute; write it with its scheme and host
uri-characters: must, core §7
    a URI must not contain these characters; percent-encode them
datetime-syntax: must, core §7
    a datetime must be a W3C Datetime; write it as 2013-01-03T09:00:00Z
datetime-form: should, core §7
    a complete datetime in UTC is recommended; write it as 2013-01-03T09:00:00Z
change-value: must, core §7
    change must be created, updated or deleted
changefreq-value: must, core §7
    changefreq must be one of always, hourly, daily, weekly, monthly, yearly, never
encoding-value: should, core §7
    encoding should equal the Content-Encoding: one or more names, separated by commas
hash-syntax: must, core §7
    hash must be algorithm:digest with a hexadecimal digest; separate several of them by white space
hash-length: must, core §7
    the digest has the wrong number of hexadecimal digits for its algorithm; correct it
hash-algorithm: should, core §7
    the hash function is unknown; use a name from the IANA registry, such as sha-256
length-value: must, core §7
    length must be a whole number of bytes
type-value: must, core §7
    type must be a media type, such as text/html
path-rooted: must, core §11.2
    path must begin with a slash, which stands for the root of the package; add it
path-within: must, core §11.2
    path must not have empty segments, dot segments or backslashes; correct it
# Links.
link-href-missing: must, core §7
    rs:ln must have href; add the URI of the target
link-rel-missing: must, core §7
    rs:ln must have rel; add the relation type
rel-syntax: must, core §7
    rel must be a registered relation type or a URI
rel-unregistered: should, core §7
    rel is neither a URI nor a relation type that was registered by 2025; use a registered type or a
    URI
pri-range: must, core §7
    pri must be a whole number from 1 to 999999
duplicate-attributes: should, core §14.2
    a mirror has the same encoding, hash, length and type as the resource; move them to rs:md
alternate-type-missing: should, core §14.3
    a link to an alternate representation should have type; add the media type
patch-not-allowed: must, core §14.4
    only entries of Change Lists and Change Dump Manifests have patches; remove the link
patch-type-missing: must, core §14.4
    a link to a patch must have type; add the media type of the patch
patch-path-missing: must, core §14.4
    in a Change Dump Manifest, a link to a patch must have path; add its location in the package
memento-repeated: should, core §14.6
    an entry may link to only one memento, the version at its datetime; list others in a TimeMap
memento-lastmod-missing: must, core §14.6
    in version 1.0, an entry with memento, timegate or timemap must have lastmod; add it
timegate-attributes: should, core §14.6
    a link to a TimeGate should have only rel and href; remove the other attributes
via-repeated: should, core §14.8
    an entry should have only one via, the link to the original Source; remove the others
""")

#: Rules about references between documents, and about packages.
TREE_RULES = _parse_rules("""
# Between documents.
tree-unreachable: must, core §6.2
    a referenced document cannot be fetched; serve it, or remove the reference
tree-not-followed: should, core §6.2
    a referenced document was not checked
tree-up: must, core §6.2
    up must lead to the parent document, which lists this one; correct the link or the list
tree-capability: must, core §6.1
    the document's capability differs from the one stated where it is listed; correct one of them
tree-index: must, core §6.2
    the index link must lead to an index that lists the document; correct the link or the index
tree-index-missing: should, core §6.2
    a document listed by an index should link to it; add an rs:ln with rel index
tree-index-nested: must, core §7
    an index must not list another index; list documents of the urlset format
tree-times: must, core §7
    the times in the entry differ from the times in the document; correct one of them
tree-until-missing: must, core §12.2
    the list is closed, so its entry must have until; add it
tree-until-early: must, core §12.2
    the list is open, so its entry must not have until; remove it
tree-contents: must, core §11.1
    the Manifest that contents leads to must equal the one in the package; correct one of them
tree-well-known: should, core §6.3.2
    a Source Description should be at /.well-known/resourcesync of the host; publish it there
# Packages.
package-format: should, core §11.1
    the package is not a readable ZIP file; only programs that know its format can read it
package-unsafe: must, core §11.2
    a member of the package is unsafe to unpack; correct its name or format
package-manifest-missing: must, core §11.2
    a package must have a file manifest.xml at its top level; add the Manifest
package-path-missing: must, core §11.2
    the package has no file at a path in its Manifest; add the file, or correct the path
package-not-described: should, core §11.2
    the Manifest has no entry for a file in the package; add one
package-content: must, core §7
    the content does not match the stated hash or length; correct one of them
""")

#: The parts of a document that a kind may require, and what to add if a part is missing.
_DOCUMENT_PARTS = {
    "at": ("at in its rs:md", "the start of the snapshot"),
    "from": ("from in its rs:md", "the datetime since which it contains all changes"),
    "up": ("an rs:ln with rel up", "the URI of its parent document"),
    "describedby": ("an rs:ln with rel describedby", "the URI of a document that describes it"),
}
#: The parts of an entry that a kind may require, and what to add if a part is missing.
_ENTRY_PARTS = {
    "at": ("at in its rs:md", "the start of the snapshot"),
    "capability": ("capability in its rs:md", "the kind of document that loc leads to"),
    "change": ("change in its rs:md", "created, updated or deleted"),
    "describedby": (
        "an rs:ln with rel describedby",
        "the URI of a document that describes the set",
    ),
    "from": ("from in its rs:md", "the datetime since which it contains all changes"),
    "lastmod": ("lastmod", "the datetime of the change, which version 1.0 requires"),
    "length": ("length in its rs:md", "the size of the package in bytes"),
    "path": ("path in its rs:md", "the location of the bitstream in the package"),
    "type": ("type in its rs:md", "the media type"),
}


def _kind_rules(kind: Kind) -> Iterator[Rule]:
    for verb, severity, parts, entry_parts in (
        ("must", Severity.ERROR, kind.required, kind.entry_required),
        ("should", Severity.WARNING, kind.recommended, kind.entry_recommended),
    ):
        for part in parts:
            what, add = _DOCUMENT_PARTS[part]
            sentence = f"{kind.name} {verb} have {what}; add {add}"
            yield Rule(f"{kind.id}-{part}-missing", kind.section, severity, sentence)
        for part in entry_parts:
            what, add = _ENTRY_PARTS[part]
            sentence = f"an entry of {kind.name} {verb} have {what}; add {add}"
            yield Rule(f"{kind.id}-entry-{part}-missing", kind.section, severity, sentence)
    if kind.ordered is not None:
        verb = "must" if kind.ordered is Severity.ERROR else "should"
        sentence = f"{kind.name} {verb} be in chronological order, oldest first; sort it"
        yield Rule(f"{kind.id}-order", kind.section, kind.ordered, sentence)


#: Every rule, by its `id`.
RULES: dict[str, Rule] = {
    rule.id: rule
    for rule in (
        *DOCUMENT_RULES,
        *VALUE_RULES,
        *(rule for kind in KINDS for rule in _kind_rules(kind)),
        *TREE_RULES,
    )
}


def make_finding(
    rule: str, line: int | None, element: str, detail: str = "", entry: int | None = None
) -> Finding:
    """Return a finding for a broken rule. `detail` says what the document contains instead."""
    known = RULES[rule]
    message = f"{known.sentence} ({detail})" if detail else known.sentence
    return Finding(rule, known.section, known.severity, line, element, message, entry)
