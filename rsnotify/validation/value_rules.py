"""The rules on single values and links."""

from __future__ import annotations

from rsnotify.validation.findings import parse_rules

VALUE_RULES = parse_rules("""
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
