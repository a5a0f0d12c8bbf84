"""All rules of the validator, by `id`.

The rules on the required and recommended parts of each kind of document are derived from the table
of kinds. All others are written out here. The reference on the documentation site lists all rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rsnotify_validation.kinds import KINDS, Finding, Kind, Rule, Severity

_SEVERITIES = {"must": Severity.ERROR, "should": Severity.WARNING}
#: A rule in a table: a line with the `id`, `must` or `should`, and the section, and then the
#: sentence in indented lines.
_RULE = re.compile(r"^(\S+): (must|should), (.+)\n((?: +.+\n)+)", re.MULTILINE)


def _parse_rules(table: str) -> tuple[Rule, ...]:
    """Parse a table of rules. A line that begins with `#` is a heading."""
    return tuple(
        Rule(id, section, _SEVERITIES[verb], " ".join(sentence.split()))
        for id, verb, section, sentence in _RULE.findall(table)
    )


#: Rules about the whole document: its elements, its head and its times.
DOCUMENT_RULES = _parse_rules("""
# The document as XML.
not-well-formed: must, core §7
    the document is not well-formed XML; correct it
doctype: must, safety
    the document has a DOCTYPE, which no reader should follow; remove it
limit: must, safety
    the document is beyond what can be read safely, and was read no further; make it smaller
root-element: must, core §7
    the root must be urlset or sitemapindex in the namespace
    http://www.sitemaps.org/schemas/sitemap/0.9; rename it, or correct its namespace
# Its kind.
plain-sitemap: should, core §6.1
    there is no rs:md: this is a plain Sitemap; add one for it to be a Resource List
md-missing: must, core §7
    a ResourceSync document must have an rs:md below its root; add one with its capability
md-repeated: must, core §7
    there is a second rs:md in one place; join them
capability-missing: must, core §7
    the rs:md of the document must have capability; add what kind of document this is
capability-unknown: should, core §7
    no specification known here defines this capability; correct it if it is a slip
index-undefined: must, core §7
    there is no index of this kind of document; use a urlset
capabilitylist-index: should, core §9
    a Source should have no Capability List Index; write one Capability List per set
# Elements and attributes.
element-unknown: must, core §7
    the specifications have no such element here; remove it, or use a namespace of your own
element-misplaced: must, core §7
    this element does not belong here, and its content is lost; a urlset has url, a sitemapindex has
    sitemap, and neither is nested
element-repeated: must, core §7
    this element may occur once; keep one of them
attribute-unknown: must, core §7
    ResourceSync defines no such attribute here; remove it, or use a namespace of your own
attribute-prefixed: must, core §7
    the attributes of ResourceSync must not have a prefix; remove it
entry-attributes: must, core §10.1
    url and sitemap have no attributes; use child elements
document-link-attribute: should, core §7
    below the root, rs:ln has only href and rel; remove the other
datetime-not-in-1.0: must, core §7
    version 1.0 has no datetime in rs:md; use lastmod, or say that this is version 1.1
datetime-not-allowed: must, core 1.1 §7
    datetime belongs to the entries of Change Lists and Change Dump Manifests; remove it
change-not-used: should, core §7
    change belongs to the entries of Change Lists and Change Dump Manifests; remove it
path-not-allowed: must, core §7
    path belongs to the entries of Manifests only; remove it
entry-capability-not-used: should, core §7
    in an entry, capability belongs to Source Descriptions, Capability Lists and Framework
    Notifications; remove it
# Times.
document-at-not-allowed: must, core Appendix A
    this kind of document covers an interval: from and until; remove at and completed
document-from-not-allowed: must, core Appendix A
    this kind of document is a snapshot: at and completed; remove from and until
document-time-not-used: should, core §7
    at, completed, from and until mean nothing in this kind of document; remove them
entry-at-not-allowed: must, core Appendix A
    the entries of this kind of document have no at and completed; remove them
entry-from-not-allowed: must, core Appendix A
    the entries of this kind of document have no from and until; remove them
completed-before-at: must, core §7
    a snapshot cannot be completed before it began; completed must not be before at
completed-without-at: should, core §7
    completed without at means nothing; add when the snapshot began
until-before-from: must, core §7
    an interval cannot end before it begins; until must not be before from
until-without-from: should, core §7
    until without from leaves open where the interval begins; add from
entry-at-early: should, core §7
    a part's snapshot began before that of the whole, whose at is then no promise; at of the
    document must be the earliest
entry-interval-outside: should, core §7
    the entry's interval reaches beyond that of the document; correct from or until
entry-interval-overlap: should, core §12.2
    the interval begins before the previous one ends, so that changes are listed twice; from should
    be the until of the previous one
datetime-outside: must, core 1.1 §7
    datetime must be within from and until of the document
lastmod-outside: should, core §12.1
    in version 1.0 lastmod is the datetime of the change, and should be within from and until of the
    document
change-not-unique: should, core §12.1
    in version 1.0 two changes of one resource should not have one datetime; use fractions of a
    second
resource-repeated: should, RFC 3986 §6.2
    the resource is listed in two spellings of its URI, of which a Destination holds one; remove the
    other
# The audit attributes.
audit-incomplete: must, audit
    the audit of a set needs count, hash and digest; give all three, or none
audit-value: must, audit
    count must be a whole number, hash the name of a hash function, and digest 32 hexadecimal digits
    in lower case; correct it
audit-until-missing: must, audit
    the audit of a set is as of the document's until; add until
# The document as a whole.
too-many-entries: must, core §7
    a document may have 50,000 entries; split it into several and write an index
too-large: must, core §7
    a document may have 50 MB; split it into several and write an index
capability-repeated: must, core §9
    a Capability List must have one entry for a capability; use an index for several documents
capability-not-offered: must, core §9
    a Capability List offers the documents of one set; this kind of document is not one of them
description-capability: must, core §8
    the rs:md of an entry of a Source Description must have capability capabilitylist, or
    framework-notification
packages-mixed: should, core §11.1
    the packages of one dump should be of one format; use one type
""")

#: Rules about single values and links.
VALUE_RULES = _parse_rules("""
# Values.
loc-missing: must, core §7
    the entry must have loc; add the URI of the resource
loc-long: should, core §7
    a loc of Sitemaps is shorter than 2,048 characters
uri-relative: must, core §7
    a URI must be absolute; write it with its scheme and host
uri-characters: must, core §7
    a URI must not have such characters; percent-encode them
datetime-syntax: must, core §7
    a datetime must be a W3C Datetime; write it as 2013-01-03T09:00:00Z
datetime-form: should, core §7
    a complete datetime in UTC is recommended; write it as 2013-01-03T09:00:00Z
change-value: must, core §7
    change must be one of created, updated, deleted
changefreq-value: must, core §7
    changefreq must be one of always, hourly, daily, weekly, monthly, yearly, never
encoding-value: should, core §7
    encoding should equal the Content-Encoding; write its names, with commas between them
hash-syntax: must, core §7
    hash must be algorithm:digest with a hexadecimal digest, or several with white space between
    them
hash-length: must, core §7
    a digest of this algorithm has another number of hexadecimal digits; correct it
hash-algorithm: should, core §7
    no such hash function is known here; use the name in the IANA registry, as sha-256
length-value: must, core §7
    length must be a whole number of bytes
type-value: must, core §7
    type must be a Media Type, such as text/html
path-rooted: must, core §11.2
    path must begin with a slash, which is the root of the package
path-within: must, core §11.2
    path must lead to a file within the package, without empty parts, dots or backslashes
# Links.
link-href-missing: must, core §7
    rs:ln must have href; add the URI it leads to
link-rel-missing: must, core §7
    rs:ln must have rel; add how they are related
rel-syntax: must, core §7
    rel must be a registered relation type or a URI
rel-unregistered: should, core §7
    rel must be a registered relation type or a URI, and the registry known here does not have it;
    use a URI
pri-range: must, core §7
    pri must be a whole number from 1 to 999999
duplicate-attributes: should, core §14.2
    a mirror has the encoding, hash, length and type of the resource; give them in rs:md
alternate-type-missing: should, core §14.3
    an alternate representation should have its type; add the Media Type
patch-not-allowed: must, core §14.4
    patches belong to the entries of Change Lists and Change Dump Manifests; remove the link
patch-type-missing: must, core §14.4
    a patch must have its type; add the Media Type of the description of changes
patch-path-missing: must, core §14.4
    in a Change Dump Manifest a patch must have path; add where it is in the package
memento-repeated: should, core §14.6
    an entry has a single memento, the version of its datetime; list others in a TimeMap
memento-lastmod-missing: must, core §14.6
    version 1.0 requires lastmod beside memento, timegate and timemap; add it
timegate-attributes: should, core §14.6
    for a TimeGate other attributes than rel and href mean nothing; remove them
via-repeated: should, core §14.8
    an aggregator keeps only the link to the original Source; remove the other via
""")

#: Rules about references between documents, and about packages.
TREE_RULES = _parse_rules("""
# Between documents.
tree-unreachable: must, core §6.2
    the document that an entry names cannot be fetched; serve it, or remove the entry
tree-not-followed: should, core §6.2
    the document that an entry names was not checked
tree-up: must, core §6.2
    up must lead to the document above, which lists this one; correct one of the two
tree-capability: must, core §6.1
    the document is not of the kind stated where it is listed; correct one of the two
tree-index: must, core §6.2
    the link index must lead to an index that lists the document
tree-index-missing: should, core §6.2
    a document listed by an index should link to it; add an rs:ln with rel index
tree-index-nested: must, core §7
    an index groups documents of the urlset format; an index must not list an index
tree-times: must, core §7
    at, completed, from or until of the entry differ from those of the document itself
tree-until-missing: must, core §12.2
    the list is closed, so that its entry must have until
tree-until-early: must, core §12.2
    the list is open, so that its entry must not have until
tree-contents: must, core §11.1
    the Manifest that contents leads to must equal that in the package
tree-well-known: should, core §6.3.2
    a Source Description should be at /.well-known/resourcesync of the host; publish it there
# Packages.
package-format: should, core §11.1
    the package is not a readable ZIP file; only programs that know its format can read it
package-unsafe: must, core §11.2
    a member of the package has a name or form that no reader should unpack
package-manifest-missing: must, core §11.2
    a package must have a file manifest.xml at its top level; add the Manifest
package-path-missing: must, core §11.2
    the package has no file at this path of its Manifest; add it, or correct the path
package-not-described: should, core §11.2
    the Manifest does not describe a file of the package; add an entry
package-content: must, core §7
    the content does not have the stated hash or length
""")

#: The parts of a document that a kind may require, and what to add if a part is missing.
_DOCUMENT_PARTS = {
    "at": ("at in its rs:md", "the datetime at which the snapshot began"),
    "from": ("from in its rs:md", "the datetime since which it has every change"),
    "up": ("an rs:ln with rel up", "the URI of the document above it"),
    "describedby": ("an rs:ln with rel describedby", "a document that describes what this is"),
}
#: The parts of an entry that a kind may require, and what to add if a part is missing.
_ENTRY_PARTS = {
    "at": ("at in its rs:md", "when the snapshot began"),
    "capability": ("capability in its rs:md", "which kind of document loc leads to"),
    "change": ("change in its rs:md", "one of created, updated, deleted"),
    "describedby": ("an rs:ln with rel describedby", "a document that describes the set"),
    "from": ("from in its rs:md", "since when it has every change"),
    "lastmod": ("lastmod", "the datetime of the change, as version 1.0 requires"),
    "length": ("length in its rs:md", "the bytes of the package"),
    "path": ("path in its rs:md", "where the bitstream is in the package"),
    "type": ("type in its rs:md", "the Media Type"),
}


def _of_kind(kind: Kind) -> Iterator[Rule]:
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
        sentence = f"{kind.name} {verb} be in chronological order, the oldest first; sort it"
        yield Rule(f"{kind.id}-order", kind.section, kind.ordered, sentence)


#: Every rule, by its `id`.
RULES: dict[str, Rule] = {
    rule.id: rule
    for rule in (
        *DOCUMENT_RULES,
        *VALUE_RULES,
        *(rule for kind in KINDS for rule in _of_kind(kind)),
        *TREE_RULES,
    )
}


def make_finding(
    rule: str, line: int | None, element: str, detail: str = "", entry: int | None = None
) -> Finding:
    """Return a finding for a broken rule. `detail` describes what the document contains instead."""
    known = RULES[rule]
    message = f"{known.sentence} ({detail})" if detail else known.sentence
    return Finding(rule, known.section, known.severity, line, element, message, entry)
