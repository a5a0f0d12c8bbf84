"""The rules on the whole document: its elements, its head and its times."""

from __future__ import annotations

from rsnotify.validation.findings import parse_rules

DOCUMENT_RULES = parse_rules("""
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
