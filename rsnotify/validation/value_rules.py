"""The rules on single values and links."""

from __future__ import annotations

from rsnotify.validation.findings import Rule, must, should

VALUE_RULES: tuple[Rule, ...] = (  # Values.
    must("loc-missing", "core §7", "the entry must have loc; add the URI of the resource"),
    should("loc-long", "core §7", "a loc of Sitemaps is shorter than 2,048 characters"),
    must("uri-relative", "core §7", "a URI must be absolute; write it with its scheme and host"),
    must("uri-characters", "core §7", "a URI must not have such characters; percent-encode them"),
    must(
        "datetime-syntax",
        "core §7",
        "a datetime must be a W3C Datetime; write it as 2013-01-03T09:00:00Z",
    ),
    should(
        "datetime-form",
        "core §7",
        "a complete datetime in UTC is recommended; write it as 2013-01-03T09:00:00Z",
    ),
    must("change-value", "core §7", "change must be one of created, updated, deleted"),
    must(
        "changefreq-value",
        "core §7",
        "changefreq must be one of always, hourly, daily, weekly, monthly, yearly, never",
    ),
    should(
        "encoding-value",
        "core §7",
        "encoding should equal the Content-Encoding; write its names, with commas between them",
    ),
    must(
        "hash-syntax",
        "core §7",
        "hash must be algorithm:digest with a hexadecimal digest, or several with white space "
        "between them",
    ),
    must(
        "hash-length",
        "core §7",
        "a digest of this algorithm has another number of hexadecimal digits; correct it",
    ),
    should(
        "hash-algorithm",
        "core §7",
        "no such hash function is known here; use the name in the IANA registry, as sha-256",
    ),
    must("length-value", "core §7", "length must be a whole number of bytes"),
    must("type-value", "core §7", "type must be a Media Type, such as text/html"),
    must(
        "path-rooted",
        "core §11.2",
        "path must begin with a slash, which is the root of the package",
    ),
    must(
        "path-within",
        "core §11.2",
        "path must lead to a file within the package, without empty parts, dots or backslashes",
    ),
    # Links.
    must("link-href-missing", "core §7", "rs:ln must have href; add the URI it leads to"),
    must("link-rel-missing", "core §7", "rs:ln must have rel; add how they are related"),
    must("rel-syntax", "core §7", "rel must be a registered relation type or a URI"),
    should(
        "rel-unregistered",
        "core §7",
        "rel must be a registered relation type or a URI, and the registry known here does not "
        "have it; use a URI",
    ),
    must("pri-range", "core §7", "pri must be a whole number from 1 to 999999"),
    should(
        "duplicate-attributes",
        "core §14.2",
        "a mirror has the encoding, hash, length and type of the resource; give them in rs:md",
    ),
    should(
        "alternate-type-missing",
        "core §14.3",
        "an alternate representation should have its type; add the Media Type",
    ),
    must(
        "patch-not-allowed",
        "core §14.4",
        "patches belong to the entries of Change Lists and Change Dump Manifests; remove the link",
    ),
    must(
        "patch-type-missing",
        "core §14.4",
        "a patch must have its type; add the Media Type of the description of changes",
    ),
    must(
        "patch-path-missing",
        "core §14.4",
        "in a Change Dump Manifest a patch must have path; add where it is in the package",
    ),
    should(
        "memento-repeated",
        "core §14.6",
        "an entry has a single memento, the version of its datetime; list others in a TimeMap",
    ),
    must(
        "memento-lastmod-missing",
        "core §14.6",
        "version 1.0 requires lastmod beside memento, timegate and timemap; add it",
    ),
    should(
        "timegate-attributes",
        "core §14.6",
        "for a TimeGate other attributes than rel and href mean nothing; remove them",
    ),
    should(
        "via-repeated",
        "core §14.8",
        "an aggregator keeps only the link to the original Source; remove the other via",
    ),
)
